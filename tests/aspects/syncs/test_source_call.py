# SPDX-License-Identifier: Apache-2.0
"""In which words a program reads a number, by instructions that differ between Python versions."""

import sys
from types import FrameType
from typing import Any

import pytest

from pyinstrument_gpu.aspects.syncs.preview.source_call import kind_of_read
from pyinstrument_gpu.core.sync_kind import SyncKind


class Number:
    """Remembers in which words each of its readers reads it."""

    def __init__(self) -> None:
        self.read: list[SyncKind] = []

    def _note(self, reader: FrameType) -> None:
        self.read.append(kind_of_read(reader))

    def __index__(self) -> int:
        self._note(sys._getframe(1))
        return 1

    def __bool__(self) -> bool:
        self._note(sys._getframe(1))
        return True

    def __format__(self, _: str) -> str:
        self._note(sys._getframe(1))
        return "1"

    def __eq__(self, _: object) -> Any:
        return self


BOOLS = ["if x: pass", "while x: break", "assert x", "not x", "x and 1", "x or 1", "x and x"]
BOOLS += ["1 if x else 2", "[1] == [x]", "[a for a in [1] if x]"]
INDICES = ["y[x]", "y[x] = 1", "del y[x]", "y[:x]", "y[:x] = [1]", "del y[x:]", "y[0:2:x]"]
INDICES += ["y * x", "y *= x"]
KINDS = {
    SyncKind.BOOL: BOOLS,
    SyncKind.COMPARE: ["1 in [x]"],
    SyncKind.FORMAT: ["f'{x}'", "f'{x:>4}'", "'%d' % x", "a = '%d'; a %= x"],
    SyncKind.INT: INDICES,
}


@pytest.mark.parametrize(("kind", "lines"), KINDS.items(), ids=[str(kind) for kind in KINDS])
def test_each_word_that_reads_a_number(kind: SyncKind, lines: list[str]) -> None:
    for line in lines:
        number = Number()
        exec(compile(line, "<program>", "exec"), {"x": number, "y": [1, 2, 3]})
        assert set(number.read) == {kind}, line
