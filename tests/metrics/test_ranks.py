# SPDX-License-Identifier: Apache-2.0
"""compute(across_ranks=True): several ranks give what one process gives on all data."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.helpers import metric_rank
from tests.helpers.metric_cases import assert_same
from tests.helpers.python_server import run_python, run_ranks

BATCHES = 9


@pytest.mark.parametrize(
    ("told", "world_size"),
    [("arguments", 4), pytest.param("as torchrun does", 2, marks=pytest.mark.thorough)],
)
def test_ranks_equal_one_process(told: str, world_size: int, tmp_path: Path) -> None:
    # Not by the interface of the host's name, which need not be known.
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    command: list[object] = ["-m", "tests.helpers.metric_rank", tmp_path, BATCHES]
    if told == "arguments":
        ranks = [run_python(*command, world_size, environment=environment)]
    else:
        ranks = run_ranks(world_size, *command, environment=environment)
    assert {done.returncode for done in ranks} == {0}, [done.stderr for done in ranks]

    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(world_size)]
    wanted = metric_rank.plain(metric_rank.accumulate(range(BATCHES)).compute())
    assert len({json.dumps(result["merged"][0]) for result in results}) == 1
    for rank, result in enumerate(results):
        first, second = result["merged"]
        assert json.dumps(first) == json.dumps(second)
        assert result["unchanged"]
        assert first.pop("of the last rank") == 2
        assert first.pop("of the last rank_sum") == 2
        for key in [key for key in first if key.startswith("of the last rank")]:
            del first[key]
        # What is last is each rank's own: their mean. Numbers of updates are each rank's too.
        own = {"loss_last", "tokens_last", "first_nonfinite_update"}
        assert_same(
            {key: value for key, value in first.items() if key not in own},
            {key: value for key, value in wanted.items() if key not in own},
        )
        assert first["first_nonfinite_update"] == 5 // world_size + 1
        begin = "the accumulator of rank 1 was made with different arguments than that of rank 0"
        assert result["errors"] == [
            f"{begin}: topk=[2] instead of [1]",
            f"{begin}: num_classes=5 instead of 4",
            f"{begin}: confusion=False instead of True, ignore_index=-1 instead of 0",
            "the running value 'lr' of one rank and those of the others have keys in common: "
            "choose another name",
        ]
        assert result["names"] == 10 * world_size
        assert result["of_one_rank"] == 3
        assert json.dumps(result["pending"]) == json.dumps([True, second])
        pair = rank // 2 * 2
        assert result["of_group"] == [2 * pair + 1] * 3
        of_mesh, of_others, of_odd = result["errors_of_group"]
        assert "device mesh of one dimension" in of_mesh
        assert "this process is not in the group" in of_others
        assert of_odd == (
            f"the accumulator of rank {pair + 1} was made with different arguments than that of "
            f"rank {pair}: topk=[2] instead of [1]"
        )
        sharded = result["sharded"]
        assert sharded["merged"] == pytest.approx(sharded["wanted"], rel=1e-12)
    check_averages(results)


def check_averages(results: list[dict[str, Any]]) -> None:
    wanted = metric_rank.accumulate_averages(range(BATCHES)).compute()
    merged = results[0]["averages"]
    assert all(json.dumps(each["averages"]) == json.dumps(merged) for each in results)
    for key, value in wanted.items():
        if value is None or key.endswith(("_ema", "_last")):
            continue
        assert merged[key] == pytest.approx(value, rel=1e-9, nan_ok=True), key
    mean = math.fsum(result["own_ema"] for result in results) / len(results)
    assert merged["logits_ema"] == pytest.approx(mean)


def test_without_a_process_group_it_is_this_process() -> None:
    metrics = metric_rank.accumulate(range(3))

    assert_same(metrics.compute(across_ranks=True), metrics.compute())
