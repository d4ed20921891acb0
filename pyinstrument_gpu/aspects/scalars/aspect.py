# SPDX-License-Identifier: Apache-2.0
"""Readings as an aspect of a run: numbers that have a name, of one step or of all so far.

First the plain data of its section, then its sentences and pictures, and last the aspect.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.advice import Finding, unpriced
from pyinstrument_gpu.analysis.contention import READING
from pyinstrument_gpu.core.aspect import Aspect, ReportedRun
from pyinstrument_gpu.core.file.blocks import BlockType, Records, true_prefix
from pyinstrument_gpu.core.file.device_clocks import TIME_LIMIT_NS
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.file.items import METRIC_ITEM, columns
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.file.steps import StepNumbering
from pyinstrument_gpu.core.gpu_readings import device_and_quantity
from pyinstrument_gpu.core.live import SERIES, LiveView, LiveWindow
from pyinstrument_gpu.core.phase_tree import MAX_PATHS
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE, metrics_by_name
from pyinstrument_gpu.core.step_values import SIZES
from pyinstrument_gpu.parts.choice import Choice, Sorts, as_recorded, sparkline
from pyinstrument_gpu.parts.parts import Curves, Part, Row, Sentence, curve_data, table
from pyinstrument_gpu.parts.words import UNKNOWN, counted, printable, time_text


@dataclass(frozen=True)
class Metric:
    """A metric, as it was read during the run.

    Attributes:
        last: the last of its values.
        not_finite: in its place, where that is no finite number: "nan", "inf" or "-inf".
        min, max: the extremes of those that are finite.
        last_step, min_step, max_step: the step in which it was read; unknown outside steps.
    """

    name: str
    last: float | None
    not_finite: str | None
    last_step: int | None
    min: float | None
    min_step: int | None
    max: float | None
    max_step: int | None


def _of_section(run: Run) -> Iterator[tuple[str, NDArray[np.void]]]:
    """Yield each metric with its readings, but for those of CPU contention and of the use of GPUs,
    which have sections of their own."""
    for name, readings in metrics_by_name(run.metric_names, run.metrics):
        if name != READING and device_and_quantity(name) is None:
            yield name, readings


def metrics(run: Run) -> tuple[Metric, ...]:
    found = []
    for name, readings in _of_section(run):
        last, least, greatest = readings[-1], None, None
        value = float(last["value"])
        finite = readings[np.isfinite(readings["value"])]
        if len(finite):
            least = finite[finite["value"].argmin()]
            greatest = finite[finite["value"].argmax()]
        found.append(
            Metric(
                name=name,
                last=value if math.isfinite(value) else None,
                not_finite=None if math.isfinite(value) else str(value),
                last_step=_step(last),
                min=None if least is None else float(least["value"]),
                min_step=None if least is None else _step(least),
                max=None if greatest is None else float(greatest["value"]),
                max_step=None if greatest is None else _step(greatest),
            )
        )
    return tuple(found)


def _step(reading: np.void) -> int | None:
    step = int(reading["step"])
    return step if step >= 0 else None


def metrics_section(metrics: Sequence[Metric]) -> Iterator[Part]:
    """The table of a run's metrics; nothing where there are none."""
    if not metrics:
        return
    rows = [
        Row(
            one.name,
            [
                *_cells(one.last, one.last_step, one.not_finite or UNKNOWN),
                *_cells(one.min, one.min_step),
                *_cells(one.max, one.max_step),
            ],
        )
        for one in metrics
    ]
    yield Sentence()
    yield Sentence("Metrics, as read during the run", "title")
    headers = ["metric", "last", "step", "min", "step", "max", "step"]
    yield table(headers, [rows[:MAX_PATHS]])
    if len(rows) > MAX_PATHS:
        yield Sentence(f"... and {counted(len(rows) - MAX_PATHS, 'more metric')}", "warn")


def _cells(value: float | None, step: int | None, otherwise: str = UNKNOWN) -> tuple[str, str]:
    return (
        otherwise if value is None else f"{value:.6g}",
        UNKNOWN if step is None else str(step),
    )


def failures(run: Run) -> Iterator[Finding]:
    """The metrics whose last value is no finite number."""
    for name, readings in metrics_by_name(run.metric_names, run.metrics):
        if not math.isfinite(readings["value"][-1]):
            last = readings[-1]
            read = "" if last["step"] < 0 else f", read in step {last['step']:,},"
            evidence = f"its last value{read} is {last['value']}"
            yield unpriced(
                "failure", f"metric {name}", evidence, None, "pyinstrument-gpu report RUN --html"
            )


_MOST_IN_SUMMARY = 4
MAX_POINTS = 600
MAX_METRICS = 24


def metric_curves(run: Run) -> list[Curves]:
    """Return the curve of each metric that was read, at most `MAX_METRICS`, over the steps of its
    updates, or the updates where the steps are not known."""
    found: list[Curves] = []
    for name, readings in islice(_of_section(run), MAX_METRICS):
        axis = "step" if (readings["step"] >= 0).all() else "update"
        readings = readings[np.argsort(readings[axis].astype(np.int64), kind="stable")]
        values = readings["value"]
        endless = int(np.count_nonzero(~np.isfinite(values)))
        kept = _thinned(values)
        x = readings[axis].astype(np.int64)[kept]
        remark = f"{endless:,} of {len(values):,} values are not finite" if endless else ""
        found.append(Curves(name, curve_data(axis, "", x, {name: values[kept]}), remark))
    return found


