# SPDX-License-Identifier: Apache-2.0
"""What makes the trainings of frameworks cheap: they are tiny, and there are many."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _tiny_trainings() -> Iterator[None]:
    """One thread computes, as waiting for others would take longer than the work; and the objects
    of frameworks are not looked at each time that one of them collects garbage."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)
