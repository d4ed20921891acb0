# SPDX-License-Identifier: Apache-2.0
"""A small training loop in which each automatic phase occurs, and most waits."""

import io
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Model(nn.Module):
    """A model of a program's own, with submodules."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.body(x)
        return result


class Training:
    """A model and what trains it; always the same."""

    def __init__(self, steps: int = 2) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.model: Any = Model()
            x, y = torch.randn(4 * steps, 4), torch.randint(0, 3, (4 * steps,))
        self.loader: DataLoader[Any] = DataLoader(TensorDataset(x, y), batch_size=4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.scaler = torch.amp.GradScaler("cpu")
        self.criterion = nn.CrossEntropyLoss()

    def run(self) -> list[Any]:
        """One epoch, a validation and a checkpoint. Returns what came out."""
        found: list[Any] = []
        for x, y in self.loader:
            x, y = x.to("cpu", non_blocking=True), y.to(torch.int64)
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(x), y) + functional.mse_loss(x, x)
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            nn.utils.clip_grad_value_(self.model.parameters(), 0.5)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            self.model.zero_grad(set_to_none=False)
            found += [loss.item(), float(norm), x[y > 0].tolist(), torch.unique(y).tolist()]
            if y[0] > 1:
                x[y > 1] = 0.0
        with torch.no_grad():
            self.model.eval()
            found.append(self.model(x).sum().cpu().numpy().tolist())
            self.model.train()
        torch.save(self.model.state_dict(), io.BytesIO())
        (gradient,) = torch.autograd.grad(self.model(x).sum(), self.model.body[0].weight)
        return [*found, gradient.tolist(), [p.tolist() for p in self.model.parameters()]]
