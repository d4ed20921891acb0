# SPDX-License-Identifier: Apache-2.0
"""The folders of csrc/ are layers: a file includes its own folder and those below it."""

from __future__ import annotations

import re
from pathlib import Path

CSRC = Path(__file__).resolve().parents[1] / "csrc"

# The highest first, as in docs/architecture.md.
LAYERS = ("modules", "auto", "python", "hooks", "metrics", "record", "log", "hot", "cuda", "base")

# Only these know Python.
OF_PYTHON = ("modules", "auto", "python", "hooks")

# The table of what is recorded, and what goes over that table.
TABLE_OF_PARTS = ("record/parts.h", "record/parts.cpp")
GO_OVER_THE_PARTS = (
    *("record/part.h", "record/recorder.h", "record/recorder.cpp", "record/harvester.h"),
)

# Lies beside what reads it in Python.
IN_THE_PACKAGE = ("metrics/state_fields.h",)

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)
PYTHON_HEADERS = re.compile(r"Python\.h$|pybind11/")


def violations(csrc: Path) -> list[str]:
    """One line for each file or include that is out of place."""
    found = []
    for file in sorted(path for path in csrc.rglob("*") if path.is_file()):
        name = file.relative_to(csrc).as_posix()
        layer = name.partition("/")[0]
        if layer not in LAYERS:
            found.append(f"{name}: in none of {', '.join(LAYERS)}")
            continue
        below = LAYERS[LAYERS.index(layer) :]
        for quote, target in INCLUDE.findall(file.read_text(encoding="utf-8")):
            if quote == '"' and not (csrc / target).is_file() and target not in IN_THE_PACKAGE:
                found.append(f"{name}: {target} is no path from csrc/")
            elif quote == '"' and target.partition("/")[0] not in below:
                found.append(f"{name}: includes {target}, of a higher layer")
            elif layer not in OF_PYTHON and PYTHON_HEADERS.search(target):
                found.append(f"{name}: includes {target}, which only those of Python may")
    return found


def included_by(csrc: Path, name: str) -> set[str]:
    """The files of csrc/ that one includes, by way of others too."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        file = csrc / waiting.pop()
        if not file.is_file():
            continue
        targets = {target for quote, target in INCLUDE.findall(file.read_text()) if quote == '"'}
        waiting += targets - found
        found |= targets
    return found


def headers_of_parts(csrc: Path) -> set[str]:
    return {
        path.relative_to(csrc).as_posix()
        for path in csrc.rglob("*.h")
        if re.search(r": public Part\b", path.read_text(encoding="utf-8"))
    }


def test_the_recorder_names_no_part() -> None:
    parts = headers_of_parts(CSRC)
    assert len(parts) >= 9
    for name in GO_OVER_THE_PARTS:
        assert included_by(CSRC, name) & (parts | set(TABLE_OF_PARTS)) == set(), name
    assert included_by(CSRC, "record/parts.h") | {"record/parts.h"} >= parts


def test_includes_only_go_down() -> None:
    assert violations(CSRC) == []


def test_what_goes_up_is_found(tmp_path: Path) -> None:
    for name, text in {
        "base/ticks.h": "#include <cstdint>\n",
        "hot/span.h": '#include "base/ticks.h"\n#include "hot/span.h"\n',
        "hot/ring.h": '#include "log/items.h"\n  #  include "ring.h"\n',
        "log/items.h": '#include "hot/span.h"\n#include <Python.h>\n',
        "python/module.cpp": '#include <pybind11/pybind11.h>\n#include "log/items.h"\n',
        "clock.h": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert violations(tmp_path) == [
        "clock.h: in none of modules, auto, python, hooks, metrics, record, log, hot, cuda, base",
        "hot/ring.h: includes log/items.h, of a higher layer",
        "hot/ring.h: ring.h is no path from csrc/",
        "log/items.h: includes Python.h, which only those of Python may",
    ]
