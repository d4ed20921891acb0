# SPDX-License-Identifier: Apache-2.0
"""Programs whose run file stops growing, and what they then find in their run."""

import json
import resource
import sys
import warnings
from pathlib import Path
from typing import Any

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.core.run import Run

STEPS = 20_000  # more than fit into a file of 1 MiB
SPANS_OF_CHILD = 20_000  # more than fit into the largest file of its test


def record_with_full_disk(path: Path, max_file_bytes: int) -> None:
    """Records spans where no file can grow beyond a size; for a child process."""
    # Python ignores SIGXFSZ by itself: a write beyond the limit fails with EFBIG.
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))
    with pig.record(path):
        for _ in range(SPANS_OF_CHILD):
            with gpu_phase("forward"):
                pass


def _counts(run: Run) -> dict[str, int]:
    return {path: phase.count for path, phase in run.phases.items()}


def record_and_tell(path: Path, told: Path, max_file_bytes: int | None, action: Any) -> None:
    """Records beyond the end of a file, and writes down what is then to be found: facts as JSON,
    and what Python prints; for a child process.

    Args:
        told: a folder with room.
        max_file_bytes: where files end, if it is not the disk that does.
        action: what Python does with warnings.
    """
    sys.stderr = (told / "errors").open("w", buffering=1)
    warnings.simplefilter(action)
    if max_file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))

    recording = pig.start(path)
    for number in range(STEPS):
        with gpu_step(samples=2), gpu_phase("forward"), gpu_phase("attention"):
            pass
        if number % 2000 == 0:  # long before the ring is full
            recording.flush()
    snapshot = recording.snapshot()
    run = recording.stop()

    loaded = Run.load(path)
    assert (loaded.spans == run.spans).all()
    assert (loaded.steps.closed == run.steps.closed).all()
    facts = {
        "counts": _counts(run),
        "snapshot_counts": _counts(snapshot),
        "steps": run.step_totals.count,
        "samples": run.step_totals.samples,
        "phases_recorded": run.phases_recorded,
        "complete": run.complete,
        "retained": len(run.spans),
        "steps_retained": len(run.steps),
        "last_span_step": int(run.spans["step"][-1]),
        "dropped": {cause: count for cause, count in run.dropped.items() if count},
        "notes": run.notes,
        "loaded_notes": loaded.notes,
        "report": run.report(verbose=True, width=200),
    }
    (told / "facts").write_text(json.dumps(facts))
