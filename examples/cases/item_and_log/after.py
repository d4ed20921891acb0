# SPDX-License-Identifier: Apache-2.0
"""Trains an LSTM on Python's documentation, and logs its loss and its perplexity."""

import logging
import math

import torch
from torch import nn
from torch.utils.data import DataLoader

from examples.cases.batches import batches
from examples.cases.language_model import LanguageModel
from examples.cases.options import parse
from examples.cases.text import Text

LOG_EVERY = 50

logger = logging.getLogger(__name__)


def main() -> None:
    options = parse(__doc__, steps=300)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    text = Text()
    loader = DataLoader(
        text.windows(64), batch_size=16, shuffle=True, pin_memory=options.pins_memory
    )
    model = LanguageModel(len(text.characters)).to(options.device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step, (inputs, targets) in enumerate(batches(loader, options.steps), 1):
        inputs = inputs.to(options.device, non_blocking=True)
        targets = targets.to(options.device, non_blocking=True)
        optimizer.zero_grad()
        loss = criterion(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        if step % LOG_EVERY == 0:
            value = loss.item()
            logger.info("step %d: loss %.4f, perplexity %.4f", step, value, math.exp(value))
    print(f"final loss {loss.item():.9g}")


if __name__ == "__main__":
    main()
