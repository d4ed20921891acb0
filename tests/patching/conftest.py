# SPDX-License-Identifier: Apache-2.0
import pytest

from tests.helpers.hooked import WAYS, Hooked


@pytest.fixture(params=list(WAYS))
def hooked(request: pytest.FixtureRequest) -> Hooked:
    """A way in which torch is hooked: a context manager."""
    return WAYS[request.param]
