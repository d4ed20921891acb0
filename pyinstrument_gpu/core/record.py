# SPDX-License-Identifier: Apache-2.0
"""Tables to which the numbers of a run refer: threads, streams, open phases, source lines."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import CodeType

_INSTALLED = re.compile(
    r".*[/\\](?:site-packages|dist-packages|lib[/\\]python3\.\d+t?|torchinductor_[^/\\]*)[/\\](.+)",
    re.DOTALL,
)
"""The last folder is that of code which torch.compile has written."""

_CELL = re.compile(r"Cell In\[\d+\]")

_LAST_DEFAULT_HANDLE = 2


def numbered_places(
    lines: Iterable[tuple[CodeType, int]], function_of: Callable[[CodeType], tuple[str, str]]
) -> tuple[list[tuple[str, str]], list[tuple[int, int]]]:
    """Functions, each once, and of each line the number of its function and its own.

    Args:
        function_of: the file and the name of a function.
    """
    numbers: dict[int, int] = {}  # code that is equal may be another function
    functions: list[tuple[str, str]] = []
    places: list[tuple[int, int]] = []
    for code, line in lines:
        if id(code) not in numbers:
            numbers[id(code)] = len(functions)
            functions.append(function_of(code))
        places.append((numbers[id(code)], line))
    return functions, places


def is_installed(file: str) -> bool:
    """Return whether a file belongs to a library or to Python itself."""
    return _INSTALLED.fullmatch(file) is not None


@dataclass(frozen=True)
class Thread:
    """A thread that ended a span or a step.

    Attributes:
        native_id: the operating system's number of the thread.
        name: its name when it was first seen.
    """

    native_id: int
    name: str


@dataclass(frozen=True)
class Stream:
    """A stream of a device.

    Attributes:
        device: the device's ordinal.
        handle: the driver's handle; 0, 1 and 2 mean the default stream.
        name: "default stream", or "stream 1", "stream 2" and so on for each device.
    """

    device: int
    handle: int
    name: str

    @property
    def is_default(self) -> bool:
        return self.handle <= _LAST_DEFAULT_HANDLE


def named_streams(places: Iterable[tuple[int, int]]) -> tuple[Stream, ...]:
    """Streams given by device and handle, with their names: numbered in order of appearance."""
    numbers: dict[int, int] = {}
    streams = []
    for device, handle in places:
        name = "default stream"
        if handle > _LAST_DEFAULT_HANDLE:
            numbers[device] = numbers.get(device, 0) + 1
            name = f"stream {numbers[device]}"
        streams.append(Stream(device, handle, name))
    return tuple(streams)


@dataclass(frozen=True)
class OpenPhase:
    """A phase that had begun and not ended when the run was last written.

    Attributes:
        path: its path, as in `Run.paths`.
        thread: its thread, as an index into `Run.threads`.
        begin_ns: begin, in ns since the run began.
        step: index of the step it belongs to; -1 none.
        depth: number of phases around it.
    """

    path: str
    thread: int
    begin_ns: int
    step: int
    depth: int


@dataclass(frozen=True)
class SourceLine:
    """A line of source code.

    Attributes:
        file: path of the file, or "Cell In[2]" for a cell of a notebook.
        line: its number.
        function: name of the function around it.
    """

    file: str
    line: int
    function: str

    def seen_from(self, folders: Sequence[str]) -> str:
        """The line as `file:line`, or as "Cell In[2], line 3". Installed code has its library's
        name, as in `transformers/trainer.py:2345`. Other files are named from the first of these
        folders that they lie in, or in full."""
        if _CELL.fullmatch(self.file):
            return f"{self.file}, line {self.line}"
        installed = _INSTALLED.fullmatch(self.file)
        name = installed[1] if installed else self.file
        for folder in () if installed else folders:
            inside = folder.rstrip(os.sep) + os.sep
            if inside != os.sep and self.file.startswith(inside):
                name = self.file[len(inside) :]
                break
        return f"{name}:{self.line}"
