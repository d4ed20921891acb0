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
    "pyinstrument_gpu": 66_499,
    "pyinstrument_gpu/analysis": 6_772,
    "pyinstrument_gpu/aspects": 17_241,
    "pyinstrument_gpu/auto": 593,
    "pyinstrument_gpu/blame": 804,
    "pyinstrument_gpu/cli": 2_075,
    "pyinstrument_gpu/core": 6_583,
    "pyinstrument_gpu/export": 2_675,
    "pyinstrument_gpu/gate": 968,
    "pyinstrument_gpu/goodput": 1_529,
    "pyinstrument_gpu/history": 1_240,
    "pyinstrument_gpu/integrations": 754,
    "pyinstrument_gpu/job": 5_431,
    "pyinstrument_gpu/launch": 768,
    "pyinstrument_gpu/metrics": 3_164,
    "pyinstrument_gpu/native": 757,
    "pyinstrument_gpu/page": 4_010,
    "pyinstrument_gpu/parts": 395,
    "pyinstrument_gpu/patching": 1_311,
    "pyinstrument_gpu/recording": 2_798,
    "pyinstrument_gpu/report": 3_335,
    "pyinstrument_gpu/sinks": 1_096,
    "pyinstrument_gpu/watch": 1_742,
    "csrc": 26_182,
    "csrc/auto": 1_265,
    "csrc/base": 725,
    "csrc/cuda": 2_773,
    "csrc/hooks": 1_167,
    "csrc/hot": 1_450,
    "csrc/log": 1_706,
    "csrc/metrics": 4_815,
    "csrc/modules": 532,
    "csrc/python": 5_453,
    "csrc/record": 6_296,
    "tests": 87_381,
    "tests/analysis": 4_804,
    "tests/aspects": 12_591,
    "tests/auto": 2_515,
    "tests/benchmarks": 917,
    "tests/blame": 458,
    "tests/cli": 1_990,
    "tests/core": 2_437,
    "tests/cuda": 1_506,
    "tests/examples": 381,
    "tests/export": 2_341,
    "tests/faults": 3_087,
    "tests/gate": 556,
    "tests/goodput": 826,
    "tests/gpu": 1_667,
    "tests/helpers": 10_235,
    "tests/history": 483,
    "tests/hot": 531,
    "tests/integrations": 1_029,
    "tests/job": 2_708,
    "tests/launch": 1_391,
    "tests/metrics": 5_075,
    "tests/native": 10_145,
    "tests/page": 1_540,
    "tests/patching": 1_758,
    "tests/programs": 1_128,
    "tests/recording": 8_041,
    "tests/report": 2_113,
    "tests/sinks": 2_157,
    "tests/snapshots": 293,
    "tests/watch": 1_557,
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
