# SPDX-License-Identifier: Apache-2.0
"""Records many spans from 8 threads and says what became of them and of the memory, as JSON.

The process' resident memory is read at the end of each stage, while all threads wait.
"""

import argparse
import ctypes
import json
import os
import threading
from pathlib import Path

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase

THREADS = 8
_PR_SET_THP_DISABLE = 41


def _record(stages: list[int], barrier: threading.Barrier) -> None:
    outer, inner = gpu_phase("outer"), gpu_phase("inner")
    for spans in stages:
        for _ in range(spans // THREADS // 2):
            with outer, inner:
                pass
        barrier.wait()
        barrier.wait()


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", type=int, nargs="+", help="number of spans in each stage")
    parser.add_argument("--history-spans", type=int, required=True)
    arguments = parser.parse_args()

    # Or one byte more could be 2 MiB of resident memory.
    ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    barrier = threading.Barrier(THREADS + 1, timeout=600)
    threads = [
        threading.Thread(target=_record, args=(arguments.stages, barrier)) for _ in range(THREADS)
    ]
    resident_bytes = []
    with pig.record(history_spans=arguments.history_spans) as recording:
        for thread in threads:
            thread.start()
        for _ in arguments.stages:
            barrier.wait()
            resident_bytes.append(_resident_bytes())
            barrier.wait()
        for thread in threads:
            thread.join()
    run = recording.run
    facts = {
        "resident_bytes": resident_bytes,
        "counts": {path: phase.count for path, phase in run.phases.items()},
        "phases_recorded": run.phases_recorded,
        "retained": len(run.spans),
        "dropped": {cause: count for cause, count in run.dropped.items() if count},
        "threads": len(run.threads),
    }
    print(json.dumps(facts))
