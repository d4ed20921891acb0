# SPDX-License-Identifier: Apache-2.0
"""A file of the package is a room, not a shelf.

One of under 60 lines that exactly one other file imports joins that file, unless its docstring has
a sentence "A file of its own, ..." that says why not.
"""

import ast
from collections import Counter

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
