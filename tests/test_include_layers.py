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