def _thinned(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """The places of at most `MAX_POINTS` values: of each stretch the first, the least, the greatest
    and one that is not finite, if there is any."""
    count = len(values)
    if count <= MAX_POINTS:
        return np.arange(count)
    chosen = {0, count - 1}
    for places in np.array_split(np.arange(count), MAX_POINTS // 4):
        finite = places[np.isfinite(values[places])]
        endless = places[~np.isfinite(values[places])]
        chosen.add(int(places[0]))
        chosen |= {int(endless[0])} if len(endless) else set()
        if len(finite):
            chosen |= {
                int(finite[values[finite].argmin()]),
                int(finite[values[finite].argmax()]),
            }
    return np.array(sorted(chosen))


def known_metrics(
    records: Records, numbering: StepNumbering, names: int, state: State
) -> NDArray[np.void]:
    """The values up to the first that can't be true."""
    items = records.items
    is_time = (items["host_ns"] >= 0) & (items["host_ns"] < TIME_LIMIT_NS)
    items = items[: true_prefix((items["name"] < names) & is_time)]
    serials = np.ascontiguousarray(items["step"])
    certain = numbering.is_certain(serials, state.metrics - records.first)
    return columns(items, METRIC_DTYPE, step=np.where(certain, numbering.indices(serials), -1))


_SORTS: Sorts = {"first": as_recorded, "name": itemgetter("name")}


class LiveReadings(LiveView[Run, tuple[dict[str, Any], ...]]):
    """The last values of metrics."""

    key = "metrics"
    place = 3
    tab = "Metrics"
    sorts = _SORTS

    def look(self, run: Run, window: LiveWindow) -> tuple[dict[str, Any], ...]:
        return tuple(_readings(run))

    def parts(self, seen: tuple[dict[str, Any], ...], choice: Choice) -> list[Part]:
        if not seen:
            return [Sentence("no metric has been read so far: see MetricAccumulator")]
        rows = []
        for one in choice.of(seen, itemgetter("name"), self.sorts):
            step = UNKNOWN if one["step"] is None else f"{one['step']:,}"
            cells = [one["text"], step, time_text(one["age_ns"])]
            rows.append(Row(one["name"], cells, note=sparkline(one["series"], from_zero=False)))
        return choice.table(["metric", "value", "step", "age"], rows)


def _readings(run: Run) -> Iterator[dict[str, Any]]:
    for name, readings in metrics_by_name(run.metric_names, run.metrics):
        last = readings[-1]
        value, step = float(last["value"]), int(last["step"])
        yield {
            "name": name,
            "value": _finite(value),
            "text": f"{value:.6g}",
            "step": step if step >= 0 else None,
            "age_ns": max(0, run.duration_ns - int(last["host_ns"])),
            "series": tuple(map(_finite, readings["value"][-SERIES:].tolist())),
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class ScalarsAspect(Aspect[Run, tuple[Metric, ...]]):
    """The values of metrics that were read."""

    name = "metrics"
    live = LiveReadings()
    section_type = tuple[Metric, ...]
    about = "as they were read during the run."

    def attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        metrics = given.get("metrics")
        return {
            "metric_names": tuple(given.get("metric_names", ())),
            "metrics": np.empty(0, METRIC_DTYPE) if metrics is None else metrics,
        }

    def read(self, found: Found) -> dict[str, Any]:
        names = found.tables.metric_names
        records = found.blocks.table(BlockType.METRICS, METRIC_ITEM)
        metrics = known_metrics(records, found.numbering, len(names), found.state)
        what, written = "values of metrics", found.state.metrics
        found.note_lacking(BlockType.METRICS, what, records, len(metrics), written)
        return {"metric_names": names, "metrics": metrics}

    def join_history(self, run: Run, earlier: Run) -> None:
        run.metric_names, run.metrics = earlier.metric_names, earlier.metrics

    def section(self, run: Run) -> tuple[Metric, ...]:
        return metrics(run)

    def summary(self, metrics: tuple[Metric, ...], document: ReportedRun) -> Iterable[Part]:
        # Tokens have a line of their own, per second. Elements are there for what is said of slow
        # steps.
        shown = [
            f"{one.name} {one.last:.4g}"
            for one in metrics
            if one.last is not None and one.name not in SIZES
        ]
        if shown:
            more = len(shown) - _MOST_IN_SUMMARY
            others = [f"and {counted(more, 'other')}"] if more > 0 else []
            last = ", ".join([*shown[:_MOST_IN_SUMMARY], *others])
            yield Sentence(printable(f"Metrics at the end: {last}"))

    def parts(self, metrics: tuple[Metric, ...], document: ReportedRun) -> Iterable[Part]:
        return metrics_section(metrics)

    def failures(self, run: Run) -> Iterable[Finding]:
        return failures(run)

    def curves(self, run: Run) -> Iterable[Curves]:
        return metric_curves(run)


ASPECT = ScalarsAspect()
