# SPDX-License-Identifier: Apache-2.0
"""What a phase costs here: how it is shown, and asked for."""

import json
import math
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import pyinstrument_gpu as pig
from pyinstrument_gpu.cli import main
from pyinstrument_gpu.core.clocks import DeviceClock
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import RecordingActiveError
from pyinstrument_gpu.recording import phase_cost
from pyinstrument_gpu.recording.phase_cost import measure_phase_costs
from pyinstrument_gpu.report.overhead import PhaseCost, RunStep, overhead_facts, overhead_report
from tests.cli.test_commands import made_run
from tests.helpers.run_writer import save
from tests.helpers.script import run_script

# --- a step of a run ---


def test_a_step_of_a_run() -> None:
    step = RunStep.of(made_run())
    assert step.phases == 1
    assert step.median_ns == 10_000_000
    assert step.share(50.0) == 50 / 10_000_000
    assert (step.host, step.device_timed) == ("trainbox", False)
    assert RunStep.of(made_run(device_clocks=[DeviceClock.same_as_run(0)])).device_timed


# --- what is shown ---

COSTS = [
    PhaseCost("ours", True, 50.0, 55.0, 100),
    PhaseCost("null", False, 100.0, 110.0, 100),
    PhaseCost("theirs", False, missing="theirs is not installed"),
]


def test_the_table() -> None:
    header, rule, ours, _, null, *rest = overhead_report(COSTS).splitlines()
    assert header.split()[-4:] == ["median", "best", "x", "ours"]
    assert set(rule) == {"-", " "}
    assert ours.split() == ["ours", "55.0", "50.0", "1"]
    assert null.split() == ["null", "110.0", "100.0", "2"]
    assert rest == [
        "",
        "The figures come from 100 rounds, taken in turn.",
        "Missing: theirs: theirs is not installed",
    ]


def test_a_median_of_one_round_is_said_to_be_that() -> None:
    costs = [replace(cost, rounds=min(cost.rounds, 1)) for cost in COSTS]
    assert "The figures come from 1 round, taken in turn. So few are not reliable." in (
        overhead_report(costs).splitlines()
    )


def test_the_table_beside_a_step() -> None:
    report = overhead_report(COSTS, RunStep(phases=6.0, median_ns=1_000_000))
    ours, null = (line.split() for line in report.splitlines()[2:5:2])
    assert ours == ["ours", "55.0", "50.0", "1", "0.033%"]
    assert null == ["null", "110.0", "100.0", "2", "0.066%"]
    assert " ".join(report.split()).endswith(
        "A step of the run: 6.0 phases x 55.0 ns = 330 ns, 0.033% of 1.00 ms (the median step)"
    )


def test_what_sets_a_step_apart_from_what_is_measured() -> None:
    def caveats(**of_step: Any) -> list[str]:
        report = overhead_report(COSTS, RunStep(6.0, 1_000_000, **of_step))
        return " ".join(report.split()).split("(the median step)")[1].split(". ")

    assert caveats(host=platform.node()) == [""]
    assert caveats(host="train\x1bbox") == [
        r" The run was recorded on another machine (train\x1bbox); the cost of a phase was "
        "measured on this one."
    ]
    assert caveats(device_timed=True) == [
        " The run also timed a device, which costs more than what is measured here."
    ]


def test_the_facts() -> None:
    facts = overhead_facts(COSTS, RunStep(phases=6.0, median_ns=1_000_000))
    assert facts["step"] == {
        "phases": 6.0,
        "median_ns": 1_000_000,
        "host": None,
        "device_timed": False,
    }
    assert [cost["rounds"] for cost in facts["costs"]] == [100, 100, 0]
    assert [cost["share_of_step"] for cost in facts["costs"]] == [0.00033, 0.00066, None]
    assert facts["costs"][2]["missing"] == "theirs is not installed"
    assert "share_of_step" not in overhead_facts(COSTS)["costs"][0]
    json.dumps(facts)


# --- the command ---


@pytest.fixture
def _measured_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rounds are made, however long they take here."""
    monkeypatch.setattr(phase_cost, "_SECONDS", math.inf)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["overhead", *arguments])


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "torch.profiler", None)


@pytest.mark.usefixtures("no_torch", "_measured_as_asked")
def test_the_command(tmp_path: Path) -> None:
    save(made_run(), tmp_path / "train.gpurun")
    result = invoke("--rounds", "2", str(tmp_path / "train.gpurun"))
    assert result.exit_code == 0, result.output
    for text in (
        "gpu_phase, recording",
        "gpu_phase, not recording",
        "contextlib.nullcontext",
        "1.0 phases x",
    ):
        assert text in result.stdout
    assert "Missing: torch.profiler.record_function, profiler off: torch" in result.stdout


@pytest.mark.usefixtures("no_torch", "_measured_as_asked")
def test_the_command_as_json() -> None:
    facts = json.loads(invoke("--rounds", "2", "--json").stdout)
    assert facts["step"] is None
    assert facts["environment"]["python"] == platform.python_version()
    recording, idle, null, missing = facts["costs"]
    assert [cost["is_ours"] for cost in facts["costs"]] == [True, True, False, False]
    assert None not in (recording["best_ns"], idle["best_ns"], null["median_ns"])
    assert [cost["rounds"] for cost in facts["costs"]] == [2, 2, 2, 0]
    assert (missing["best_ns"], missing["median_ns"]) == (None, None)
    assert missing["missing"].startswith("torch")


@pytest.mark.usefixtures("_measured_as_asked")
def test_record_function_stands_beside_it_where_torch_is_installed() -> None:
    pytest.importorskip("torch")
    costs = {cost.name: cost for cost in measure_phase_costs(rounds=1)}
    found = costs["torch.profiler.record_function, profiler off"]
    assert (found.rounds, found.missing) == (1, None)


def test_a_bad_run_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(rounds: int) -> Any:
        raise AssertionError("it was measured all the same")

    monkeypatch.setattr("pyinstrument_gpu.cli.overhead.measure_phase_costs", measure)
    none, damaged, stepless = (str(tmp_path / name) for name in ("none", "damaged", "stepless"))
    Path(damaged).write_bytes(b"not a run")
    save(Run(), stepless)
    for file, message in (
        (none, f"Error: {none}: No such file or directory\n"),
        (damaged, f"Error: {damaged}: not a run file"),
        (stepless, f"Error: {stepless}: the run has no steps"),
    ):
        result = invoke(file)
        assert result.exit_code == 1
        assert message in result.stderr


def test_recordings_that_are_off_cannot_be_measured() -> None:
    done = run_script(
        """
import pytest
from pyinstrument_gpu.errors import RecordingError
from pyinstrument_gpu.recording import phase_cost
from pyinstrument_gpu.recording.phase_cost import measure_phase_costs
with pytest.raises(RecordingError, match="PYINSTRUMENT_GPU in the environment turns recording off"):
    measure_phase_costs()
print("said so")
""",
        environment={"PYINSTRUMENT_GPU": "0"},
    )
    assert done.stdout == "said so\n"


@pytest.mark.usefixtures("_measured_as_asked")
def test_it_cannot_be_measured_while_something_is_recorded() -> None:
    with pig.record(), pytest.raises(RecordingActiveError):
        measure_phase_costs(rounds=1)
