# SPDX-License-Identifier: Apache-2.0
"""Compilation as an aspect of a run: how it is read, and what a report says of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyinstrument_gpu.analysis.advice import DOUBT_SHARE, MIN_STEPS, Finding, unpriced
from pyinstrument_gpu.aspects.compilations import DYNAMO, NAME
from pyinstrument_gpu.aspects.compilations.data import (
    Compilation,
    Compilations,
    CompiledPlace,
    decode_compilations,
    on_timeline,
)
from pyinstrument_gpu.core.aspect import DocumentAspect, ReportedRun
from pyinstrument_gpu.core.cause import Cause, Precedence, intervals_of
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.record import SourceLine
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Part, Sentence
from pyinstrument_gpu.parts.words import counted, duration, printable, share, small_percent

_VERDICT_SHARE = 0.1
"""Of the steps' time: from here on their mean says little without it."""
_WORD_SHARE = 0.01
_MOST_REASONS = 3
_MOST_ROWS = 6
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)")
_VALUE = re.compile(r"(==|expected|actual) [^\s,]+")
"""In a reason: what differs from one time to the next, where the reason is the same."""
_READING = "step/compile_ns"
_SIZE = "size mismatch at index"
_DYNAMIC = (
    "let torch compile for any size: torch.compile(dynamic=True), or torch._dynamo.mark_dynamic "
    "for that dimension"
)
_CONSTANT = "keep constant what the reason names, or raise the limit if the versions are few"
_AROUND_MODULES = "torch/_dynamo/external_utils.py"
_MODULE = "a compiled module"
_LOOK = 'TORCH_LOGS="recompiles,graph_breaks" python PROGRAM'


@dataclass(frozen=True)
class RecompilationReason:
    """Why a function was compiled once more.

    Attributes:
        text: as torch said it the first time.
        count: how often it was that, with whatever values.
    """

    text: str
    count: int


@dataclass(frozen=True)
class CompiledFunction:
    """A function that was compiled.

    Attributes:
        function: its name; unknown where torch did not say.
        place: its file and line.
        compilations: how many, those of backward graphs not among them.
        recompilations: how many of these because no earlier one fit the arguments.
        total_ns: with backward graphs.
        recompiled_ns: the part of the recompilations in that.
        inductor_ns: the part of TorchInductor; unknown where it had none.
        reasons: of the recompilations, the most frequent first.
        outside: how many of the recompilations lie outside steps.
        first_step, last_step: of the others.
        limit: the setting that ended its compilation, as "recompile_limit (8)".
        limit_step: the index of the step in which that was.
        limit_reason: why it would have been compiled once more.
        limit_hint: what torch says to do about it.
        failure: why it could not be compiled, the last time that it could not.
    """

    function: str | None
    place: str | None
    compilations: int
    recompilations: int
    total_ns: int
    recompiled_ns: int
    inductor_ns: int | None
    reasons: tuple[RecompilationReason, ...]
    outside: int
    first_step: int | None
    last_step: int | None
    limit: str | None
    limit_step: int | None
    limit_reason: str | None
    limit_hint: str | None
    failure: str | None

    @property
    def name(self) -> str:
        if self.function is None:
            return "a function that torch did not name"
        resumed = _RESUMED.fullmatch(self.function)
        name = f"{resumed[1]} from line {resumed[2]} on" if resumed else self.function
        return printable(f"{name} ({self.place})")


@dataclass(frozen=True)
class BrokenGraph:
    """A line at which the graph of a compiled function breaks.

    Attributes:
        place: its file and line.
        function: around it.
        reason: as torch says it.
        count: in how many compilations.
    """

    place: str
    function: str
    reason: str
    count: int


@dataclass(frozen=True)
class CompilationTimes:
    """The time that torch.compile took.

    Attributes:
        count: how often anything was compiled, backward graphs and recorded CUDA graphs included.
        total_ns: the time in which at least one thread compiled.
        in_steps_ns: the part of it in steps; unknown if no step ended, or their readings are lost.
        share: that of the steps' time.
        not_listed: of `count`, those of which nothing else is known, as they came too late.
        lost: graph breaks and reached limits that found no room.
        functions: that on which most time was spent first.
        breaks: the most frequent first.
        unknown_phases: why less than what was asked for is known of phases in compiled code.
    """

    count: int
    total_ns: int
    in_steps_ns: int | None
    share: float | None
    not_listed: int
    lost: int
    functions: tuple[CompiledFunction, ...]
    breaks: tuple[BrokenGraph, ...]
    unknown_phases: tuple[str, ...] = ()


