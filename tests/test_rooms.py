# SPDX-License-Identifier: Apache-2.0
"""A file of the package is a room, not a shelf.

One of under 60 lines that exactly one other file imports joins that file, unless its docstring has
a sentence "A file of its own, ..." that says why not.
"""

import ast
from collections import Counter
from pathlib import Path

from tests.test_import_circles import FOLDER, imported_by, module_of

FEWEST_LINES = 60
EXCUSE = "A file of its own, "


def test_no_small_file_has_one_user() -> None:
    modules = {module_of(path): path for path in FOLDER.rglob("*.py")}
    users = Counter(
        module for path in modules.values() for module in set(imported_by(path, modules))
    )
    small = [
        module
        for module, path in modules.items()
        if path.name != "__init__.py" and users[module] == 1
        if len((text := path.read_text()).splitlines()) < FEWEST_LINES
        if EXCUSE not in " ".join(str(ast.get_docstring(ast.parse(text))).split())
    ]
    assert not small, f"used once, and under {FEWEST_LINES} lines: {', '.join(sorted(small))}"


ROOT = FOLDER.parent
COUNTED = {".py", ".pyi", ".cpp", ".h", ".cu", ".cuh", ".js", ".css", ".jinja"}
BUDGET = {
    "pyinstrument_gpu": 75_200,
    "pyinstrument_gpu/analysis": 8_300,
    "pyinstrument_gpu/aspects": 18_800,
    "pyinstrument_gpu/auto": 650,
    "pyinstrument_gpu/blame": 850,
    "pyinstrument_gpu/cli": 2_500,
    "pyinstrument_gpu/core": 6_800,
    "pyinstrument_gpu/export": 2_650,
    "pyinstrument_gpu/gate": 1_050,
    "pyinstrument_gpu/goodput": 1_700,
    "pyinstrument_gpu/history": 1_500,
    "pyinstrument_gpu/integrations": 800,
    "pyinstrument_gpu/job": 6_200,
    "pyinstrument_gpu/launch": 850,
    "pyinstrument_gpu/metrics": 3_200,
    "pyinstrument_gpu/native": 800,
    "pyinstrument_gpu/page": 4_350,
    "pyinstrument_gpu/parts": 400,
    "pyinstrument_gpu/patching": 1_350,
    "pyinstrument_gpu/recording": 3_000,
    "pyinstrument_gpu/report": 3_700,
    "pyinstrument_gpu/sinks": 1_150,
    "pyinstrument_gpu/trial": 2_800,
    "pyinstrument_gpu/watch": 1_750,
    "csrc": 26_800,
    "csrc/auto": 1_450,
    "csrc/base": 800,
    "csrc/cuda": 2_900,
    "csrc/hooks": 1_250,
    "csrc/hot": 1_450,
    "csrc/log": 1_750,
    "csrc/metrics": 4_850,
    "csrc/modules": 600,
    "csrc/python": 5_550,
    "csrc/record": 6_400,
    "tests": 91_750,
    "tests/analysis": 5_650,
    "tests/aspects": 14_400,
    "tests/auto": 2_400,
    "tests/benchmarks": 1_250,
    "tests/blame": 650,
    "tests/cli": 2_200,
    "tests/core": 2_500,
    "tests/cuda": 1_150,
    "tests/examples": 400,
    "tests/export": 2_200,
    "tests/faults": 3_100,
    "tests/gate": 600,
    "tests/goodput": 1_000,
    "tests/gpu": 1_700,
    "tests/helpers": 10_350,
    "tests/history": 650,
    "tests/hot": 550,
    "tests/integrations": 1_100,
    "tests/job": 3_250,
    "tests/launch": 1_450,
    "tests/metrics": 5_100,
    "tests/native": 9_500,
    "tests/page": 1_900,
    "tests/patching": 1_800,
    "tests/programs": 1_150,
    "tests/recording": 7_900,
    "tests/report": 2_300,
    "tests/sinks": 2_100,
    "tests/snapshots": 300,
    "tests/trial": 950,
    "tests/watch": 1_450,
}
"""The most lines that the sources of a folder have, those of its own and of folders below it. A
number is raised only in a commit that says what else got smaller."""


def lines_of(folder: Path) -> int:
    files = (path for path in folder.rglob("*") if path.suffix in COUNTED)
    return sum(path.read_bytes().count(b"\n") for path in files)


def test_no_folder_outgrows_its_budget() -> None:
    grown = {}
    for name, most in BUDGET.items():
        lines = lines_of(ROOT / name)
        if lines > most:
            grown[name] = f"{lines:,} lines, at most {most:,}"
    assert not grown, f"outgrown: {grown}"


def test_each_folder_has_a_budget() -> None:
    tops = [ROOT / "pyinstrument_gpu", ROOT / "csrc", ROOT / "tests"]
    found = {
        str(path.relative_to(ROOT))
        for top in tops
        for path in top.iterdir()
        if path.is_dir() and lines_of(path)
    }
    assert found | {str(top.relative_to(ROOT)) for top in tops} == BUDGET.keys()
