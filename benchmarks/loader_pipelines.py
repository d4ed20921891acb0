# SPDX-License-Identifier: Apache-2.0
"""Data sets of many kinds, and loops that use their batches."""

from __future__ import annotations

import io
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, get_worker_info

KINDS = ("decode", "augment", "sleep", "disk", "skewed", "bursts", "slow start", "stream", "text")
_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class Pipeline:
    """One of them.

    Attributes:
        item_s: what an item takes, or about so much.
        batch_size: of a batch.
        using_s: for how long the loop uses a batch.
        computes: whether it computes meanwhile, rather than waits for a device.
    """

    kind: str
    item_s: float
    batch_size: int
    using_s: float
    computes: bool
    batches: int

    def dataset(self) -> Dataset[torch.Tensor]:
        count = self.batch_size * self.batches
        return Stream(self, count) if self.kind == "stream" else Items(self, count)

    def use(self) -> None:
        """What the loop does with a batch."""
        if self.computes:
            compute(self.using_s)
        else:
            time.sleep(self.using_s)


class Items(Dataset[torch.Tensor]):
    def __init__(self, pipeline: Pipeline, count: int) -> None:
        self._pipeline, self._count = pipeline, count
        self._file: Path | None = None
        self._picture = b""
        if pipeline.kind == "disk":
            self._file = Path(tempfile.gettempdir()) / "pyinstrument_gpu_loader_pipelines"
            self._file.write_bytes(bytes(_FILE_BYTES))
        elif pipeline.kind == "decode":
            side = max(32, int(900 * pipeline.item_s**0.5 * 10))
            noise = np.random.default_rng(0).integers(0, 255, (side // 8, side // 8, 3), np.uint8)
            written = io.BytesIO()
            Image.fromarray(noise).resize((side, side)).save(written, "JPEG")
            self._picture = written.getvalue()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        make_item(self._pipeline, index, self._file, self._picture)
        return torch.zeros(8)


class Stream(IterableDataset[torch.Tensor]):
    def __init__(self, pipeline: Pipeline, count: int) -> None:
        self._pipeline, self._count = pipeline, count

    def __iter__(self) -> Iterator[torch.Tensor]:
        # Each worker makes the batches that are its turn, as torch asks them.
        size, worker = self._pipeline.batch_size, get_worker_info()
        step, first = (1, 0) if worker is None else (worker.num_workers, worker.id)
        for batch in range(first, self._count // size, step):
            for index in range(batch * size, (batch + 1) * size):
                make_item(self._pipeline, index, None, b"")
                yield torch.zeros(8)


def make_item(pipeline: Pipeline, index: int, file: Path | None, picture: bytes) -> None:
    item_s, chance = pipeline.item_s, random.Random(index)
    if pipeline.kind == "decode":
        Image.open(io.BytesIO(picture)).convert("RGB").resize((64, 64))
    elif pipeline.kind in ("augment", "text"):
        compute(item_s)
    elif pipeline.kind == "disk":
        assert file is not None
        with file.open("rb") as opened:
            for _ in range(max(1, int(item_s / 300e-6))):
                opened.seek(0)
                opened.read()
    elif pipeline.kind == "skewed":
        time.sleep(min(chance.expovariate(1 / item_s), 20 * item_s))
    elif pipeline.kind == "bursts":
        time.sleep(item_s * (8 if index // pipeline.batch_size % 10 == 0 else 0.3))
    elif pipeline.kind == "slow start":
        time.sleep(item_s * (50 if index < pipeline.batch_size else 1))
    else:
        time.sleep(item_s)


def compute(seconds: float) -> None:
    """By the CPU time of the thread, so that others don't make it less."""
    end_ns = time.thread_time_ns() + round(1e9 * seconds)
    values = np.ones(256)
    while time.thread_time_ns() < end_ns:
        values = np.sqrt(values + 1)


def pipelines(count: int, batches: int, seed: int) -> list[Pipeline]:
    """So many, of all kinds in turn."""
    chance = random.Random(seed)
    return [
        Pipeline(
            kind=KINDS[number % len(KINDS)],
            item_s=chance.choice((0.3e-3, 0.6e-3, 1e-3, 2e-3)),
            batch_size=chance.choice((4, 8, 16)),
            using_s=chance.choice((2e-3, 5e-3, 10e-3)),
            computes=chance.random() < 0.5,
            batches=batches,
        )
        for number in range(count)
    ]
