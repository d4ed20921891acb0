# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's trainer on a small network of our own."""
# steps: 6
# phases: data 12, data end 2, forward 12, backward 12, clip 6, optimizer 6, scheduler 6,
#   zero_grad 6

import tempfile
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from tests.programs import common


class Rows(Dataset[dict[str, Tensor]]):
    def __init__(self, batches: int) -> None:
        self.data = common.dataset(batches)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        inputs, labels = self.data[index]
        return {"inputs": inputs, "labels": labels}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = common.network()

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.body(inputs)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


class Printing(TrainerCallback):  # type: ignore[misc]
    def on_step_end(self, arguments: Any, state: Any, control: Any, **kwargs: Any) -> None:
        print("step", state.global_step)


warnings.simplefilter("ignore")
common.seed()
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=2,
        per_device_train_batch_size=common.BATCH,
        per_device_eval_batch_size=common.BATCH,
        gradient_accumulation_steps=2,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_steps=1000,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(  # waits in transformers/trainer.py
        model=Classifier(),
        args=arguments,
        train_dataset=Rows(6),
        eval_dataset=Rows(3),
        callbacks=[Printing()],
    )
    trainer.train()  # waits in transformers/trainer.py
parameters = [parameter.detach().double().sum() for parameter in trainer.model.parameters()]
print(f"{torch.stack(parameters).sum().item():.6f}")  # waits
