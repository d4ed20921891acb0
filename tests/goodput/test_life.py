# SPDX-License-Identifier: Apache-2.0
"""What the time of made jobs went into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyinstrument_gpu.aspects.stalls.data import Stall
from pyinstrument_gpu.aspects.startup.data import Startup
from pyinstrument_gpu.core.condition import Condition, ProcessState
from pyinstrument_gpu.core.file.items import STEP_ITEM, columns
from pyinstrument_gpu.core.file.shared_page import MOST_STEPS
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.errors import JobError
from pyinstrument_gpu.goodput import life
from pyinstrument_gpu.goodput import run_times as run_times_file
from pyinstrument_gpu.goodput.attempts import newest_job
from pyinstrument_gpu.goodput.life import job_life
from pyinstrument_gpu.goodput.report import goodput_document
from pyinstrument_gpu.goodput.run_times import run_times
from pyinstrument_gpu.job.condition import ProcessObservation
from tests.goodput.lives import (
    BEFORE_NS,
    EPOCH_NS,
    GONE,
    MONOTONIC_NS,
    MS,
    STEP_NS,
    attempt,
    life_of,
    ms_of,
    saved,
)
from tests.helpers.job_files import rank_run

# Steps


def test_a_single_attempt(tmp_path: Path) -> None:
    life = life_of(tmp_path, attempt(0, 10))
    assert ms_of(life) == {"startup": 100, "productive": 100, "recomputed": 5}
    assert (life.steps.productive, life.steps.recomputed, life.steps.cut_off) == (10, 0, 1)
    assert life.joined_by == ""


def test_steps_that_are_seen_twice(tmp_path: Path) -> None:
    """The step that the kill has cut off was lost, and is productive when it is done."""
    life = life_of(tmp_path, attempt(0, 10), attempt(1000, 10, start=6))
    assert (life.steps.productive, life.steps.recomputed, life.steps.cut_off) == (16, 4, 2)
    assert ms_of(life) == {
        "startup": 200,
        "productive": 160,
        "recomputed": 40 + 5 + 5,
        "dead": 1000 - 205,
    }
    assert [one.numbered_by for one in life.attempts] == ["its begin", "told by the program"]


def test_a_step_that_break_has_left_is_done_and_one_that_an_exception_has_left_is_not(
    tmp_path: Path,
) -> None:
    steps = rank_run(0, {"forward": [STEP_NS] * 3}, gap_ns=0).steps.array.copy()
    steps["complete"][-1] = False
    left: dict[str, Any] = {"steps": Steps(steps)}
    life = life_of(tmp_path, attempt(0, 3, is_killed=False, parts=left))
    assert (life.steps.productive, life.steps.cut_off) == (3, 0)
    failed: dict[str, Any] = {"program_end": {"exit_code": 1, "exception": "ValueError"}}
    life = life_of(tmp_path, attempt(0, 3, is_killed=False, parts=left, **failed))
    assert (life.steps.productive, life.steps.cut_off) == (2, 1)


def test_where_it_goes_on_is_inferred_from_the_last_checkpoint(tmp_path: Path) -> None:
    """It was written in step 3, so the next attempt goes on with step 4; and that is said."""
    phases = {"forward": [STEP_NS] * 8, "checkpoint": [0, 0, 0, 30 * MS, 0, 0, 0, 0]}
    life = life_of(tmp_path, attempt(0, 8, phases=phases), attempt(1000, 6))
    assert (life.steps.productive, life.steps.recomputed) == (10, 4)
    assert ms_of(life)["checkpoint"] == 30
    assert life.attempts[1].numbered_by == "inferred from the last checkpoint"
    assert any(
        "resumes: step 4, after the last checkpoint, is assumed" in one for one in life.notes
    )


def test_where_it_goes_on_can_not_be_told(tmp_path: Path) -> None:
    life = life_of(tmp_path, attempt(0, 8), attempt(1000, 6))
    assert (life.steps.productive, life.steps.recomputed) == (14, 0)
    assert any("how many of its steps are computed again is unknown" in one for one in life.notes)


def test_a_checkpoint_that_was_cut_off_is_none_to_go_on_from(tmp_path: Path) -> None:
    life = life_of(tmp_path, attempt(0, 8, open_phase="checkpoint"), attempt(1000, 6))
    assert ms_of(life)["checkpoint"] == 5
    assert life.attempts[1].numbered_by == "unknown"


def test_steps_in_no_file_that_the_next_attempt_shows(tmp_path: Path) -> None:
    """The file ends before its process did, which wrote a checkpoint behind step 12."""
    life = life_of(tmp_path, attempt(0, 10, start=0), attempt(1000, 5, start=13))
    assert (life.steps.productive, life.steps.recomputed, life.steps.unseen) == (18, 0, 3)
    assert any(one.startswith("3 productive steps are in no file") for one in life.notes)


def test_steps_behind_the_last_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that was open then has ended, and two more have."""
    paths = saved(tmp_path, attempt(0, 10), attempt(1000, 5, start=10))
    whole = rank_run(0, {"forward": [STEP_NS] * 13}, gap_ns=0).steps.array
    page = columns(whole, STEP_ITEM, serial=whole["index"], flags=1).tobytes()
    left = {paths[0]: page[5 * STEP_ITEM.itemsize :], paths[1]: b""}
    monkeypatch.setattr(life, "last_steps", lambda path: left[path])
    found = job_life(paths, lambda run, path: GONE)
    assert (found.steps.productive, found.steps.recomputed, found.steps.cut_off) == (15, 3, 1)
    assert ms_of(found) == {
        "startup": 200,
        "productive": 130 + 20,
        "recomputed": 30 + 5,
        "dead": 1000 - 230,
    }
    assert not any("steps may be missing" in one for one in found.notes)


