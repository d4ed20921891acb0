# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu run --profile-steps`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyinstrument_gpu.cli import main
from pyinstrument_gpu.core.run import Run
from tests.helpers.launched import launched, write

TRAIN = """
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.ones(60, 8), batch_size=4)
    for x in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), torch.zeros(4, 2)).backward()
        optimizer.step()
    print(bool(torch.nn.modules.module._has_any_global_hook()))
"""


def test_steps_of_a_program_are_profiled(tmp_path: Path) -> None:
    """Also while its modules are timed, which are no phases."""
    write(tmp_path, "train.py", TRAIN)
    options = ("--profile-steps", "2", "--profile-at", "7", "--keep-trace", "trace.json")
    modules = ("--modules", "--modules-every", "1")
    done = launched(tmp_path, *modules, *options, "train.py", imported="torch")
    assert (done.returncode, done.stdout) == (0, "False\n")
    run = Run.load(tmp_path / "run.gpurun")
    assert "Operations (profiled steps 7-8): " in run.report(verbose=True, width=80)
    assert run.operations is not None
    assert run.operations.profiled == ((7, 8),)
    assert "profiler" not in done.stderr  # Kineto's own lines
    assert run.notes == ()
    calls = {one.path: one.calls for one in run.operations.operations if one.name == "aten::addmm"}
    assert calls == {"forward": 2}
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event["name"] == "aten::addmm" for event in events) == 4


def test_a_program_that_ends_before_says_so(tmp_path: Path) -> None:
    write(tmp_path, "train.py", TRAIN)
    done = launched(
        tmp_path, "--profile-steps", "2", "--profile-at", "70", "train.py", imported="torch"
    )
    assert done.returncode == 0
    assert "! no steps were profiled: the recording ended before" in done.stderr


@pytest.mark.parametrize("option", ["--profile-at", "--keep-trace"])
def test_options_of_profiling_need_it(option: str) -> None:
    result = CliRunner().invoke(main, ["run", option, "3", "train.py"])
    assert result.exit_code == 2
    assert f"{option} needs --profile-steps" in result.output


def test_a_trace_that_cannot_be_written_is_said_before_the_program_runs(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "print('ran')")
    done = launched(tmp_path, "--profile-steps", "2", "--keep-trace", "none/a.json", "train.py")
    assert done.returncode != 0
    assert done.stdout == ""
    assert "none is not a directory" in done.stderr
    assert "Traceback" not in done.stderr
