# SPDX-License-Identifier: Apache-2.0
"""A file of the package is a room, not a shelf.

One of under 60 lines that exactly one other file imports joins that file, unless its docstring has
a sentence "A file of its own, ..." that says why not.
"""

import ast
from collections import Counter

from tests.test_import_circles import FOLDER, PACKAGE, imported_by, module_of

FEWEST_LINES = 60
EXCUSE = "A file of its own, "
LATER = (
    *("aspects", "auto", "core.file", "document", "job", "page", "recording", "report", "watch"),
)
"""Folders in which there are still some to be joined."""


def test_no_small_file_has_one_user() -> None:
    modules = {module_of(path): path for path in FOLDER.rglob("*.py")}
    users = Counter(
        module for path in modules.values() for module in set(imported_by(path, modules))
    )
    later = tuple(f"{PACKAGE}.{folder}." for folder in LATER)
    small = [
        module
        for module, path in modules.items()
        if path.name != "__init__.py" and users[module] == 1 and not module.startswith(later)
        if len((text := path.read_text()).splitlines()) < FEWEST_LINES
        if EXCUSE not in " ".join(str(ast.get_docstring(ast.parse(text))).split())
    ]
    assert not small, f"used once, and under {FEWEST_LINES} lines: {', '.join(sorted(small))}"
