# SPDX-License-Identifier: Apache-2.0
"""Trains an LSTM on Python's documentation, and gives it its first state."""

import torch
from torch import nn
from torch.utils.data import DataLoader

from examples.cases.batches import batches
from examples.cases.language_model import HIDDEN, LAYERS, LanguageModel
from examples.cases.options import parse
from examples.cases.text import Text

BATCH = 16
LOG_EVERY = 50


def main() -> None:
    options = parse(__doc__, steps=300)
    text = Text()
    loader = DataLoader(
        text.windows(64),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        pin_memory=options.pins_memory,
    )
    model = LanguageModel(len(text.characters)).to(options.device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    hidden = torch.zeros(LAYERS, BATCH, HIDDEN, device=options.device)
    cell = torch.zeros(LAYERS, BATCH, HIDDEN, device=options.device)
    for step, (inputs, targets) in enumerate(batches(loader, options.steps), 1):
        inputs = inputs.to(options.device, non_blocking=True)
        targets = targets.to(options.device, non_blocking=True)
        optimizer.zero_grad()
        loss = criterion(model(inputs, (hidden, cell)).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        if step % LOG_EVERY == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    print(f"final loss {loss.item():.9g}")


if __name__ == "__main__":
    main()
