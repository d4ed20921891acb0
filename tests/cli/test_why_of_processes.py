# SPDX-License-Identifier: Apache-2.0
"""What `why` says of what is left of processes that were killed or stopped, or failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pyinstrument_gpu.cli import main
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import RunFileError
from tests.helpers import ending_rank
from tests.helpers.launched import ENVIRONMENT

DEADLINE_S = 600
PLACE = "last seen in forward of step 12"
VICTIM = 1


@contextmanager
def ranks(
    folder: Path, world_size: int = 2, *options: str
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of one job; a program alone for a world of one. None is left over."""
    found: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(world_size):
            launcher = {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
            found.append(
                subprocess.Popen(
                    [sys.executable, ending_rank.__file__, str(folder), *options],
                    env=ENVIRONMENT | (launcher if world_size > 1 else {}),
                    stderr=subprocess.DEVNULL,
                )
            )
        yield found
    finally:
        for process in found:
            process.kill()
        for process in found:
            process.wait(DEADLINE_S)


def until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def file_of(folder: Path, rank: int | None) -> Path:
    return folder / ("run.gpurun" if rank is None else f"run.rank{rank}.gpurun")


def is_in(folder: Path, rank: int | None, path: str) -> bool:
    """Whether its file says that it is in this phase of step 12."""
    try:
        run = Run.load(file_of(folder, rank))
    except (OSError, RunFileError):
        return False
    is_there = any(phase.path == path for phase in run.open_phases)
    return is_there and run.open_step is not None and run.open_step.index == ending_rank.AT


def why(folder: Path) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["why", str(folder), "--json"])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def conditions(document: dict[str, Any]) -> dict[int, str]:
    return {one["rank"]: one["condition"] for one in document["ranks"]}


def said(document: dict[str, Any]) -> tuple[str, dict[int, str]]:
    return document["verdict"], conditions(document)


def lived_on(folder: Path, rank: int) -> bool:
    """Whether the file of a rank is of half a second after that of the other one."""
    end_ns = [
        run.anchor["monotonic_ns"] + run.duration_ns - run.anchor["run_ns"]
        for run in (Run.load(file_of(folder, each)) for each in (rank, VICTIM))
    ]
    return end_ns[0] - end_ns[1] > 500_000_000


def test_a_program_alone_that_is_killed(tmp_path: Path) -> None:
    with ranks(tmp_path, 1) as (process,):
        until(lambda: is_in(tmp_path, None, "forward"))
        running = "The program is running, in forward of step 12."
        until(lambda: why(tmp_path)["verdict"] == running)
        process.kill()
        process.wait(DEADLINE_S)
        assert why(tmp_path)["verdict"] == (
            f"The program stopped, {PLACE}: its file ends without a word, and its process "
            f"{process.pid} is gone."
        )


def test_a_rank_that_is_stopped_and_then_killed_with_the_others(tmp_path: Path) -> None:
    with ranks(tmp_path, 2, "--alone-together") as (other, victim):
        until(lambda: is_in(tmp_path, 0, "backward/allreduce"))
        until(lambda: is_in(tmp_path, VICTIM, "forward"))
        # On a busy machine, a rank may give no heartbeat for a while.
        running = "The job is running: no rank has stopped or hangs."
        until(lambda: why(tmp_path)["verdict"] == running)
        os.kill(victim.pid, signal.SIGSTOP)
        stopped = (
            f"Rank 1 stopped first, {PLACE}: its process {victim.pid} is held by a signal "
            "(SIGSTOP) or a debugger.",
            {1: "stopped", 0: "running"},
        )
        until(lambda: said(why(tmp_path)) == stopped)
        until(lambda: lived_on(tmp_path, 0))
        for process in (victim, other):
            process.kill()
            process.wait(DEADLINE_S)
        document = why(tmp_path)
        assert (document["outcome"], document["rank"]) == ("stopped first", 1)
        assert conditions(document) == {1: "cut off", 0: "cut off"}


@pytest.mark.slow
def test_a_rank_that_hangs_while_others_wait_for_it(tmp_path: Path) -> None:
    with ranks(tmp_path, 3) as processes:
        until(lambda: all(file_of(tmp_path, rank).exists() for rank in range(3)))
        begin = "Rank 2 holds up the job, in forward of step 12: ranks 0-1 have waited "
        until(lambda: str(why(tmp_path)["verdict"]).startswith(begin))
        document = why(tmp_path)
        assert document["verdict"].endswith(
            f"s for it in all_reduce {ending_rank.AT + 1} of default_pg."
        )
        assert conditions(document) == {2: "hanging", 0: "hanging", 1: "hanging"}
        assert "in wait" in document["ranks"][0]["stacks"][0]["text"].splitlines()[0]
        # Of what is left of it, the same is said.
        for process in processes:
            process.kill()
            process.wait(DEADLINE_S)
        document = why(tmp_path)
        assert document["verdict"].startswith("Rank 2 held up the job, in forward of step 12: ")
