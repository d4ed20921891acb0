# SPDX-License-Identifier: Apache-2.0
"""What keeps the benchmarks from taking the time of all tests."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _garbage_of_other_tests_stays() -> Iterator[None]:
    """Benchmarks collect garbage between their rounds."""
    gc.freeze()
    yield
    gc.unfreeze()
