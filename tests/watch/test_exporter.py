# SPDX-License-Identifier: Apache-2.0
"""What Prometheus is told of ranks, and the alerts that it raises then."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.watch.exporter import RankExporter
from pyinstrument_gpu.watch.run_files import run_files
from tests.helpers.run_writer import save
from tests.helpers.watched import MS, S, clocks_at, finished, replace_file, running
from tests.sinks.test_grafana import ALERTS, needs_promtool, promtool

pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")

GONE = 1 << 22 | 1
"""No process has such a number."""
NOW_NS = 20 * S + 110 * MS


def rank_run(number: int, run: Run, **environment: Any) -> Run:
    run.environment = {
        **run.environment,
        "rank": number,
        "world_size": 4,
        "run_id": f"{number:016x}",
        **environment,
    }
    return run


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[RankExporter]:
    exporter = RankExporter(lambda: run_files(str(tmp_path)), 0, "127.0.0.1")
    yield exporter
    exporter.close()


def values(exporter: RankExporter) -> dict[tuple[str, str, str], float]:
    """By name, rank, and condition or path."""
    return {
        (
            sample.name.removeprefix("pyinstrument_gpu_rank_"),
            sample.labels["rank"],
            sample.labels.get("condition") or sample.labels.get("path") or "",
        ): sample.value
        for family in exporter.collect()
        for sample in family.samples
    }


def test_each_rank_is_as_watch_sees_it(tmp_path: Path, exporter: RankExporter) -> None:
    exporter.look(clocks_at(1 * S))
    assert values(exporter) == {}
    save(rank_run(0, running(200)), tmp_path / "job.rank0.gpurun")
    save(rank_run(1, running(5), pid=GONE), tmp_path / "job.rank1.gpurun")
    save(rank_run(2, finished(5)), tmp_path / "job.rank2.gpurun")
    exporter.look(clocks_at(NOW_NS))
    found = values(exporter)
    conditions = {key[1]: key[2] for key in found if key[0] == "condition"}
    assert conditions == {"0": "running", "1": "cut off", "2": "ended"}
    assert (found["steps", "0", ""], found["steps", "1", ""]) == (200, 5)
    assert found["step_seconds", "0", ""] == 0.1
    assert found["phase_seconds", "0", "backward"] == 0.05
    assert ("phase_seconds", "1", "backward") not in found
    assert found["silent_seconds", "0", ""] == 0
    assert found["recorded_seconds", "0", ""] == NOW_NS / S
    hosts = {sample.labels["host"] for family in exporter.collect() for sample in family.samples}
    assert hosts == {"box"}


def test_the_next_job_is_looked_at_when_one_has_ended(
    tmp_path: Path, exporter: RankExporter
) -> None:
    first = tmp_path / "job.rank0.gpurun"
    save(rank_run(0, running(200)), first)
    exporter.look(clocks_at(21 * S))
    save(rank_run(0, running(3), run_id="a" * 16), tmp_path / "job.restart1.rank0.gpurun")
    exporter.look(clocks_at(21 * S))
    assert values(exporter)["steps", "0", ""] == 200  # the first goes on
    replace_file(rank_run(0, finished(201)), first)
    later_s = first.stat().st_mtime + 10
    newest = tmp_path / "job.restart1.rank0.gpurun"
    os.utime(newest, (later_s, later_s))
    exporter.look(clocks_at(22 * S))
    assert values(exporter)["steps", "0", ""] == 3


def test_ranks_of_another_job_are_not_served(tmp_path: Path, exporter: RankExporter) -> None:
    """Nor any longer, once it is known that they are."""

    def begins(name: str, rank: int, steps: int) -> None:
        run_id = f"{name}{rank:015x}"
        (tmp_path / name).mkdir(exist_ok=True)
        save(
            rank_run(rank, running(steps), run_id=run_id), tmp_path / name / f"j.rank{rank}.gpurun"
        )

    begins("a", 1, 100)
    begins("b", 0, 200)
    os.utime(tmp_path / "a" / "j.rank1.gpurun", (1, 1))
    exporter.look(clocks_at(NOW_NS))
    assert values(exporter)["steps", "1", ""] == 100
    begins("a", 0, 100)
    begins("b", 1, 199)
    exporter.look(clocks_at(NOW_NS))
    found = values(exporter)
    assert (found["steps", "0", ""], found["steps", "1", ""]) == (200, 199)


# --- alerts ---

ON = 'rank="{}", host="box", job="train", instance="i"'


def series(name: str, rank: int, more: str, values: str) -> dict[str, str]:
    labels = ON.format(rank) + more
    return {"series": f"pyinstrument_gpu_rank_{name}{{{labels}}}", "values": values}


@needs_promtool
def test_rules(tmp_path: Path) -> None:
    """Rank 0 is well and then ends; rank 1 hangs and then dies; rank 2 hangs at the start, and rank
    4 takes long there; rank 3 is slower in data, and the others wait for it in backward."""
    given = [
        *(series("steps", rank, "", "9x12" if rank not in (2, 4) else "0x12") for rank in range(5)),
        *(series("recorded_seconds", rank, "", "1140+60x12") for rank in (0, 4)),
        series("condition", 0, ', condition="running"', "1x5 stale"),
        series("condition", 0, ', condition="finished"', "_x5 1x6"),
        series("condition", 1, ', condition="running"', "1 1 stale"),
        series("condition", 1, ', condition="hanging"', "_ _ 1 1 1 stale"),
        series("condition", 1, ', condition="cut off"', "_x5 1x6"),
        series("condition", 2, ', condition="hanging"', "1x12"),
        series("condition", 3, ', condition="running"', "1x12"),
        series("condition", 4, ', condition="running"', "1x12"),
    ]
    for rank in (0, 1, 3):
        data = 0.09 if rank == 3 else 0.01
        given += [
            series("step_seconds", rank, "", "0.2x12"),
            series("phase_seconds", rank, ', path="data"', f"{data}x12"),
            series("phase_seconds", rank, ', path="backward"', f"{0.15 - data}x12"),
            series("phase_seconds", rank, ', path="data/fetch"', f"{data}x12"),
        ]
    raised = {
        "RankHangs": {1: (3, 4, "hanging")},
        "RankDied": {1: (6, 12, "cut off")},
        "RankHangsAtStart": {2: (1, 12, "hanging"), 4: (3, 12, "running")},
        "StragglingRank": {3: (5, 12, "data")},
    }
    expected = []
    for alert, ranks in raised.items():
        for minute in range(13):
            alerts = []
            for rank, (first, last, which) in ranks.items():
                if not first <= minute <= last:
                    continue
                label = "path" if alert == "StragglingRank" else "condition"
                who = f"rank {rank} on box"
                alerts.append(
                    {
                        "exp_labels": {
                            "severity": "critical",
                            "rank": str(rank),
                            "host": "box",
                            "job": "train",
                            "instance": "i",
                            label: which,
                            **({"severity": "warning"} if label == "path" else {}),
                        },
                        "exp_annotations": {
                            "summary": {
                                "RankHangsAtStart": f"{who} has ended no step",
                                "StragglingRank": f"{who} takes 80ms more per step in data than "
                                "the median rank",
                            }.get(alert, f"{who}: {which}")
                        },
                    }
                )
            expected.append({"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": alerts})
    test = {"interval": "1m", "input_series": given, "alert_rule_test": expected}
    shutil.copy(ALERTS, tmp_path / "alerts.yml")
    file = tmp_path / "test.yml"
    file.write_text(json.dumps({"rule_files": ["alerts.yml"], "tests": [test]}))
    said = promtool("test", "rules", file)
    assert "SUCCESS" in said, said
