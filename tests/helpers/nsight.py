# SPDX-License-Identifier: Apache-2.0
"""What reads the exports for Nsight Systems: its own programs, and a plain reader of NVTXT."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pyinstrument_gpu.export.nsys_rep import NsightTools

TOOLS = NsightTools.find()

needs_nsight = pytest.mark.skipif(
    TOOLS is None or TOOLS.nsys is None,
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


class Exported(NamedTuple):
    """What stands in a report, as `nsys export` has it. Times count from the report's zero.

    Attributes:
        imported: the ranges that ImportNvtxt put there, sorted.
        live: those of NVTX in the domain "pyinstrument_gpu", sorted.
        processes, rows: names of what was imported.
    """

    imported: list[Range]
    live: list[Range]
    processes: dict[int, str]
    rows: dict[tuple[int, int], str]


def exported(report: Path) -> Exported:
    """Reads a report."""
    target = report.with_suffix(".events")
    nsys("export", "--quiet=true", "--type=json", f"--output={target}", report)
    found = Exported([], [], {}, {})
    texts: list[str] = []
    live = []
    for line in target.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if "data" in event and isinstance(event["data"][0], str):
            texts = event["data"]
        nvtx = event.get("NvtxEvent") or event.get("NvtxtEvent", {}).get("Nvtx")
        meta = event.get("NvtxtMetaEvent", {})
        if event.get("Type") == 59:
            live.append(nvtx)
        elif event.get("Type") == 70:
            found.imported.append(_range(nvtx, nvtx["Text"]))
        elif "Process" in meta:
            process, _ = _split(meta["Process"]["GlobalProcessId"])
            found.processes[process] = meta["Process"]["Name"]
        elif "Thread" in meta:
            found.rows[_split(meta["Thread"]["GlobalThreadId"])] = meta["Thread"]["Name"]
    found.live.extend(_range(nvtx, texts[nvtx["TextId"]]) for nvtx in live)
    found.imported.sort()
    found.live.sort()
    return found


def nvtx_sum(file: Path) -> str:
    """The sums by name that `nsys stats` finds in a database or report, as CSV."""
    assert TOOLS is not None
    version = TOOLS.version()
    assert version is not None
    name = "nvtxsum" if version < (2023,) else "nvtx_sum"
    return nsys("stats", "-q", "--report", name, "--format", "csv", file).strip()


def profile(report: Path, source: str, *arguments: object) -> None:
    """Runs a Python program under `nsys profile`, with NVTX traced."""
    assert TOOLS is not None
    script = report.with_suffix(".py")
    script.write_text(source, encoding="utf-8")
    options = ("--trace=nvtx", "--sample=none", "--cpuctxsw=none")
    output = f"--output={report.with_suffix('')}"
    printed = nsys("profile", *options, output, sys.executable, script, *arguments)
    raw = report.with_suffix(".qdstrm")
    if raw.exists():  # Debian's nsys does not find its importer
        subprocess.run(
            [TOOLS.host / "QdstrmImporter", "-i", raw, "-o", report],
            env={**os.environ, "LD_LIBRARY_PATH": str(TOOLS.host)},
            capture_output=True,
            check=False,
        )
    assert report.exists(), printed


def nsys(*arguments: object) -> str:
    """Runs nsys and returns what it printed. Its exit code says nothing: look at what it made."""
    assert TOOLS is not None
    command = [str(TOOLS.nsys), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout


def _range(nvtx: dict[str, Any], text: str) -> Range:
    times = int(nvtx["Timestamp"]), int(nvtx["EndTimestamp"])
    return Range(*_split(nvtx["GlobalTid"]), text, nvtx["Color"], *times)


def _split(global_id: str) -> tuple[int, int]:
    return int(global_id) >> 24 & 0xFFFFFF, int(global_id) & 0xFFFFFF
