# SPDX-License-Identifier: Apache-2.0
"""What the command line of a training script says."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Options:
    """
    Attributes:
        steps: how many batches to train.
        device: a GPU if there is one.
    """

    steps: int
    device: torch.device

    @property
    def pins_memory(self) -> bool:
        """Whether there is a device to which pinned memory can be copied faster."""
        return self.device.type == "cuda"


def parse(description: str | None, *, steps: int) -> Options:
    """Read the command line, and make the random numbers those of `--seed`.

    Args:
        steps: how many, if the command line does not say.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=steps, help="batches to train (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    # The models are small: more threads would wait for each other, and make the times unsteady.
    torch.set_num_threads(1)
    return Options(arguments.steps, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
