# SPDX-License-Identifier: Apache-2.0
"""Threads that run and end while a test waits."""

import os
import threading
from collections.abc import Callable
from typing import Any


def on_thread(
    work: Callable[..., Any], *arguments: Any, name: str | None = None
) -> threading.Thread:
    """Run work(*arguments) on a thread of its own, to its end, and pass its exception on."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work(*arguments)
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return thread


def ended_thread(work: Callable[..., Any], *arguments: Any, name: str | None = None) -> None:
    """The same. The recorder notices the end of a thread later than Python, whose `join` does not
    wait for the system's thread."""
    thread = on_thread(work, *arguments, name=name)
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):
        os.sched_yield()
