# SPDX-License-Identifier: Apache-2.0
"""The demo's training, examples/digits.py, as the target of a child process."""

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from examples import digits
from pyinstrument_gpu import gpu_steps
from tests.helpers.killed_programs import write_down


def train_with_diary(run: Path, diary: Path) -> None:
    """Runs the demo, and writes down each step by other means than the recorder's."""
    descriptor = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    numbers = itertools.count()

    def steps(*arguments: Any, **options: Any) -> Iterator[Any]:
        for batch in gpu_steps(*arguments, **options):
            yield batch
            write_down(descriptor, next(numbers))

    sys.argv = ["digits.py", "--device", "cpu", "--output", str(run)]
    with mock.patch.object(digits, "gpu_steps", steps), open(os.devnull, "w") as sys.stdout:
        digits.main()
