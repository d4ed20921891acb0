# SPDX-License-Identifier: Apache-2.0
"""The data of set-up calls in a run file and a `Run`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct

from pyinstrument_gpu.aspects.setup_calls import MOST_CALLS, MOST_TEXT
from pyinstrument_gpu.core.file.json_document import Count
from pyinstrument_gpu.core.record import SourceLine

_Text = Annotated[str, Meta(max_length=MOST_TEXT)]


class CollateFunction(Struct, frozen=True):
    """A function of the program that makes a batch of samples."""

    function: _Text
    file: _Text
    line: Count

    @property
    def place(self) -> SourceLine:
        return SourceLine(self.file, self.line, self.function)


class SetupCall(Struct, frozen=True, kw_only=True):
    """A line of the program that makes a loader or an optimizer, or sets a mode of torch.

    Attributes:
        kind: "loader", "optimizer", "threads", "anomaly"; "backward" of a backward pass that keeps
            a graph of itself; "retained" of one that keeps what was saved for it; "autocast" of
            that on the CPU; "doubles" of a tensor of float64 that is made of an array of numpy's;
            "hooks" of a hook that is registered in steps, where as many are there already; "kept"
            of a line of the loop that adds to the name `call`.
        call: what it calls, such as "AdamW".
        file, line: where it stands.
        is_shuffled: of a loader, whether its batches are drawn at random, as those that are trained
            on are as a rule.
        collate: of a loader, its `collate_fn`, if that is a function in Python that is not torch's.
        batch_size: of a loader, how many samples are in a batch; 0 unknown.
        dtypes: of an optimizer, the types of its parameters, such as "float32".
        matrices, elements: of an optimizer, how many of its parameters have two dimensions, as
            those of linear layers have, and the number of elements in these.
        kernels: of an optimizer, how many have more, as those of convolutions have.
        hooks: of hooks, how many there were at most.
    """

    kind: _Text
    call: _Text
    file: _Text
    line: Count
    is_shuffled: bool = False
    collate: CollateFunction | None = None
    dtypes: Annotated[tuple[_Text, ...], Meta(max_length=MOST_CALLS)] = ()
    batch_size: Count = 0
    matrices: Count = 0
    elements: Count = 0
    kernels: Count = 0
    hooks: Count = 0

    @property
    def place(self) -> SourceLine:
        return SourceLine(self.file, self.line, "")


class SetupCalls(Struct, frozen=True):
    """The calls that set training up, as far as they were made while the run was recorded.

    Attributes:
        calls: in the order in which each line first made one.
    """

    calls: Annotated[tuple[SetupCall, ...], Meta(max_length=MOST_CALLS)] = ()

    def of_kind(self, kind: str) -> Iterator[SetupCall]:
        return (one for one in self.calls if one.kind == kind)

    def only(self, kind: str) -> SetupCall | None:
        """Return the only line that calls such a thing. Of several loaders it is the only one that
        shuffles. None where it can't be told from others."""
        found = list(self.of_kind(kind))
        if len(found) > 1:
            found = [one for one in found if one.is_shuffled]
        return found[0] if len(found) == 1 else None
