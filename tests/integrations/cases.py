# SPDX-License-Identifier: Apache-2.0
"""Trainings by frameworks, and the steps that these count. It imports none: that takes seconds."""

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from pyinstrument_gpu.core.run import Run

BATCH = 8
ONE = (1, 8.0)


@dataclass
class Case:
    """A training, and the batches and samples of each of its steps."""

    steps: list[tuple[int, float]]
    options: dict[str, Any] = field(default_factory=dict)
    samples: int = 48
    stream: bool = False
    stop_at: int | None = None
    resume_at: int | None = None
    has_two_optimizers: bool = False


def steps_of(run: Run) -> list[tuple[int, float | None]]:
    assert all(step.complete for step in run.steps)
    return [(step.items, step.samples) for step in run.steps]


@contextmanager
def our_warnings() -> Iterator[list[str]]:
    """The warnings of this package, once the block has ended."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    found += [str(one.message) for one in caught if "pyinstrument" in str(one.message)]


@contextmanager
def tiny_trainings() -> Iterator[None]:
    """One thread computes, as waiting for others would take longer than the work; and the objects
    of a framework are not looked at each time that it collects garbage."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)
