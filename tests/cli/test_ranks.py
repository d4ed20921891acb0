# SPDX-License-Identifier: Apache-2.0
"""Commands that are given the ranks of a job: as files, or as the folder that they are in."""

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pyinstrument_gpu.cli import main
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.job.job import Job
from tests.helpers.job_files import rank_environment, rank_run
from tests.helpers.run_writer import save

MS = 1_000_000
STEPS = 40
LATE = 1


def invoke(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "100"}).invoke(main, arguments)


def save_job(folder: Path, ranks: int = 2, name: str = "train", **facts: Any) -> list[str]:
    """A job whose rank 1 loads 30 ms longer, for which rank 0 waits in "backward"."""
    folder.mkdir(exist_ok=True)
    files = []
    for rank in range(ranks):
        data_ns = (40 if rank == LATE else 10) * MS
        noise_ns = [1_000 * ((7 * step + 3 * rank) % 5) for step in range(STEPS)]
        times_ns = {
            "data": [data_ns + noise for noise in noise_ns],
            "backward": [60 * MS - data_ns - noise for noise in noise_ns],
        }
        run_id = {"run_id": f"{sum(name.encode()):08x}{rank:08x}"}
        environment = rank_environment(rank, ranks, **(run_id | facts))
        files.append(str(folder / f"{name}.rank{rank}.gpurun"))
        save(rank_run(rank, times_ns, environment=environment), files[-1])
    return files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_job(tmp_path / "job")
    return tmp_path / "job"


def test_report_of_ranks_is_that_of_their_job(folder: Path) -> None:
    files = sorted(map(str, folder.iterdir()))
    expected = Job.load(folder).report(width=100, color=False) + "\n"
    for given in ([str(folder)], files, files[::-1]):
        result = invoke("report", *given)
        assert (result.exit_code, result.stdout) == (0, expected)
    assert "Ranks: 2 of 2" in expected
    assert "Where the step goes" not in expected


def test_report_as_json_is_one_line(folder: Path) -> None:
    result = invoke("report", str(folder), "--json")
    (line,) = result.stdout.splitlines()
    members = json.loads(line)
    assert members["job"] == {
        "world_size": 2,
        "ranks_read": 2,
        "hosts": 1,
        "duration_ns": Run.load(folder / "train.rank0.gpurun").duration_ns,
    }
    assert [rank["rank"] for rank in members["ranks"]] == [0, 1]


def test_report_of_one_rank_is_that_of_its_run(folder: Path) -> None:
    file = str(folder / "train.rank1.gpurun")
    for options in ([], ["--json"], ["--step", "3"]):
        given = invoke("report", str(folder), "--rank", "1", *options)
        assert given.exit_code == 0
        assert given.stdout == invoke("report", file, *options).stdout
    result = invoke("report", str(folder), "--rank", "2")
    assert result.exit_code == 1
    assert result.stderr == "Error: there is no run of rank 2: the job has 2 ranks\n"


def test_earlier_attempts_in_a_folder_are_named_and_left_out(tmp_path: Path) -> None:
    alone = rank_environment(0, 1)
    later = {**alone["anchor"], "realtime_ns": alone["anchor"]["realtime_ns"] + 1}
    for name, facts in (
        ("a.gpurun", {}),
        ("a.requeue1.gpurun", {"anchor": later, "run_id": "b" * 16}),
    ):
        save(rank_run(0, {"data": [MS]}, environment={**alone, **facts}), tmp_path / name)
    first, second = f"{tmp_path}/a.gpurun", f"{tmp_path}/a.requeue1.gpurun"
    result = invoke("report", str(tmp_path))
    assert result.stdout == invoke("report", second).stdout
    assert "an earlier attempt of the job" in result.stderr and first in result.stderr
    both = invoke("report", first, second, "--json")
    assert (both.stdout.count("\n"), both.stderr) == (2, "")


def test_missing_ranks_are_named(folder: Path) -> None:
    (folder / "train.rank0.gpurun").unlink()
    output = invoke("report", str(folder)).stdout
    assert "! rank 0: there is no run file of it" in output
    assert "1 rank is missing" in output.replace("\n", " ")


