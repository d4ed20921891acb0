# SPDX-License-Identifier: Apache-2.0
"""Lightning's trainer, with validation and accumulation."""
# steps: 6
# phases: backward 12, optimizer 6

import logging
import warnings

import lightning
import torch
from torch import Tensor
from torch.nn import functional

from tests.programs import common


class Classifier(lightning.LightningModule):  # type: ignore[misc]  # it may not be installed
    def __init__(self) -> None:
        super().__init__()
        self.body = common.network()

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.body(inputs)
        return output

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        loss = functional.cross_entropy(self(batch[0]), batch[1])
        print(f"{index} {loss.item():.6f}")  # waits
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        print(f"validation {functional.cross_entropy(self(batch[0]), batch[1]).item():.6f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
common.seed()
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    accumulate_grad_batches=2,
    num_sanity_val_steps=1,
)
trainer.fit(Classifier(), common.loader(), common.loader(3))
