# SPDX-License-Identifier: Apache-2.0
"""The demo: its loop prints how training goes without asking the device for a number."""

from __future__ import annotations

import itertools
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import pyinstrument_gpu as pig

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

ROOT = Path(__file__).parents[2]


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


def test_loss_and_accuracy_are_printed_without_item(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:  # its data, which takes seconds to import, is made here
        patch.setitem(sys.modules, "sklearn", ModuleType("sklearn"))
        patch.setitem(sys.modules, "sklearn.datasets", SimpleNamespace(load_digits=None))
        digits = SimpleNamespace(**runpy.run_path(str(ROOT / "examples" / "digits.py")))
    digits.train_epoch.__globals__["PRINT_EVERY"] = 2
    model = digits.DigitNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    loader = [(torch.rand(16, 1, 8, 8), torch.randint(10, (16,))) for _ in range(6)]
    metrics = pig.MetricAccumulator(topk=1, num_classes=10)

    with pig.record(), Operators() as operators:
        digits.train_epoch(
            model, loader, optimizer, torch.device("cpu"), metrics, itertools.count(1)
        )

    # What .item(), float() and bool() of a tensor are.
    assert "aten._local_scalar_dense.default" not in operators.names
    assert "aten.addmm.default" in operators.names
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0].strip() for line in lines] == ["step 1", "step 3", "step 5"]
    values = metrics.compute()
    assert lines[-1].strip() == (
        f"step 5: loss {values['loss']:.4f}, accuracy {values['accuracy@1']:.4f}"
    )
