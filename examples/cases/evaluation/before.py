# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT on Python's documentation, in the style of nanoGPT."""

import torch
from torch import Tensor, nn

from examples.cases.gpt import GPT, random_windows
from examples.cases.options import parse
from examples.cases.text import Text

BATCH = 4
EVALUATE_EVERY = 100
EVALUATION_BATCHES = 20


@torch.no_grad()
def estimate_loss(
    model: nn.Module, splits: dict[str, Tensor], criterion: nn.Module, device: torch.device
) -> dict[str, float]:
    """Returns the mean loss over some batches of each split."""
    model.eval()
    # With random numbers of its own, so that training does not depend on how often this runs.
    generator = torch.Generator().manual_seed(0)
    means = {}
    for split, tokens in splits.items():
        losses = torch.zeros(EVALUATION_BATCHES)
        for batch in range(EVALUATION_BATCHES):
            inputs, targets = random_windows(tokens, BATCH, generator)
            inputs, targets = inputs.to(device), targets.to(device)
            losses[batch] = criterion(model(inputs).flatten(0, 1), targets.flatten()).item()
        means[split] = losses.mean().item()
    model.train()
    return means


def main() -> None:
    options = parse(__doc__, steps=1200)
    text = Text()
    training, validation = text.split()
    splits = {"training": training, "validation": validation}
    generator = torch.Generator().manual_seed(torch.initial_seed())
    model = GPT(len(text.characters)).to(options.device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, options.steps + 1):
        inputs, targets = random_windows(training, BATCH, generator)
        inputs, targets = inputs.to(options.device), targets.to(options.device)
        optimizer.zero_grad()
        loss = criterion(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        if step % EVALUATE_EVERY == 0:
            means = estimate_loss(model, splits, criterion, options.device)
            print(f"step {step}:", *(f"{split} {mean:.4f}" for split, mean in means.items()))
    print(f"final loss {loss.item():.9g}")


if __name__ == "__main__":
    main()
