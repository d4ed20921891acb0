# SPDX-License-Identifier: Apache-2.0
"""What a run file and a `Run` hold of checkpoints and logging, but for the single calls, which are
in the log of causes."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from pyinstrument_gpu.core.file.json_document import Count

NAME = "outputs"
"""Of the document in the run file, of the attribute of a `Run`, and of the section."""
CHECKPOINT_KIND, LOGGING_KIND = 8, 9
"""In the log of causes, where a note is the number of the place."""
MOST_PLACES = 64
MOST_TEXT = 300

_Text = Annotated[str, Meta(max_length=MOST_TEXT)]


class OutputPlace(Struct, frozen=True, kw_only=True):
    """A line of the program that writes something, by calls that took longer than a tenth of a
    millisecond.

    Attributes:
        call: what it calls, such as "torch.save".
        is_checkpoint: whether that writes a checkpoint; otherwise it logs.
        file, line: where it stands; None where that is not known.
        count: how many such calls it made.
        total_ns: how long they took together.
        size_bytes: of what the last one wrote; None where that is not known.
    """

    call: _Text
    is_checkpoint: bool
    file: _Text | None = None
    line: Count | None = None
    count: Count
    total_ns: Count
    size_bytes: Count | None = None


class Outputs(Struct, frozen=True):
    """What the program has written while the run was recorded.

    Attributes:
        places: in the order in which they first wrote something.
        not_watched: the calls that are not built as expected, whose times are not known.
    """

    places: Annotated[tuple[OutputPlace, ...], Meta(max_length=MOST_PLACES)] = ()
    not_watched: Annotated[tuple[_Text, ...], Meta(max_length=MOST_PLACES)] = ()