def compilation_times(run: Run) -> CompilationTimes | None:
    """Return the times; None where nothing was compiled, or that is not known."""
    found = run.compilations
    if found is None or not found.count:
        return None
    in_steps_ns, steps_ns = _in_steps_ns(run), run.step_totals.duration.total_ns
    return CompilationTimes(
        count=found.count,
        total_ns=found.total_ns,
        in_steps_ns=in_steps_ns,
        share=None if in_steps_ns is None or not steps_ns else in_steps_ns / steps_ns,
        not_listed=found.count - len(found.compilations),
        lost=found.lost,
        functions=_functions(run, found),
        breaks=tuple(
            BrokenGraph(_place(run, one) or "", one.function or "", one.reason, one.count)
            for one in sorted(found.breaks, key=lambda one: -one.count)
        ),
        unknown_phases=found.unknown_phases,
    )


def _in_steps_ns(run: Run) -> int | None:
    """Return the time in steps by their readings, which omit what fell into several."""
    if not run.step_totals.count:
        return None
    if _READING not in run.metric_names:
        return None if _may_lie_in_steps(run.compilations) else 0
    readings = run.metrics[run.metrics["name"] == run.metric_names.index(_READING)]
    readings = readings[~run.profiled.among(readings["step"])]
    return min(round(float(readings["value"].sum())), run.step_totals.duration.total_ns)


def _may_lie_in_steps(found: Compilations | None) -> bool:
    return found is not None and (
        found.count > len(found.compilations)
        or any(one.step is not None for one in found.compilations)
    )


def _functions(run: Run, found: Compilations) -> tuple[CompiledFunction, ...]:
    by_place: dict[tuple[Any, ...], list[Compilation]] = {}
    for one in found.compilations:
        by_place.setdefault((one.file, one.line, one.function), []).append(one)
    limits = {(one.file, one.line, one.function): one for one in found.limits}
    for place in limits:
        by_place.setdefault(place, [])
    functions = []
    for place, own in by_place.items():
        limit, again = limits.get(place), [one for one in own if one.recompiled]
        compiled_again = [one for one in again if one.kind == DYNAMO]
        steps = [one.step for one in compiled_again if one.step is not None]
        inductor = [one.inductor_ns for one in own if one.inductor_ns is not None]
        functions.append(
            CompiledFunction(
                function=_MODULE if _is_of_module(limit or own[0]) else place[2],
                place=_place(run, limit or own[0]),
                compilations=sum(one.kind == DYNAMO for one in own),
                recompilations=len(compiled_again),
                total_ns=sum(one.duration_ns for one in own),
                recompiled_ns=sum(one.duration_ns for one in again),
                inductor_ns=sum(inductor) if inductor else None,
                reasons=_reasons([one.reason for one in compiled_again if one.reason]),
                outside=len(compiled_again) - len(steps),
                first_step=min(steps, default=None),
                last_step=max(steps, default=None),
                limit=None if limit is None else limit.limit,
                limit_step=None if limit is None else _step_at(run, limit.at_ns),
                limit_reason=None if limit is None else limit.reason,
                limit_hint=None if limit is None else limit.hint,
                failure=next((one.failure for one in reversed(own) if one.failure), None),
            )
        )
    return tuple(sorted(functions, key=lambda one: -one.total_ns))


def _reasons(texts: Sequence[str]) -> tuple[RecompilationReason, ...]:
    counts = Counter(_VALUE.sub(r"\1", text) for text in texts)
    first = {_VALUE.sub(r"\1", text): text for text in reversed(texts)}
    return tuple(RecompilationReason(first[key], count) for key, count in counts.most_common())


def _is_of_module(of: CompiledPlace) -> bool:
    """Return whether it is torch's function around a module of torch's own, such as `Sequential`,
    that was given to `torch.compile`."""
    return of.file is not None and of.file.endswith(_AROUND_MODULES)


def _place(run: Run, of: CompiledPlace) -> str | None:
    """Return where a function is; of a module of torch's own, where the program calls it first."""
    if of.file is None or of.line is None:
        return None
    if _is_of_module(of):
        lines = (
            run.line_of_phase(path) for path in np.flatnonzero(run.are_named(["forward"])).tolist()
        )
        if line := next(filter(None, lines), None):
            return f"called at {line}"
    return run.name_of_line(SourceLine(of.file, of.line, of.function or ""))


