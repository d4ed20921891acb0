# SPDX-License-Identifier: Apache-2.0
"""A name means one thing: no two files of the package define public classes of one name, and what
users read has one term for a thing."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pyinstrument_gpu

FOLDER = Path(pyinstrument_gpu.__file__).parent
TWICE = {"GpuPhaseCallback"}
"""Users import it from the module that is named like their trainer, as such callbacks are."""

OTHER_WORDS = re.compile(
    r"busy a machine|(busy|shared|contended|loaded) (machine|box|host)|machine is (busy|loaded)"
    r"|machine that (is|others keep) busy|(processors?|cores?) (is |are )?busy"
    r"|of (its|their) time for (a processor|one)",
    re.IGNORECASE,
)
"""For a machine that others keep busy, which `analysis.contention` has the words of."""


def test_a_busy_machine_has_one_term() -> None:
    found = []
    for path in sorted(FOLDER.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documents = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        found += [
            f"{path.relative_to(FOLDER)}:{node.lineno}: {node.value}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in documents
            and OTHER_WORDS.search(node.value)
        ]
    assert not found


def test_class_names_are_unique() -> None:
    files = defaultdict(list)
    for path in sorted(FOLDER.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(str(path.relative_to(FOLDER)))
    assert {name: found for name, found in files.items() if len(found) > 1}.keys() == TWICE
