# SPDX-License-Identifier: Apache-2.0
"""A name means one thing: no two files of the package define public classes of one name."""

import ast
from collections import defaultdict
from pathlib import Path

import pyinstrument_gpu

FOLDER = Path(pyinstrument_gpu.__file__).parent
TWICE = {"GpuPhaseCallback"}
"""Users import it from the module that is named like their trainer, as such callbacks are."""


def test_class_names_are_unique() -> None:
    files = defaultdict(list)
    for path in sorted(FOLDER.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(str(path.relative_to(FOLDER)))
    assert {name: found for name, found in files.items() if len(found) > 1}.keys() == TWICE
