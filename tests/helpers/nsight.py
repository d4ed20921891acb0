# SPDX-License-Identifier: Apache-2.0
"""What reads the exports for Nsight Systems: its own programs, and a plain reader of NVTXT."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

NSYS = shutil.which("nsys")
HOST = Path("/usr/lib/nsight-systems/host-linux-x64")
"""The folder of ImportNvtxt and its libraries, in Debian."""

needs_nsight = pytest.mark.skipif(
    NSYS is None or not HOST.is_dir(),
    reason="Nsight Systems is not installed (Debian: nsight-systems in non-free)",
)


class Range(NamedTuple):
    process: int
    row: int
    text: str
    color: int
    begin_ns: int
    end_ns: int


class Nvtxt(NamedTuple):
    """What stands in NVTXT, as ImportNvtxt understands it.

    Attributes:
        ranges: sorted.
        processes: names by process.
        rows: names by process and row.
    """

    ranges: list[Range]
    processes: dict[int, str]
    rows: dict[tuple[int, int], str]


# A backslash stays, but a quote after it does not end the string.
_STRING = r"""(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
_LINES = {
    "comment": r"#.*",
    "title": f"SetFileDisplayName, {_STRING}",
    "columns": r"@RangePush, Time, Color, Message|@RangePop, Time",
    "base": r"TimeBase = Relative",
    "process": r"ProcessId = (\d+)",
    "row": r"ThreadId = (\d+)",
    "process_name": rf"NameProcess, (\d+), ({_STRING})",
    "row_name": rf"NameOsThread, (\d+), (\d+), ({_STRING})",
    "push": rf"RangePush, (\d+), 0x([0-9A-F]{{8}}), ({_STRING})",
    "pop": r"RangePop, (\d+)",
}


def read_nvtxt(data: bytes) -> Nvtxt:
    """Reads NVTXT and checks that each row is in the order of time and every pop has its push."""
    found = Nvtxt([], {}, {})
    process = row = 0
    stacks: dict[tuple[int, int], list[tuple[str, int, int]]] = {}
    times: dict[tuple[int, int], int] = {}
    assert data.endswith(b"\n")
    for line in data.decode("utf-8").removesuffix("\n").split("\n"):
        kind, fields = _parsed(line)
        if kind == "process":
            process = int(fields[0])
        elif kind == "row":
            row = int(fields[0])
        elif kind == "process_name":
            found.processes[int(fields[0])] = fields[1][1:-1]
        elif kind == "row_name":
            assert (int(fields[0]), int(fields[1])) not in found.rows
            found.rows[int(fields[0]), int(fields[1])] = fields[2][1:-1]
        elif kind in ("push", "pop"):
            time_ns = int(fields[0])
            assert times.get((process, row), 0) <= time_ns
            times[process, row] = time_ns
            stack = stacks.setdefault((process, row), [])
            if kind == "push":
                stack.append((fields[2][1:-1], int(fields[1], 16), time_ns))
            else:
                text, color, begin_ns = stack.pop()
                found.ranges.append(Range(process, row, text, color, begin_ns, time_ns))
    assert not any(stacks.values())
    found.ranges.sort()
    return found


def _parsed(line: str) -> tuple[str, tuple[str, ...]]:
    for kind, pattern in _LINES.items():
        match = re.fullmatch(pattern, line)
        if match is not None:
            return kind, match.groups()
    pytest.fail(f"not NVTXT: {line!r}")


def profile(report: Path, source: str, *arguments: object) -> None:
    """Runs a Python program under `nsys profile`, with NVTX traced."""
    script = report.with_suffix(".py")
    script.write_text(source, encoding="utf-8")
    options = ("--trace=nvtx", "--sample=none", "--cpuctxsw=none")
    output = f"--output={report.with_suffix('')}"
    printed = nsys("profile", *options, output, sys.executable, script, *arguments)
    raw = report.with_suffix(".qdstrm")
    if raw.exists():  # Debian's nsys does not find its importer
        host_program("QdstrmImporter", "-i", raw, "-o", report)
    assert report.exists(), printed


def host_program(name: str, *arguments: object) -> str:
    """Runs a program of the host's folder and returns what it printed."""
    command = [str(HOST / name), *map(str, arguments)]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(HOST)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def nsys(*arguments: object) -> str:
    """Runs nsys and returns what it printed. Its exit code says nothing: look at what it made."""
    command = [str(NSYS), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout
