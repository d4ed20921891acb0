# SPDX-License-Identifier: Apache-2.0
"""Which batches workers have open, as their slots say."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import pytest

from pyinstrument_gpu.aspects.loader.worker_table import WorkerTable

FORK = multiprocessing.get_context("fork")


def in_worker(work: Callable[[], None], look: Callable[[], Any]) -> Any:
    """What `look` finds after `work`, while its process lives."""
    done, end = FORK.Event(), FORK.Event()

    def run() -> None:
        work()
        done.set()
        end.wait()
        os._exit(0)

    worker = FORK.Process(target=run)
    worker.start()
    done.wait()
    found = look()
    end.set()
    worker.join()
    return found


@pytest.fixture
def table() -> WorkerTable:
    return WorkerTable(slots=1)


def opened(table: WorkerTable) -> Any:
    return [one["open"] for one in table.read()]


def test_a_batch_is_open_while_its_process_lives(table: WorkerTable) -> None:
    def work() -> None:
        slot = table.claim()
        assert slot is not None
        slot.write({"process": os.getpid()}, 1)
        slot.begins(7, 5)

    assert in_worker(work, lambda: opened(table)) == [(7, 5)]
    assert opened(table) == [(0, 0)]


def test_what_a_slot_still_says_of_the_process_before_is_not_of_this_one(
    table: WorkerTable,
) -> None:
    def first() -> None:
        slot = table.claim()
        assert slot is not None
        slot.write({"process": os.getpid()}, 1)

    def second() -> None:
        slot = table.claim()
        assert slot is not None
        slot.begins(7, 5)

    assert in_worker(first, lambda: opened(table)) == [(0, 0)]
    assert in_worker(second, lambda: opened(table)) == [(0, 0)]
