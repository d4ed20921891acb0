# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator

import pytest
import torch

from tests.helpers.hooked import WAYS, Hooked


@pytest.fixture(params=list(WAYS))
def hooked(request: pytest.FixtureRequest) -> Hooked:
    """A way in which torch is hooked: a context manager."""
    return WAYS[request.param]


@pytest.fixture(autouse=True, scope="module")
def _on_one_core() -> Iterator[None]:
    """Other threads of torch would only wait for work, at full speed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
