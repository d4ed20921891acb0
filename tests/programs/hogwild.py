# SPDX-License-Identifier: Apache-2.0
"""Processes that train a network in shared memory, in the style of pytorch/examples
`mnist_hogwild`; here one after the other, so that the result is always the same. This process
trains nothing."""
# steps: 0

import time

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional

from tests.programs import common


def train(rank: int, model: nn.Module) -> None:
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, labels in common.loader():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
    print(f"{rank} {loss.item():.6f}", flush=True)
    # However fast the processor is, that much of it is told.
    while time.process_time() < 0.2:
        model(inputs)


if __name__ == "__main__":
    common.seed()
    model = common.network()
    model.share_memory()
    for rank in range(2):
        process = mp.get_context("fork").Process(target=train, args=(rank, model))
        process.start()
        process.join()
    print(process.exitcode)
