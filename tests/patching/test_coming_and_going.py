# SPDX-License-Identifier: Apache-2.0
"""Hooks that come and go, beside threads that are inside of what is hooked, leave nothing."""

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import pyinstrument_gpu as pig
from tests.helpers.growth import assert_leaves_nothing
from tests.helpers.hooked import Hooked
from tests.helpers.host_watch import watched_host
from tests.helpers.training import Model

CYCLES = 100

# Only a thread that hangs takes as long.
HANGS_AFTER_S = 600


def index() -> None:
    x, mask = torch.arange(3), torch.tensor([True, False, True])
    assert x[mask].tolist() == [0, 2]
    x[mask] = x[mask]
    assert x.sum().item() == 3 and int(x[1]) == 1 and x.equal(x) and len(torch.where(mask)[0]) == 2
    kind = type("Younger", (torch.Tensor,), {})
    assert x.as_subclass(kind)[mask].numel() == 2


MODEL = Model()
LOADER: Any = DataLoader(cast(Any, range(6)), batch_size=2)


def call() -> None:
    x = torch.ones(2, 4)
    loss = nn.functional.mse_loss(MODEL(x.to(torch.float32)), torch.zeros(2, 3))
    (gradient,) = torch.autograd.grad(loss, next(MODEL.parameters()))
    assert gradient.shape == (8, 4)
    with pytest.raises(RuntimeError):
        MODEL(torch.ones(3))


def iterate() -> None:
    assert [batch.tolist() for batch in LOADER] == [[0, 1], [2, 3], [4, 5]]


def update() -> None:
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    parameter.square().sum().backward()
    nn.utils.clip_grad_norm_([parameter], 1.0)
    optimizer.step()
    optimizer.zero_grad()
    assert abs(parameter.item() - 0.5) < 1e-3 and parameter.grad is None


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def come_and_go(turn: int) -> None:
    """Install and remove, each inside the other by turns."""
    watch, phases = watched_host(), pig.auto_phases()
    order = [watch, phases] if turn % 2 else [phases, watch]
    for way in order:
        way.__enter__()
    for way in order if turn % 4 < 2 else reversed(order):
        way.__exit__(None, None, None)


def beside_threads(cycles: int, *works: Callable[[], None]) -> None:
    """At least so many cycles, until each thread has done its work a tenth as often."""
    stop, failures, counts = threading.Event(), [], [0] * len(works)

    def run(number: int) -> None:
        try:
            while not stop.is_set():
                works[number]()
                counts[number] += 1
        except BaseException as error:
            failures.append(error)

    # torch imports modules at the first use of what is used here, and two threads that import at
    # once can fail where they take turns that fast.
    for work in works:
        work()
    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + HANGS_AFTER_S
        with pig.record():
            for turn in itertools.count():
                come_and_go(turn)
                if failures or (turn >= cycles and min(counts) >= cycles // 10):
                    break
                assert time.monotonic() < deadline, counts
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []


def test_threads_do_not_notice(switching: None) -> None:
    beside_threads(CYCLES, index, call, iterate, update)


@pytest.mark.slow
def test_threads_do_not_notice_for_long(switching: None) -> None:
    beside_threads(80 * CYCLES, index, call, iterate, update)


def test_nothing_is_left_behind(hooked: Hooked) -> None:
    def come_and_go() -> None:
        with hooked():
            call()

    assert_leaves_nothing(come_and_go)