def _step_at(run: Run, time_ns: int) -> int | None:
    steps = run.steps.array
    place = int(np.searchsorted(steps["begin_ns"], time_ns, side="right")) - 1
    if place < 0 or 0 <= steps["end_ns"][place] < time_ns:
        return None
    return int(steps["index"][place])


class CompilationsAspect(DocumentAspect[Run, CompilationTimes]):
    """The time that torch.compile takes, and why it compiles again."""

    name = noted = NAME
    heading = "Compilation"
    section_type = CompilationTimes | None
    about = "what torch.compile took."

    def attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return super().attributes(given) | {"compilation_spans": on_timeline(given.get(NAME))}

    def decode(self, data: bytes, found: Found) -> Compilations:
        threads = [thread.native_id for thread in found.tables.threads]
        return decode_compilations(data, len(found.tables.paths), threads)

    def section(self, run: Run) -> CompilationTimes | None:
        return compilation_times(run)

    def summary(self, times: CompilationTimes, document: ReportedRun) -> Iterator[Part]:
        yield Sentence(f"Compilation: {_summary(times)}")

    def parts(self, times: CompilationTimes, document: ReportedRun) -> Iterator[Part]:
        """Yield what it took in all, then each function compiled again or running uncompiled."""
        yield Sentence()
        yield Sentence(f"Compilation: {_summary(times)}", "title")
        troubled = [
            one for one in times.functions if one.recompilations or one.limit or one.failure
        ]
        for one in troubled[:_MOST_ROWS]:
            yield from _function_parts(one)
        if len(troubled) > _MOST_ROWS:
            yield Sentence(
                f"... and {counted(len(troubled) - _MOST_ROWS, 'more function')}", "warn"
            )
        for line in times.breaks[:_MOST_ROWS]:
            where = printable(f"{line.place} in {line.function}")
            often = "" if line.count == 1 else f", in {counted(line.count, 'compilation')}"
            yield Sentence(f"Graph break at {where}{often}: {printable(line.reason)}")
        if len(times.breaks) > _MOST_ROWS:
            yield Sentence(
                f"... and graph breaks at {counted(len(times.breaks) - _MOST_ROWS, 'more line')}",
                "warn",
            )
        for why in times.unknown_phases:
            yield Sentence(
                f"Phases in compiled code were not recorded as asked: {printable(why)}", "warn"
            )
        if times.not_listed:
            yield Sentence(
                f"Only the time is known of the last {counted(times.not_listed, 'compilation')}",
                "warn",
            )
        if times.lost:
            yield Sentence(
                f"{counted(times.lost, 'more graph break')} or reached limits did not fit", "warn"
            )

    def in_steps(self, times: CompilationTimes) -> str | None:
        if times.share is None or times.share < _VERDICT_SHARE:
            return None
        return f"{small_percent(times.share, 1)} is compilation"

    def failures(self, run: Run) -> Iterator[Finding]:
        """Yield doubts, as torch may have to compile once more all the same: functions that were
        compiled again for other sizes, and those that are compiled no more."""
        times = self.section(run)
        for one in () if times is None else times.functions:
            if one.limit is not None:
                yield _of_limit(one)
            else:
                yield from _of_sizes(run, one)

    def causes(self, run: Run) -> Iterator[Cause]:
        """Yield those on the steps' threads, as far as each was noted."""
        found, spans = run.compilations, run.compilation_spans
        if found is None or found.unknown is not None:
            return
        steps, known = run.steps.closed, None
        if found.count > len(found.compilations):
            known = steps["index"][steps["end_ns"] <= spans["host_end_ns"].max(initial=0)]
        names = [
            "a function that torch did not name"
            if one.function is None
            else printable(
                f"{_MODULE if _is_of_module(one) else one.function} ({_place(run, one)})"
            )
            for one in found.compilations
        ]
        yield Cause(
            name="compilation",
            words="compilation",
            remedy=_DYNAMIC,
            precedence=Precedence.ACT,
            intervals=intervals_of(
                spans["host_begin_ns"], spans["host_end_ns"], spans["thread"], spans["number"]
            ),
            known=known,
            notes=tuple(names),
            is_advised=False,
        )

    def unknown(self, run: Run) -> Iterator[str]:
        if run.compilations is not None and run.compilations.unknown is not None:
            yield f"Compilation by torch.compile: {run.compilations.unknown}."
        for why in () if run.compilations is None else run.compilations.unknown_phases:
            yield f"Phases in compiled code: {why}."