@pytest.mark.parametrize(
    ("first", "facts", "reason"),
    [
        ({"job": "7"}, {"name": "other", "job": "8"}, "the run ids differ (7 and 8)"),
        ({"job": "7"}, {"name": "other"}, "the run ids differ (7 and none)"),
        ({}, {"name": "other"}, "both have the same rank"),
        (None, {"run_id": "0" * 16}, "are the same run: give it once"),
    ],
)
def test_ranks_of_no_one_job_are_refused(
    tmp_path: Path, first: dict[str, Any] | None, facts: dict[str, Any], reason: str
) -> None:
    given = [] if first is None else save_job(tmp_path, **first)
    given += save_job(tmp_path, **facts)
    for options in ([], ["--json"], ["--html"], ["--rank", "0"]):
        result = invoke("report", *given, *options)
        assert (result.exit_code, result.stdout) == (1, "")
        assert reason in result.stderr
        assert first is None or "are not two ranks of one job: " in result.stderr


def test_folder_of_single_runs_is_each_of_them(tmp_path: Path) -> None:
    for number in (2, 10):
        run = rank_run(0, {"data": [MS] * 4}, environment={"run_id": f"{number:016x}"})
        save(run, tmp_path / f"run{number}.gpurun")
    output = invoke("report", str(tmp_path)).stdout
    headings = [line for line in output.splitlines() if line.startswith("===")]
    assert headings == [f"=== {tmp_path}/run{number}.gpurun" for number in (2, 10)]


def test_folder_without_runs(tmp_path: Path) -> None:
    for command in (["report"], ["export", "-o", "-"], ["compare", "--after", "x", "--before"]):
        result = invoke(*command, str(tmp_path))
        assert result.exit_code == 1
        assert result.stderr == f"Error: there is no run file (.gpurun) in {tmp_path}\n"


def test_export_of_a_folder_has_all_ranks(folder: Path, tmp_path: Path) -> None:
    rows = csv.DictReader(io.StringIO(invoke("export", str(folder), "-o", "-").stdout, newline=""))
    ranks = [row["rank"] for row in rows]
    assert (ranks.count("0"), ranks.count("1"), len(ranks)) == (2 * STEPS, 2 * STEPS, 4 * STEPS)
    assert invoke("export", str(folder), f"{tmp_path}/out/").exit_code == 0
    assert sorted(os.listdir(tmp_path / "out")) == ["rank=0", "rank=1"]


def test_compare_takes_each_job_as_one_run(tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="scipy is not installed")
    files = {name: save_job(tmp_path / name, name=name, job=name) for name in "abcdef"}
    before, after = "ace", "bdf"
    folders = [[str(tmp_path / name) for name in side] for side in (before, after)]
    named = [[file for name in side for file in files[name]] for side in (before, after)]
    outputs = []
    for sides in (folders, named):
        result = invoke("compare", "--before", *sides[0], "--after", *sides[1])
        assert result.exit_code == 0
        outputs.append(result.stdout)
    assert outputs[0] == outputs[1]
    assert "3 runs before, 3 runs after" in outputs[0]
    result = invoke("compare", "--before", *folders[0], "--after", *folders[1], "--json")
    facts = json.loads(result.stdout)
    assert [len(facts["elapsed"][f"{side}_ns"]) for side in ("before", "after")] == [3, 3]

    page = str(tmp_path / "page.html")
    options = ("--html", "-o", page)
    assert (
        invoke("compare", "--before", *folders[0], "--after", *folders[1], *options).exit_code == 0
    )
    assert "3 before, 3 after" in Path(page).read_text()


def test_page_of_a_job(folder: Path) -> None:
    pytest.importorskip("jinja2", reason="jinja2 is not installed")
    result = invoke("report", str(folder), "--html")
    page = folder / "train.rank0.html"
    assert (result.exit_code, result.stdout) == (0, f"Page: {page}\n")
    text = page.read_text()
    assert "Job of 2 ranks" in text
    assert "Rank 1 is waited for" in text
