# SPDX-License-Identifier: Apache-2.0
"""Some steps of a run in full: each thread's and each stream's work, when, and inside of what.

The steps are chosen before anything is drawn: the slowest, the median, the newest, and further
slow ones as far as there is room. A window is the time of such a step, until the device has done
what was enqueued in it. All that happened in a window is in it, of other steps too, unless it says
how much was left out.

With the ranks of one job a window is the same step of all of them, on one time axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.step_times import were_profiled
from pyinstrument_gpu.core.arrays import durations_ns_of, places_in
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.steps import Step
from pyinstrument_gpu.errors import ExportError
from pyinstrument_gpu.export.runs import offsets_ns_of
from pyinstrument_gpu.page.bars import BarLabels, RunBars
from pyinstrument_gpu.page.step_series import StepSeries
from pyinstrument_gpu.parts.words import printable

MAX_BARS = 20_000
"""In all windows together; each has at least `_LEAST_BARS`, where there are so many."""
_LEAST_BARS = 4_000
MAX_WINDOWS = 12
_LONGEST_WINDOW = 4
"""In lengths of the step: a device far behind the host makes no window longer than that."""
_BARS_WITHOUT_STEPS = 2_000
_NO_BARS = np.empty(0, np.int64)


@dataclass(frozen=True)
class DrawnWindow:
    """A stretch of time.

    Attributes:
        why: it was chosen.
        step: index of the step; None where a run has none.
        plain: the window as the page's script has it, with times in ns. For each run `begins` is
            what its clock read when the window began, and `step_times` when the step began and
            ended since then, both None of a run whose step is not there; `left_out` is how many
            bars there was no room for, the longest of which is `shortest`; and `is_cut` whether
            device work of the step goes on behind the window.
    """

    why: str
    step: int | None
    plain: Mapping[str, Any]

    @property
    def bars(self) -> int:
        return sum(len(track["begin"]) for track in self.plain["tracks"])


@dataclass(frozen=True)
class DrawnTimeline:
    """Windows of one run, or of the ranks of a job.

    Attributes:
        windows: by what they are about: the slowest steps first.
        missing: why there is no window; empty where there is one.
        is_aligned: whether the ranks are placed by their machines' clocks; otherwise each window
            begins where each rank began the step.
    """

    windows: tuple[DrawnWindow, ...]
    missing: str = ""
    is_aligned: bool = True

    def plain(self, numbers: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
        """The timeline as the page's script has it.

        Args:
            numbers: of the runs, among all on the page.
            names: what they are called.
        """
        return {
            "numbers": list(numbers),
            "runs": [printable(name) for name in names],
            "is_aligned": self.is_aligned,
            "windows": [window.plain for window in self.windows],
        }


def timeline(
    runs: Sequence[Run], series: Sequence[StepSeries], max_bars: int = MAX_BARS
) -> DrawnTimeline:
    """The windows of runs that belong together, of which `series` are the steps' times."""
    try:
        offsets_ns: list[int] | None = offsets_ns_of(runs)
    except ExportError:
        offsets_ns = None
    bars = [RunBars(run, number) for number, run in enumerate(runs)]
    wanted = _choose(runs, series)
    windows: list[DrawnWindow] = []
    room = max_bars
    for why, index in wanted[:MAX_WINDOWS]:
        window = _window(bars, offsets_ns, why, index, max(room, _LEAST_BARS))
        if windows and room < window.bars:
            continue
        windows.append(window)
        room -= window.bars
    missing = ""
    if not windows:
        ended = any(run.step_totals.count for run in runs)
        tail = None if ended or len(bars) > 1 else _tail(bars[0])
        if tail is not None:
            windows.append(tail)
        else:
            missing = "no step has all of its spans in the history" if ended else "no phase ended"
    return DrawnTimeline(tuple(windows), missing, offsets_ns is not None)


