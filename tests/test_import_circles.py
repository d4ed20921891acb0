# SPDX-License-Identifier: Apache-2.0
"""No files of the package import each other in a circle: also not inside of functions, nor for the
checker of types alone."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyinstrument_gpu

PACKAGE = "pyinstrument_gpu"
FOLDER = Path(pyinstrument_gpu.__file__).parent


def module_of(path: Path) -> str:
    parts = [PACKAGE, *path.relative_to(FOLDER).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_by(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """The modules that a file imports; of a package those of its files that it names."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else str(node.module) for name in inside]
        yield from (name for name in names if name in modules)


def circles(imports: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """The largest groups of which each module leads to each other one."""
    reached = {module: reached_from(module, imports) for module in imports}
    return {
        frozenset(other for other in others if module in reached[other])
        for module, others in reached.items()
        if module in others
    }


def reached_from(module: str, imports: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [module]
    while waiting:
        new = imports[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def test_no_circle_of_files() -> None:
    modules = {module_of(path): path for path in FOLDER.rglob("*.py")}
    modules[f"{PACKAGE}.native._C"] = FOLDER / "native" / "_C.pyi"
    imports = {module: set(imported_by(path, modules)) for module, path in modules.items()}
    found = [sorted(circle) for circle in circles(imports)]
    assert not found, "\n".join(map(", ".join, found))


def test_a_circle_is_found() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str](), "e": {"e", "a"}}
    assert circles(imports) == {frozenset("bc"), frozenset("e")}
