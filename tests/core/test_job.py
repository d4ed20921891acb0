# SPDX-License-Identifier: Apache-2.0
"""Which runs are refused together: the same one twice, and ranks of different jobs."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pyinstrument_gpu.analysis.compare import compare
from pyinstrument_gpu.cli import main
from pyinstrument_gpu.core.job_membership import different_ranks, not_one_job, same_run_twice
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import ExportError
from pyinstrument_gpu.export import export
from tests.helpers.made_runs import run_of
from tests.helpers.run_writer import save

MINUTE_NS = 60 * 10**9
NAMES = ["a", "b", "c"]


def rank(number: int, begin_ns: int = 0, **environment: Any) -> Run:
    """A rank of a job of two, of a minute from then on."""
    anchor = {"run_ns": 5, "monotonic_ns": 10**12 + begin_ns, "realtime_ns": 10**18 + begin_ns}
    facts = {"host": "box", "rank": number, "world_size": 2, "anchor": anchor}
    return run_of([], duration_ns=MINUTE_NS, environment={**facts, **environment})


def test_the_same_run_is_found_by_its_id() -> None:
    runs = [rank(0, run_id="0" * 16), rank(1, run_id="1" * 16), rank(0, run_id="0" * 16)]
    assert same_run_twice(runs, NAMES) == "a and c are the same run: give it once"
    assert same_run_twice(runs[:2], NAMES[:2]) is None
    assert same_run_twice([rank(0), rank(0)], NAMES[:2]) is None


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (rank(2, world_size=4), "the numbers of ranks differ (2 and 4)"),
        (rank(1, job="y"), "the run ids differ (x and y)"),
        (rank(1), "the run ids differ (x and none)"),
        (rank(1, job="x", slurm_job="7"), "the Slurm jobs differ (none and 7)"),
        (rank(1, job="x", arguments=["/b/eval.py"]), "the programs differ (train.py and eval.py)"),
        (rank(0, job="x"), "both have the same rank"),
        (rank(1, 32 * MINUTE_NS, job="x"), "the first had ended long before the other began"),
        (
            rank(1, 2 * MINUTE_NS, job="x", restarts=1),
            "torchrun restarted the ranks in between",
        ),
    ],
)
def test_what_can_not_be_of_one_job(other: Run, reason: str) -> None:
    first = rank(0, job="x", restarts=0, arguments=["/a/train.py", "--rank=0"])
    wrong = not_one_job([first, other], NAMES[:2])
    assert wrong == f"a and b are not two ranks of one job: {reason}"


@pytest.mark.parametrize(
    "other",
    [
        rank(1),
        rank(1, arguments=["/b/train.py", "--rank=1"]),
        rank(1, 30 * MINUTE_NS),
        rank(1, 30 * MINUTE_NS, restarts=0),
        rank(1, MINUTE_NS // 2, restarts=1),
        rank(1, 2 * MINUTE_NS, restarts=1, host="other"),
        rank(1, 90 * MINUTE_NS, host="other"),
        rank(1, anchor={"run_ns": 0, "monotonic_ns": 10**12, "realtime_ns": 2 * 10**18}),
        rank(1, anchor={"run_ns": 0, "monotonic_ns": 10**15, "realtime_ns": 10**18}),
        rank(1, anchor={}),
        run_of([], environment={"job": "y"}),
        run_of([], environment={"rank": 0, "world_size": 1, "host": "box"}),
    ],
)
def test_what_nothing_speaks_against(other: Run) -> None:
    first = rank(0, restarts=0, arguments=["/a/train.py"])
    assert not_one_job([first, other], NAMES[:2]) is None


def test_the_order_of_runs_does_not_matter() -> None:
    late, early = rank(1, 40 * MINUTE_NS), rank(0)
    wrong = not_one_job([late, rank(2, 20 * MINUTE_NS), early], NAMES)
    assert wrong is not None and wrong.startswith("c and a are not two ranks of one job")


def test_exports_refuse_them(tmp_path: Path) -> None:
    for other, reason in (
        (rank(1, world_size=3), "not two ranks of one job.*: export the runs of each job"),
        (rank(0, run_id="0" * 16), "run 1 and run 2 are the same run"),
    ):
        with pytest.raises(ExportError, match=reason):
            export([rank(0, run_id="0" * 16), other], tmp_path / "x.csv")
    assert list(tmp_path.iterdir()) == []


def test_compare_refuses_them() -> None:
    with pytest.raises(ValueError, match="run 1 before and run 2 after are the same run"):
        compare([rank(0, run_id="0" * 16)], [rank(0), rank(0, run_id="0" * 16)])
    with pytest.raises(ValueError, match="run 1 before is of rank 0, and run 1 after of rank 1"):
        compare([rank(0)], [rank(1)])
    assert different_ranks([rank(0), rank(0, world_size=1), rank(0)], NAMES) is None


def test_commands_refuse_a_run_given_twice(tmp_path: Path) -> None:
    first, second = str(tmp_path / "a.gpurun"), str(tmp_path / "b.gpurun")
    for path in (first, second):
        save(rank(0, run_id="0" * 16), path)
    for command in (
        ["report", first, second],
        ["report", "--json", first, second],
        ["export", first, second, "-o", "-"],
        ["compare", "--before", first, "--after", second],
    ):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 1
        assert "are the same run: give it once" in done.stderr
