# SPDX-License-Identifier: Apache-2.0
"""A training under `nsys profile`: what Nsight Systems saw live is what the run recorded."""

import contextlib
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.export.labels import STEP_COLOR, color_of
from tests.helpers.nsight import needs_nsight, nsys, profile

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("sklearn", reason="scikit-learn, which has the digits, is not installed")

EPOCHS = 2

# The example, with a phase in its forward and one on another thread.
TRAINING = """
import threading
from examples import digits
from pyinstrument_gpu import gpu_phase

class Net(digits.DigitNet):
    def forward(self, images):
        with gpu_phase("layers"):
            return super().forward(images)

def validate(*arguments):
    threads = [threading.Thread(target=gpu_phase("beside")(lambda: None)) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    return original(*arguments)

original, digits.validate, digits.DigitNet = digits.validate, validate, Net
digits.main()
"""


class Seen(NamedTuple):
    """A range without its times. `depth`: the number of ranges around it."""

    text: str
    category: str
    color: int
    step: int | None
    depth: int


class Timed(NamedTuple):
    begin_ns: int
    end_ns: int
    text: str
    category: str
    color: int
    step: int | None


def nested(ranges: Iterable[Timed]) -> list[Seen]:
    """The ranges of one thread in the order of their begin, outermost first."""
    found = []
    ends: list[int] = []
    for each in sorted(ranges, key=lambda each: (each.begin_ns, -each.end_ns)):
        while ends and ends[-1] <= each.begin_ns:
            ends.pop()
        found.append(Seen(each.text, each.category, each.color, each.step, len(ends)))
        ends.append(each.end_ns)
    return found


def recorded(run: pig.Run) -> dict[int, list[Seen]]:
    """By thread, what the run holds."""
    threads: dict[int, list[Timed]] = {thread.native_id: [] for thread in run.threads}
    for step in run.steps:
        times = Timed(step.begin_ns, step.end_ns, "step", "step", STEP_COLOR, step.index)
        threads[run.threads[step.thread].native_id].append(times)
    columns = ["host_begin_ns", "host_end_ns", "phase", "step", "thread"]
    for begin_ns, end_ns, phase, index, thread in run.spans[columns].tolist():
        name, step_index = run.names[phase], index if index >= 0 else None
        times = Timed(begin_ns, end_ns, name, "phase", color_of(name), step_index)
        threads[run.threads[thread].native_id].append(times)
    return {thread: nested(ranges) for thread, ranges in threads.items()}


_RANGES = """
SELECT event.globalTid & 0xFFFFFF, event.start, event.end, string.value, category.text,
       event.color, event.int64Value
FROM NVTX_EVENTS AS event
JOIN NVTX_EVENTS AS domain ON domain.eventType = 75 AND domain.domainId = event.domainId
JOIN NVTX_EVENTS AS category ON category.eventType = 33 AND category.domainId = event.domainId
     AND category.category = event.category
JOIN StringIds AS string ON string.id = event.textId
WHERE event.eventType = 59 AND domain.text = 'pyinstrument_gpu'
"""


def live(report: Path) -> dict[int, list[Seen]]:
    """By thread, the ranges that nsys saw."""
    target = report.with_suffix(".sqlite")
    nsys("export", "--quiet=true", "--type=sqlite", f"--output={target}", report)
    threads: dict[int, list[Timed]] = {}
    with contextlib.closing(sqlite3.connect(target)) as database:
        ranges = database.execute("SELECT COUNT(*) FROM NVTX_EVENTS WHERE eventType IN (59, 60)")
        rows = database.execute(_RANGES).fetchall()
        assert ranges.fetchone() == (len(rows),)  # none is of another domain, category or kind
    for thread, *values in rows:
        threads.setdefault(thread, []).append(Timed(*values))
    return {thread: nested(ranges) for thread, ranges in threads.items()}


@needs_nsight
@pytest.mark.slow
def test_every_range_is_there_live(tmp_path: Path) -> None:
    report = tmp_path / "training.nsys-rep"
    file = tmp_path / "digits.gpurun"
    profile(report, TRAINING, "--epochs", EPOCHS, "--output", file)
    run = pig.Run.load(file)
    seen = live(report)

    assert seen == recorded(run)
    assert len(run.steps) == EPOCHS * 90
    assert len(run.phases) == 9
    assert {each.depth for each in seen[run.threads[0].native_id]} == {0, 1, 2}
    assert len(seen) == 1 + EPOCHS * 2
