# SPDX-License-Identifier: Apache-2.0
"""Trains a small CNN on the digits that ship with scikit-learn, and times what each step does."""

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_steps

PRINT_EVERY = 500
"""How many batches to train between two printed lines of running values."""


class DigitNet(nn.Sequential):
    """Two convolutions and a linear layer: 8x8 grey pixels to ten classes."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 2 * 2, 10),
        )


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Returns the 1797 digits, shuffled and split four to one into training and validation."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels))
    train, validation = order[: len(order) * 4 // 5], order[len(order) * 4 // 5 :]
    return (
        TensorDataset(images[train], labels[train]),
        TensorDataset(images[validation], labels[validation]),
    )


def train_epoch(
    model: nn.Module,
    loader: DataLoader[tuple[Tensor, ...]],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    metrics: pig.MetricAccumulator,
    batches: Iterator[int],
) -> None:
    """Trains on every batch once, and prints running values every `PRINT_EVERY` batches.

    `batches` is a counter that goes on from epoch to epoch.
    """
    model.train()
    for images, labels in gpu_steps(loader, samples=lambda batch: len(batch[0])):
        if device.type != "cpu":
            with gpu_phase("h2d"):
                images = images.to(device, non_blocking=True)
                labels = labels.to(device, non_blocking=True)
        with gpu_phase("forward"):
            logits = model(images)
            loss = nn.functional.cross_entropy(logits, labels)
        with gpu_phase("backward"):
            loss.backward()
        with gpu_phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        with gpu_phase("metrics"):
            metrics.update(logits, labels, loss)
        if next(batches) % PRINT_EVERY == 0 and (reading := metrics.latest()) is not None:
            # Unlike .item(), latest() does not wait for the device. On a GPU the reading may be a
            # few steps old, which is why it says which step it belongs to.
            print(
                f"  step {reading.step}: loss {reading.values['loss']:.4f}, "
                f"accuracy {reading.values['accuracy@1']:.4f}"
            )


@torch.no_grad()
def validate(model: nn.Module, dataset: TensorDataset, device: torch.device) -> float:
    """Returns the accuracy on all of `dataset`."""
    model.eval()
    images, labels = (tensor.to(device) for tensor in dataset.tensors)
    return float((model(images).argmax(1) == labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, default=Path("digits.gpurun"))
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output file")
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    # The model is too small to benefit from more threads, and one gives the steadiest times.
    torch.set_num_threads(1)
    device = torch.device(arguments.device)
    train_set, validation_set = load_data()
    loader = DataLoader(
        train_set, arguments.batch_size, shuffle=True, pin_memory=device.type == "cuda"
    )
    model = DigitNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    metrics = pig.MetricAccumulator(topk=1, num_classes=10)
    batches = itertools.count(1)
    with pig.record(arguments.output, overwrite=arguments.overwrite) as recording:
        for epoch in range(1, arguments.epochs + 1):
            train_epoch(model, loader, optimizer, device, metrics, batches)
            values = metrics.compute()
            metrics.reset()
            with gpu_phase("validation"):
                validation_accuracy = validate(model, validation_set, device)
            print(
                f"epoch {epoch:3}: loss {values['loss']:.4f}, "
                f"accuracy {values['accuracy@1']:.4f}, "
                f"validation accuracy {validation_accuracy:.4f}"
            )
    print(recording.run.report())


if __name__ == "__main__":
    main()
