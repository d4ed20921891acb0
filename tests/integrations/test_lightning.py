# SPDX-License-Identifier: Apache-2.0
"""Lightning's callback and profiler: steps, items and samples are what Lightning trains on."""

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import auto
from pyinstrument_gpu.core.run import Run
from tests.integrations.cases import ONE, Case, steps_of, tiny_trainings, tokens_of

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own

CASES = {
    "accumulation": Case([(4, 32.0), (2, 12.0)] * 2, {"accumulate_grad_batches": 4}, samples=44),
    "validation in the middle": Case([ONE] * 12, {"val_check_interval": 2}),
    "validation and accumulation": Case(
        [(2, 16.0)] * 6, {"val_check_interval": 3, "accumulate_grad_batches": 2}
    ),
    "early stop": Case([ONE] * 3, stop_at=3),
    "most steps": Case([(2, 16.0)] * 4, {"max_steps": 4, "accumulate_grad_batches": 2}),
    "fetched ahead": Case([ONE] * 10, {"max_steps": 10}, stream=True),
    "fetched ahead and early stop": Case([ONE] * 3, stream=True, stop_at=3),
    "two optimizers": Case([ONE] * 12, has_two_optimizers=True),
    "resumed at an epoch": Case([ONE] * 6, resume_at=6),
    "resumed with accumulation": Case([(2, 16.0)] * 3, {"accumulate_grad_batches": 2}, resume_at=3),
}
SHORT = CASES["early stop"]


@pytest.fixture(scope="module")
def fits() -> Iterator[Any]:
    """The module that imports Lightning."""
    pytest.importorskip("pytorch_lightning")
    from tests.integrations import lightning_fits

    with tiny_trainings():
        yield lightning_fits


def pickled(one: Any) -> Any:
    return pickle.loads(pickle.dumps(one))


@pytest.mark.parametrize("name", CASES)
def test_callback_records_the_steps_that_lightning_counts(
    fits: Any, name: str, tmp_path: Path
) -> None:
    case = CASES[name]
    callback = fits.GpuPhaseCallback(tmp_path / "train.gpurun")
    fitting, warned = fits.fit(tmp_path, case, callback)
    assert not warned
    run = callback.run
    assert run.complete
    assert steps_of(run) == case.steps
    assert run.environment["framework"] == f"pytorch-lightning {fits.pytorch_lightning.__version__}"
    assert run.environment["framework_steps"] == len(case.steps)
    [told] = run.environment["step_numbers"]
    assert told["number"] == (case.resume_at or 0)
    assert told["at_ns"] <= run.steps[0].begin_ns
    assert run.program_facts.loader_workers == 0
    if not case.has_two_optimizers and case.resume_at is None:
        assert fitting.global_step == len(case.steps)
    assert auto.installed() is None


def test_tokens_are_those_that_lightning_trains_on(fits: Any, tmp_path: Path) -> None:
    case, callback = CASES["accumulation"], fits.GpuPhaseCallback()
    model = fits.fit_language(tmp_path, case, callback)
    expected = model.by_step([batches for batches, _ in case.steps])
    assert tokens_of(callback.run) == expected
    assert len(set(expected)) == len(expected)


@pytest.mark.parametrize("name", ["accumulation", "fetched ahead", "two optimizers"])
def test_profiler_makes_a_phase_of_each_action(fits: Any, name: str, tmp_path: Path) -> None:
    case = CASES[name]
    profiler = fits.GpuPhaseProfiler(dirpath=tmp_path, filename="report")
    _, warned = fits.fit(tmp_path, case, profiler=profiler)
    assert not warned
    run = profiler.run
    assert steps_of(run) == case.steps
    batches = sum(items for items, _ in case.steps)
    epoch = "run_training_epoch"
    assert run.phases[f"{epoch}/run_training_batch"].count == batches
    steps = [path for path in run.phases if path.endswith(".training_step")]
    assert sum(run.phases[path].count for path in steps) == batches
    assert "s per step" in (tmp_path / "fit-report.txt").read_text()
    assert not any(copied.recording for copied in (copy.deepcopy(profiler), pickled(profiler)))


