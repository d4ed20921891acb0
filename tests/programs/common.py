# SPDX-License-Identifier: Apache-2.0
"""What the loops train: a small network on made-up data, the same in every run."""

import atexit
import gc
import hashlib
import random

import numpy
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 8
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def seed() -> None:
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    torch.set_num_threads(1)
    atexit.register(print_state)


def print_state() -> None:
    """Print what a program leaves behind: its random numbers, and its parameters and gradients."""
    left = [torch.get_rng_state().numpy().tobytes(), repr(random.getstate()).encode()]
    left.append(repr(numpy.random.get_state(legacy=False)).encode())
    # By its type alone: objects of other libraries raise when they are asked anything else.
    parameters = [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Parameter)]
    left += sorted(_bytes(p) + (b"" if p.grad is None else _bytes(p.grad)) for p in parameters)
    # In one piece, also where several ranks print at the same time.
    print(f"state {hashlib.sha256(b''.join(left)).hexdigest()}\n", end="", flush=True)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().tobytes()  # waits


def dataset(batches: int = 6) -> TensorDataset:
    inputs = torch.randn(BATCH * batches, 12)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def loader(batches: int = 6, workers: int = 0) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(dataset(batches), batch_size=BATCH, num_workers=workers)


def network(outputs: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, outputs))
