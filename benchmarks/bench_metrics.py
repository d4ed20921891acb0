# SPDX-License-Identifier: Apache-2.0
"""What one update of the metrics costs on one thread of the CPU, beside its peers.

All take the same logits: top-1 accuracy and the mean of the loss (ours also counts the rest). The
floor reads the same bytes and does nothing with them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from _read_floor import read_bytes  # type: ignore[import-not-found]
from pytest_benchmark.fixture import BenchmarkFixture

import pyinstrument_gpu as pig
from benchmarks.contender import Contender, timed
from benchmarks.peer import why_missing
from benchmarks.race import race

torch = pytest.importorskip("torch")
BY_HAND = "argmax, eq, sum, add_ by hand"
TORCHMETRICS = "torchmetrics accuracy (micro) + MeanMetric"
TORCHEVAL = "torcheval accuracy"
READ_FLOOR = "reading the bytes"
CORES = os.sched_getaffinity(0)
# The peers use what PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(CORES)})
    yield
    os.sched_setaffinity(0, CORES)
    torch.set_num_threads(threads)


def repeat(times: int, call: Callable[[], object]) -> Callable[[], int]:
    def batch() -> None:
        for _ in range(times):
            call()

    return timed(batch)


Update = Callable[[], object]


def _by_hand(logits: Any, target: Any, loss: Any) -> Update:
    total, correct = torch.zeros(()), torch.zeros((), dtype=torch.int64)

    def update() -> None:
        correct.add_((logits.argmax(1) == target).sum())
        total.add_(loss * len(target))

    return update


def _torchmetrics(logits: Any, target: Any, loss: Any) -> Update:
    import torchmetrics

    accuracy = torchmetrics.classification.MulticlassAccuracy(logits.shape[1], average="micro")
    mean = torchmetrics.MeanMetric()

    def update() -> None:
        accuracy.update(logits, target)
        mean.update(loss, weight=len(target))

    return update


def _torcheval(logits: Any, target: Any, loss: Any) -> Update:
    import torcheval.metrics

    accuracy = torcheval.metrics.MulticlassAccuracy()
    return lambda: accuracy.update(logits, target)


def _floor(logits: Any, target: Any, loss: Any) -> Update:
    bytes_to_read = logits.numel() * logits.element_size()
    return lambda: read_bytes(logits.data_ptr(), bytes_to_read)


PEERS: dict[str, tuple[str, Callable[[Any, Any, Any], Update]]] = {
    BY_HAND: ("less: top-1 and the loss's sum alone", _by_hand),
    TORCHMETRICS: ("less: no top-5, no count of non-finite values", _torchmetrics),
    TORCHEVAL: ("less: top-1 alone", _torcheval),
    READ_FLOOR: ("less: does nothing with them", _floor),
}


def race_metrics(
    benchmark: BenchmarkFixture,
    title: str,
    logits: Any,
    target: Any,
    *,
    uses: int,
    rounds: int,
    goals: Mapping[str, float],
) -> None:
    """Ours and its peers; those that are missing are named."""
    loss = torch.nn.functional.cross_entropy(logits[:8].float(), target[:8])
    ours = pig.MetricAccumulator(topk=(1, 5))
    peers, missing = [], {}
    for label, (_, make) in PEERS.items():
        try:
            update = make(logits, target, loss)
        except Exception as error:
            missing[label] = why_missing(error)
        else:
            peers.append(Contender(label, repeat(uses, update), uses))
    measure = repeat(uses, lambda: ours.update(logits, target, loss))
    contender = Contender("metrics.update(logits, target, loss)", measure, uses)
    notes = {label: note for label, (note, _) in PEERS.items()}
    race(benchmark, title, contender, peers, rounds, goals, notes)
    benchmark.extra_info["missing"] = missing


def test_small(benchmark: BenchmarkFixture) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(256, 1000, generator=generator)
    target = torch.randint(1000, (256,), generator=generator)
    race_metrics(
        benchmark,
        "metrics: an update of 256 x 1000 float32 (1 MB), one thread",
        logits,
        target,
        uses=20,
        rounds=100,
        goals={TORCHMETRICS: 1 / 15, READ_FLOOR: 1.9},
    )


def test_large(benchmark: BenchmarkFixture) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4096, 32000, generator=generator, dtype=torch.bfloat16)
    target = torch.randint(32000, (4096,), generator=generator)
    race_metrics(
        benchmark,
        "metrics: an update of 4096 x 32000 bfloat16 (262 MB), one thread",
        logits,
        target,
        uses=1,
        rounds=5,
        goals={TORCHMETRICS: 1 / 40, READ_FLOOR: 1.6},
    )


def test_tiny(benchmark: BenchmarkFixture) -> None:
    logits = torch.randn(16, 10, generator=torch.Generator().manual_seed(0))
    target = torch.arange(16) % 10
    title = "metrics: an update of 16 x 10 float32, one thread"
    race_metrics(benchmark, title, logits, target, uses=100, rounds=100, goals={})
