# SPDX-License-Identifier: Apache-2.0
"""Trainings by frameworks, and the steps that these count. It imports none: that takes seconds."""

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.step_values import values_of_steps

BATCH = 8
LENGTH = 6
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


def tokens_of(run: Run) -> list[tuple[float, float]]:
    """Of each step, with padding and without."""
    names = "step/tokens", "step/tokens_without_padding"
    found = (values_of_steps(run, name, run.steps.closed).tolist() for name in names)
    return list(zip(*found, strict=True))


def steps_of(run: Run) -> list[tuple[int, float | None]]:
    assert all(step.complete for step in run.steps)
    return [(step.items, step.samples) for step in run.steps]


class Texts(Dataset[dict[str, Tensor]]):
    """Rows of words of which the last ones are padding."""

    def __init__(self, count: int) -> None:
        lengths = torch.arange(count) % LENGTH + 1
        self.masks = (torch.arange(LENGTH) < lengths[:, None]).long()

    def __len__(self) -> int:
        return len(self.masks)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids, mask = torch.arange(LENGTH), self.masks[index]
        labels = ids.where((mask == 1) & (ids > 0), -100)  # the first word is a prompt
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class LanguageModel(nn.Module):
    """Notes what it is trained on.

    Attributes:
        batches: the words of each, with padding and without.
        more: other arguments that it got.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(LENGTH, 4), nn.Linear(4, LENGTH)
        self.batches: list[tuple[float, float]] = []
        self.more: list[dict[str, Any]] = []

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor, **more: Any
    ) -> dict[str, Tensor]:
        self.batches.append((input_ids.numel(), float(attention_mask.sum())))
        self.more.append(more)
        logits = self.head(self.words(input_ids)).flatten(0, 1)
        return {"loss": functional.cross_entropy(logits, labels.flatten(), ignore_index=-100)}

    def by_step(self, batches: list[int]) -> list[tuple[float, float]]:
        """Of steps of so many batches each."""
        left = iter(self.batches)
        return [
            (sum(one[0] for one in step), sum(one[1] for one in step))
            for step in ([next(left) for _ in range(count)] for count in batches)
        ]


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
    of a framework, imported late, are not looked at each time that it collects garbage."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    yield
    torch.set_num_threads(threads)
