# SPDX-License-Identifier: Apache-2.0
"""A thread that has run and ended."""

import os
import threading
from collections.abc import Callable
from typing import Any


def ended_thread(target: Callable[..., Any], *arguments: Any, name: str | None = None) -> None:
    """Run target(*arguments) on a thread. The recorder notices its end later than Python, whose
    `join` does not wait for the system's thread."""
    thread = threading.Thread(target=target, args=arguments, name=name)
    thread.start()
    thread.join()
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):
        os.sched_yield()
