# SPDX-License-Identifier: Apache-2.0
"""Fits by Lightning, of which the import takes seconds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytorch_lightning
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from pyinstrument_gpu.integrations.lightning import GpuPhaseCallback as GpuPhaseCallback
from pyinstrument_gpu.integrations.lightning import GpuPhaseProfiler as GpuPhaseProfiler
from tests.integrations.cases import BATCH, Case, LanguageModel, Texts, our_warnings


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


class Language(pytorch_lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.model = LanguageModel()

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        return self.model(**batch)["loss"]  # type: ignore[no-any-return]

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


class Failing(Classifier):
    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        if index == 2:
            raise KeyError("the program's own")
        return self.loss(batch)


class StopAt(pytorch_lightning.Callback):  # type: ignore[misc]
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        trainer.should_stop = trainer.global_step >= self.step


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
    module, checkpoint = (TwoOptimizers if case.has_two_optimizers else Classifier)(), None
    if case.resume_at is not None:
        first = trainer(folder, **{**case.options, "max_epochs": -1, "max_steps": case.resume_at})
        first.fit(module, *loaders(case))
        checkpoint = str(folder / "saved.ckpt")
        first.save_checkpoint(checkpoint)
    fitting = trainer(folder, *stop, *callbacks, **{**case.options, **options})
    with our_warnings() as warned:
        fitting.fit(module, *loaders(case), ckpt_path=checkpoint)
    return fitting, warned


def fit_language(folder: Path, case: Case, *callbacks: Any) -> LanguageModel:
    module = Language()
    loader = DataLoader(Texts(case.samples), batch_size=BATCH, shuffle=True)
    trainer(folder, *callbacks, **case.options).fit(module, loader)
    return module.model
