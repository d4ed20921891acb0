# SPDX-License-Identifier: Apache-2.0

import inspect
import re

import numpy as np
import pytest
from numpy.typing import NDArray

from pyinstrument_gpu.core.clocks import DeviceClock
from pyinstrument_gpu.core.record import Stream, named_streams
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SPAN_DTYPE, STEP_DTYPE, SpanFlag, span_scopes
from pyinstrument_gpu.core.statistics import Scope, Statistic
from pyinstrument_gpu.core.steps import Step, Steps


def make_steps() -> Steps:
    rows = [
        (4, 100, 150, 32.0, 2, True, 0),
        (5, 150, 190, np.nan, 1, False, 1),
        (6, 200, -1, 8.0, 1, False, 0),
    ]
    return Steps(np.array(rows, dtype=STEP_DTYPE))


def make_spans(rows: list[tuple[int, int, int, int, int]]) -> NDArray[np.void]:
    """Spans of path, step, flags, begin and end."""
    spans = np.zeros(len(rows), SPAN_DTYPE)
    for column, name in enumerate(("path", "step", "flags", "host_begin_ns", "host_end_ns")):
        spans[name] = [row[column] for row in rows]
    return spans


def test_step_values() -> None:
    steps = make_steps()

    assert len(steps) == 3
    assert steps[0] == Step(4, 100, 150, 32.0, 2, True, 0)
    assert steps[1].samples is None
    assert steps[-1].duration_ns is None
    assert [step.duration_ns for step in steps] == [50, 40, None]
    assert [step.index for step in reversed(steps)] == [6, 5, 4]
    with pytest.raises(IndexError):
        steps[3]


def test_slice_of_steps_is_steps() -> None:
    tail = make_steps()[1:]

    assert isinstance(tail, Steps)
    assert [step.index for step in tail] == [5, 6]


def test_step_by_index_is_not_by_position() -> None:
    assert make_steps().by_index(5).begin_ns == 150


@pytest.mark.parametrize("index", [0, 3, 7, -1])
def test_unknown_step_index_names_what_there_is(index: int) -> None:
    with pytest.raises(KeyError, match=f"no step {index}: the run holds steps 4 to 6"):
        make_steps().by_index(index)


def test_step_index_of_no_steps() -> None:
    with pytest.raises(KeyError, match="the run holds no steps"):
        Steps().by_index(0)


def test_step_totals_leave_out_the_open_step() -> None:
    totals = Run(steps=make_steps()).step_totals

    assert (totals.count, totals.complete, totals.items) == (2, 1, 3)
    assert (totals.sampled, totals.sampled_ns, totals.samples) == (1, 50, 32.0)
    assert totals.duration.total_ns == 90
    assert totals.steps_per_second == pytest.approx(2 / 90e-9)
    assert totals.samples_per_second == pytest.approx(32 / 50e-9)


def test_rates_without_steps_are_unknown() -> None:
    totals = Run().step_totals

    assert totals.steps_per_second is None
    assert totals.samples_per_second is None


def test_paths_are_unambiguous() -> None:
    names = ("a", "b/c", "50%", "b", "c")
    run = Run(names=names, path_parents=[-1, 0, 1, 0, 3], path_names=[0, 1, 2, 3, 4])

    assert run.paths == ("a", "a/b%2Fc", "a/b%2Fc/50%25", "a/b", "a/b/c")


def test_phases_merge_the_scopes_and_keep_the_order_of_appearance() -> None:
    run = Run(
        names=("z", "a"),
        path_parents=[-1, 0],
        path_names=[0, 1],
        spans=make_spans(
            [(1, 0, 1, 0, 5), (0, 0, 1, 0, 10), (0, 0, 0, 10, 30), (0, -1, 0, 40, 70)]
        ),
    )

    assert list(run.phases) == ["z", "z/a"]
    assert run.phases["z"].host is not None
    assert run.phases["z"].host.total_ns == 60
    assert run.phases["z"].self_host is None
    assert {scope: list(run.phases_in(scope)) for scope in Scope if not scope.is_profiled} == {
        Scope.STEP: ["z", "z/a"],
        Scope.OTHER_THREADS: ["z"],
        Scope.OUTSIDE: ["z"],
    }
    assert run.phases_in(Scope.OTHER_THREADS)["z"].count == 1
    assert run.phases_recorded == 4


def test_span_without_step_is_outside_whatever_its_flags() -> None:
    spans = make_spans([(0, -1, SpanFlag.STEP_THREAD, 0, 1)])

    assert span_scopes(spans).tolist() == [Scope.OUTSIDE]


def test_empty_run_says_why() -> None:
    run = Run.empty("PYINSTRUMENT_GPU=0")

    assert run.notes == ("PYINSTRUMENT_GPU=0",)
    assert (len(run.spans), len(run.steps), dict(run.phases)) == (0, 0, {})


def test_streams_are_named_by_device_in_order_of_appearance() -> None:
    places = [(0, 70), (0, 0), (1, 70), (0, 2), (0, 60), (1, 3)]
    names = ["stream 1", "default stream", "stream 1", "default stream", "stream 2", "stream 2"]

    assert named_streams(places) == tuple(
        Stream(device, handle, name) for (device, handle), name in zip(places, names, strict=True)
    )


def test_device_times_made_by_hand_are_exact_on_the_run_s_clock() -> None:
    spans = make_spans([(0, 0, 1, 0, 5), (0, 0, 1, 5, 9)])
    for column in ("device", "stream", "device_begin_ns", "device_end_ns"):
        spans[column] = -1
    spans[0]["device"], spans[0]["stream"] = 2, 0
    spans[0]["device_begin_ns"], spans[0]["device_end_ns"] = 3, 10
    run = Run(names=("a",), path_parents=[-1], path_names=[0], spans=spans)

    assert run.span_device_ns.tolist() == [7, -1]
    assert run.span_device_clock_ns.tolist() == [3, -1]
    assert run.device_clocks == (DeviceClock.same_as_run(2),)
    assert run.phases["a"].device == Statistic.of(np.array([7]))


def test_history_of_a_failed_file_does_not_tell_what_finished_later() -> None:
    spans = make_spans([(0, 0, SpanFlag.DEVICE | SpanFlag.DEVICE_UNFINISHED, 0, 5)])
    spans["device_begin_ns"] = spans["device_end_ns"] = -1
    earlier = Run(names=("a",), path_parents=[-1], path_names=[0], spans=spans)
    run = Run(names=("a",), path_parents=[-1], path_names=[0]).with_history_of(earlier)

    assert run.spans["flags"].tolist() == [SpanFlag.DEVICE]
    assert earlier.spans["flags"].tolist() == [SpanFlag.DEVICE | SpanFlag.DEVICE_UNFINISHED]
    assert (run.span_device_ns.tolist(), run.span_device_clock_ns.tolist()) == ([-1], [-1])


def test_overhead_is_part_of_the_environment() -> None:
    assert Run(environment={"overhead": {"phase_ns": 40.5}}).overhead == {"phase_ns": 40.5}
    assert Run().overhead == {}


def test_help_of_a_run_names_all_it_holds() -> None:
    described = re.findall(r"^    (\w+): ", inspect.getdoc(Run) or "", re.MULTILINE)

    assert sorted(described) == sorted(name for name in vars(Run()) if not name.startswith("_"))
