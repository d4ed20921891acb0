# SPDX-License-Identifier: Apache-2.0
"""Programs that are killed, as targets of child processes. None needs torch."""

import itertools
import mmap
import os
import struct
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_steps

THREADS = 4
SPANS_BEFORE_STOP = 5000
_COUNTER = struct.Struct("<q")
_DIARY_ENTRY = struct.Struct("<qq")


def loop_with_diary(run: Path, diary: Path) -> None:
    """Short steps for ever. Each is written down by other means than the recorder's, as in
    `digits_training.train_with_diary`."""
    descriptor = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with pig.record(run):
        for number in gpu_steps(itertools.count()):
            for name in ("forward", "backward", "optimizer", "metrics"):
                with gpu_phase(name):
                    pass
            now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            os.write(descriptor, _DIARY_ENTRY.pack(number, now_ns))
            time.sleep(0.0003)


def count_on_threads(run: Path, counters: Path, pause_s: float | None = 0.0003) -> None:
    """Threads that record for ever; each also counts its spans in a mapped file, which the kernel
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
    """Says that it is there; then a recording begins, and records for ever."""
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
