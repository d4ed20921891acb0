# SPDX-License-Identifier: Apache-2.0
"""The command `why`: which files it takes, and what it prints."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pyinstrument_gpu.cli import main
from pyinstrument_gpu.core.condition import ProcessState
from pyinstrument_gpu.core.file.items import STEP_COMPLETE, STEP_ITEM
from pyinstrument_gpu.core.file.shared_page import MOST_STEPS, SUFFIX
from pyinstrument_gpu.core.record import OpenPhase
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.steps import Step, Steps
from pyinstrument_gpu.watch.process import MachineClocks, observations_of
from tests.helpers.job_endings import S, job, rank
from tests.helpers.job_files import ANCHOR, rank_environment, rank_run
from tests.helpers.run_writer import save

MS = 1_000_000


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyinstrument_gpu.cli.why._WAIT_S", 0)


def why(*arguments: str | Path, columns: int = 80) -> Result:
    runner = CliRunner(env={"COLUMNS": str(columns)})
    return runner.invoke(main, ["why", *map(str, arguments)], prog_name="pyinstrument-gpu")


def run_of(number: int, steps: int = 3, **facts: Any) -> Run:
    """A run of a rank that has not ended: it is in its phase "forward"."""
    whole = rank_run(number, {"forward": [10 * MS] * steps})
    now_ns = whole.duration_ns
    open_step = Step(steps, now_ns, -1, None, 1, False, 0)
    environment = rank_environment(number, pid=4000 + number, **facts)
    return rank_run(
        number,
        {"forward": [10 * MS] * steps},
        environment=environment,
        complete=False,
        steps=Steps.with_open(whole.steps.closed, open_step),
        open_step=open_step,
        open_phases=(OpenPhase("forward", 0, now_ns, steps, 0),),
        duration_ns=now_ns + 5 * MS,
        anchor={
            "run_ns": now_ns,
            "monotonic_ns": ANCHOR["monotonic_ns"] + now_ns,
            "realtime_ns": ANCHOR["realtime_ns"] + now_ns,
        },
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What is left of two ranks of a machine called "box", of which rank 1 stopped first."""
    save(run_of(0, 80), tmp_path / "run.rank0.gpurun")
    save(run_of(1, 3), tmp_path / "run.rank1.gpurun")
    return tmp_path


def test_a_folder_and_its_files(folder: Path) -> None:
    result = why(folder, columns=120)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(
        "Rank 1 stopped first, last seen in forward of step 3: its file ends without a word, and "
        "whether its process"
    )
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert any(line.startswith("1 lost 770 ms before the last 10.0 ms") for line in lines)
    assert "in forward of step 80" in result.stdout
    files = sorted(folder.iterdir())
    assert why(*files, columns=120).stdout == result.stdout


def test_attempts_are_one_story(folder: Path) -> None:
    """The first ends as above, the second is killed, the third goes on a minute after each."""
    for number in (1, 2):
        anchor = {**ANCHOR, "realtime_ns": ANCHOR["realtime_ns"] + number * 60 * S}
        for rank_number in range(2):
            facts = {"run_id": f"{number}{rank_number:015x}", "anchor": anchor}
            path = folder / f"run.restart{number}.rank{rank_number}.gpurun"
            save(run_of(rank_number, 80, **facts), path)
    first, second = json.loads(why(folder, "--json").stdout)["attempts"]
    assert (first["attempt"], first["rank"], first["steps"]) == (1, 1, 80)
    assert first["verdict"].startswith("Rank 1 stopped first, last seen in forward of step 3")
    assert first["files"] == [f"{folder}/run.rank{number}.gpurun" for number in range(2)]
    gap_ns = 1_000  # between steps, and before the first
    assert first["lost_ns"] == 60 * S - 80 * (10 * MS + gap_ns) + gap_ns
    assert (second["attempt"], "rank" in second, second["lost_ns"]) == (2, False, first["lost_ns"])
    text = why(folder, columns=400).stdout
    assert f"Attempt 1, 80 steps in 1 s: {first['verdict']}" in text
    assert "This is attempt 3. Before it:" in text
    assert "left out" not in text


@pytest.mark.parametrize(
    ("flags", "later_ns", "likely"),
    [(0, 20 * MS, 1), (STEP_COMPLETE, 20 * MS, None), (0, -9 * MS, None)],
    ids=["left by an exception", "ended", "is in the file"],
)
def test_how_a_killed_process_left_its_last_step(
    flags: int, later_ns: int, likely: int | None, tmp_path: Path
) -> None:
    """As its page of shared memory, which was put beside the file, says of rank 0."""
    paths = [tmp_path / f"run.rank{number}.gpurun" for number in range(2)]
    for number, path in enumerate(paths):
        save(run_of(number), path)
    steps = np.zeros(MOST_STEPS + 1, STEP_ITEM)
    steps["end_ns"][0] = Run.load(paths[0]).steps.closed["end_ns"].max() + later_ns
    steps["flags"] = flags
    header = paths[0].read_bytes()[24:32] + struct.pack("<Q4096s", 1, b"")
    paths[0].with_name(f"{paths[0].name}{SUFFIX}").write_bytes(header + steps.tobytes())
    document = json.loads(why(tmp_path, "--json").stdout)
    assert document["suspects"] == [0, 1]
    assert document.get("likely_rank") == likely


