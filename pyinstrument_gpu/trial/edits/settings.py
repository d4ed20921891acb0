# SPDX-License-Identifier: Apache-2.0
"""Edits that are a setting of torch or of Python, for the whole program."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pyinstrument_gpu.trial.edits.edit import Changes, Edit, Facts, Hand, Value


class Threads(Edit):
    """Another number of threads for torch's operations on the CPU."""

    name = "threads"
    group = "threads"
    changes = Changes.LAST_DIGITS

    def reach(self, facts: Facts) -> float:
        own = 0.0 if facts.workers else facts.share("data")  # transforms in the process itself
        return facts.compute_share + own if facts.cores > 1 else 0.0

    def values(self, facts: Facts) -> Sequence[Value]:
        return sorted({1, facts.cores // 2, facts.cores} - {facts.threads})

    def text(self, value: Value) -> str:
        return self.statement(value)

    def statement(self, value: Value) -> str:
        return f"torch.set_num_threads({value})"

    def make(self, value: Value, hand: Hand) -> None:
        import torch

        if not hand.applies():
            return
        original, pid = torch.set_num_threads, os.getpid()
        original(value)

        def set_num_threads(number: int) -> None:
            # The program's own call changes nothing. That of torch in each loader worker does.
            if os.getpid() != pid:
                original(number)

        torch.set_num_threads = set_num_threads  # type: ignore[assignment]


class Collector(Edit):
    """Fewer objects for Python's garbage collector to look at, or fewer looks."""

    name = "collector"
    group = "gc"
    changes = Changes.NOTHING

    def reach(self, facts: Facts) -> float:
        return facts.collector_share

    def values(self, facts: Facts) -> Sequence[Value]:
        return ("gc.freeze()", "gc.set_threshold(50_000, 20, 20)")

    def text(self, value: Value) -> str:
        return str(value)

    def where(self, value: Value) -> str:
        return "before the loop"

    def make(self, value: Value, hand: Hand) -> None:
        if hand.applies():
            hand.at_steps.append(
                gc.freeze if value == "gc.freeze()" else lambda: gc.set_threshold(50_000, 20, 20)
            )


class TorchSetting(Edit):
    """A setting of torch for what a GPU computes.

    Args:
        statement: that sets it.
        make: does so.
    """

    def __init__(
        self, name: str, group: str, changes: Changes, statement: str, make: Callable[[], object]
    ) -> None:
        self.name, self.group, self.changes = name, group, changes
        self._statement = statement
        self._make = make

    def reach(self, facts: Facts) -> float:
        return facts.compute_share if facts.has_gpu else 0.0

    def text(self, value: Value) -> str:
        return self._statement

    def statement(self, value: Value) -> str:
        return self._statement

    def make(self, value: Value, hand: Hand) -> None:
        if hand.applies():
            self._make()


def benchmark_convolutions() -> None:
    """Have cuDNN measure which algorithm is the fastest for each shape."""
    import torch

    torch.backends.cudnn.benchmark = True


def use_tf32() -> None:
    """Have matrix products of float32 be made in TF32."""
    import torch

    torch.set_float32_matmul_precision("high")


class NoAnomalyDetection(Edit):
    """Autograd without anomaly detection."""

    name = "anomaly"
    group = "modes"
    changes = Changes.NOTHING

    def reach(self, facts: Facts) -> float:
        return facts.compute_share

    def text(self, value: Value) -> str:
        return "no anomaly detection"

    def make(self, value: Value, hand: Hand) -> None:
        import torch

        original: Any = torch.set_anomaly_enabled

        def set_anomaly_enabled(enabled: bool, check_nan: bool = True) -> None:
            if enabled and hand.meets("detect_anomaly", sys._getframe(1)):
                enabled = False
            original(enabled, check_nan)

        torch.set_anomaly_enabled = set_anomaly_enabled


class NoDeterminism(Edit):
    """Algorithms that need not give the same bits each time."""

    name = "determinism"
    group = "modes"
    changes = Changes.LAST_DIGITS
    positions = MappingProxyType({"mode": 0})

    def reach(self, facts: Facts) -> float:
        return facts.compute_share

    def text(self, value: Value) -> str:
        return "no deterministic algorithms"

    def keywords(self, value: Value) -> Mapping[str, str]:
        return {"mode": "False"}

    def make(self, value: Value, hand: Hand) -> None:
        import torch

        def change(arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
            return {"mode": False} if arguments["mode"] else None

        hand.replace(torch, "use_deterministic_algorithms", change)
