# SPDX-License-Identifier: Apache-2.0
"""Trains a classifier of digits, with running values of its accuracy and its loss."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from examples.cases.batches import batches
from examples.cases.classifier import Classifier
from examples.cases.images import CLASSES, load_images
from examples.cases.options import parse
from pyinstrument_gpu import MetricAccumulator

LOG_EVERY = 50


def main() -> None:
    options = parse(__doc__, steps=600)
    loader = DataLoader(
        TensorDataset(*load_images()),
        batch_size=64,
        shuffle=True,
        pin_memory=options.pins_memory,
    )
    model = Classifier().to(options.device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    metrics = MetricAccumulator(topk=1, num_classes=CLASSES)
    for step, (images, labels) in enumerate(batches(loader, options.steps), 1):
        images = images.to(options.device, non_blocking=True)
        labels = labels.to(options.device, non_blocking=True)
        optimizer.zero_grad()
        logits = model(images)
        loss = criterion(logits, labels)
        loss.backward()
        optimizer.step()
        metrics.update(logits, labels, loss)
        if step % LOG_EVERY == 0 and (reading := metrics.latest()) is not None:
            values = reading.values
            print(f"step {step}: loss {values['loss']:.4f}, accuracy {values['accuracy@1']:.4f}")
    print(f"accuracy {metrics.compute()['accuracy@1']:.6f}")
    print(f"final loss {loss.item():.9g}")


if __name__ == "__main__":
    main()
