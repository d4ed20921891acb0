# SPDX-License-Identifier: Apache-2.0
"""Lightning's callback and profiler: steps, items and samples are what Lightning trains on."""

import copy
import pickle
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pytorch_lightning")

import pytorch_lightning
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import pyinstrument_gpu as pig
from pyinstrument_gpu import auto
from pyinstrument_gpu.integrations.lightning import GpuPhaseCallback, GpuPhaseProfiler
from pyinstrument_gpu.run import Run

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own
BATCH = 8


def rows(count: int) -> TensorDataset:
    inputs = torch.randn(count, 12)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


class Stream(IterableDataset[tuple[Tensor, ...]]):
    """Lightning doesn't know its length, so it fetches one batch ahead."""

    def __init__(self, count: int) -> None:
        self.rows = rows(count)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return (self.rows[i] for i in range(len(self.rows)))


class Classifier(pytorch_lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(12, 2)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(self.body(batch[0]), batch[1])

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.log("loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class TwoOptimizers(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.second = nn.Linear(12, 2)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:  # type: ignore[override]
        for optimizer, module in zip(self.optimizers(), (self.body, self.second), strict=True):
            optimizer.zero_grad()
            self.manual_backward(functional.cross_entropy(module(batch[0]), batch[1]))
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.body, self.second)]


class StopAt(pytorch_lightning.Callback):  # type: ignore[misc]
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        trainer.should_stop = trainer.global_step >= self.step


class Failing(Classifier):
    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        if index == 2:
            raise KeyError("the program's own")
        return self.loss(batch)


@dataclass
class Case:
    """A fit, and the batches and samples of each of its steps."""

    steps: list[tuple[int, float]]
    options: dict[str, Any] = field(default_factory=dict)
    samples: int = 48
    stream: bool = False
    module: type[Classifier] = Classifier
    stop_at: int | None = None
    resume_at: int | None = None


ONE = (1, 8.0)
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
    "two optimizers": Case([ONE] * 12, module=TwoOptimizers),
    "resumed at an epoch": Case([ONE] * 6, resume_at=6),
    "resumed with accumulation": Case([(2, 16.0)] * 3, {"accumulate_grad_batches": 2}, resume_at=3),
}
SHORT = CASES["early stop"]


def trainer(folder: Path, *callbacks: Any, **options: Any) -> Any:
    plain = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": str(folder),
    }
    return pytorch_lightning.Trainer(**{**plain, **options}, callbacks=[*callbacks])


def loaders(case: Case | None = None) -> tuple[Any, Any]:
    case = case or Case([])
    data = Stream(case.samples) if case.stream else rows(case.samples)
    return DataLoader(data, batch_size=BATCH), DataLoader(rows(24), batch_size=BATCH)


def fit(folder: Path, case: Case, *callbacks: Any, **options: Any) -> tuple[Any, list[str]]:
    """The trainer, and what we have warned of."""
    torch.manual_seed(0)
    stop = [] if case.stop_at is None else [StopAt(case.stop_at)]
    module, checkpoint = case.module(), None
    if case.resume_at is not None:
        first = trainer(folder, **{**case.options, "max_epochs": -1, "max_steps": case.resume_at})
        first.fit(module, *loaders(case))
        checkpoint = str(folder / "saved.ckpt")
        first.save_checkpoint(checkpoint)
    fitting = trainer(folder, *stop, *callbacks, **{**case.options, **options})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitting.fit(module, *loaders(case), ckpt_path=checkpoint)
    return fitting, ours(caught)


def ours(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(one.message) for one in caught if "pyinstrument" in str(one.message)]


def pickled(one: Any) -> Any:
    return pickle.loads(pickle.dumps(one))


def steps_of(run: Run) -> list[tuple[int, float | None]]:
    assert all(step.complete for step in run.steps)
    return [(step.items, step.samples) for step in run.steps]


