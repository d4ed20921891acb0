# SPDX-License-Identifier: Apache-2.0
"""DTensors: an accumulator adds the rows that this rank has. Several ranks: test_ranks.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import pyinstrument_gpu as pig
from tests.helpers.metric_cases import assert_same

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import (  # noqa: E402
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)

if not dist.is_gloo_available():
    pytest.skip("PyTorch was built without gloo", allow_module_level=True)

LOGITS, TARGET = torch.tensor([[2.0, 1, 0], [0, 1, 2], [0, 0, 0]]), torch.tensor([0, 1, 2])


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Of this process alone."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("before", [0, 1])
def test_the_local_shards_are_added(mesh: Any, before: int) -> None:
    metrics, plain = pig.MetricAccumulator(topk=(1, 2)), pig.MetricAccumulator(topk=(1, 2))
    weight = torch.tensor([1.0, 2, 3])
    for _ in range(before):
        metrics.update(LOGITS, TARGET)
        plain.update(LOGITS, TARGET)
    logits = LOGITS.clone().requires_grad_()
    sharded: list[Any] = [
        distribute_tensor(each, mesh, [Shard(0)]) for each in (logits, TARGET, weight)
    ]
    loss = torch.nn.functional.cross_entropy(sharded[0], sharded[1])
    assert loss.placements[0].is_partial()  # of the mean over all rows
    metrics.update(sharded[0], sharded[1], loss, sharded[2])
    plain.update(logits, TARGET, torch.nn.functional.cross_entropy(logits, TARGET), weight)
    metrics.update(sharded[0], TARGET, distribute_tensor(weight, mesh, [Replicate()]))
    plain.update(logits, TARGET, weight)
    metrics.update_scalar("weight", sharded[2].sum().redistribute(placements=[Replicate()]))
    plain.update_scalar("weight", weight.sum())

    assert_same(metrics.compute(), plain.compute())
    assert metrics.reference_updates == 0


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("class_dim", [1, -1])
def test_rows_that_no_rank_has_whole(mesh: Any, class_dim: int, before: int) -> None:
    metrics = pig.MetricAccumulator(class_dim=class_dim)
    for _ in range(before):
        metrics.update(LOGITS, TARGET)
    logits = distribute_tensor(LOGITS, mesh, [Shard(1)])
    with pytest.raises(
        ValueError,
        match=r"logits is a DTensor that is sharded over the classes, dimension 1 of \(3, 3\).*"
        r"logits\.redistribute",
    ):
        metrics.update(logits, TARGET)
    assert metrics.compute()["count"] == 3 * before


def test_parts_of_a_sum(mesh: Any) -> None:
    metrics = pig.MetricAccumulator()
    parts = DTensor.from_local(torch.ones(()), mesh, [Partial()])
    with pytest.raises(ValueError, match=r"loss is a DTensor.*loss\.full_tensor\(\)"):
        metrics.update(LOGITS, TARGET, parts)
    with pytest.raises(ValueError, match=r"norm is a DTensor.*norm\.full_tensor\(\)"):
        metrics.update_scalar("norm", parts)
    metrics.update_scalar("norm", parts.full_tensor())
    assert metrics.compute()["norm"] == 1


def test_in_a_compiled_function(mesh: Any) -> None:
    metrics = pig.MetricAccumulator(topk=1)

    @torch.compile(backend="aot_eager", fullgraph=True)  # type: ignore[untyped-decorator]
    def step(logits: Any, target: Any) -> Any:
        metrics.update(logits, target)
        return logits * 2

    step(*(distribute_tensor(each, mesh, [Shard(0)]) for each in (LOGITS, TARGET)))
    assert metrics.compute()["count"] == 3