def _summary(times: CompilationTimes) -> str:
    functions = [one for one in times.functions if one.compilations]
    compilations = sum(one.compilations for one in functions)
    in_inductor_ns = sum(one.inductor_ns or 0 for one in functions)
    text = duration(times.total_ns)
    if in_inductor_ns:
        text += f", {duration(in_inductor_ns)} of it in TorchInductor,"
    if times.not_listed or not compilations:
        text += f" in {counted(times.count, 'compilation')}"
    else:
        of = functions[0].name if len(functions) == 1 else f"{len(functions):,} functions"
        text += f" in {counted(compilations, 'compilation')} of {of}"
    again = sum(one.recompilations for one in functions)
    if again:
        text += f", {again:,} of them recompilations {_where(functions)}"
    if times.share is not None and times.share >= _WORD_SHARE:
        text += f"; {small_percent(times.share, 1)} of the steps' time"
    return text


def _where(functions: Sequence[CompiledFunction]) -> str:
    """Return in which steps functions were compiled again."""
    steps = [one.first_step for one in functions if one.first_step is not None]
    if not steps:
        return "outside steps"
    first, last = min(steps), max(one.last_step or 0 for one in functions)
    where = f"in step {first:,}" if first == last else f"in steps {first:,} to {last:,}"
    return where + (" and outside steps" if any(one.outside for one in functions) else "")


def _function_parts(one: CompiledFunction) -> Iterator[Part]:
    times = "once" if one.compilations == 1 else f"{one.compilations:,} times"
    text = f"{one.name} was compiled {times}, {duration(one.total_ns)}"
    reasons = [
        printable(reason.text) + (f" (and {reason.count - 1:,} alike)" if reason.count > 1 else "")
        for reason in one.reasons[:_MOST_REASONS]
    ]
    more = len(one.reasons) - _MOST_REASONS
    if more > 0:
        reasons.append(f"{counted(more, 'more reason')}")
    yield Sentence(f"{text}: {'; '.join(reasons)}" if reasons else text)
    if one.limit is not None:
        yield Sentence(_limit_text(one, "It"), "alert")
    if one.failure is not None:
        yield Sentence(f"It was left uncompiled: {printable(one.failure)}", "alert")


def _limit_text(one: CompiledFunction, who: str) -> str:
    step = "" if one.limit_step is None else f" in step {one.limit_step:,}"
    return (
        f"{who} reached torch._dynamo.config.{one.limit}{step}: calls that match no "
        "compiled version now run eagerly"
    )


def _of_limit(one: CompiledFunction) -> Finding:
    reason, edit = one.limit_reason or "", one.limit_hint
    if edit is None and _SIZE in reason:
        edit = _DYNAMIC
    last = f"; the last reason: {printable(reason)}" if reason else ""
    return unpriced(
        "doubt",
        f"recompilation of {one.name}",
        f"{_limit_text(one, one.name)}{last}",
        printable(edit or _CONSTANT),
        _LOOK,
    )


def _of_sizes(run: Run, one: CompiledFunction) -> Iterator[Finding]:
    """Yield a doubt on sizes. By itself torch compiles for any size when one has changed for the
    first time, so a second recompilation says that it does not, or that another size changes."""
    sizes = [reason for reason in one.reasons if _SIZE in reason.text]
    count = sum(reason.count for reason in sizes)
    steps = run.step_totals.count
    if count < 2 or steps < MIN_STEPS or not run.duration_ns:
        return
    elapsed_ns = run.duration_ns / steps
    if one.recompiled_ns / steps < DOUBT_SHARE * elapsed_ns:
        return
    yield Finding(
        kind="doubt",
        about=f"recompilation of {one.name}",
        low_ns=0.0,
        high_ns=min(one.recompiled_ns / steps, elapsed_ns),
        likely_ns=None,
        of_ns=elapsed_ns,
        of="elapsed time",
        promised=None,
        evidence=f"{counted(one.recompilations, 'recompilation')} took "
        f"{duration(one.recompiled_ns)}{share(one.recompiled_ns, run.duration_ns)}, {count:,} of "
        f"them as a size had changed: {printable(sizes[0].text)}",
        edit=_DYNAMIC,
        look=_LOOK,
    )


ASPECT = CompilationsAspect()
