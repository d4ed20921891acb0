# SPDX-License-Identifier: Apache-2.0
"""A program that is recorded while there is no memory, in a process of its own.

It keeps all that its address space has room for and then uses phases and steps in every way. What
raises there was raised by this package: the program itself makes nothing new.
"""

import contextlib
import ctypes
import json
import os
import resource
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step, gpu_steps

USES = 200
"""How often each thread uses phases in each of the five ways."""

_PAGE_BYTES = resource.getpagesize()


class Work:
    """What one thread does once there is no memory."""

    def __init__(self, number: int) -> None:
        self.names = [f"thread {number}, phase {i}" for i in range(USES)]
        self.scopes = [f"thread {number}, scope {i}" for i in range(USES)]
        self.decorated = gpu_phase(f"thread {number}, decorated")(self.pass_by)
        self.items = gpu_steps(self.names)
        self.error: BaseException | None = None
        self.may_start = threading.Lock()
        self.may_start.acquire()

    def pass_by(self) -> None:
        pass

    def run(self) -> None:
        self.may_start.acquire()
        try:
            for name in self.names:
                with gpu_phase(name):
                    pass
            for name in self.scopes:
                with gpu_phase.scope(name):
                    pass
            for _ in self.names:
                self.decorated()
            for name in self.names:
                with gpu_step(), gpu_phase(name):
                    pass
            for _ in self.items:
                pass
        except BaseException as error:
            self.error = error


def run_without_memory(library: Path, spare_bytes: int, path: Path | None) -> dict[str, Any]:
    """Limits the address space to so much more than it has, and records; into memory without a
    path. Returns what was recorded."""
    memory = ctypes.PyDLL(os.fspath(library))
    works = [Work(number) for number in range(3)]
    threads = [threading.Thread(target=work.run) for work in works[1:]]
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pig.record(path) as recording:
        for thread in threads:
            thread.start()
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * _PAGE_BYTES + spare_bytes, before[1]))
        memory.keep_all()
        for work in works:
            work.may_start.release()
        works[0].run()
        for thread in threads:
            thread.join()
    # The recording has ended before there is memory again.
    memory.give_back()
    resource.setrlimit(resource.RLIMIT_AS, before)
    for work in works:
        if work.error is not None:
            raise work.error
    if os.environ.get("PYINSTRUMENT_GPU") == "0":
        return {}
    run = recording.run
    return {
        "complete": run.complete,
        "recorded": run.phases_recorded,
        "counts": sum(phase.count for phase in run.phases.values()),
        "spans": len(run.spans),
        "no_memory": run.dropped["no_memory"],
        "notes": run.notes,
    }


def main(arguments: Sequence[str] = ()) -> None:
    library, spare_bytes, path, *imports = arguments or sys.argv[1:]
    for name in imports:
        __import__(name)
    with contextlib.redirect_stdout(sys.stderr):
        facts = run_without_memory(Path(library), int(spare_bytes), Path(path) if path else None)
    print(json.dumps(facts))
