# SPDX-License-Identifier: Apache-2.0
"""The files of a job's ranks become a job, or an error that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyinstrument_gpu import Job, JobError
from pyinstrument_gpu.analysis.contention import READING
from pyinstrument_gpu.aspects.collectives.data import COLLECTIVE_DTYPE, WAIT_DTYPE, Collectives
from pyinstrument_gpu.aspects.operations.data import Operations
from pyinstrument_gpu.core.record import OpenPhase
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE
from pyinstrument_gpu.job import gather
from pyinstrument_gpu.job.gather import job_of, rank_data
from pyinstrument_gpu.parts.words import ranks_text
from tests.helpers.job_files import ANCHOR, rank_environment, rank_run
from tests.helpers.run_writer import encode, save

HOUR_NS = 3_600 * 10**9
TIMES_NS = {"data": [10, 20, 30], "backward": [5, 6, 7]}


def run(rank: int, world_size: int = 2, times_ns: Any = TIMES_NS, **facts: Any) -> Run:
    return rank_run(rank, times_ns, environment=rank_environment(rank, world_size, **facts))


def saved(folder: Path, *runs: Run) -> list[Path]:
    paths = [folder / f"run.rank{one.environment['rank']}.gpurun" for one in runs]
    for one, path in zip(runs, paths, strict=True):
        save(one, path)
    return paths


def test_files_that_say_nothing_are_of_the_rank_in_their_name(tmp_path: Path) -> None:
    saved(tmp_path, run(0), run(1))
    path = tmp_path / "run.rank1.gpurun"
    path.write_bytes(path.read_bytes()[:100])
    (tmp_path / "aside.gpurun").mkdir()  # as an exporter may make it
    job = Job.load(tmp_path)
    assert job.missing == {1: f"{path} was cut short before it says what it is of"}
    assert job.notes == ()


def test_what_is_kept_of_a_rank() -> None:
    kept = rank_data(run(1), "x")
    assert (kept.rank, kept.file, kept.paths, kept.steps_ended) == (1, "x", ("data", "backward"), 3)
    assert kept.steps.tolist() == [0, 1, 2]
    assert kept.step_begin_ns.tolist() == [1000, 2015, 3041]
    assert kept.step_ns.tolist() == [15, 26, 37]
    assert kept.self_ns.tolist() == [[10, 20, 30], [5, 6, 7]]
    assert kept.first_begin_ns.tolist() == [[1000, 2015, 3041], [1010, 2035, 3071]]
    assert kept.last_end_ns.tolist() == [[1010, 2035, 3071], [1015, 2041, 3078]]
    assert (kept.device_ns == -1).all() and kept.device_ns.shape == (2, 3)


def test_several_calls_and_none_at_all_in_a_step() -> None:
    one = run(0)
    one.spans["path"][0] = 1  # "data" of step 0 becomes another "backward"
    kept = rank_data(one)
    assert kept.self_ns.tolist() == [[0, 20, 30], [15, 6, 7]]
    assert kept.first_begin_ns.tolist() == [[-1, 2015, 3041], [1000, 2035, 3071]]
    assert kept.last_end_ns.tolist() == [[-1, 2035, 3071], [1015, 2041, 3078]]


def test_stream_times_where_all_calls_have_one() -> None:
    one = run(0)
    one.span_device_ns = np.array([7, 8, -1, 9, 1, 2])
    one.spans["path"][4] = 1
    kept = rank_data(one)
    assert kept.device_ns.tolist() == [[7, -1, -1], [8, 9, 3]]


def test_waits_for_a_processor_of_the_steps_that_were_read() -> None:
    readings = np.zeros(2, METRIC_DTYPE)
    readings["step"], readings["value"] = [0, 2], [99, 9]
    one = rank_run(0, TIMES_NS, metric_names=(READING,), metrics=readings)
    waits_ns = rank_data(one).processor_wait_ns
    # More than the step took, it did not wait in it.
    np.testing.assert_array_equal(waits_ns, [15, np.nan, 9])
    assert rank_data(run(0)).processor_wait_ns is None


def test_profiled_steps_are_left_out() -> None:
    kept = rank_data(rank_run(0, TIMES_NS, operations=Operations(profiled=((1, 1),))))
    assert kept.steps.tolist() == [0, 2] and kept.self_ns.tolist() == [[10, 30], [5, 7]]
    assert kept.steps_ended == 3


def test_of_many_ranks_the_newest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    events = np.zeros(5, COLLECTIVE_DTYPE)
    events["sequence"] = np.arange(5)
    collectives = Collectives((), ("all_reduce",), events, missed=3, was_read=True)
    one = rank_run(1, TIMES_NS, collectives=collectives)
    monkeypatch.setattr(gather, "_MOST_CELLS", 8)
    monkeypatch.setattr(gather, "_MOST_OPERATIONS", 4)
    kept = rank_data(one)
    assert kept.steps.tolist() == [1, 2] and kept.self_ns.tolist() == [[20, 30], [6, 7]]
    assert kept.notes == ("of its 3 steps the last 2 are compared with those of other ranks",)
    assert kept.collectives.events["sequence"].tolist() == [3, 4]
    assert kept.collectives.missed == 6


def test_waits_are_of_the_innermost_phase_in_which_they_began() -> None:
    """Also where phases come several times in a step, as those of a pipeline."""
    made = rank_run(0, TIMES_NS, rest_ns=50)
    steps, spans = made.steps.closed, made.spans
    data, backward = made.paths.index("data"), made.paths.index("backward")
    of_step = spans[spans["step"] == 1]
    moments = {
        path: int(of_step["host_begin_ns"][of_step["path"] == path][0]) for path in (data, backward)
    }
    end_ns = int(steps["end_ns"][1])
    waits = np.array(
        [
            (moments[data] + 1, moments[data] + 4, False),
            (moments[backward], moments[backward] + 2, True),
            (end_ns - 20, end_ns - 13, True),
            (end_ns + 1, end_ns + 2, False),
            (int(steps["end_ns"][-1]) + 1, int(steps["end_ns"][-1]) + 9, False),
        ],
        WAIT_DTYPE,
    )
    collectives = Collectives(was_read=True, waits=waits, waits_since_ns=0)
    kept = rank_data(rank_run(0, TIMES_NS, rest_ns=50, collectives=collectives))
    assert kept.waits is not None and kept.waits.since_ns == 0
    assert kept.paths == ("data", "backward")
    assert kept.waits.total_ns.tolist() == [[0, 3, 0], [0, 2, 0], [0, 7, 0], [0, 0, 1]]
    assert kept.waits.p2p_ns.tolist() == [0, 9, 0]
    assert kept.waits.collectives.tolist() == [1, 0, 0, 1]
    assert not len(kept.collectives.waits)
    assert rank_data(run(0)).waits is None


def test_files_and_folders(tmp_path: Path) -> None:
    paths = saved(tmp_path, run(1, 3, job="j"), run(0, 3, job="j"))
    for given in (tmp_path, str(tmp_path), paths, [tmp_path]):
        job = Job.load(given)
        assert [rank.rank for rank in job.ranks] == [0, 1]
        assert (job.world_size, job.job_id, job.notes) == (3, "j", ())
        assert job.missing == {2: "there is no run file of it"}
        assert [rank.file for rank in job.ranks] == [str(paths[1]), str(paths[0])]
    assert job.run(1).environment["rank"] == 1
    assert repr(job) == "<Job of 3 ranks, 2 of them here>"
    with pytest.raises(KeyError, match="no run file of rank 2: there is no run file of it"):
        job.run(2)
    with pytest.raises(KeyError, match="no run file of rank 5: no such rank"):
        job.run(5)


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="no run files were given"):
        Job.load([])
    with pytest.raises(JobError, match=r"there is no run file \(.gpurun\) in"):
        Job.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        Job.load(tmp_path / "x.gpurun")
    (tmp_path / "x.gpurun").write_bytes(b"x")
    with pytest.raises(JobError, match=r"(?s)there is no run of a rank.*left out: .*x\.gpurun"):
        Job.load(tmp_path)


def test_damaged_files_are_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    saved(tmp_path, run(0, 4), run(1, 4), run(2, 4))
    (tmp_path / "run.rank3.gpurun").write_bytes(b"nothing")
    (tmp_path / "other.gpurun").write_bytes(b"nothing")
    whole = encode(run(2, 4))
    (tmp_path / "run.rank2.gpurun").write_bytes(whole[: len(whole) // 2])
    job = Job.load(tmp_path)
    assert [rank.rank for rank in job.ranks][:2] == [0, 1]
    assert set(job.missing) == {3} and "run.rank3.gpurun" in job.missing[3]
    assert "other.gpurun" in job.notes[0]
    assert any(note.startswith("rank 2: ") for note in job.notes)


def test_ranks_of_two_jobs(tmp_path: Path) -> None:
    saved(tmp_path, run(0, job="x"), run(1, job="x"))
    save(run(0, job="y", run_id="a" * 16), tmp_path / "z.gpurun")
    with pytest.raises(JobError) as raised:
        Job.load(tmp_path)
    assert str(raised.value).splitlines() == [
        f"{tmp_path}/run.rank0.gpurun and {tmp_path}/z.gpurun are not two ranks of one job: "
        "the run ids differ (x and y). Give the runs of one job:",
        f"    job x, 2 ranks: {tmp_path}/run.rank0.gpurun {tmp_path}/run.rank1.gpurun",
        f"    job y, 2 ranks: {tmp_path}/z.gpurun",
    ]


def test_a_job_that_was_started_again_by_hand(tmp_path: Path) -> None:
    """Into files of other names, by the same command in the same folder."""
    start: dict[str, Any] = {"command": ["python", "train.py"], "cwd": "/home"}
    for number, name in enumerate(("b", "a")):
        anchor = {**ANCHOR, "realtime_ns": ANCHOR["realtime_ns"] + number * HOUR_NS}
        for rank in range(2):
            one = run(rank, run_id=f"{number}{rank:015x}", anchor=anchor, **start)
            save(one, tmp_path / f"{name}.rank{rank}.gpurun")
    job = Job.load(tmp_path)
    assert [rank.file for rank in job.ranks] == [
        f"{tmp_path}/a.rank{rank}.gpurun" for rank in range(2)
    ]
    assert job.earlier == (tuple(f"{tmp_path}/b.rank{rank}.gpurun" for rank in range(2)),)


def test_two_jobs_of_one_command_at_one_time_are_no_attempts_of_one(tmp_path: Path) -> None:
    start: dict[str, Any] = {"command": ["python", "train.py"], "cwd": "/home"}
    for number, (rank, name) in enumerate(((0, "a"), (1, "b"), (0, "b"), (1, "a"))):
        anchor = {**ANCHOR, "realtime_ns": ANCHOR["realtime_ns"] + number}
        (tmp_path / name).mkdir(exist_ok=True)
        one = run(rank, run_id=f"{number:016x}", anchor=anchor, **start)
        save(one, tmp_path / name / f"run.rank{rank}.gpurun")
    with pytest.raises(JobError) as raised:
        Job.load(tmp_path)
    assert str(raised.value).splitlines()[1:] == [
        f"    2 ranks: {tmp_path}/a/run.rank0.gpurun {tmp_path}/a/run.rank1.gpurun",
        f"    2 ranks: {tmp_path}/b/run.rank1.gpurun {tmp_path}/b/run.rank0.gpurun",
    ]


def test_two_jobs_of_one_command_whose_files_are_not_named_alike(tmp_path: Path) -> None:
    """All of them are named, in whatever order they began: also those that look like one job. The
    files of one are a job."""
    start: dict[str, Any] = {"command": ["python", "train.py"], "cwd": "/home"}
    for number, name in enumerate("acdb"):
        anchor = {**ANCHOR, "realtime_ns": ANCHOR["realtime_ns"] + number}
        one = run(number // 2, run_id=f"{number:016x}", anchor=anchor, **start)
        save(one, tmp_path / f"{name}.gpurun")
    other = run(0, run_id="e" * 16, anchor=ANCHOR, command=["python", "eval.py"], cwd="/home")
    save(other, tmp_path / "e.gpurun")
    with pytest.raises(JobError, match="two jobs of one command ran at the same time") as raised:
        Job.load(tmp_path)
    named = [f"    {tmp_path}/{name}.gpurun" for name in "acdb"]
    assert str(raised.value).splitlines()[1:] == [*named, "Give the files of one job"]
    assert len(Job.load([tmp_path / "a.gpurun", tmp_path / "d.gpurun"]).ranks) == 2


@pytest.mark.parametrize("names", [("job", "job"), ("job-a", "job-b")])
def test_folders_of_machines(tmp_path: Path, names: tuple[str, str]) -> None:
    """Which have files of one name or of two, and both of two attempts."""
    for number, attempt in enumerate(("", ".restart1")):
        anchor = {**ANCHOR, "realtime_ns": ANCHOR["realtime_ns"] + number}
        for rank, name in enumerate(names):
            (tmp_path / f"node{rank}").mkdir(exist_ok=True)
            one = run(rank, job="x", run_id=f"{number}{rank:015x}", anchor=anchor)
            save(one, tmp_path / f"node{rank}" / f"{name}{attempt}.rank{rank}.gpurun")
    job = Job.load(tmp_path)
    assert [rank.file for rank in job.ranks] == [
        f"{tmp_path}/node{rank}/{name}.restart1.rank{rank}.gpurun"
        for rank, name in enumerate(names)
    ]
    assert [len(files) for files in job.earlier] == [2]


@pytest.mark.parametrize("last", ["", ".restart1", ".requeue1.restart2"])
def test_of_several_attempts_the_last_one_is_the_job(tmp_path: Path, last: str) -> None:
    """Which began last, whatever its name: an earlier job may have had more restarts."""
    earlier = []
    for i, attempt in enumerate(("", ".restart1", ".requeue1.restart2")):
        for rank in range(2):
            anchor = {**ANCHOR, "realtime_ns": ANCHOR["realtime_ns"] + (attempt == last)}
            one = run(rank, job="x", restarts=0, run_id=f"{i}{rank:015x}", anchor=anchor)
            path = tmp_path / f"job{attempt}.rank{rank}.gpurun"
            save(one, path)
            earlier += [path] if attempt != last else []
    for paths in (tmp_path, [*tmp_path.iterdir()]):
        job = Job.load(paths)
        files = [f"{tmp_path}/job{last}.rank{rank}.gpurun" for rank in range(2)]
        assert [rank.file for rank in job.ranks] == files
        (note,) = job.notes
        assert note.startswith("left out: runs of 2 earlier attempts of the job")
        assert all(str(path) in note for path in earlier)
        assert sorted(sum(job.earlier, ())) == sorted(map(str, earlier))
    assert Job.load(earlier[:2]).notes == ()


def test_a_damaged_file_of_an_earlier_attempt_is_left_out_with_it(tmp_path: Path) -> None:
    for number, attempt in enumerate(("", ".restart1")):
        anchor = {**ANCHOR, "realtime_ns": ANCHOR["realtime_ns"] + number}
        for rank in range(2):
            one = run(rank, job="x", run_id=f"{number}{rank:015x}", anchor=anchor)
            save(one, tmp_path / f"job{attempt}.rank{rank}.gpurun")
    damaged = tmp_path / "job.rank1.gpurun"
    damaged.write_bytes(b"nothing")
    job = Job.load(tmp_path)
    assert job.missing == {}
    assert job.earlier == ((f"{tmp_path}/job.rank0.gpurun", str(damaged)),)


def test_ranks_that_are_left_of_an_earlier_job_are_of_another_attempt(tmp_path: Path) -> None:
    """A job of two ranks was recorded over one of three."""
    start: dict[str, Any] = {"command": ["python", "train.py"], "cwd": "/home"}
    later = {**ANCHOR, "realtime_ns": ANCHOR["realtime_ns"] + HOUR_NS}
    saved(
        tmp_path,
        run(2, 3, run_id="a" * 16, **start),
        *(run(rank, 2, anchor=later, **start) for rank in (0, 1)),
    )
    assert [rank.rank for rank in Job.load(tmp_path).ranks] == [0, 1]


def test_runs_that_are_of_no_rank(tmp_path: Path) -> None:
    alone = rank_run(0, TIMES_NS, environment={"host": "box"})
    saved(tmp_path, run(0), run(1))
    save(alone, tmp_path / "alone.gpurun")
    with pytest.raises(JobError, match=r"alone\.gpurun is not a rank of a job"):
        Job.load(tmp_path / "alone.gpurun")
    job = Job.load(tmp_path)
    assert len(job.ranks) == 2
    assert job.notes == (f"left out: {tmp_path}/alone.gpurun does not say of which rank it is",)
    save(run(0, 1), tmp_path / "alone.gpurun")
    with pytest.raises(JobError, match="not a rank"):
        Job.load(tmp_path / "alone.gpurun")


def test_differences_are_said(tmp_path: Path) -> None:
    other = run(
        2,
        4,
        {"data": [1, 2], "forward": [1, 2]},
        revision="b",
    )
    other.complete = False
    other.open_phases = (OpenPhase("data", 0, 5, 1, 0),)
    saved(tmp_path, run(0, 4, revision="a"), run(1, 4, revision="a"), other, run(3, 4))
    job = Job.load(tmp_path)
    assert job.notes == (
        "the ranks ran different code revisions: a on ranks 0-1, b on rank 2",
        "rank 2: other phases; has forward alone and lacks backward",
        "rank 2: the recording was not stopped, so the process ended before that or is still "
        "running",
        "most ranks ended 3 steps, but rank 2 ended 2",
    )
    assert job.ranks[2].end.path == "data"


def test_clocks_of_hosts_that_are_apart_by_hours(tmp_path: Path) -> None:
    later = {"run_ns": 0, "monotonic_ns": 5, "realtime_ns": 10**18 + 5 * 3600 * 10**9}
    saved(tmp_path, run(0), run(1, host="other", anchor=later))
    assert len(Job.load(tmp_path).ranks) == 2
    saved(tmp_path, run(0), run(1, anchor={**later, "monotonic_ns": 10**12 + 5}))
    assert len(Job.load(tmp_path).ranks) == 2


def test_a_world_of_billions(tmp_path: Path) -> None:
    saved(tmp_path, run(0, 2**31 - 1))
    job = Job.load(tmp_path)
    assert job.world_size == 2**31 - 1 and len(job.missing) == 100_000


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([1, 0], "ranks 0-1"),
        ([0, 1, 2, 7, 9], "ranks 0-2, 7 and 9"),
        (range(0, 40, 2), "ranks 0, 2, 4, 6, 8, 10, 12 and 13 more"),
    ],
)
def test_ranks_in_words(ranks: Any, text: str) -> None:
    assert ranks_text(ranks) == text


def test_doubts_about_how_many_ranks_there_are(tmp_path: Path) -> None:
    paths = saved(tmp_path, run(0), run(5))
    assert "the runs say that the job had 2 ranks, but there is rank 5" in Job.load(paths).notes
    for path, rank in zip(paths, (0, 5), strict=True):
        one = run(rank)
        one.environment = {key: one.environment[key] for key in ("rank", "run_id")}
        save(one, path)
    notes = Job.load(paths).notes
    assert notes == ("the runs don't say how many ranks the job had: there may be more",)


def test_ranks_that_all_ended_other_numbers_of_steps() -> None:
    short = {path: times[:2] for path, times in TIMES_NS.items()}
    job = job_of([rank_data(run(0)), rank_data(run(1, times_ns=short))])
    assert job.notes == ("the ranks ended different numbers of steps, 2 to 3",)