def test_json(folder: Path) -> None:
    document = json.loads(why(folder, "--json").stdout)
    assert (document["version"], document["outcome"], document["rank"]) == (1, "stopped first", 1)
    assert [one["rank"] for one in document["ranks"]] == [1, 0]
    assert document["ranks"][0]["path"] == "forward"
    assert document["ranks"][0]["last_steps"][-1] == {
        "step": 2,
        "duration_ns": 10 * MS,
        "is_complete": True,
    }


def test_a_program_alone(tmp_path: Path) -> None:
    alone = run_of(0)
    for name in ("rank", "world_size"):
        del alone.environment[name]
    path = tmp_path / "train.gpurun"
    save(alone, path)
    text = why(path).stdout
    assert text.startswith("The program stopped, last seen in forward of step 3: its file ends")
    assert why(tmp_path).stdout == text


def test_a_rank_without_a_file_is_named(folder: Path) -> None:
    (folder / "run.rank1.gpurun").unlink()
    save(run_of(0, world_size=3), folder / "run.rank0.gpurun")
    text = why(folder).stdout
    assert text.startswith("Of the ranks whose runs are there, rank 0 stopped first")
    assert "There is no run of ranks 1-2." in text
    (folder / "run.rank1.gpurun").write_bytes(b"nonsense")
    assert "! rank 1:" in why(folder).stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty", "there is no run file (.gpurun) in {}"),
        ("absent", "No such file or directory"),
        ("text", "not a run file"),
    ],
)
def test_what_is_no_run(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("this is no run, and nothing like it, however long one looks")
    result = why(tmp_path / name)
    assert (result.exit_code, result.stdout) == (1, "")
    assert message.format(tmp_path / name) in result.stderr
    assert result.stderr.count("\n") == 1


def test_ranks_of_two_jobs_and_a_rank_twice(folder: Path) -> None:
    other = run_of(1, run_id="00000000000000bb")
    save(other, folder / "other.rank1.gpurun")
    result = why(folder)
    assert result.exit_code == 1
    assert "are not two ranks of one job: both have the same rank" in result.stderr
    other.environment["job"] = "b"
    save(other, folder / "other.rank1.gpurun")
    save(run_of(0, job="a"), folder / "run.rank0.gpurun")
    (folder / "run.rank1.gpurun").unlink()
    assert "the run ids differ" in why(folder).stderr
    path = folder / "run.rank0.gpurun"
    assert "are the same run: give it once" in why(path, path).stderr


def test_many_ranks_are_cut(tmp_path: Path) -> None:
    for number in range(20):
        save(run_of(number, world_size=20), tmp_path / f"run.rank{number}.gpurun")
    text = why(tmp_path, columns=100).stdout
    assert text.startswith("Can't tell which of ranks 0-19 stopped first")
    assert "... and 4 more ranks: 4 lost" in text


# What can be seen beside the files


def test_processes_are_looked_up_on_their_machine_alone() -> None:
    here = rank(0, at_ns=5 * S)
    anchor = here.end.anchor
    now = MachineClocks(
        "box",
        anchor["monotonic_ns"] + 7 * S,
        anchor["monotonic_ns"] + 7 * S,
        anchor["realtime_ns"] + 7 * S,
    )
    looked: list[tuple[int, int]] = []
    waited: list[None] = []

    def state(pid: int, began_ns: int, clocks: MachineClocks) -> ProcessState:
        looked.append((pid, began_ns))
        return ProcessState.ALIVE

    def look(*ranks: Any) -> dict[int, Any]:
        return observations_of(job(*ranks), now, lambda: waited.append(None), state)

    seen = look(here)
    assert (seen[0].process, seen[0].silent_ns) == (ProcessState.ALIVE, 7 * S)
    assert looked == [(4000, anchor["monotonic_ns"] - 5 * S)]
    assert not waited
    seen = look(rank(0, complete=True), rank(1, host="other"))
    assert [one.process for one in seen.values()] == [ProcessState.UNKNOWN] * 2
    assert (len(looked), len(waited)) == (1, 1)


def test_a_file_of_another_machine_may_be_seen_to_change(tmp_path: Path) -> None:
    path = tmp_path / "run.rank1.gpurun"
    path.write_bytes(b"1")
    elsewhere = rank(1, host="other", file=str(path))

    def write() -> None:
        path.write_bytes(b"12")

    assert observations_of(job(elsewhere), MachineClocks.now(), write)[1].is_writing
    assert not observations_of(job(elsewhere), MachineClocks.now(), lambda: None)[1].is_writing
    missing = rank(1, host="other", file=str(tmp_path / "gone"))
    seen = observations_of(job(missing), MachineClocks.now(), lambda: None)
    assert not seen[1].is_writing
