# SPDX-License-Identifier: Apache-2.0
"""The reader's findings by the time that it comes to the aspects of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.file.blocks import Blocks, BlockType, Records
from pyinstrument_gpu.core.file.items import STEP_PROFILED
from pyinstrument_gpu.core.file.json_document import decode_object
from pyinstrument_gpu.core.file.names import LogTables
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.file.steps import StepNumbering
from pyinstrument_gpu.errors import RunFileError

_Part = TypeVar("_Part")


@dataclass
class Found:
    """A run file, read as far as phases and steps go.

    Attributes:
        blocks: of the file.
        state: its STATE document.
        notes: of the run, which grow.
        tables: the names, paths and threads that items refer to.
        anchor: the first reading of the machine's clocks.
        numbering: makes the steps' indices of their serial numbers.
        step_records: the items of closed steps, of which those behind the first untrue are not
            among the steps.
        steps: the closed steps.
        spans: of phases and modules.
    """

    blocks: Blocks
    state: State
    notes: list[str]
    tables: LogTables
    anchor: Mapping[str, int]
    numbering: StepNumbering
    step_records: Records
    steps: NDArray[np.void]
    spans: NDArray[np.void]

    @property
    def profiled_steps(self) -> NDArray[np.int64]:
        """The indices of the closed steps that say themselves that they were profiled."""
        flags = self.step_records.items["flags"][: len(self.steps)]
        profiled: NDArray[np.int64] = self.steps["index"][flags & STEP_PROFILED != 0]
        return profiled

    def document(
        self, where: BlockType | str, what: str, decode: Callable[[bytes], _Part]
    ) -> _Part | None:
        """A document that the rest of the run does not rest on; None, with a note, where it is
        damaged or makes no sense.

        Args:
            where: its block, or its name among the documents that share the block ASPECTS.
            what: it is, as the note says it.
        """
        try:
            data = self._content(where)
            return None if data is None else decode(data)
        except RunFileError as error:
            self.notes.append(f"{what} was left out: {error}")
            return None

    def _content(self, where: BlockType | str) -> bytes | None:
        if isinstance(where, BlockType):
            return self.blocks.documents.get(where)
        data = self.blocks.documents.get(BlockType.ASPECTS)
        if data is None:
            return None
        members = decode_object(data, "ASPECTS", dict[str, Any])
        return json.dumps(members[where]).encode() if where in members else None

    def note_lacking(
        self, block_type: BlockType, what: str, records: Records, kept: int, written: int
    ) -> None:
        """Note what a log of history lacks: what has made room, and what is missing at its end.

        Args:
            kept: how many of the records were read.
            written: how many there were in the whole run, as far as STATE knows.
        """
        if records.first and block_type not in self.blocks.shortened:
            self.notes.append(
                f"the oldest {records.first:,} {what} were removed from the history to make room"
            )
        missing = max(written, records.first + len(records.items)) - records.first - kept
        if missing > 0:
            self.notes.append(f"missing at the end of the history: {missing:,} {what}")
