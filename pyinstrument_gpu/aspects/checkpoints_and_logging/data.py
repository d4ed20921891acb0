# SPDX-License-Identifier: Apache-2.0
"""The data of checkpoints and logging in a run file and a `Run`, but for the single calls, which
are in the log of causes."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from pyinstrument_gpu.aspects.checkpoints_and_logging import MOST_PLACES, MOST_TEXT
from pyinstrument_gpu.core.file.json_document import Count

_Text = Annotated[str, Meta(max_length=MOST_TEXT)]


class OutputPlace(Struct, frozen=True, kw_only=True):
    """A line of the program that writes something, by calls that took longer than a tenth of a
    millisecond.

    Attributes:
        call: what it calls, such as "torch.save".
        file, line: where it stands.
        size_bytes: of what the last one wrote; None where that is not known.
    """

    call: _Text
    file: _Text
    line: Count
    size_bytes: Count | None = None


class CheckpointsAndLogging(Struct, frozen=True):
    """The checkpoints and logs that the program wrote while the run was recorded.

    Attributes:
        places: in the order in which they first wrote something.
        not_watched: the calls that are not built as expected, whose times are not known.
    """

    places: Annotated[tuple[OutputPlace, ...], Meta(max_length=MOST_PLACES)] = ()
    not_watched: Annotated[tuple[_Text, ...], Meta(max_length=MOST_PLACES)] = ()
