# SPDX-License-Identifier: Apache-2.0
"""The callback for Hugging Face's Trainer: steps, items and samples are what it trains on."""

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import torch
import transformers
from accelerate import data_loader
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, IterableDataset

import pyinstrument_gpu as pig
from pyinstrument_gpu import auto
from pyinstrument_gpu.integrations.transformers import GpuPhaseCallback
from pyinstrument_gpu.run import Run

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the Trainer
BATCH = 8


class Rows(Dataset[dict[str, Tensor]]):
    def __init__(self, count: int) -> None:
        self.inputs = torch.randn(count, 12)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        inputs = self.inputs[index]
        return {"inputs": inputs, "labels": (inputs.sum() > 0).long()}


class Stream(IterableDataset[dict[str, Tensor]]):
    def __init__(self, count: int) -> None:
        self.rows = Rows(count)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return (self.rows[i] for i in range(len(self.rows)))


class Classifier(nn.Module):
    def __init__(self, fails_at: int = 0) -> None:
        super().__init__()
        self.body = nn.Linear(12, 2)
        self.fails_at = fails_at
        self.calls = 0

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        if self.calls == self.fails_at:
            raise KeyError("the program's own")
        logits = self.body(inputs)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


class StopAt(transformers.TrainerCallback):  # type: ignore[misc]
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step >= self.step


@dataclass
class Case:
    """A training, and the batches and samples of each of its steps."""

    steps: list[tuple[int, float]]
    options: dict[str, Any] = field(default_factory=dict)
    samples: int = 48
    stream: bool = False
    stop_at: int | None = None
    resume_at: int | None = None


ONE = (1, 8.0)
CASES = {
    "accumulation": Case(
        [(4, 32.0), (2, 12.0)] * 2, {"gradient_accumulation_steps": 4}, samples=44
    ),
    "evaluation in the middle": Case([ONE] * 12, {"eval_strategy": "steps", "eval_steps": 4}),
    "evaluation first": Case([ONE] * 12, {"eval_strategy": "epoch", "eval_on_start": True}),
    "early stop": Case([ONE] * 3, stop_at=3),
    "most steps": Case([(2, 16.0)] * 4, {"max_steps": 4, "gradient_accumulation_steps": 2}),
    "a stream": Case([ONE] * 5, {"max_steps": 5}, stream=True),
    "resumed": Case(
        [(2, 16.0)] * 4,
        {"save_strategy": "steps", "save_steps": 2, "gradient_accumulation_steps": 2},
        resume_at=2,
    ),
}


def trainer(folder: Path, case: Case, *callbacks: Any, model: nn.Module | None = None) -> Any:
    torch.manual_seed(0)
    plain = {
        "output_dir": str(folder / "out"),
        "num_train_epochs": 2,
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": BATCH,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "logging_steps": 1000,
        "dataloader_pin_memory": False,
        "use_cpu": True,
    }
    stop = [] if case.stop_at is None else [StopAt(case.stop_at)]
    made = transformers.Trainer(
        model=model or Classifier(),
        args=transformers.TrainingArguments(**{**plain, **case.options}),
        train_dataset=(Stream if case.stream else Rows)(case.samples),
        eval_dataset=Rows(24),
        callbacks=[*stop, *callbacks],
    )
    made.remove_callback(transformers.PrinterCallback)
    return made


def train(folder: Path, case: Case, *callbacks: Any) -> tuple[Any, list[str]]:
    """The trainer, and what we have warned of."""
    checkpoint = None
    if case.resume_at is not None:
        trainer(folder, case).train()
        checkpoint = str(folder / "out" / f"checkpoint-{case.resume_at}")
    training = trainer(folder, case, *callbacks)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        training.train(resume_from_checkpoint=checkpoint)
    return training, [str(one.message) for one in caught if "pyinstrument" in str(one.message)]


def steps_of(run: Run) -> list[tuple[int, float | None]]:
    assert all(step.complete for step in run.steps)
    return [(step.items, step.samples) for step in run.steps]


@pytest.mark.parametrize("name", CASES)
def test_callback_records_the_steps_that_the_trainer_counts(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    callback = GpuPhaseCallback(tmp_path / "train.gpurun")
    training, warned = train(tmp_path, case, callback)
    assert not warned
    run = callback.run
    assert run.complete
    assert steps_of(run) == case.steps
    assert run.environment["framework"] == f"transformers {transformers.__version__}"
    assert run.environment["framework_steps"] == len(case.steps)
    assert training.state.global_step - (case.resume_at or 0) == len(case.steps)
    assert run.program_facts.loader_workers == 0
    batches = sum(items for items, _ in case.steps)
    counts = {path: phase.count for path, phase in run.phases.items()}
    assert counts["forward"] == counts["backward"] == batches
    assert counts["optimizer"] == len(case.steps)
    assert counts["data"] == batches + counts.get("eval", 0)
    assert auto.installed() is None


def test_two_trainings_are_two_runs(tmp_path: Path) -> None:
    """And no training leaves anything behind in accelerate."""
    before = data_loader.DataLoaderShard.__iter__
    callback = GpuPhaseCallback(tmp_path / "train.gpurun")
    training, _ = train(tmp_path, CASES["early stop"], callback)
    training.train()
    runs = [Run.load(tmp_path / name) for name in ("train.gpurun", "train-2.gpurun")]
    assert [steps_of(run) for run in runs] == [CASES["early stop"].steps] * 2
    assert copy.deepcopy(callback).recording is None
    assert data_loader.DataLoaderShard.__iter__ is before


def test_exception_ends_the_recording_and_propagates(tmp_path: Path) -> None:
    callback = GpuPhaseCallback()
    training = trainer(tmp_path, CASES["early stop"], callback, model=Classifier(fails_at=3))
    with pytest.raises(KeyError, match="the program's own"):
        training.train()
    assert [step.complete for step in callback.run.steps] == [True, True, False]
    assert auto.installed() is None


def test_recording_of_the_program_gets_the_steps(tmp_path: Path) -> None:
    callback = GpuPhaseCallback()
    with pig.record() as recording:
        _, warned = train(tmp_path, CASES["accumulation"], callback)
    assert not warned
    assert callback.recording is None
    assert steps_of(recording.run) == CASES["accumulation"].steps
