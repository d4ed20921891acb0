# SPDX-License-Identifier: Apache-2.0
"""Edits as a diff: the call that is meant, and nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pyinstrument_gpu.trial.edits.edit import CallPlace, Edit, Value
from pyinstrument_gpu.trial.edits.loader import Workers
from pyinstrument_gpu.trial.edits.settings import Threads
from pyinstrument_gpu.trial.patch import Patch, patch_of, with_arguments, with_statement


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = DataLoader(data)\n", "x = DataLoader(data, num_workers=2)\n"),
        ("x = DataLoader()\n", "x = DataLoader(num_workers=2)\n"),
        ("x = t.u.DataLoader(data, num_workers=0)\n", "x = t.u.DataLoader(data, num_workers=2)\n"),
        (
            "x = DataLoader(data, num_workers=a if b else 1, shuffle=True)  # why\n",
            "x = DataLoader(data, num_workers=2, shuffle=True)  # why\n",
        ),
        ("x = DataLoader((data), )\n", "x = DataLoader((data), num_workers=2, )\n"),
        (
            "x = DataLoader(\n    data,\n    batch_size=8,  # (small)\n)\n",
            "x = DataLoader(\n    data,\n    batch_size=8, num_workers=2,  # (small)\n)\n",
        ),
        (
            "x = DataLoader(data, 32, True, None, None, 4)\n",
            "x = DataLoader(data, 32, True, None, None, 2)\n",
        ),
        ("x = 'a\x0cb', DataLoader(d)\n", "x = 'a\x0cb', DataLoader(d, num_workers=2)\n"),
        ("é = DataLoader('äöü', 1)\r\n", "é = DataLoader('äöü', 1, num_workers=2)\r\n"),
    ],
)
def test_a_call_gets_an_argument(before: str, after: str) -> None:
    found = with_arguments(
        before.encode(), CallPlace("f", 1, "DataLoader"), {"num_workers": "2"}, Workers.positions
    )
    assert found == after.encode()


@pytest.mark.parametrize(
    "source",
    [
        "x = DataLoader(data, **options)\n",
        "x = DataLoader(*arguments)\n",
        "x = DataLoader(a), DataLoader(b)\n",
        "x = make(data)\n",
        "x = DataLoader(data\n",
        "\ufeffx = DataLoader(data)\n",
    ],
)
def test_a_call_that_cannot_be_read_is_left_alone(source: str) -> None:
    place = CallPlace("f", 1, "DataLoader")
    assert with_arguments(source.encode(), place, {"num_workers": "2"}) is None


def test_a_statement_stands_behind_the_imports() -> None:
    source = '"""Doc."""\nimport torch\nfrom torch import (\n    nn,\n)\n\nx = 1\n'
    expected = (
        '"""Doc."""\nimport torch\nfrom torch import (\n    nn,\n)\n\n'
        "torch.set_num_threads(1)\n\nx = 1\n"
    )
    assert with_statement(source.encode(), "torch.set_num_threads(1)") == expected.encode()


@pytest.mark.parametrize(
    "source", ["import torch as t\n", "import torch\ntorch.set_num_threads(4)\n"]
)
def test_a_statement_needs_torch_and_no_other_of_its_kind(source: str) -> None:
    assert with_statement(source.encode(), "torch.set_num_threads(1)") is None


def patched(folder: Path, *edits: tuple[Edit, Value, list[CallPlace]]) -> Patch:
    program = folder / "train.py"
    return patch_of(edits, lambda file: Path(file), program, folder)


def test_git_applies_the_diff(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("import torch\nfrom torch.utils.data import DataLoader\nx = DataLoader(1)")
    place = CallPlace(str(program), 3, "DataLoader")
    found = patched(tmp_path, (Workers(), 2, [place]), (Threads(), 1, []))
    assert found.made == ["workers", "threads"]
    (tmp_path / "try.diff").write_bytes(found.diff)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", "try.diff"], cwd=tmp_path, check=True)
    assert program.read_text() == (
        "import torch\nfrom torch.utils.data import DataLoader\n\ntorch.set_num_threads(1)\n"
        "x = DataLoader(1, num_workers=2)"
    )


def test_an_edit_that_cannot_be_made_everywhere_is_not_in_it(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("x = DataLoader(1)\ny = DataLoader(*z)\n")
    places = [CallPlace(str(program), line, "DataLoader") for line in (1, 2)]
    found = patched(tmp_path, (Workers(), 2, places))
    assert found == Patch()