def test_profiler_reports_a_fit_once_and_names_its_file(
    fits: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    profiler = fits.GpuPhaseProfiler(tmp_path / "train.gpurun")
    with caplog.at_level("INFO"):
        fitting, _ = fits.fit(tmp_path, SHORT, profiler=profiler, enable_checkpointing=True)
        fitting.validate(fits.Classifier(), fits.loaders()[1], verbose=False)
        fitting.fit_loop.max_epochs = 3
        fitting.fit(fits.Classifier(), *fits.loaders())
    said = "".join(caplog.text.split())  # lines are as wide as a terminal
    for name in ("train.gpurun", "train-2.gpurun"):
        assert said.count(f"report-v{tmp_path / name},or") == 1
    assert "[Callback]ModelCheckpoint.on_train_start" in profiler.run.phases


def test_actions_of_the_profiler_may_overlap(fits: Any) -> None:
    profiler = fits.GpuPhaseProfiler()
    with pig.record() as recording:
        profiler.start("outer")
        profiler.start("other")
        profiler.stop("outer")
        profiler.start("inner")
        profiler.stop("inner")
        profiler.stop("other")
        profiler.stop("never started")
    assert {path: phase.count for path, phase in recording.run.phases.items()} == {
        "outer": 1,
        "outer/other": 1,
        "outer/other/inner": 1,
    }


def test_two_fits_are_two_runs(fits: Any, tmp_path: Path) -> None:
    callback = fits.GpuPhaseCallback(tmp_path / "train.gpurun")
    fitting, warned = fits.fit(tmp_path, CASES["accumulation"], callback)
    fitting.fit_loop.max_epochs = 3
    fitting.fit(fits.Classifier(), *fits.loaders())
    assert not warned
    runs = [Run.load(tmp_path / name) for name in ("train.gpurun", "train-2.gpurun")]
    assert [run.step_totals.count for run in runs] == [4, 2]
    assert not any(copied.recording for copied in (copy.deepcopy(callback), pickled(callback)))


def test_callback_that_is_passed_twice_makes_one_recording(fits: Any, tmp_path: Path) -> None:
    callback = fits.GpuPhaseCallback(tmp_path / "train.gpurun")
    _, warned = fits.fit(tmp_path, SHORT, callback, callback)
    assert not warned
    assert steps_of(callback.run) == SHORT.steps
    assert [path.name for path in tmp_path.glob("*.gpurun")] == ["train.gpurun"]


def test_exception_ends_the_recording_and_propagates(
    fits: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for make in (fits.GpuPhaseCallback, fits.GpuPhaseProfiler):
        one = make()
        options = {"profiler": one} if make is fits.GpuPhaseProfiler else {"callbacks": one}
        plain = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
        with pytest.raises(KeyError, match="the program's own"):
            fits.pytorch_lightning.Trainer(
                **plain, **options, default_root_dir=str(tmp_path), max_epochs=1
            ).fit(fits.Failing(), *fits.loaders())
        assert [step.complete for step in one.run.steps] == [True, True, False]
        assert auto.installed() is None
    assert capsys.readouterr().err.count("2 steps in ") == 1  # the profiler leaves it to Lightning


def test_recording_of_the_program_gets_the_steps(fits: Any, tmp_path: Path) -> None:
    callback = fits.GpuPhaseCallback(tmp_path / "unused.gpurun")
    with pig.record() as recording:
        _, warned = fits.fit(tmp_path, CASES["accumulation"], callback)
    assert not warned
    assert callback.recording is None
    assert steps_of(recording.run) == CASES["accumulation"].steps
    assert not (tmp_path / "unused.gpurun").exists()


def test_two_callbacks_make_one_recording_and_one_warning(fits: Any, tmp_path: Path) -> None:
    first, second = fits.GpuPhaseCallback(), fits.GpuPhaseCallback()
    _, warned = fits.fit(tmp_path, SHORT, first, second)
    assert steps_of(first.run) == SHORT.steps
    assert second.recording is None
    assert len(warned) == 1
    assert "starts no recording" in warned[0]


def test_run_file_that_exists_is_one_warning_and_training_goes_on(
    fits: Any, tmp_path: Path
) -> None:
    path = tmp_path / "train.gpurun"
    path.write_text("mine")
    callback = fits.GpuPhaseCallback(path)
    fitting, warned = fits.fit(tmp_path, SHORT, callback)
    assert fitting.global_step == 3
    assert path.read_text() == "mine"
    assert len(warned) == 1
    assert "nothing is recorded" in warned[0] and "already exists" in warned[0]
    with pytest.raises(pig.RecordingError, match="has no run"):
        _ = callback.run


def test_wrong_option_raises_at_once(fits: Any) -> None:
    with pytest.raises(ValueError, match="max_bytes"):
        fits.GpuPhaseCallback(max_bytes=1)
    with pytest.raises(TypeError):
        fits.GpuPhaseProfiler(unknown=1)