def test_without_a_page_the_last_steps_may_be_missing(tmp_path: Path) -> None:
    notes = life_of(tmp_path, attempt(0, 10)).notes
    assert any("the last steps may be missing" in one for one in notes)


def test_steps_that_may_lie_between_are_not_made_up() -> None:
    """Those in the page all ended after those in the file."""
    run = attempt(0, 10)
    later = np.zeros(MOST_STEPS, STEP_ITEM)
    later["begin_ns"] = later["end_ns"] = 10**9 + np.arange(MOST_STEPS)
    assert len(run_times(run, GONE, later[1:].tobytes()).steps) == 10 + MOST_STEPS - 1
    assert len(run_times(run, GONE, later.tobytes()).steps) == 11


def test_a_second_loop_that_tells_its_number(tmp_path: Path) -> None:
    told = [{"at_ns": 0, "number": 100}, {"at_ns": 5 * STEP_NS - 1, "number": 200}]
    life = life_of(tmp_path, attempt(0, 8, step_numbers=told))
    assert life.attempts[0].numbers.tolist() == [*range(100, 105), *range(200, 204)]


def test_steps_that_are_no_longer_in_the_history(tmp_path: Path) -> None:
    """Of the first six the sums alone are there. They lie before the others, or evenly from where
    the first one began."""
    whole = attempt(0, 10, start=20, gap_ns=2 * MS)
    lacking: dict[str, Any] = {
        "steps": Steps(whole.steps.array[6:]),
        "step_totals": whole.step_totals,
    }
    life = life_of(tmp_path, attempt(0, 10, start=20, gap_ns=2 * MS, parts=lacking))
    assert life.attempts[0].numbers.tolist() == [*range(20, 31)]
    assert ms_of(life) == {"startup": 114, "productive": 100, "recomputed": 5, "outside": 8}
    assert any("of 6 steps at its beginning only the total is kept" in one for one in life.notes)
    began_ns = MONOTONIC_NS + BEFORE_NS
    startup = Startup(watched_ns=began_ns, first_step_ns=began_ns + 2 * MS)
    lacking["startup"] = startup
    life = life_of(tmp_path, attempt(0, 10, start=20, gap_ns=2 * MS, parts=lacking))
    assert ms_of(life) == {"startup": 102, "productive": 100, "recomputed": 5, "outside": 20}


def lacking(run: Run, lost: int, more: int = 0) -> dict[str, Any]:
    """The parts of a run that has lost its first steps, and says that there were more before."""
    steps = run.steps.array[lost:].copy()
    steps["index"] += more
    return {"steps": Steps(steps), "step_totals": run.step_totals}


