# SPDX-License-Identifier: Apache-2.0
"""The ways in which torch is hooked, and the comparison of what a program sees without and with
them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.patching import tensor_device
from tests.helpers.host_watch import watched_host

Hooked = Callable[[], AbstractContextManager[None]]
T = TypeVar("T")


@contextmanager
def watched() -> Iterator[None]:
    """Calls that wait, and streams, are watched; none of them does, on a host."""
    with pytest.MonkeyPatch.context() as patched:
        # Also with a torch that was built without an accelerator.
        patched.setattr(tensor_device, "accelerator_type", lambda: "cuda")
        with pig.record(), pig.watch_syncs():
            yield


@contextmanager
def heard() -> Iterator[None]:
    """As `watched`, and each call on a tensor of the host counts as a wait."""
    with pig.record(), watched_host():
        yield


@contextmanager
def with_phases() -> Iterator[None]:
    with pig.record(), pig.auto_phases():
        yield


@contextmanager
def with_everything() -> Iterator[None]:
    with pig.record(), watched_host(), pig.auto_phases():
        yield


WAYS: dict[str, Hooked] = {
    "watched": watched,
    "heard": heard,
    "phases": with_phases,
    "everything": with_everything,
}


def seen_alike(observe: Callable[[], T], *ways: Hooked) -> T:
    """What `observe` sees, which must be the same before, under and after the hooks."""
    observe()  # whatever happens only once in a process
    before = observe()
    for hooked in ways:
        with hooked():
            during = observe()
        assert during == before, f"{hooked.__name__}: {difference(during, before)}"
    after = observe()
    assert after == before, difference(after, before)
    return before


def difference(one: Any, other: Any, whole: Any = None) -> str:
    """The first difference, found without the long comparison that pytest would make."""
    if isinstance(one, dict) and isinstance(other, dict):
        return difference(list(one.items()), list(other.items()))
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        for mine, theirs in zip(one, other, strict=False):
            if mine != theirs:
                return difference(mine, theirs, one)
    if isinstance(one, str) and isinstance(other, str) and "\n" in one + other:
        return difference(one.splitlines(), other.splitlines())
    return f"{one!r} (in {whole!r:.300})\ninstead of\n{other!r}"
