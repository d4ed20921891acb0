# SPDX-License-Identifier: Apache-2.0
"""A training of short steps, with and without a recording, both as a user has them.

A small convolutional net on the handwritten digits inside scikit-learn, or on noise of their shape
where that is not installed: steps of about a millisecond, most of it the host's. Blocks with,
without, and again without a recording take turns for three minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from time import perf_counter_ns

import torch
from torch import Tensor, nn

import pyinstrument_gpu as pig
from benchmarks.digits_loop import network
from benchmarks.gpu.figure import Figure, print_figures
from benchmarks.gpu.gpu import CudaGpu, Gpu
from benchmarks.gpu.recording_cost import recording_figures
from benchmarks.interleave import interleaved
from pyinstrument_gpu import gpu_phase, gpu_steps

BLOCK_S = 1.5
BATCH = 64
SECONDS = 180.0


def load_digits(device: str) -> tuple[Tensor, Tensor, str]:
    """Images, labels, and what they are."""
    try:
        from sklearn.datasets import load_digits as load
    except ModuleNotFoundError:
        generator = torch.Generator().manual_seed(0)
        images = torch.rand((1797, 1, 8, 8), generator=generator)
        labels = torch.randint(10, (1797,), generator=generator)
        return images.to(device), labels.to(device), "noise: scikit-learn is not installed"
    digits = load()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    return images.to(device), torch.tensor(digits.target).to(device), "digits"


class Training:
    """A model that goes on being trained, block after block."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self._images, self._labels, self.data = load_digits(device)
        self._model = network().to(device)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=1e-3)
        self._loss_sum = torch.zeros((), device=device)
        self._next = 0

    def train(self, steps: int) -> None:
        for _ in gpu_steps(range(steps), samples=BATCH):
            with gpu_phase("data"):
                begin = self._next
                self._next = (begin + BATCH) % (len(self._labels) - BATCH)
                images = self._images[begin : begin + BATCH]
                labels = self._labels[begin : begin + BATCH]
            with gpu_phase("forward"):
                loss = nn.functional.cross_entropy(self._model(images), labels)
            with gpu_phase("backward"):
                self._optimizer.zero_grad()
                loss.backward()
            with gpu_phase("optimizer"):
                self._optimizer.step()
            with gpu_phase("metrics"):
                self._loss_sum += loss.detach()


def figures(gpu: Gpu, *, seconds: float = SECONDS, block_s: float = BLOCK_S) -> Iterator[Figure]:
    """All that this part measures."""
    training = Training(gpu.device)
    last: list[pig.Run] = []

    def block(steps: int) -> float:
        gpu.synchronize()
        begin_ns = perf_counter_ns()
        training.train(steps)
        gpu.synchronize()
        return (perf_counter_ns() - begin_ns) / steps

    def recorded_block(steps: int) -> float:
        with pig.record() as recording:
            step_ns = block(steps)
        last[:] = [recording.run]
        return step_ns

    block(20)
    steps = max(1, round(block_s * 1e9 / block(50)))
    results = interleaved(
        {
            "off": lambda: block(steps),
            "off again": lambda: block(steps),
            "on": lambda: recorded_block(steps),
        },
        rounds=10_000,
        seconds=seconds,
    )
    run = last[0]
    if run.device_timing is None:
        raise RuntimeError("no step was timed on the device")
    yield Figure(
        "a step without a recording", float(results["off"].mean()) / 1e3, "us", note=training.data
    )
    yield Figure("blocks of each kind", len(results["off"]), "")
    yield Figure("steps of a block", steps, "")
    yield Figure("the device is timed in every k-th step, k", run.device_timing.every, "")
    yield from recording_figures(results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    print_figures(figures(CudaGpu(), seconds=parser.parse_args().seconds))


if __name__ == "__main__":
    main()