def _choose(runs: Sequence[Run], series: Sequence[StepSeries]) -> list[tuple[str, int]]:
    """The steps to show, the most wanted first, each with the reason. Of ranks those that all have
    are taken, and of each step the longest time."""
    common: NDArray[np.int64] | None = None
    for run in runs:
        kept = analysis.of(run).kept_steps
        kept = kept[kept["end_ns"] >= 0]
        kept = kept[~were_profiled(run, kept["index"])]
        if not len(kept):
            continue
        common = kept["index"] if common is None else np.intersect1d(common, kept["index"])
    if common is None or not len(common):
        return []
    times_ns = np.zeros(len(common), np.int64)
    for run in runs:
        steps = run.steps.closed
        place = places_in(steps["index"], common)
        there = place >= 0
        of_run_ns = durations_ns_of(steps)[place[there]]
        times_ns[there] = np.maximum(times_ns[there], of_run_ns)
    order = np.argsort(-times_ns, kind="stable")
    chosen: dict[int, str] = {}

    def take(position: int, why: str) -> None:
        chosen.setdefault(int(common[position]), why)

    take(int(order[0]), "slowest")
    take(int(order[len(order) // 2]), "median")
    take(len(common) - 1, "newest")
    for run in runs:
        if run.open_step is not None:
            chosen.setdefault(run.open_step.index, "not ended")
    for why, position in zip(("second slowest", "third slowest"), order[1:].tolist(), strict=False):
        take(position, why)
    slow = {step for one in series for step in one.steps["index"][one.slow >= 0].tolist()}
    for position in order[3:MAX_WINDOWS].tolist():
        if int(common[position]) in slow:
            take(position, "slow")
    return [(why, index) for index, why in chosen.items()]


def _window(
    bars: Sequence[RunBars],
    offsets_ns: Sequence[int] | None,
    why: str,
    index: int,
    room: int,
) -> DrawnWindow:
    """The window of one step. Looks at every span of each run once."""
    steps = {
        number: step
        for number, each in enumerate(bars)
        for step in [_step(each.run, index)]
        if step is not None
    }
    shared_ns = min(
        step.begin_ns + (0 if offsets_ns is None else offsets_ns[number])
        for number, step in steps.items()
    )
    begins_ns: list[int | None] = [None] * len(bars)
    step_ns: list[tuple[int, int] | None] = [None] * len(bars)
    length_ns, is_cut = 0, False
    for number, step in steps.items():
        begin_ns = step.begin_ns if offsets_ns is None else shared_ns - offsets_ns[number]
        end_ns = step.end_ns if step.end_ns >= 0 else bars[number].run.duration_ns
        done_ns = bars[number].device_is_done_ns(index)
        most_ns = step.begin_ns + _LONGEST_WINDOW * (end_ns - step.begin_ns)
        is_cut |= done_ns > most_ns
        begins_ns[number] = begin_ns
        step_ns[number] = step.begin_ns - begin_ns, end_ns - begin_ns
        length_ns = max(length_ns, max(end_ns, min(done_ns, most_ns)) - begin_ns)
    return _filled(bars, why, index, begins_ns, length_ns, step_ns, room, is_cut)


def _step(run: Run, index: int) -> Step | None:
    try:
        return run.steps.by_index(index)
    except KeyError:
        return None


def _tail(bars: RunBars) -> DrawnWindow | None:
    """The newest phases of a run without steps."""
    run = bars.run
    if not (len(run.spans) or run.open_phases):
        return None
    newest = run.spans[-_BARS_WITHOUT_STEPS:]
    begin_ns = int(newest["host_end_ns"].min(initial=run.duration_ns))
    if len(newest) == len(run.spans):
        begin_ns = int(newest["host_begin_ns"].min(initial=begin_ns))
    for phase in run.open_phases if not len(run.spans) else ():
        begin_ns = min(begin_ns, phase.begin_ns)
    end_ns = max(run.duration_ns, int(newest["host_end_ns"].max(initial=begin_ns)), begin_ns + 1)
    length_ns = end_ns - begin_ns
    return _filled([bars], "newest phases", None, [begin_ns], length_ns, [None], _LEAST_BARS, False)


def _filled(
    bars: Sequence[RunBars],
    why: str,
    index: int | None,
    begins_ns: Sequence[int | None],
    duration_ns: int,
    step_ns: Sequence[tuple[int, int] | None],
    room: int,
    is_cut: bool,
) -> DrawnWindow:
    labels = BarLabels()
    tracks = [
        track
        for each, begin_ns in zip(bars, begins_ns, strict=True)
        if begin_ns is not None
        for track in each.tracks(begin_ns, begin_ns + duration_ns, labels)
    ]
    times_ns = np.concatenate([_NO_BARS, *(track.duration_ns for track in tracks)])
    left_out, shortest_ns = max(0, len(times_ns) - room), 0
    if left_out:
        shortest_ns = int(np.partition(times_ns, left_out - 1)[left_out - 1])
        left_out = int(np.count_nonzero(times_ns <= shortest_ns))
        tracks = [track.some(track.duration_ns > shortest_ns) for track in tracks]
    # Only pairs of which both bars are there.
    on_host, on_device = (
        np.concatenate([_NO_BARS, *(track.pair for track in tracks if track.is_device == where)])
        for where in (False, True)
    )
    pairs = np.intersect1d(on_host, on_device)
    pairs = pairs[pairs >= 0]
    plain = {
        "step": index,
        "duration": duration_ns,
        "begins": begins_ns,
        "step_times": step_ns,
        "left_out": left_out,
        "shortest": shortest_ns,
        "is_cut": is_cut,
        "labels": labels.found,
        "tracks": [track.plain(pairs) for track in tracks],
    }
    return DrawnWindow(why, index, plain)