@pytest.mark.parametrize("name", CASES)
def test_callback_records_the_steps_that_lightning_counts(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    callback = GpuPhaseCallback(tmp_path / "train.gpurun")
    fitting, warned = fit(tmp_path, case, callback)
    assert not warned
    run = callback.run
    assert run.complete
    assert steps_of(run) == case.steps
    assert run.environment["framework"] == f"pytorch-lightning {pytorch_lightning.__version__}"
    assert run.environment["framework_steps"] == len(case.steps)
    assert run.program_facts.loader_workers == 0
    if case.module is Classifier and case.resume_at is None:
        assert fitting.global_step == len(case.steps)
    assert auto.installed() is None


@pytest.mark.parametrize("name", ["accumulation", "fetched ahead", "two optimizers"])
def test_profiler_makes_a_phase_of_each_action(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    profiler = GpuPhaseProfiler(dirpath=tmp_path, filename="report")
    _, warned = fit(tmp_path, case, profiler=profiler)
    assert not warned
    run = profiler.run
    assert steps_of(run) == case.steps
    batches = sum(items for items, _ in case.steps)
    epoch = "run_training_epoch"
    assert run.phases[f"{epoch}/run_training_batch"].count == batches
    steps = [path for path in run.phases if path.endswith(".training_step")]
    assert sum(run.phases[path].count for path in steps) == batches
    assert "Where the step goes" in (tmp_path / "fit-report.txt").read_text()
    assert not any(copied.recording for copied in (copy.deepcopy(profiler), pickled(profiler)))


def test_actions_of_the_profiler_may_overlap() -> None:
    profiler = GpuPhaseProfiler()
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


def test_two_fits_are_two_runs(tmp_path: Path) -> None:
    callback = GpuPhaseCallback(tmp_path / "train.gpurun")
    fitting, warned = fit(tmp_path, CASES["accumulation"], callback)
    fitting.fit_loop.max_epochs = 3
    fitting.fit(Classifier(), *loaders())
    assert not warned
    runs = [Run.load(tmp_path / name) for name in ("train.gpurun", "train-2.gpurun")]
    assert [run.step_totals.count for run in runs] == [4, 2]
    assert not any(copied.recording for copied in (copy.deepcopy(callback), pickled(callback)))


def test_exception_ends_the_recording_and_propagates(tmp_path: Path) -> None:
    for make in (GpuPhaseCallback, GpuPhaseProfiler):
        one = make()
        options = {"profiler": one} if make is GpuPhaseProfiler else {"callbacks": one}
        plain = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
        with pytest.raises(KeyError, match="the program's own"):
            pytorch_lightning.Trainer(
                **plain, **options, default_root_dir=str(tmp_path), max_epochs=1
            ).fit(Failing(), *loaders())
        assert [step.complete for step in one.run.steps] == [True, True, False]
        assert auto.installed() is None


def test_recording_of_the_program_gets_the_steps(tmp_path: Path) -> None:
    callback = GpuPhaseCallback(tmp_path / "unused.gpurun")
    with pig.record() as recording:
        _, warned = fit(tmp_path, CASES["accumulation"], callback)
    assert not warned
    assert callback.recording is None
    assert steps_of(recording.run) == CASES["accumulation"].steps
    assert not (tmp_path / "unused.gpurun").exists()


def test_two_callbacks_make_one_recording_and_one_warning(tmp_path: Path) -> None:
    first, second = GpuPhaseCallback(), GpuPhaseCallback()
    _, warned = fit(tmp_path, SHORT, first, second)
    assert steps_of(first.run) == SHORT.steps
    assert second.recording is None
    assert len(warned) == 1
    assert "starts no recording" in warned[0]


def test_run_file_that_exists_is_one_warning_and_training_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "train.gpurun"
    path.write_text("mine")
    callback = GpuPhaseCallback(path)
    fitting, warned = fit(tmp_path, SHORT, callback)
    assert fitting.global_step == 3
    assert path.read_text() == "mine"
    assert len(warned) == 1
    assert "nothing is recorded" in warned[0] and "already exists" in warned[0]
    with pytest.raises(pig.RecordingError, match="has no run"):
        _ = callback.run


def test_wrong_option_raises_at_once() -> None:
    with pytest.raises(ValueError, match="max_bytes"):
        GpuPhaseCallback(max_bytes=1)
    with pytest.raises(TypeError):
        GpuPhaseProfiler(unknown=1)
