# SPDX-License-Identifier: Apache-2.0
"""What keeps the benchmarks from changing the process of other tests, and from taking its time."""

import gc
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _process_as_it_was() -> Iterator[None]:
    """Benchmarks collect garbage between rounds: not that of all tests. And some set how many
    threads compute."""
    gc.freeze()
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else 0
    yield
    if torch:
        torch.set_num_threads(threads)
    gc.unfreeze()
