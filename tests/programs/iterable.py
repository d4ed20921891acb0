# SPDX-License-Identifier: Apache-2.0
"""A stream of unknown length that two workers share, read past the end of its epoch."""
# steps: 10
# phases: data 10, zero_grad 10, forward 10, loss 10, backward 10, optimizer 10
# loader workers: 2

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tests.programs import common


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        worker = get_worker_info()
        assert worker is not None
        numbers = torch.Generator().manual_seed(worker.id)
        for _ in range(3 * common.BATCH):
            inputs = torch.randn(12, generator=numbers)
            yield inputs, (inputs.sum() > 0).long()


if __name__ == "__main__":
    common.seed()
    model = common.network().to(common.DEVICE)  # waits
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(Stream(), batch_size=common.BATCH, num_workers=2)
    batches = iter(loader)
    for step in range(10):
        try:
            inputs, labels = next(batches)
        except StopIteration:
            batches = iter(loader)
            inputs, labels = next(batches)
        inputs, labels = inputs.to(common.DEVICE), labels.to(common.DEVICE)  # waits
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"{step} {loss.item():.6f}")  # waits
