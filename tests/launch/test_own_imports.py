# SPDX-License-Identifier: Apache-2.0
"""A program whose modules are called like ours: it finds its own, and our report finds ours."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyinstrument_gpu
from pyinstrument_gpu.core.run import Run
from tests.helpers.launched import ENVIRONMENT, check_same, launched, write

PACKAGE = Path(pyinstrument_gpu.__file__).parent
LATE = ("colorsys", "contextvars", "numpy", "pickle", "rich", "shlex", "textwrap")
"""What the report alone imports, some of it by way of rich and numpy."""


def imported_by_us() -> Iterator[str]:
    """The first parts of the names of all modules that a source of the package imports."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]


def loaded_after(source: str) -> set[str]:
    source += "\nimport sys; print(*sys.modules)"
    command = [sys.executable, "-c", source]
    return set(subprocess.check_output(command, text=True, env=ENVIRONMENT).split())


@pytest.fixture(scope="module")
def names() -> list[str]:
    # What Python loads before any program, or to run us by `-m`, is there before us.
    found = {*imported_by_us(), *LATE} - loaded_after("import runpy")
    found -= {"pyinstrument_gpu", "torch", "__future__", *sys.builtin_module_names}
    assert {"click", "json", "numpy", "rich", "dataclasses", "threading"} <= found
    return sorted(found)


def test_program_finds_its_own_modules_of_every_name_that_we_import(
    tmp_path: Path, names: list[str]
) -> None:
    for name in names:
        write(tmp_path, f"{name}.py", "print('executed', __name__, __file__)")
    write(
        tmp_path,
        "main.py",
        f"""
        import sys
        before = sorted(set({names}) & set(sys.modules))
        print(before)
        for name in {names}:
            __import__(name)
        print(sys.path)
        """,
    )
    done = check_same(tmp_path, "main.py", imported="nothing")
    assert done.stdout.count("executed") == len(names)
    assert "no steps: " in launched(tmp_path, "main.py", imported="nothing").stderr
    # By its name, from the working directory.
    assert check_same(tmp_path, "-m", "main", imported="nothing").stdout.count("executed") == len(
        names
    )


def test_program_that_does_not_import_its_own_modules_executes_none(
    tmp_path: Path, names: list[str]
) -> None:
    for name in names:
        write(tmp_path, f"{name}.py", "raise Exception(__name__)")
    write(tmp_path, "main.py", "print('ran')")
    write(tmp_path, "folder/main.py", "print('ran')")
    assert check_same(tmp_path, "main.py", imported="nothing").stdout == "ran\n"
    # Here they lie in the working directory only.
    assert check_same(tmp_path, "folder/main.py", imported="nothing").stdout == "ran\n"
    assert (
        "no steps: " in launched(tmp_path, "--fail-on-sync", "main.py", imported="nothing").stderr
    )


@pytest.mark.parametrize(
    "name",
    [
        "click",
        "numpy",
        *(pytest.param(n, marks=pytest.mark.thorough) for n in ("json", "rich")),
        *(pytest.param(n, marks=pytest.mark.slow) for n in LATE if n not in ("numpy", "rich")),
    ],
)
def test_script_that_is_called_like_one_of_our_modules_is_executed_once(
    tmp_path: Path, name: str
) -> None:
    write(tmp_path, f"{name}.py", "print('executed as', __name__)")
    done = launched(tmp_path, f"{name}.py", imported="nothing")
    assert (done.returncode, done.stdout) == (0, "executed as __main__\n")
    assert "no steps: " in done.stderr
    assert Run.load(tmp_path / "run.gpurun").complete


def test_folder_and_archive(tmp_path: Path) -> None:
    write(tmp_path, "app/json.py", "print('executed', __name__)")
    write(tmp_path, "app/rich/__init__.py", "print('executed', __name__)")
    write(tmp_path, "app/numpy/no_package", "")
    write(tmp_path, "app/__main__.py", "import json, rich, numpy; print(numpy.__version__)")
    assert check_same(tmp_path, "app", imported="nothing").stdout.startswith(
        "executed json\nexecuted rich\n"
    )
    subprocess.run(
        [sys.executable, "-m", "zipapp", "app", "-o", "app.pyz"], cwd=tmp_path, check=True
    )
    assert check_same(tmp_path, "app.pyz", imported="nothing").stdout.startswith(
        "executed json\nexecuted rich\n"
    )


def test_program_finds_no_package_loaded_that_only_we_need(tmp_path: Path) -> None:
    write(
        tmp_path,
        "show.py",
        """
        import sys
        tops = {name.partition(".")[0] for name in sys.modules}
        print(sorted(tops - sys.stdlib_module_names - {"pyinstrument_gpu"}))
        print("json" in sys.modules)
        import click
        print(click.get_current_context(silent=True))
        """,
    )
    check_same(tmp_path, "show.py", imported="nothing")


@pytest.mark.slow
def test_hooks_of_torch_import_their_own_modules(tmp_path: Path, names: list[str]) -> None:
    left = sorted(set(names) - loaded_after("import torch"))
    assert left
    for name in left:
        write(tmp_path, f"{name}.py", "print('executed', __name__)")
    write(
        tmp_path,
        "main.py",
        f"""
        import torch
        x = torch.ones(2, requires_grad=True)
        x.sum().backward()
        print(x.grad.tolist())
        for name in {left}:
            __import__(name)
        """,
    )
    done = check_same(tmp_path, "main.py", imported="nothing")
    assert done.stdout == "[1.0, 1.0]\n" + "".join(f"executed {name}\n" for name in left)
