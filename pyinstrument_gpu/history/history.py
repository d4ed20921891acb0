# SPDX-License-Identifier: Apache-2.0
"""Changes over the runs in a store, since when, and what else changed at that point."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.differences import (
    CODE,
    COMMAND_LINE,
    Difference,
    Differences,
    differences_of_facts,
)
from pyinstrument_gpu.history.change_points import (
    FEWEST_RUNS,
    ChangeOfSeries,
    ChangePoint,
    change_points,
    holds_within,
    visible_shift,
)
from pyinstrument_gpu.history.configurations import configurations
from pyinstrument_gpu.history.store import read_runs
from pyinstrument_gpu.report.plain import rounded

HISTORY_VERSION = 1
"""Of the document. It rises when a field changes its meaning or goes; new fields may come."""
ERROR = 0.01
"""The probability that a report on runs among which nothing changed reports a change."""
LEAST_CHANGE = 0.01
"""What is worth a word: of a value, or of a step for what is a share of one."""
_LEAST_SHARE = 0.01
"""Of the time per step, from which on a phase is looked at."""
_MOST_SERIES = 40
_NEXT_RUNS = 20
"""On either side of a change, whose environments are compared."""
_WEEK_US = 7 * 86_400 * 10**6
_STRATUM = ("host", "gpus", "torch", "ranks")
_SIZES = ("samples_per_step", "tokens_per_step")
_EXPLANATIONS = {
    "torch version": "torch",
    "host": "host",
    "GPUs": "GPU",
    "driver": "driver",
    "command line": "command",
}
"""What a change is always said to be explained by or not, if that is known."""
_HELD_FIXED = ("torch version", "host", "GPUs", "number of ranks")


@dataclass(frozen=True)
class SeriesChange:
    """The change of a series.

    Attributes:
        name: of the series.
        unit: of its values: "ns", "bytes", "tokens/s", or "share" of the time per step.
        before, after: its median in the runs on either side.
        change: relative, 0.04 is 4 % more; of a share, the difference.
        low, high: the interval of that; missing where there are too few runs.
    """

    name: str
    unit: str
    before: float
    after: float
    change: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class HistoryChange:
    """A change between two runs.

    Attributes:
        since: when the first run behind it began.
        earliest, latest: the same of the runs between which it may lie, with 95 % confidence.
        commits: those that may be the first with it; empty: not known, or none was new.
        is_commit_known: whether all runs around it say their commit.
        series: what changed, the clearest first.
        same: what does not explain it: the series changed within one host, say.
        changed: what is not the same on both sides of it, so it may be what explains it.
        unknown: what may explain it or not.
        runs_before, runs_after: how many there are without another change.
    """

    since: str
    earliest: str
    latest: str
    commits: tuple[str, ...]
    is_commit_known: bool
    series: tuple[SeriesChange, ...]
    same: tuple[str, ...]
    changed: tuple[Difference, ...]
    unknown: tuple[str, ...]
    runs_before: int
    runs_after: int

    @property
    def is_slower(self) -> bool | None:
        """Whether steps take longer since; None where that is not known."""
        by_unit = [one for one in self.series if one.unit == "ns"]
        return None if not by_unit else sum(one.after - one.before for one in by_unit) > 0


@dataclass(frozen=True)
class ProgramHistory:
    """The runs of a program.

    Attributes:
        program: its file.
        runs: how many there are with steps.
        hosts: on how many hosts.
        began, ended: when the first and the last one began.
        series: the names of those that were looked at.
        changes: the newest first.
        last_week: how many runs are of the last seven days, behind the newest change.
        visible: the relative change in the time per step of these that would probably have been
            found; missing where there are too few runs.
        configurations: what sets each apart, where the runs have several in turn.
    """

    program: str
    runs: int
    hosts: int
    began: str
    ended: str
    series: tuple[str, ...]
    changes: tuple[HistoryChange, ...]
    last_week: int
    visible: float | None
    configurations: tuple[str, ...] = ()


@dataclass(frozen=True)
class HistoryDocument:
    """The changes over the runs of weeks.

    Attributes:
        version: of this format.
        error: the probability of reporting any change where there is none.
        programs: those with most runs first.
        notes: what was left out.
    """

    version: int
    error: float
    programs: tuple[ProgramHistory, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Series:
    """A number of each run.

    Attributes:
        name: what it is.
        unit: as that of `SeriesChange`.
        values: one for each run; NaN unknown.
    """

    name: str
    unit: str
    values: NDArray[np.float64]

    @property
    def compared(self) -> NDArray[np.float64]:
        """The values on a scale on which changes are shifts."""
        if self.unit == "share":
            return self.values
        return np.log(np.where(self.values > 0, self.values, np.nan))

    def change_of(self, shift: float) -> float:
        return shift if self.unit == "share" else float(np.expm1(shift))


@dataclass(frozen=True, eq=False)
class ProgramRuns:
    """The runs of a program, in order of time.

    Attributes:
        columns: of the store, by name.
        series: the numbers that are looked at.
        points: where they changed, and whether within one host and torch.
        configuration: of each run, its number.
        configurations: what sets each apart, if there are several.
        last_week: how many of them are of its last seven days, without a change before.
        visible: the shift of the first series in these that would probably have been found.
    """

    columns: dict[str, NDArray[Any]]
    series: tuple[Series, ...]
    points: tuple[tuple[ChangePoint, bool], ...]
    configuration: NDArray[np.int64]
    configurations: tuple[str, ...]
    last_week: int
    visible: float | None


def history(
    store: str, since: datetime | None = None, notes: Sequence[str] = ()
) -> tuple[HistoryDocument, list[ProgramRuns]]:
    """Return what changed over the runs in a store, and their series, by program.

    Raises:
        JobError: there is no run in the store, or it can't be read.
        MissingDependencyError: duckdb is not installed.
    """
    runs, phases = (
        {name: _plain(one) for name, one in of.items()} for of in read_runs(store, since)
    )
    programs = Counter(runs["program"][runs["steps"] > 0].tolist()).most_common()
    found = [_program_runs(runs, phases, program, ERROR / len(programs)) for program, _ in programs]
    document = HistoryDocument(
        version=HISTORY_VERSION,
        error=ERROR,
        programs=tuple(_program_history(one) for one in found),
        notes=tuple(notes),
    )
    return rounded(document), found


def _plain(column: Any) -> NDArray[Any]:
    """A column whose missing numbers are NaN, and whose missing texts are empty."""
    if not isinstance(column, np.ma.MaskedArray):
        return np.asarray(column)
    if column.dtype == object:
        return np.asarray(column.filled(""))
    return np.where(np.ma.getmaskarray(column), np.nan, column.data.astype(np.float64))


def _program_runs(
    runs: dict[str, NDArray[Any]], phases: dict[str, NDArray[Any]], program: str, error: float
) -> ProgramRuns:
    chosen = (runs["program"] == program) & (runs["steps"] > 0)
    columns = {name: one[chosen] for name, one in runs.items()}
    place = np.full(len(chosen), -1)
    place[chosen] = np.arange(chosen.sum())
    of_runs = place[phases["place"]]
    series = [*_series_of_runs(columns)]
    is_there = of_runs >= 0
    of_phases = {name: one[is_there] for name, one in phases.items()} | {"run": of_runs[is_there]}
    series += _series_of_phases(of_phases, columns["step_ns"])
    series = [one for one in series if np.isfinite(one.compared).sum() >= 2 * FEWEST_RUNS]
    commands = [json.loads(facts).get(COMMAND_LINE) for facts in columns["facts"].tolist()]
    sizes = {name.replace("_", " "): columns[name].astype(np.float64) for name in _SIZES}
    configuration, texts = configurations(commands, sizes)
    if not series:
        return ProgramRuns(columns, (), (), configuration, texts, 0, None)
    values = np.column_stack([one.compared for one in series])
    keys = np.array([str([columns[name][i] for name in _STRATUM]) for i in range(len(values))])
    on_host = np.unique(keys, return_inverse=True)[1]
    strata = np.unique(on_host * len(keys) + configuration, return_inverse=True)[1]
    # What changes together with host, torch or the configuration is no change within either.
    everywhere = np.zeros_like(strata)
    looked_at = [(strata, True), (on_host, True), (everywhere, False)]
    shares = [
        one
        for number, one in enumerate(looked_at)
        if not any((one[0] == other).all() for other, _ in looked_at[:number])
    ]
    points: list[tuple[ChangePoint, bool]] = []
    for codes, is_within in shares:
        for point in change_points(values, codes, error / len(shares)):
            points = _merged(points, point, is_within)
    places = [0, *(point.place for point, _ in points), len(values)]
    around = tuple(
        (
            replace(
                point,
                begin=max(place for place in places if place < point.place),
                end=min(place for place in places if place > point.place),
            ),
            is_within,
        )
        for point, is_within in points
    )
    began_us = columns["began_us"]
    late = max([place for place in places if place < len(values)])
    after = int((began_us[late:] >= began_us[-1] - _WEEK_US).sum())
    shift = visible_shift(
        values[late:, 0], strata[late:], after, values.shape[1], error / len(shares)
    )
    return ProgramRuns(
        columns, tuple(series), around, configuration, texts, last_week=after, visible=shift
    )


def _merged(
    points: list[tuple[ChangePoint, bool]], point: ChangePoint, is_within: bool
) -> list[tuple[ChangePoint, bool]]:
    """The change points with one more, as part of one that may be the same."""
    for number, (other, is_other_within) in enumerate(points):
        known = {one.series for one in other.series}
        near = [
            one
            for one in point.series
            if any(one.first <= same.last and same.first <= one.last for same in other.series)
        ]
        if not near:
            continue
        if is_within == is_other_within:
            more = tuple(one for one in near if one.series not in known)
            points[number] = replace(other, series=other.series + more), is_other_within
        rest = tuple(one for one in point.series if one not in near)
        if not rest:
            return points
        point = replace(point, series=rest)
    return [*points, (point, is_within)]


def _series_of_runs(columns: dict[str, NDArray[Any]]) -> Iterator[Series]:
    elapsed_ns = columns["elapsed_ns"].astype(np.float64)
    yield Series("time per step", "ns", elapsed_ns)
    yield Series("tokens/s", "tokens/s", columns["tokens_per_step"] / elapsed_ns * 1e9)
    for name, column in (
        ("waits for the device", "sync_wait_ns"),
        ("waits for a processor", "processor_wait_ns"),
    ):
        yield Series(name, "share", columns[column] / columns["step_ns"])
    yield Series("peak of memory", "bytes", columns["peak_bytes"].astype(np.float64))


def _series_of_phases(
    phases: dict[str, NDArray[Any]], step_ns: NDArray[np.float64]
) -> list[Series]:
    """Return the series of each phase that takes some of the time of steps, the largest first."""
    names = phases["phase"] + np.where(phases["is_outside"], " outside steps", "")
    found = []
    for name in np.unique(names.astype(str)).tolist():
        of_phase = names == name
        for column, more in (("self_ns", ""), ("device_ns", " on the device")):
            values = np.full(len(step_ns), np.nan)
            values[phases["run"][of_phase]] = phases[column][of_phase]
            share = np.nanmedian(values / step_ns) if np.isfinite(values).any() else 0.0
            if share >= _LEAST_SHARE:
                found.append((float(share), Series(f"{name}{more}", "ns", values)))
    return [one for _, one in sorted(found, key=lambda one: -one[0])[:_MOST_SERIES]]


def _program_history(of: ProgramRuns) -> ProgramHistory:
    columns = of.columns
    changes = [_change(of, point, is_within) for point, is_within in of.points]
    return ProgramHistory(
        program=str(columns["program"][0]),
        runs=len(columns["run_id"]),
        hosts=len({*columns["host"].tolist()}),
        began=_date(columns["began_us"][0]),
        ended=_date(columns["began_us"][-1]),
        series=tuple(one.name for one in of.series),
        changes=tuple(
            sorted((one for one in changes if one.series), key=lambda one: one.since, reverse=True)
        ),
        last_week=of.last_week,
        visible=None
        if of.visible is None
        else max(LEAST_CHANGE, of.series[0].change_of(of.visible)),
        configurations=of.configurations,
    )


def _date(time_us: int) -> str:
    return datetime.fromtimestamp(int(time_us) // 10**6, timezone.utc).isoformat()


def _change(of: ProgramRuns, point: ChangePoint, is_within: bool) -> HistoryChange:
    columns, lead = of.columns, point.series[0]
    before = range(max(point.begin, lead.first - _NEXT_RUNS), lead.first)
    after = range(lead.last, min(point.end, lead.last + _NEXT_RUNS))
    facts = [json.loads(columns["facts"][i]) for i in (*before, *after)]
    found = differences_of_facts(facts[: len(before)], facts[len(before) :])
    commits, is_known = _commits(columns["revision"].tolist(), before, lead, after)
    values = of.series[lead.series].compared[[*before, *after]]
    same, changed, unknown = _explanations(found, facts, values, len(before), is_within)
    return HistoryChange(
        since=_date(columns["began_us"][point.place]),
        earliest=_date(columns["began_us"][lead.first]),
        latest=_date(columns["began_us"][lead.last]),
        commits=commits,
        is_commit_known=is_known,
        series=tuple(_series_changes(of, point)),
        same=tuple(same),
        changed=(*changed, *_batch_changes(of, before, after)),
        unknown=tuple(unknown),
        runs_before=point.place - point.begin,
        runs_after=point.end - point.place,
    )


def _commits(
    revisions: Sequence[str], before: range, lead: ChangeOfSeries, after: range
) -> tuple[tuple[str, ...], bool]:
    """The commits that may be the first behind a change, and whether all are known."""
    around = revisions[before.start : after.stop]
    if not all(around):
        return (), False
    old = set(revisions[before.start : before.stop])
    # Where the old commits go on to run, none of them is what made the difference.
    new = dict.fromkeys(revisions[lead.first : lead.last + 1])
    return tuple(one for one in new if one not in old), True


def _explanations(
    found: Differences,
    facts: Sequence[dict[str, Any]],
    values: NDArray[np.float64],
    cut: int,
    is_within: bool,
) -> tuple[list[str], list[Difference], list[str]]:
    """Return what a change is not explained by, what changed with it, and what can't be ruled out.

    Args:
        facts, values: of the runs around the cut.
    """
    same, changed, unknown = [], [], []
    differing = {one.what: one for one in found.found}
    for what, word in _EXPLANATIONS.items():
        codes = np.unique([json.dumps(one.get(what)) for one in facts], return_inverse=True)[1]
        if what in found.unknown:
            unknown.append(word)
            continue
        is_fixed = not codes.any() or (is_within and what in _HELD_FIXED)
        if is_fixed or holds_within(values, codes, cut):
            same.append(word)
        elif what not in differing or not _is_apart(differing[what], len(facts)):
            unknown.append(word)
    for what, one in differing.items():
        if what != CODE[0] and _EXPLANATIONS.get(what) not in same and _is_apart(one, len(facts)):
            changed.append(one)
    return same, changed, unknown


def _is_apart(one: Difference, runs: int) -> bool:
    """Return whether no value is on both sides. What is another in each run, as a seed on the
    command line, changes at no point."""
    varies = 2 * (len(one.before) + len(one.after)) > runs
    return not varies and set(one.before).isdisjoint(one.after)


def _batch_changes(of: ProgramRuns, before: range, after: range) -> Iterator[Difference]:
    """Yield changes of the batch: steps that have another size are no longer the same steps."""
    for name in _SIZES:
        sides = [of.columns[name][side.start : side.stop] for side in (before, after)]
        if all(len(side) and np.isfinite(side).all() for side in sides):
            one, other = (median(side.tolist()) for side in sides)
            if abs(other - one) > LEAST_CHANGE * one:
                yield Difference(name.replace("_", " "), (f"{one:,.6g}",), (f"{other:,.6g}",))


def _series_changes(of: ProgramRuns, point: ChangePoint) -> Iterator[SeriesChange]:
    place, codes = point.place - point.begin, of.configuration[point.begin : point.end]
    # The values are those of one configuration, that which most runs on both sides have.
    on_both = np.minimum(
        *(np.bincount(one, minlength=codes.max() + 1) for one in (codes[:place], codes[place:]))
    )
    is_shown = codes == on_both.argmax() if on_both.max() >= FEWEST_RUNS else codes >= 0
    for one in point.series:
        series = of.series[one.series]
        change = series.change_of(one.shift)
        if abs(change) < LEAST_CHANGE:
            continue
        interval = None if one.interval is None else [*map(series.change_of, one.interval)]
        values = np.where(is_shown, series.values[point.begin : point.end], np.nan)
        yield SeriesChange(
            name=series.name,
            unit=series.unit,
            before=float(np.nanmedian(values[:place])),
            after=float(np.nanmedian(values[place:])),
            change=change,
            low=None if interval is None else interval[0],
            high=None if interval is None else interval[1],
        )
