# SPDX-License-Identifier: Apache-2.0
"""What times of modules cost on the CPU.

`python -m benchmarks.module_times [--seconds 60] [--results FILE]`

Blocks of training steps take turns, each with its model watched in another way, or with a peer. A
recording with the phases of a step goes on in all of them. Modules are timed in each step; or, as
in the steps that sampling leaves out, in none; or, as by default, in as many as the budget allows.
What counts is the CPU time of the thread that trains, so that other programs disturb less: the
median over rounds, and, where only some steps are timed, the mean. The second block without gives
the floor: the difference seen where there is none.
"""

from __future__ import annotations

import argparse
import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import pyinstrument_gpu as pig
from benchmarks.gpu.figure import Figure, print_and_write
from benchmarks.interleave import interleaved

WITHOUT = "without"
FLOOR = "without, once more: the floor"
GOALS_US = {"coarse": 70.0, "all": 150.0}
BY_DEFAULT = ("coarse, by default", "all, by default")
LEFT_OUT = "a step that is left out, of all modules"
NEVER = 1_000_000
ROUNDS = 60
STEPS = 8
WARM_UPS = 2
FIRST_STEPS = 3
"""Of a recording, in which modules are timed in any case."""


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        y: Tensor = self.drop(self.out(attended.transpose(1, 2).reshape(batch, length, width)))
        return y


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm_1(x))
        y: Tensor = x + self.mlp(self.norm_2(x))
        return y


class Gpt(nn.Module):
    """A GPT of 82 modules, with 6 blocks."""

    def __init__(self, width: int = 32, heads: int = 2, vocabulary: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(64, width)
        self.drop = nn.Dropout(0.1)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(6))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.drop(self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)))
        for layer in self.layers:
            x = layer(x)
        y: Tensor = self.head(self.norm(x))
        return y


class _FullBackwardHooks:
    """What torch offers: hooks before and after each module's backward, in Python."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.times: dict[str, int] = {}

    def __enter__(self) -> None:
        # Torch warns of what its own hooks do for a module whose input takes no gradient.
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)

        def add(name: str, sign: int) -> Callable[..., None]:
            def hook(*_: object) -> None:
                self.times[name] = self.times.get(name, 0) + sign * time.perf_counter_ns()

            return hook

        self._handles = []
        for name, module in self._model.named_modules():
            self._handles += [
                module.register_forward_pre_hook(add(f"forward {name}", -1)),
                module.register_forward_hook(add(f"forward {name}", 1)),
                module.register_full_backward_pre_hook(add(f"backward {name}", -1)),
                module.register_full_backward_hook(add(f"backward {name}", 1)),
            ]

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._warnings.__exit__(None, None, None)


def _profiler() -> AbstractContextManager[object]:
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])


def figures(seconds: float) -> Iterator[Figure]:
    """What a step without takes, and what each way adds."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ids = torch.randint(0, 64, (2, 16))

    def step() -> None:
        with pig.gpu_step():
            with pig.gpu_phase("forward"):
                loss = functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            with pig.gpu_phase("backward"):
                loss.backward()
            with pig.gpu_phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()

    def block(way: Callable[[], AbstractContextManager[object]]) -> Callable[[], float]:
        def run() -> float:
            with way():
                for _ in range(WARM_UPS):
                    step()
                begin_ns = time.thread_time_ns()
                for _ in range(STEPS):
                    step()
                return (time.thread_time_ns() - begin_ns) / STEPS

        return run

    ways: dict[str, Callable[[], AbstractContextManager[object]]] = {
        WITHOUT: contextlib.nullcontext,
        FLOOR: contextlib.nullcontext,
        "coarse": lambda: pig.watch_modules(model, "coarse", every=1),
        "all": lambda: pig.watch_modules(model, "all", every=1),
        BY_DEFAULT[0]: lambda: pig.watch_modules(model, "coarse"),
        BY_DEFAULT[1]: lambda: pig.watch_modules(model, "all"),
        LEFT_OUT: lambda: pig.watch_modules(model, "all", every=NEVER),
        "torch's hooks, forward and full backward": lambda: _FullBackwardHooks(model),
        "torch.profiler, CPU": _profiler,
    }
    with pig.record():
        with pig.watch_modules(model, every=NEVER):
            for _ in range(FIRST_STEPS):
                step()
        results = interleaved(
            {name: block(way) for name, way in ways.items()}, rounds=ROUNDS, seconds=seconds
        )
    without_ns = results.pop(WITHOUT)
    yield Figure(
        "a step without", float(np.median(without_ns)) / 1e3, "us", note=f"{len(without_ns)} rounds"
    )
    for name, step_ns in results.items():
        select = name.split(",")[0]
        modules = f", {_selected(model, select)} modules" if select in GOALS_US else ""
        added_us = (step_ns - without_ns) / 1e3
        added = f"{name}{modules}: added to a step"
        goal = GOALS_US.get(select)
        if name not in BY_DEFAULT:
            yield Figure(added, float(np.median(added_us)), "us", goal=goal)
        if name in (*BY_DEFAULT, FLOOR):
            yield Figure(f"{added} on average", float(np.mean(added_us)), "us", goal=goal)


def _selected(model: nn.Module, select: str) -> int:
    with pig.watch_modules(model, select) as watch:
        return len(watch.names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="at most")
    parser.add_argument("--results", type=Path, help="write the figures to this file, as JSON")
    options = parser.parse_args()
    print_and_write(figures(options.seconds), options.results)


if __name__ == "__main__":
    main()
