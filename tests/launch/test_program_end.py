# SPDX-License-Identifier: Apache-2.0
"""How a program ended, in its run file; and what `run` sets in its environment."""

import json
from pathlib import Path
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.core.run import Run
from tests.helpers.launched import launched, write
from tests.helpers.spans import spans_of

ENDINGS = {
    "": {"exit_code": 0},
    "import sys; sys.exit()": {"exit_code": 0},
    "import sys; sys.exit(7)": {"exit_code": 7},
    "import sys; sys.exit(-1)": {"exit_code": 255},
    "import sys; sys.exit('no')": {"exit_code": 1},
    "raise RuntimeError('no')": {"exit_code": 1, "exception": "RuntimeError"},
    "try: raise RuntimeError('gloo: Broken pipe')\nexcept RuntimeError: raise SystemExit(4)": {
        "exit_code": 4,
        "lost_peer": True,
    },
    "raise KeyboardInterrupt": {"exception": "KeyboardInterrupt"},
    "import os; os._exit(3)": None,
}


@pytest.mark.parametrize("source", ENDINGS)
def test_how_a_program_ended(source: str, tmp_path: Path) -> None:
    write(tmp_path, "train.py", source)
    launched(tmp_path, "--no-report", "train.py")
    assert Run.load(tmp_path / "run.gpurun").environment.get("program_end") == ENDINGS[source]


def test_a_recorded_block_tells_its_exception() -> None:
    recording = pig.record()
    with pytest.raises(ValueError), recording:
        raise ValueError("its text is nobody's business")
    assert recording.run.environment["program_end"] == {"exception": "ValueError"}
    with pig.record() as recording:
        pass
    assert "program_end" not in recording.run.environment


NAMES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_ENABLE_TIMING")


@pytest.mark.parametrize(
    ("options", "environment", "expected"),
    [
        ((), {}, [None, None, None]),
        ((), {"WORLD_SIZE": "2"}, ["500", None, None]),
        ((), {"WORLD_SIZE": "2", "TORCH_FR_BUFFER_SIZE": "0"}, ["0", None, None]),
        ((), {"WORLD_SIZE": "2", "TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}, [None, "9", None]),
        (("--time-collectives",), {"WORLD_SIZE": "2"}, ["500", None, "1"]),
        (("--time-collectives",), {"TORCH_NCCL_ENABLE_TIMING": "0"}, [None, None, "0"]),
    ],
)
def test_the_flight_recorder_of_a_rank(
    options: tuple[str, ...], environment: dict[str, str], expected: list[Any], tmp_path: Path
) -> None:
    write(
        tmp_path,
        "train.py",
        f"import json, os; print(json.dumps([os.environ.get(name) for name in {NAMES}]))",
    )
    done = launched(tmp_path, "--no-report", *options, "train.py", environment=environment)
    assert json.loads(done.stdout) == expected


@pytest.mark.parametrize(("seconds", "says"), [("0.2", True), ("0", False)])
def test_the_watchdog(seconds: str, says: bool, tmp_path: Path) -> None:
    source = f"""
        import threading, time
        import pyinstrument_gpu as pig

        def look(until_s):
            while time.monotonic() < until_s and not pig.Run.load("run.gpurun").stalls:
                time.sleep(0.1)

        for step in range(13):
            with pig.gpu_step():
                pass
        with pig.gpu_step():
            looks = threading.Thread(target=look, args=[time.monotonic() + {600 if says else 0.5}])
            looks.start()
            looks.join()
        """
    write(tmp_path, "train.py", source)
    done = launched(tmp_path, "--no-report", "--watchdog", seconds, "train.py")
    assert ("nothing has happened for" in done.stderr) == says
    stalls = Run.load(tmp_path / "run.gpurun").stalls
    assert [stall.step for stall in stalls] == ([13] if says else [])


BROKEN = """
import atexit, sys, torch, pyinstrument_gpu as pig

def goodbye(*_):
    with pig.gpu_phase("goodbye"):
        pass

atexit.register(goodbye)
sys.excepthook = goodbye
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for i in range(3):
    model(torch.ones(1, 1)).sum().backward()
    if i == 2:
        raise ValueError
    optimizer.step()
"""


def test_what_follows_an_uncaught_exception_is_outside_the_broken_step(tmp_path: Path) -> None:
    write(tmp_path, "train.py", BROKEN)
    launched(tmp_path, "--no-report", "train.py", imported="torch")
    run = Run.load(tmp_path / "run.gpurun")
    assert [step.complete for step in run.steps] == [True, True, False]
    assert [span.step for span in spans_of(run) if span.path == "goodbye"] == [-1, -1]


OUTLASTING = """
import threading, torch

def train():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for i in range(3):
        model(torch.ones(1, 1)).sum().backward()
        if i == 1:
            threading.main_thread().join()
        optimizer.step()

threading.Thread(target=train).start()
"""


def test_a_thread_that_trains_longer_than_the_main_code_keeps_its_step(tmp_path: Path) -> None:
    write(tmp_path, "train.py", OUTLASTING)
    launched(tmp_path, "--no-report", "train.py", imported="torch")
    assert [step.complete for step in Run.load(tmp_path / "run.gpurun").steps] == [True] * 3
