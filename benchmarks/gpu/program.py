# SPDX-License-Identifier: Apache-2.0
"""A training program that knows nothing of us, as a user writes it: a small GPT or a small ResNet
on random data. It makes the host wait for the device by reading the loss, the ResNet in every tenth
step, and by copies from pageable memory.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from itertools import cycle, islice

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, schedule

from benchmarks.models import Residual, TransformerBlock

MODELS = ("gpt", "resnet")
PROFILED = 30
"""Steps that a profile holds."""


def small_gpt(width: int, layers: int, words: int) -> nn.Module:
    blocks = [TransformerBlock(width, heads=width // 32) for _ in range(layers)]
    return nn.Sequential(
        nn.Embedding(words, width), *blocks, nn.LayerNorm(width), nn.Linear(width, words)
    )


def small_resnet(channels: int) -> nn.Module:
    stages: list[nn.Module] = []
    for wide in (channels, 2 * channels, 4 * channels):
        narrow = wide // 2 if stages else 3
        stages += [nn.Conv2d(narrow, wide, 3, stride=2, padding=1), Residual(wide), Residual(wide)]
    return nn.Sequential(
        *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * channels, 10)
    )


def random_batch(model: str, tiny: bool) -> tuple[Tensor, Tensor]:
    if model == "gpt":
        words = torch.randint(256, (2, 9) if tiny else (8, 513))
        return words[:, :-1].contiguous(), words[:, 1:].contiguous()
    images = torch.rand((2, 3, 16, 16) if tiny else (256, 3, 64, 64))
    return images, torch.randint(10, (len(images),))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--profile", metavar="FILE", help="write a trace of some steps")
    parser.add_argument("--tiny", action="store_true", help="for a try without a GPU")
    options = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device(options.device)
    if options.model == "gpt":
        width, layers = (32, 1) if options.tiny else (512, 8)
        model = small_gpt(width, layers, words=256).to(device)
    else:
        model = small_resnet(4 if options.tiny else 64).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = [random_batch(options.model, options.tiny) for _ in range(8)]
    if options.model == "gpt":
        batches = [(x.to(device), y.to(device)) for x, y in batches]
    read_every = 1 if options.model == "gpt" else 10

    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    profiler = (
        nullcontext()
        if options.profile is None
        else profile(
            activities=activities,
            schedule=schedule(wait=options.steps // 2, warmup=5, active=PROFILED, repeat=1),
            on_trace_ready=lambda done: done.export_chrome_trace(options.profile),
        )
    )
    loss_sum = torch.zeros((), device=device)
    with profiler as profiling:
        for step, (x, y) in enumerate(islice(cycle(batches), options.steps)):
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            logits = model(x)
            loss = functional.cross_entropy(logits.flatten(0, -2), y.flatten())
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
            if step % read_every == 0:
                loss.item()
            if profiling is not None:
                profiling.step()
    print(f"mean loss {loss_sum.item() / options.steps:.3f}")


if __name__ == "__main__":
    main()
