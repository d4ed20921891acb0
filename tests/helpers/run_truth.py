# SPDX-License-Identifier: Apache-2.0
"""Whether the spans of a run are a true part of a made-up recording."""

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.file.items import DEVICE_TIME_ITEM
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SPAN_DTYPE, SpanFlag
from tests.helpers.made_recording import Recording

_DEVICE_COLUMNS = ("device", "stream", "device_begin_ns", "device_end_ns", "flags")
_HOST_COLUMNS = [name for name in SPAN_DTYPE.fields or () if name not in _DEVICE_COLUMNS]


def assert_true_spans(run: Run, recording: Recording, first: int, end: int) -> None:
    """The spans are those from `first` to `end`; their device times true, or unknown."""
    truth = recording.spans[first:end]
    assert len(run.spans) == len(truth)
    for column in _HOST_COLUMNS:
        assert np.array_equal(run.spans[column], truth[column]), column
    kept_flags = SpanFlag.STEP_THREAD | SpanFlag.DEVICE
    assert np.array_equal(run.spans["flags"] & kept_flags, truth["flags"] & kept_flags)
    assert np.array_equal(run.span_self_ns, recording.self_ns[first:end])
    assert run.streams == recording.streams[: len(run.streams)]
    assert_true_device_times(run, times_by_span(recording)[first:end], recording)


def assert_true_device_times(run: Run, times: NDArray[np.void], recording: Recording) -> None:
    for clock in run.device_clocks:
        points = recording.clock_points[recording.clock_points["device"] == clock.device]
        points = points[: len(clock.device_ns)]
        assert np.array_equal(clock.device_ns, points["device_ns"])
        assert np.array_equal(clock.run_ns, points["run_ns"])
        assert np.array_equal(clock.uncertainties_ns, points["uncertainty_ns"])

    known = run.span_device_ns >= 0
    assert np.array_equal(run.span_device_ns[known], times["duration_ns"][known])
    assert np.array_equal(run.span_device_clock_ns[known], times["begin_ns"][known])
    assert (run.span_device_clock_ns[~known] == -1).all()
    assert (run.span_device_ns[~known] == -1).all()

    placed = run.spans["device_begin_ns"] >= 0
    assert not placed[~known].any()
    assert np.array_equal(placed, run.spans["device_end_ns"] >= 0)
    streams = (times["where"] >> np.uint64(40) & np.uint64(0xFFFF)).astype(np.int64)
    on_stream = run.spans["stream"] >= 0
    assert on_stream[known].all()
    assert np.array_equal(run.spans["stream"][on_stream], streams[on_stream])
    devices = np.array([stream.device for stream in run.streams])
    assert np.array_equal(run.spans["device"][on_stream], devices[streams[on_stream]])
    assert (run.spans["device"][~on_stream] == -1).all()
    for clock in run.device_clocks:
        of_device = known & (run.spans["device"] == clock.device)
        begin_ns = run.span_device_clock_ns[of_device]
        begin_at_ns = clock.on_run_axis(begin_ns)
        end_at_ns = clock.on_run_axis(begin_ns + run.span_device_ns[of_device])
        possible = (begin_at_ns >= 0) & (end_at_ns >= 0)
        begin_at_ns, end_at_ns = (np.where(possible, ns, -1) for ns in (begin_at_ns, end_at_ns))
        assert np.array_equal(run.spans["device_begin_ns"][of_device], begin_at_ns)
        assert np.array_equal(run.spans["device_end_ns"][of_device], end_at_ns)
        placed &= ~of_device
    assert not placed.any()

    unfinished = (run.spans["flags"] & SpanFlag.DEVICE_UNFINISHED) != 0
    assert not unfinished[known].any()
    assert ((run.spans["flags"][unfinished] & SpanFlag.DEVICE) != 0).all()


def times_by_span(recording: Recording) -> NDArray[np.void]:
    """For each span of the recording its item of the log of device times, or one of zeros."""
    times = np.zeros(len(recording.spans), DEVICE_TIME_ITEM)
    times[recording.timed_spans] = recording.device_times
    return times
