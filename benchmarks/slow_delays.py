# SPDX-License-Identifier: Apache-2.0
"""Delays that are put into real training, one for each cause of slow steps, and how long each was.

A delay is put into the step that is open. Where it is an act of the step's own thread, its size is
the time of that act by a clock of this file. Where it comes from elsewhere, such as a program on
the same core, its size is what the step takes longer than the median of untouched ones.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from pyinstrument_gpu import gpu_phase

LATE_BATCH = "late_batch"
_BYTES = 48 << 20
_OBJECTS = 10**6
_SLEEP_S = 0.2
_NEIGHBOURS = 3
"""One alone may have its turn only when a short step is over."""


class Batches(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Batches by number; the worker sleeps before those that are to be late."""

    def __init__(self, late: dict[int, float], count: int) -> None:
        self._late = late
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self._late.get(number, 0.0))
        generator = torch.Generator().manual_seed(number)
        return torch.rand(256, 128, generator=generator), torch.arange(256) % 10


class Delays:
    """What can delay a step. Used as a context manager around the whole of training.

    Attributes:
        of_own: by the name of the cause, what the step's thread itself does for it.
        around: the same for what comes from elsewhere, as a context manager around the step's work.
    """

    def __init__(self) -> None:
        self.of_own: dict[str, Callable[[], object]] = {
            "garbage_collection": gc.collect,
            "compilation": self._compile,
            "evaluation": self._evaluate,
            "checkpoint": self._save,
            "throttled": self._throttle,
        }
        self.around: dict[str, Callable[[], Any]] = {
            "processor_wait": self._neighbour,
            "page_faults": self._faults,
            "gil_wait": self._gil,
        }
        self.model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10))
        self.buffer = mmap.mmap(-1, _BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._state = {"weights": torch.zeros(_BYTES // 4)}
        self.pages = np.frombuffer(self.buffer, np.uint8)
        self._shape = 16
        self._compiled = torch.compile(self.model, backend="eager", dynamic=False)
        self._throttled_us = 0

    def __enter__(self) -> Delays:
        self._objects = [[number] for number in range(_OBJECTS)]
        self._folder = tempfile.TemporaryDirectory()
        torch._dynamo.config.cache_size_limit = 10**6
        context = multiprocessing.get_context("spawn")
        pipes = [multiprocessing.Pipe() for _ in range(_NEIGHBOURS)]
        self._pipes = [ours for ours, _ in pipes]
        self._processes = [
            context.Process(target=_spin, args=(theirs,), daemon=True) for _, theirs in pipes
        ]
        for process in self._processes:
            process.start()
        for pipe in self._pipes:
            pipe.recv()
        self._wanted, self._stops = threading.Event(), False
        self._thread = threading.Thread(target=self._hold, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stops = True
        self._wanted.set()
        self._thread.join()
        self._tell_neighbours(None)
        for process in self._processes:
            process.join()
        self._folder.cleanup()

    def proc(self) -> Path:
        """A folder that is `/proc` but for the control group of the process, whose files are
        made."""
        found = Path(self._folder.name) / "proc"
        group = Path(self._folder.name) / "group"
        (found / "self").mkdir(parents=True)
        group.mkdir()
        for name in ("stat", "pressure", "thread-self"):
            (found / name).symlink_to(f"/proc/{name}")
        (found / "self" / "task").symlink_to("/proc/self/task")
        (found / "self" / "cgroup").write_text("0::/\n")
        (found / "self" / "mountinfo").write_text(f"30 24 0:26 / {group} rw - cgroup2 cgroup2 rw\n")
        self._stat = group / "cpu.stat"
        self._write_stat()
        return found

    def _write_stat(self) -> None:
        self._stat.write_text(
            f"nr_periods 9\nnr_throttled 1\nthrottled_usec {self._throttled_us}\n"
        )

    def _throttle(self) -> None:
        time.sleep(_SLEEP_S)
        self._throttled_us += round(1e6 * _SLEEP_S)
        self._write_stat()

    def _compile(self) -> None:
        self._shape += 1
        with torch.no_grad():
            self._compiled(torch.rand(self._shape, 128))

    def _evaluate(self) -> None:
        with gpu_phase("evaluate"):
            time.sleep(_SLEEP_S)

    def _save(self) -> None:
        torch.save(self._state, Path(self._folder.name) / "checkpoint.pt")

    @contextlib.contextmanager
    def _neighbour(self) -> Iterator[None]:
        allowed = os.sched_getaffinity(0)
        core = min(allowed)
        os.sched_setaffinity(0, {core})
        self._tell_neighbours(core)
        yield
        self._tell_neighbours(-1)
        os.sched_setaffinity(0, allowed)

    def _tell_neighbours(self, core: int | None) -> None:
        for pipe in self._pipes:
            pipe.send(core)

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        self.buffer.madvise(mmap.MADV_DONTNEED)
        yield

    @contextlib.contextmanager
    def _gil(self) -> Iterator[None]:
        self._wanted.set()
        yield

    def _hold(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._stops:
                return
            sum(range(4_000_000))  # one call, which does not let go of the GIL


def _spin(pipe: Connection) -> None:
    """Uses the core that it is told, until it is told otherwise."""
    pipe.send(True)
    while (core := pipe.recv()) is not None:
        if core < 0:
            continue
        os.sched_setaffinity(0, {core})
        while not pipe.poll():
            sum(range(1000))
