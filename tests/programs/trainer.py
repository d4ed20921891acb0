# SPDX-License-Identifier: Apache-2.0
"""A trainer class with callbacks, and a network that returns its own loss."""
# steps: 12
# phases: data 12, zero_grad 12, forward 12, backward 12, optimizer 12

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from tests.programs import common


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = common.network()

    def forward(self, *, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.body(inputs)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


class Trainer:
    def __init__(self, module: nn.Module, on_step: Callable[[int, float], None]) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.module = module.to(self.device)  # waits
        self.optimizer = torch.optim.RMSprop(module.parameters(), lr=1e-3)
        self.on_step = on_step
        self.step = 0

    def fit(self, loader: DataLoader[tuple[Tensor, ...]], epochs: int) -> None:
        self.module.train()
        for _ in range(epochs):
            for batch in loader:
                self.training_step(batch)

    def training_step(self, batch: tuple[Tensor, ...]) -> None:
        inputs, labels = (tensor.to(self.device) for tensor in batch)  # waits
        self.module.zero_grad()
        loss = self.module(inputs=inputs, labels=labels)["loss"]
        loss.backward()
        self.optimizer.step()
        self.step += 1
        self.on_step(self.step, float(loss))  # waits


common.seed()
trainer = Trainer(Classifier(), lambda step, loss: print(f"{step}: {loss:.6f}"))
trainer.fit(common.loader(), 2)
