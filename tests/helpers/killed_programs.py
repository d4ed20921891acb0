# SPDX-License-Identifier: Apache-2.0
"""Programs that are killed, as targets of child processes. None needs torch."""

import itertools
import mmap
import os
import resource
import signal
import struct
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_steps
from pyinstrument_gpu.core.run import Run  # so that no child imports numpy

THREADS = 4
SPANS_BEFORE_STOP = 5000
STEPS_BEFORE_END = 200
BLOCKED_STEP = 5
_COUNTER = struct.Struct("<q")
_DIARY_ENTRY = struct.Struct("<qq")


def loop_with_diary(run: Path, diary: Path) -> None:
    """Short steps forever. Each is written down by other means than the recorder's, as in
    `digits_training.train_with_diary`."""
    descriptor = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with pig.record(run):
        for number in gpu_steps(itertools.count()):
            for name in ("forward", "backward", "optimizer", "metrics"):
                with gpu_phase(name):
                    pass
            write_down(descriptor, number)
            time.sleep(0.001)  # it takes seconds to fill a ring that nobody empties


def write_down(descriptor: int, step: int) -> None:
    """Note in a diary that the body of a step has run."""
    now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    os.write(descriptor, _DIARY_ENTRY.pack(step, now_ns))


def read_diary(path: Path) -> NDArray[np.int64]:
    """For each step the moment at which its body had run, on CLOCK_MONOTONIC_RAW in ns."""
    data = path.read_bytes() if path.exists() else b""
    entries = np.frombuffer(data, "<i8").reshape(-1, 2)
    assert entries[:, 0].tolist() == list(range(len(entries)))
    return entries[:, 1]


def loop_until_blocked(run: Path) -> None:
    """Steps up to BLOCKED_STEP, which stays in "forward/convolution"."""
    with pig.record(run):
        for number in gpu_steps(itertools.count()):
            with gpu_phase("forward"), gpu_phase("convolution"):
                if number == BLOCKED_STEP:
                    threading.Event().wait()


def end_after_a_snapshot(run: Path, end: signal.Signals | None) -> None:
    """Ends by a signal or at once, inside a phase."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    recording = pig.start(run)
    gpu_phase("open").begin()
    for _ in gpu_steps(range(STEPS_BEFORE_END)):
        with gpu_phase("a"):
            pass
    so_far: Run = recording.snapshot()
    assert so_far.phases["open/a"].count == STEPS_BEFORE_END
    if end is not None:
        signal.signal(end, signal.SIG_DFL)
        os.kill(os.getpid(), end)
    os._exit(7)


def end_after_steps(run: Path) -> None:
    """Is killed at once behind a step that no heartbeat may have seen yet."""
    pig.start(run)
    for _ in gpu_steps(range(STEPS_BEFORE_END)):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def count_on_threads(run: Path, counters: Path, pause_s: float | None = 0.0003) -> None:
    """Threads that record forever; each also counts its spans in a mapped file, which the kernel
    keeps like the run file. Without a pause, they record as fast as they can."""
    with counters.open("r+b") as file:
        # Not struct.pack_into, which writes zeros first: a kill in between would leave those.
        counted = memoryview(mmap.mmap(file.fileno(), THREADS * _COUNTER.size)).cast("q")

    def work(number: int) -> None:
        phase = gpu_phase(f"thread {number}")
        for count in itertools.count(1):
            with phase:
                pass
            counted[number] = count
            if pause_s is not None:
                time.sleep(pause_s)

    with pig.record(run):
        threads = [threading.Thread(target=work, args=[number]) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def new_counters(path: Path) -> None:
    path.write_bytes(bytes(THREADS * _COUNTER.size))


def read_counters(path: Path) -> list[int]:
    return [count for (count,) in _COUNTER.iter_unpack(path.read_bytes())]


def start_when_told(run: Path, told: Connection) -> None:
    """Says that it is there; then a recording begins, and records forever."""
    told.send_bytes(b"ready")
    with pig.record(run):
        while True:
            with gpu_phase("a"):
                pass
            time.sleep(0.0003)


def stop_when_told(run: Path, told: Connection) -> None:
    """Records, says so, stops and says that as well."""
    recording = pig.start(run)
    for _ in range(SPANS_BEFORE_STOP):
        with gpu_phase("a"):
            pass
    told.send_bytes(b"recorded")
    recording.stop()
    told.send_bytes(b"stopped")
    threading.Event().wait()
