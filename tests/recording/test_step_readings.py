# SPDX-License-Identifier: Apache-2.0
"""Numbers that each step has one of: which steps have them, and how many a long run keeps."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import pyinstrument_gpu as pig
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.sinks.scalars import scalars_of
from tests.helpers.sinks import KeepingSink


def values_of(run: Run, name: str) -> dict[int, float]:
    """By step, of a number that each step may have."""
    if f"step/{name}" not in run.metric_names:
        return {}
    rows = run.metrics[run.metrics["name"] == run.metric_names.index(f"step/{name}")]
    values = dict(rows[["step", "value"]].tolist())
    assert len(values) == len(rows)
    return values


def test_a_step_has_the_sum_of_what_is_added_while_it_is_open() -> None:
    pig.add_to_step("count", 9)
    with pig.record() as recording:
        pig.add_to_step("count", 9)
        for number in pig.gpu_steps(range(4)):
            pig.add_to_step("count", number)
            pig.add_to_step("count", 0.5)
        pig.add_to_step("count", 9)
        with pig.gpu_step():
            other = threading.Thread(target=pig.add_to_step, args=("count", 7))
            other.start()
            other.join()
    assert values_of(recording.run, "count") == {0: 0.5, 1: 1.5, 2: 2.5, 3: 3.5, 4: 7}
    assert recording.run.dropped["metrics"] == 0


def test_what_is_not_known_of_a_step_is_missing_and_not_zero() -> None:
    with pig.record() as recording:
        for number in pig.gpu_steps(range(3)):
            pig.add_to_step("count", 5)
            pig.add_to_step("count", math.nan if number == 1 else 0)
            pig.add_to_step("never", math.nan)
            if number:
                pig.add_to_step("later", 1)
    run = recording.run
    assert values_of(run, "count") == {0: 5, 2: 5}
    assert values_of(run, "later") == {1: 1, 2: 1}
    assert run.metric_names == ("step/count", "step/later")


def test_what_a_dropped_step_had_is_no_other_steps() -> None:
    def loader() -> Iterator[int]:
        pig.add_to_step("count", 1)
        yield 0
        pig.add_to_step("count", 10)

    with pig.record() as recording:
        for _ in range(2):
            for _ in pig.gpu_steps(loader()):
                pass
    assert values_of(recording.run, "count") == {0: 1, 1: 1}


def test_the_step_that_is_open_at_the_end_has_its_number() -> None:
    with pig.record() as recording:
        step = pig.gpu_step().__enter__()
        pig.add_to_step("count", 1)
    step.__exit__(None, None, None)
    assert values_of(recording.run, "count") == {0: 1}


def test_a_long_run_has_the_numbers_of_evenly_spaced_steps() -> None:
    per_rate = 16384
    with pig.record() as recording:
        for number in pig.gpu_steps(range(8 * per_rate)):
            pig.add_to_step("count", number)
    values = values_of(recording.run, "count")
    assert list(values) == list(values.values())
    assert Counter(np.diff(list(values)).tolist()) == {
        1: per_rate,
        2: per_rate,
        4: per_rate,
        8: per_rate // 8 - 1,
    }


def test_names_beyond_the_bound_are_counted() -> None:
    with pig.record() as recording, pig.gpu_step():
        for number in range(70):
            pig.add_to_step(f"{number}", 1)
    assert len(recording.run.metric_names) == 64
    assert recording.run.dropped["metrics"] == 6


def test_a_sink_gets_each_value_and_shows_evenly_spaced_ones() -> None:
    sink = KeepingSink()
    with pig.record() as recording:
        recording.add_sink(sink)
        for number in pig.gpu_steps(range(1000)):
            pig.add_to_step("count", number)
    assert sum(len(update.metrics) for update in sink.updates) == 1000
    for update in sink.updates:
        points = [point for point in scalars_of(update) if point.tag.startswith("metrics")]
        assert len(points) >= min(len(update.metrics), 50)
        assert len(points) <= 100
        assert all(point[:3] == ("metrics/step/count", point.step, point.step) for point in points)


@pytest.mark.parametrize("value", [torch.tensor(1.0), "1", None])
def test_what_is_no_number_is_refused(value: object) -> None:
    """A tensor may lie on a GPU: to read it would wait."""
    with pig.record() as recording, pig.gpu_step():
        with pytest.raises(TypeError, match="value must be a number"):
            pig.add_to_step("count", value)  # type: ignore[arg-type]
        pig.add_to_step("count", np.float32(0.5))
        pig.add_to_step("count", True)
    assert values_of(recording.run, "count") == {0: 1.5}
