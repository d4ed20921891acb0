# SPDX-License-Identifier: Apache-2.0
"""Child processes that find this package imported, and share no threads with that of the tests."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

# Imports once, in a server process; each child is a fork of that.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.helpers.killed_programs"])


def start_child(target: Callable[..., Any], *arguments: Any) -> BaseProcess:
    """Runs target(*arguments) in a child process."""
    child = _context.Process(target=target, args=arguments, daemon=True)
    child.start()
    return child