def test_steps_that_stand_together_count_as_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of very many that are lost only the last have rows of their own."""
    gap_ns = 2 * MS
    told = [{"at_ns": 0, "number": 0}, {"at_ns": 7 * (STEP_NS + gap_ns), "number": 20}]
    phases = {"forward": [STEP_NS] * 40, "checkpoint": [0] * 10 + [STEP_NS] + [0] * 29}
    runs = []
    for at_ms, steps, lost, options in (
        (0, 40, (25, 27), {"phases": phases, "step_numbers": told}),
        (2000, 60, (50, 46), {"start": 30}),
        (4000, 30, (20, 9), {}),
    ):
        for rank in range(2):
            kind: dict[str, Any] = {"rank": rank, "ranks": 2, "gap_ns": gap_ns, **options}
            whole = attempt(at_ms, steps, **kind)
            runs.append(attempt(at_ms, steps, parts=lacking(whole, lost[rank]), **kind))
    found, times_ms, rows = [], [], []
    for most in (100_000, 3):
        monkeypatch.setattr(run_times_file, "_MOST_LOST", most)
        life = life_of(tmp_path, *runs)
        document = goodput_document(life)
        found.append((life.steps, document.attempts))
        times_ms.append(ms_of(life))
        rows.append([len(one.index) for one in life.attempts])
    assert found[0] == found[1]
    # The ranks did not lose the same steps, so the sum of a step's longest times is a bit less.
    assert times_ms[0] == pytest.approx(times_ms[1], abs=2)
    assert all(few < many for many, few in zip(*rows, strict=True))


def test_size_of_numbers_in_a_file_takes_no_memory(tmp_path: Path) -> None:
    """Rows are of the steps that are there; the others may be as many as they like."""
    whole = attempt(0, 10)
    first = attempt(0, 10, parts=lacking(whole, 0, more=2**32 - 100))
    life = life_of(tmp_path, first, attempt(1000, 10, start=2**61))
    assert life.steps.productive == 2**61 + 10
    assert life.steps.unseen == 2**61 - (2**32 - 90)
    assert len(life.attempts[0].index) < 101_000
    document = goodput_document(life)
    assert [one.steps for one in document.attempts] == [2**32 - 90, 10]
    assert [one.last_step for one in document.attempts] == [2**32 - 91, 2**61 + 10]


# Ranks


def test_ranks_start_up_until_the_last_one_does_its_first_step(tmp_path: Path) -> None:
    life = life_of(tmp_path, attempt(0, 20, ranks=2), attempt(50, 15, rank=1, ranks=2))
    assert ms_of(life)["startup"] == 150
    assert life.attempts[0].ranks == (2, 2)
    assert life.steps.productive == 20


def test_agents_of_two_machines_may_count_restarts_apart(tmp_path: Path) -> None:
    life = life_of(
        tmp_path,
        attempt(0, 10, ranks=2, job="a", restarts=0),
        attempt(0, 10, rank=1, ranks=2, job="a", restarts=0, host="other"),
        attempt(1000, 10, start=9, ranks=2, job="a", restarts=0),
        attempt(1000, 10, start=9, rank=1, ranks=2, job="a", restarts=1, host="other"),
    )
    assert [one.ranks for one in life.attempts] == [(2, 2), (2, 2)]


def test_attempts_of_other_numbers_of_ranks(tmp_path: Path) -> None:
    life = life_of(
        tmp_path,
        attempt(0, 10, ranks=2),
        attempt(0, 10, rank=1, ranks=2),
        attempt(1000, 10, start=8),
        attempt(2000, 5, start=18, rank=0, ranks=3),
        attempt(2000, 5, start=18, rank=2, ranks=3),
    )
    assert [one.ranks for one in life.attempts] == [(2, 2), (1, 1), (2, 3)]
    assert (life.steps.productive, life.steps.recomputed) == (23, 2)
    assert "attempt 3: rank 1: there is no run that can be read" in life.notes
    assert life.joined_by == "by their command and folder"


def test_stragglers_are_waited_for(tmp_path: Path) -> None:
    """Rank 1 works 2 ms longer, and ranks meet in their last phase. In step 5 rank 0 also writes a
    checkpoint of 30 ms, for which the other waits: that is no straggler."""
    rng = np.random.default_rng(1)
    jitter = rng.integers(0, MS, (2, 60))
    work = np.array([6 * MS + jitter[0], 8 * MS + jitter[1]])
    checkpoint = np.zeros((2, 60), np.int64)
    checkpoint[0, 5] = 30 * MS
    meets = (work + checkpoint).max(axis=0) + MS
    runs = [
        attempt(
            0,
            60,
            rank=rank,
            ranks=2,
            is_killed=False,
            phases={
                "forward": work[rank].tolist(),
                "checkpoint": checkpoint[rank].tolist(),
                "allreduce": (meets - work[rank] - checkpoint[rank]).tolist(),
            },
        )
        for rank in range(2)
    ]
    life = life_of(tmp_path, *runs)
    known_ns = int((work[1] - work[0])[1:].sum())
    assert ms_of(life)["stragglers"] == pytest.approx(known_ns / MS, abs=0.001)
    assert ms_of(life)["checkpoint"] == 30
    assert life.knows_stragglers


def test_of_few_steps_stragglers_are_not_known(tmp_path: Path) -> None:
    life = life_of(tmp_path, attempt(0, 10, ranks=2), attempt(0, 10, rank=1, ranks=2))
    assert not life.knows_stragglers
    assert any("waited for stragglers is unknown: 9 steps" in one for one in life.notes)


def test_clocks_of_machines_that_differ(tmp_path: Path) -> None:
    """Ranks of two machines end their steps together, so it is known by how much they do."""
    life = life_of(
        tmp_path,
        attempt(0, 30, ranks=2),
        attempt(0, 30, rank=1, ranks=2, host="other", clock_ms=20_000),
    )
    assert sum(ms_of(life).values()) == 405
    assert "attempt 1: the clock of other is 20.0 s ahead of that of box" in life.notes[0]


def test_attempts_of_machines_whose_clocks_overlap(tmp_path: Path) -> None:
    life = life_of(
        tmp_path, attempt(0, 30), attempt(1000, 30, start=20, host="other", clock_ms=-800)
    )
    assert any("attempts 1 and 2 overlap by" in one for one in life.notes)
    assert "dead" not in ms_of(life)
    assert (life.steps.productive, life.steps.recomputed) == (50, 10)


# Ends


def hung(since_ns: int) -> dict[str, Any]:
    return {"stalls": (Stall(since_ns=since_ns, noticed_ns=since_ns + 1, limit_ns=1, step=3),)}


def test_a_hang_until_it_was_ended(tmp_path: Path) -> None:
    """The watchdog looks ten times a second: what happened last is known better."""
    run = attempt(0, 30, tail_ms=2000, parts=hung(340 * MS), watchdog_ns=30 * 10**9)
    life = life_of(tmp_path, run)
    assert ms_of(life) == {"startup": 100, "productive": 300, "hung": 2000}
    assert life.attempts[0].has_hung


def test_a_rank_hangs_until_the_last_one_has_ended(tmp_path: Path) -> None:
    hangs = attempt(0, 30, ranks=2, tail_ms=2000, parts=hung(310 * MS), watchdog_ns=1)
    life = life_of(tmp_path, hangs, attempt(0, 30, rank=1, ranks=2, tail_ms=500))
    assert ms_of(life)["hung"] == 1500


def test_without_a_watchdog_it_hangs_when_nothing_was_done_for_long(tmp_path: Path) -> None:
    parts = {"active_ns": 301 * MS}
    life = life_of(tmp_path, attempt(0, 30, tail_ms=20_000, parts=parts))
    assert ms_of(life)["hung"] == 19_999
    assert "hung" not in ms_of(life_of(tmp_path, attempt(0, 30, tail_ms=5_000, parts=parts)))


def test_a_stall_after_which_it_went_on_is_no_hang(tmp_path: Path) -> None:
    run = attempt(0, 30, parts=hung(100 * MS), watchdog_ns=1)
    assert "hung" not in ms_of(life_of(tmp_path, run))


def test_a_job_that_is_running_goes_on_until_now(tmp_path: Path) -> None:
    seen = ProcessObservation(ProcessState.ALIVE, 50 * MS)
    life = life_of(tmp_path, attempt(0, 10), attempt(1000, 10, start=9), seen=seen)
    assert life.attempts[-1].ended == Condition.RUNNING
    assert life.steps.cut_off == 1
    assert ms_of(life) == {
        "startup": 200,
        "productive": 100 + 90 + 5 + 50,
        "recomputed": 10 + 5,
        "dead": 1000 - 205,
    }


def test_a_process_of_another_machine(tmp_path: Path) -> None:
    """Its file changes; or it does not, and nothing is said of its end."""
    runs = attempt(0, 10), attempt(1000, 10, start=10)
    life = life_of(tmp_path, *runs, seen=ProcessObservation(is_writing=True))
    assert life.attempts[-1].ended == Condition.RUNNING
    life = life_of(tmp_path, *runs, seen=ProcessObservation())
    assert [one.ended for one in life.attempts] == [Condition.CUT_OFF, Condition.LOST]
    assert [one.has_failed for one in life.attempts] == [True, False]
    assert life.steps.cut_off == 1


def test_evaluations_between_steps_and_in_them(tmp_path: Path) -> None:
    phases = {"forward": [STEP_NS] * 9, "eval": [0, 0, 7 * MS, 0, 0, 0, 0, 0, 0]}
    assert ms_of(life_of(tmp_path, attempt(0, 9, phases=phases)))["evaluation"] == 7
    in_each = {"forward": [STEP_NS] * 9, "eval": [7 * MS] * 9}
    assert "evaluation" not in ms_of(life_of(tmp_path, attempt(0, 9, phases=in_each)))


# Which runs are one job


def test_by_the_id_of_a_launcher(tmp_path: Path) -> None:
    others = ["train.py", "--lr", "1"]
    again = attempt(500, 5, start=5, job="a", restarts=1, arguments=others)
    runs = attempt(0, 5, job="a", restarts=0), again
    assert life_of(tmp_path, *runs).joined_by == "by torchrun's run id a"
    runs = attempt(0, 5, slurm_job="7"), attempt(500, 5, start=5, slurm_job="7")
    assert life_of(tmp_path, *runs).joined_by == "by Slurm's job id 7"
    runs = attempt(0, 5, slurm_job="7"), attempt(500, 5, start=5, slurm_job="8")
    assert life_of(tmp_path, *runs).joined_by == "by their command and folder"


@pytest.mark.parametrize(
    "resumed",
    [
        ["--resume", "last.pt"],
        ["--resume=last.pt"],
        ["ckpt_path=last.pt"],
        ["--continue"],
        ["--init_from=resume"],
        ["--init_from", "resume"],
        ["init_from=resume"],
    ],
)
@pytest.mark.parametrize("start", [4, None])
def test_options_to_go_on_are_no_part_of_a_command(
    tmp_path: Path, resumed: list[str], start: int | None
) -> None:
    arguments = ["train.py", *resumed, "--epochs", "3"]
    life = life_of(tmp_path, attempt(0, 5), attempt(500, 5, start=start, arguments=arguments))
    assert len(life.attempts) == 2
    assert life.joined_by == "by their command and folder"


@pytest.mark.parametrize("words", [["--warm"], ["--epochs", "5"], ["--init_from=last"]])
def test_one_that_tells_that_it_goes_on_is_of_the_job_whatever_its_options(
    tmp_path: Path, words: list[str]
) -> None:
    arguments = ["train.py", *words]
    life = life_of(tmp_path, attempt(0, 33), attempt(500, 5, start=30, arguments=arguments))
    assert len(life.attempts) == 2
    assert life.steps.recomputed == 3
    assert life.joined_by.startswith("by their program and folder, and as a later one tells")
    for start, cwd in ((0, "/home/me"), (30, "/elsewhere")):
        other = attempt(500, 5, start=start, arguments=arguments, cwd=cwd)
        assert len(life_of(tmp_path, attempt(0, 33), other).attempts) == 1


def test_of_several_jobs_it_goes_on_with_that_whose_options_it_has(tmp_path: Path) -> None:
    def of_lr(at_ms: int, lr: str, *words: str, start: int | None = None) -> Run:
        return attempt(at_ms, 33, start=start, arguments=["train.py", f"--lr={lr}", *words])

    runs = of_lr(0, "1"), of_lr(500, "2"), of_lr(1000, "1", "--from=last", start=30)
    life = life_of(tmp_path, *runs)
    assert [one.files for one in life.attempts] == [
        (f"{tmp_path}/run-0.gpurun",),
        (f"{tmp_path}/run-2.gpurun",),
    ]
    runs = of_lr(0, "1"), of_lr(500, "2"), of_lr(1000, "3", start=30)
    assert len(life_of(tmp_path, *runs).attempts) == 1


def anchor(at_ms: int, set_ms: int) -> dict[str, int]:
    """The clocks of a machine, of which the wall clock was set by so much."""
    since_ns = BEFORE_NS + at_ms * MS
    realtime_ns = EPOCH_NS + since_ns + set_ms * MS
    return {"run_ns": 0, "monotonic_ns": MONOTONIC_NS + since_ns, "realtime_ns": realtime_ns}


@pytest.mark.parametrize("set_ms", [-3_600_000, -1_700, 1_700, 3_600_000])
def test_a_wall_clock_that_was_set_invents_no_time(tmp_path: Path, set_ms: int) -> None:
    first, *others = (
        attempt(at, 50, start=start, anchor=anchor(at, 0 if not at else set_ms), boot_id="b")
        for at, start in ((0, 0), (2000, 40), (4000, 80))
    )
    life = life_of(tmp_path, first, *others)
    assert [one.told[0][1] for one in life.attempts] == [0, 40, 80]
    assert ms_of(life)["dead"] == 2 * (2000 - 605)
    (note,) = (note for note in life.notes if "clock" in note)
    by = "60 min" if abs(set_ms) == 3_600_000 else "2 s"
    assert note.startswith(f"the clock of box was set by {by} after attempt 1 began: ")


def test_a_machine_that_slept_between_attempts(tmp_path: Path) -> None:
    slept = attempt(2000, 50, anchor=anchor(2000, 60_000), boot_id="b", asleep_ns=60_000 * MS)
    life = life_of(tmp_path, attempt(0, 50, boot_id="b", asleep_ns=0), slept)
    assert ms_of(life)["dead"] == 2000 - 605 + 60_000
    assert not any("clock" in note for note in life.notes)


def test_without_the_start_of_the_machine_it_is_not_known_whether_its_clock_was_set(
    tmp_path: Path,
) -> None:
    life = life_of(tmp_path, attempt(0, 50), attempt(2000, 50, anchor=anchor(2000, 3_600_000)))
    assert ms_of(life)["dead"] == 2000 - 605 + 3_600_000
    (note,) = (note for note in life.notes if "clock" in note)
    assert note.startswith("the clock of box was set, or box was started again, before attempt 2: ")
    # A few seconds are no start.
    life = life_of(tmp_path, attempt(0, 50), attempt(2000, 50, anchor=anchor(2000, -1_700)))
    assert ms_of(life)["dead"] == 2000 - 605


def test_another_job_in_the_folder_is_left_out(tmp_path: Path) -> None:
    other = attempt(0, 5, arguments=["other.py"])
    life = life_of(tmp_path, other, attempt(500, 5))
    assert len(life.attempts) == 1
    assert life.notes[0].startswith(f"left out: 1 other job: {tmp_path}/run-0.gpurun")


def test_behind_an_attempt_that_has_finished_a_new_job_begins(tmp_path: Path) -> None:
    finished = attempt(0, 5, is_killed=False, program_end={"exit_code": 0})
    assert len(life_of(tmp_path, finished, attempt(500, 5)).attempts) == 1
    assert len(life_of(tmp_path, finished, attempt(500, 5, start=0)).attempts) == 1
    assert len(life_of(tmp_path, finished, attempt(500, 5, start=5)).attempts) == 2


def test_two_jobs_of_one_command_at_once(tmp_path: Path) -> None:
    runs = attempt(0, 50), attempt(100, 50, pid=5000)
    with pytest.raises(JobError, match="two jobs of one command ran at the same time") as error:
        life_of(tmp_path, *runs)
    assert f"{tmp_path}/run-0.gpurun" in str(error.value)
    runs = attempt(0, 50, slurm_job="1"), attempt(100, 50, slurm_job="2")
    assert len(life_of(tmp_path, *runs).attempts) == 1


def test_damaged_runs(tmp_path: Path) -> None:
    paths = saved(tmp_path, attempt(0, 5), attempt(500, 5, start=5))
    paths[0].write_bytes(b"no run")
    life = job_life(paths, lambda run, path: GONE)
    assert len(life.attempts) == 1
    assert life.notes[0].startswith(f"left out: {paths[0]}: ")
    paths[1].write_bytes(paths[1].read_bytes()[:100])
    with pytest.raises(JobError, match=r"there is no run that can be read\n    left out: "):
        newest_job(paths)


def test_a_run_that_does_not_say_when_it_began(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="does not say when it began"):
        life_of(tmp_path, attempt(0, 5, anchor={}))


def test_an_attempt_without_a_step(tmp_path: Path) -> None:
    parts = {"steps": Steps(), "open_step": None}
    life = life_of(tmp_path, attempt(0, 0, tail_ms=50, parts=parts), attempt(500, 5, start=0))
    assert ms_of(life)["startup"] == 150 + BEFORE_NS / MS
    assert life.attempts[0].numbers.tolist() == []
