# SPDX-License-Identifier: Apache-2.0
"""A training program that knows nothing of us: a small convolutional net on pictures of 8x8, on one
thread, as a user writes it. Prints the mean time of a step after the first epoch, in microseconds.
"""

import argparse
from time import perf_counter_ns

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 64


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 2 * 2, 10),
    )


class Training:
    """A model that goes on being trained.

    Args:
        extra_us: by how much each step is made longer.
    """

    def __init__(self, extra_us: float = 0.0) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        images, labels = torch.rand(BATCH * 28, 1, 8, 8), torch.randint(10, (BATCH * 28,))
        self._loader = DataLoader(TensorDataset(images, labels), batch_size=BATCH, shuffle=True)
        self._model = network()
        self._criterion = nn.CrossEntropyLoss()
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=1e-3)
        self._extra_ns = extra_us * 1e3
        self.batches = len(self._loader)

    def epoch(self) -> None:
        for number, (images, labels) in enumerate(self._loader):
            self._optimizer.zero_grad()
            loss = self._criterion(self._model(images), labels)
            loss.backward()
            self._optimizer.step()
            if number % 10 == 0:
                loss.item()
            if self._extra_ns:
                end_ns = perf_counter_ns() + self._extra_ns
                while perf_counter_ns() < end_ns:
                    pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--extra-us", type=float, default=0.0)
    options = parser.parse_args()
    training = Training(options.extra_us)
    training.epoch()
    begin_ns = perf_counter_ns()
    for _ in range(options.epochs):
        training.epoch()
    steps = options.epochs * training.batches
    print(f"{(perf_counter_ns() - begin_ns) / steps / 1e3:.3f}")


if __name__ == "__main__":
    main()
