# SPDX-License-Identifier: Apache-2.0
"""What the loops train: a small network on made-up data, the same in every run."""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 8


def seed() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


def dataset(batches: int = 6) -> TensorDataset:
    inputs = torch.randn(BATCH * batches, 12)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def loader(batches: int = 6, workers: int = 0) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(dataset(batches), batch_size=BATCH, num_workers=workers)


def network(outputs: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, outputs))
