# SPDX-License-Identifier: Apache-2.0
"""Trains a classifier of digits, and validates it every 25 steps."""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from examples.cases.batches import batches
from examples.cases.classifier import Classifier
from examples.cases.images import load_images
from examples.cases.options import parse

VALIDATE_EVERY = 25


@torch.no_grad()
def validate(
    model: nn.Module, loader: DataLoader[tuple[Tensor, ...]], device: torch.device
) -> float:
    """Returns the accuracy on all that the loader has."""
    model.eval()
    correct, count = torch.zeros((), device=device), 0
    for images, labels in loader:
        images = images.to(device)
        labels = labels.to(device)
        correct += (model(images).argmax(1) == labels).sum()
        count += len(labels)
    model.train()
    return correct.item() / count


def main() -> None:
    options = parse(__doc__, steps=500)
    images, labels = load_images()
    training = TensorDataset(images[:1200], labels[:1200])
    validation = TensorDataset(images[1200:], labels[1200:])
    loader = DataLoader(training, batch_size=64, shuffle=True, pin_memory=options.pins_memory)
    validation_loader = DataLoader(validation, batch_size=128)
    model = Classifier().to(options.device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, (images, labels) in enumerate(batches(loader, options.steps), 1):
        images = images.to(options.device, non_blocking=True)
        labels = labels.to(options.device, non_blocking=True)
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        if step % VALIDATE_EVERY == 0:
            accuracy = validate(model, validation_loader, options.device)
            print(f"step {step}: validation accuracy {accuracy:.4f}")
    print(f"final loss {loss.item():.9g}")


if __name__ == "__main__":
    main()
