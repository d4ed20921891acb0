# SPDX-License-Identifier: Apache-2.0
"""The demo: its loop prints how training goes without asking the device for a number."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import pyinstrument_gpu as pig

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from examples import digits  # noqa: E402


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
    monkeypatch.setattr(digits, "PRINT_EVERY", 2)
    model = digits.DigitNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    train_set, _ = digits.load_data()
    loader: Any = [train_set[begin : begin + 16] for begin in range(0, 96, 16)]
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
