# SPDX-License-Identifier: Apache-2.0
"""The demo's training, examples/digits.py, as the target of a child process."""

import itertools
import os
import resource
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from examples import digits
from pyinstrument_gpu import gpu_phase, gpu_steps

_DIARY_ENTRY = struct.Struct("<qq")
BLOCKED_STEP = 5


def read_diary(path: Path) -> NDArray[np.int64]:
    """For each step the moment at which its body had run, on CLOCK_MONOTONIC_RAW in ns."""
    data = path.read_bytes() if path.exists() else b""
    entries = np.frombuffer(data, "<i8").reshape(-1, 2)
    assert entries[:, 0].tolist() == list(range(len(entries)))
    return entries[:, 1]


def train(run: Path, *options: str) -> None:
    """Runs the demo."""
    sys.argv = ["digits.py", "--device", "cpu", "--output", str(run), *options]
    with open(os.devnull, "w") as sys.stdout:
        digits.main()


def train_with_diary(run: Path, diary: Path) -> None:
    """Runs the demo, and writes down each step by other means than the recorder's."""
    descriptor = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    numbers = itertools.count()

    def steps(*arguments: Any, **options: Any) -> Iterator[Any]:
        for batch in gpu_steps(*arguments, **options):
            yield batch
            now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            os.write(descriptor, _DIARY_ENTRY.pack(next(numbers), now_ns))

    with mock.patch.object(digits, "gpu_steps", steps):
        train(run)


def train_until_blocked(run: Path) -> NoReturn:
    """Runs the demo until step BLOCKED_STEP is in "forward/convolution", where it stays."""
    calls = itertools.count()

    def block(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if isinstance(module, digits.DigitNet) and next(calls) == BLOCKED_STEP:
            with gpu_phase("convolution"):
                while True:
                    time.sleep(1)

    register_module_forward_pre_hook(block)
    train(run)
    raise AssertionError("the training ended")


def train_with_full_disk(run: Path, max_file_bytes: int) -> None:
    """Runs the demo where no file can grow beyond a size; Python ignores SIGXFSZ by itself."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))
    train(run, "--epochs", "3")
