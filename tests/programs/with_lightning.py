# SPDX-License-Identifier: Apache-2.0
"""Lightning's trainer, with validation and accumulation."""
# Before validation Lightning, too, sets the gradients to zero.
# steps: 6
# phases: data 12, forward 12, loss 12, backward 12, optimizer 6, zero_grad 8

import logging
import warnings

import pytorch_lightning
import torch
from torch import Tensor
from torch.nn import functional

from tests.programs import common


class Classifier(pytorch_lightning.LightningModule):  # type: ignore[misc]
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
        loss = functional.cross_entropy(self(batch[0]), batch[1])
        print(f"validation {loss.item():.6f}")  # waits

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


warnings.simplefilter("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
common.seed()
trainer = pytorch_lightning.Trainer(
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    accumulate_grad_batches=2,
    num_sanity_val_steps=1,
)
classifier, loaders = Classifier(), (common.loader(), common.loader(3))
trainer.fit(classifier, *loaders)  # waits in lightning_fabric/utilities/apply_func.py
