# SPDX-License-Identifier: Apache-2.0
"""Trains a classifier on digits that loader workers turn, move and make noisy."""

import torch
from torch import nn
from torch.utils.data import DataLoader

from examples.cases.augmented_digits import AugmentedDigits
from examples.cases.batches import batches
from examples.cases.classifier import Classifier
from examples.cases.options import parse

LOG_EVERY = 50


def main() -> None:
    options = parse(__doc__, steps=300)
    loader = DataLoader(
        AugmentedDigits(),
        batch_size=64,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        pin_memory=options.pins_memory,
    )
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
        if step % LOG_EVERY == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    print(f"final loss {loss.item():.9g}")


if __name__ == "__main__":
    main()
