# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT on the text of Python's `help()`; accumulates gradients, and evaluates."""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step

CONTEXT = 64
"""Characters that the model sees."""
EVALUATION_BATCHES = 8


class Block(nn.Module):
    """Causal self-attention and a feed-forward network, each after a norm and around a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.mlp(x)
        return out


class GPT(nn.Module):
    """(batch, length) tokens to (batch, length, characters) logits."""

    def __init__(self, characters: int, width: int = 64, heads: int = 4, layers: int = 3) -> None:
        super().__init__()
        self.tokens = nn.Embedding(characters, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def load_text() -> tuple[Tensor, Tensor, int]:
    """Returns the tokens for training and for evaluation, and how many characters there are."""
    text = "".join(topics[name] for name in sorted(topics))
    token_of = {character: token for token, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([token_of[character] for character in text])
    training = len(tokens) * 9 // 10
    return tokens[:training], tokens[training:], len(token_of)


def batches(tokens: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of random windows, without end: characters, and beside each the one that follows."""
    while True:
        begins = torch.randint(len(tokens) - CONTEXT - 1, (size, 1))
        windows = tokens[begins + torch.arange(CONTEXT + 1)]
        yield windows[:, :-1], windows[:, 1:]


@torch.no_grad()
def evaluate(model: nn.Module, source: Iterator[tuple[Tensor, Tensor]], device: str) -> float:
    """Returns the mean loss over some batches."""
    model.eval()
    losses = []
    for _ in range(EVALUATION_BATCHES):
        inputs, targets = (tensor.to(device) for tensor in next(source))
        losses.append(functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()))
    model.train()
    return float(torch.stack(losses).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--accumulate", type=int, default=4, help="batches in a step")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--evaluate-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, default=Path("language_model.gpurun"))
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output file")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = arguments.device
    training, evaluation, characters = load_text()
    train_batches = batches(training, arguments.batch_size)
    evaluation_batches = batches(evaluation, arguments.batch_size)
    model = GPT(characters).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # One sum on the device over the batches of all steps, read without waiting for it.
    metrics = pig.MetricAccumulator(topk=1, num_classes=characters)

    with pig.record(arguments.output, overwrite=arguments.overwrite) as recording:
        for step in range(1, arguments.steps + 1):
            # A step is one update of the model, whatever it is made of.
            with gpu_step(samples=arguments.accumulate * arguments.batch_size):
                for _ in range(arguments.accumulate):
                    with gpu_phase("data"):
                        inputs, targets = (tensor.to(device) for tensor in next(train_batches))
                    with gpu_phase("forward"):
                        logits = model(inputs).flatten(0, 1)
                        loss = functional.cross_entropy(logits, targets.flatten())
                    with gpu_phase("backward"):
                        (loss / arguments.accumulate).backward()
                    with gpu_phase("metrics"):
                        metrics.update(logits.detach(), targets.flatten(), loss.detach())
                with gpu_phase("optimizer"):
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
            if step % arguments.evaluate_every == 0:
                with gpu_phase("evaluation"):
                    loss_there = evaluate(model, evaluation_batches, device)
                values = metrics.compute()
                metrics.reset()
                print(
                    f"step {step:4}: loss {values['loss']:.3f}, evaluation {loss_there:.3f}, "
                    f"{loss_there / math.log(2):.2f} bits per character"
                )
    print(recording.run.report())


if __name__ == "__main__":
    main()
