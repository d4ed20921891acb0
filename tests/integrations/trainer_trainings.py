# SPDX-License-Identifier: Apache-2.0
"""Trainings by Hugging Face's Trainer, of which the import takes seconds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, IterableDataset

from pyinstrument_gpu.integrations.transformers import GpuPhaseCallback as GpuPhaseCallback
from tests.integrations.cases import BATCH, Case, our_warnings


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


def trainer(
    folder: Path,
    case: Case,
    *callbacks: Any,
    model: nn.Module | None = None,
    data: Dataset[Any] | None = None,
) -> Any:
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
        train_dataset=data or (Stream if case.stream else Rows)(case.samples),
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
    with our_warnings() as warned:
        training.train(resume_from_checkpoint=checkpoint)
    return training, warned
