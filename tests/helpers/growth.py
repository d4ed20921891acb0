# SPDX-License-Identifier: Apache-2.0
"""Whether something that is done again and again leaves objects behind."""

import gc
from collections import Counter
from collections.abc import Callable

# Caches are full some time; what leaves something behind each time never ends.
_ROUNDS = 5


def assert_leaves_nothing(act: Callable[[], object], times: int = 20) -> None:
    """Fails if `act` leaves an object behind each time, however often it is called."""
    for _ in range(_ROUNDS):
        before = _objects()
        for _ in range(times):
            act()
        grown = _objects() - before
        if sum(grown.values()) < times:
            return
    raise AssertionError(grown)


def _objects() -> Counter[str]:
    gc.collect()
    return Counter(type(one).__name__ for one in gc.get_objects())
