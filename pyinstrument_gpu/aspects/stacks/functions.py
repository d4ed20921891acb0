# SPDX-License-Identifier: Apache-2.0
"""The functions of the program in which steps spend their time: the one that a phase consists of,
and what it would save to make it faster.

A function counts with all that it calls in libraries, so a share of samples is a share of the main
thread's time, however busy the machine is. How far it may be off follows from their number, as each
sample is in the function or not.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import EDIT_SHARE, Finding, twice_as_fast
from pyinstrument_gpu.analysis.sampled_time import share_range
from pyinstrument_gpu.analysis.step_times import is_mostly_first
from pyinstrument_gpu.analysis.undisturbed import OUTSIDE
from pyinstrument_gpu.aspects.stacks.data import Stacks
from pyinstrument_gpu.aspects.stacks.tree import FunctionSamples, PhaseTree, phase_trees
from pyinstrument_gpu.core.record import SourceLine
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.parts.words import counted, small_percent

LEAST_SAMPLES = 10
"""Fewer say nothing of a phase."""
_LEAST_SHARE = 0.25
"""A function that takes less of the time of a phase is not what it consists of."""
_LEAST_SAVED_SHARE = 0.05
"""Of the step, that a function twice as fast has to save to be named."""


def where_of_phase(run: Run, scope: Scope, phase: str | None) -> str | None:
    """Return the function in which a large part of a phase is, as `Aspect.where` has it; None where
    the line that calls the phase says as much."""
    trees = () if run.stacks is None else phase_trees(run.stacks)
    tree = next((one for one in trees if (one.scope, one.path) == (scope, phase or "")), None)
    heaviest = None if tree is None else _heaviest(run, tree)
    if tree is None or heaviest is None:
        return None
    line = run.name_of_line(heaviest.line)
    if phase in run.paths and line == run.line_of_phase(run.paths.index(phase)):
        return None
    function = f"{_name(heaviest)}, " if _name(heaviest) else ""
    share = small_percent(heaviest.time_ns, tree.time_ns)
    return f"{share} of it in {function}{_lines(run, heaviest)}"


def faster_outside_phases(run: Run) -> Iterator[Finding]:
    """Yield what it would save if the heaviest function of the program outside of phases took half
    as long. Of programs without a GPU: beside one, the host may only wait somewhere else."""
    stacks: Stacks | None = run.stacks
    totals = analysis.of(run).step_totals
    if stacks is None or run.environment.get("gpus") != [] or not totals.count:
        return
    if is_mostly_first(run):
        return  # samples don't tell its own from those of the others
    in_steps = [one for one in phase_trees(stacks) if one.scope is Scope.STEP]
    sampled_ns, samples = sum(one.time_ns for one in in_steps), sum(one.samples for one in in_steps)
    tree = next((one for one in in_steps if not one.path), None)
    heaviest = None if tree is None else _heaviest(run, tree)
    if tree is None or heaviest is None:
        return
    if _lines(run, heaviest) in map(run.line_of_phase, range(len(run.paths))):
        return  # a line that is a phase itself, at its edges
    of_ns, share = totals.duration.mean_ns, heaviest.time_ns / sampled_ns
    if (known := analysis.of(run).undisturbed) is not None:
        share = heaviest.time_ns / tree.time_ns * known.share(OUTSIDE)
    shares = share_range(share, samples)
    if known is not None:
        # Samples are of the elapsed time, and other lines may have been disturbed less.
        shares = shares[0], shares[1], 0.0
    likely_ns, high_ns, low_ns = (share / 2 * of_ns for share in shares)
    low_ns *= analysis.of(run).certain_share
    is_likely = likely_ns >= _LEAST_SAVED_SHARE * of_ns
    if not is_likely or (known is None and low_ns < EDIT_SHARE * of_ns):
        return
    yield twice_as_fast(
        _name(heaviest),
        _lines(run, heaviest),
        (likely_ns, high_ns, low_ns),
        of_ns,
        f"it takes {small_percent(shares[0], 1)} of the step, by {counted(samples, 'sample')}",
    )


def _heaviest(run: Run, tree: PhaseTree) -> FunctionSamples | None:
    """Return the function that the tree consists of; None where there is none. Outside of phases,
    lines that call a phase count where nothing else is as heavy: they are at its edges there."""
    if tree.samples < LEAST_SAMPLES or not tree.time_ns:
        return None
    edges = set() if tree.path else {f"{one.file}:{one.line}" for one in _lines_of_phases(run)}
    found = (next(iter(tree.functions(without)), None) for without in (edges, ()))
    heavy = (one for one in found if one and one.time_ns >= _LEAST_SHARE * tree.time_ns)
    return next(heavy, None)


def _lines_of_phases(run: Run) -> Iterator[SourceLine]:
    """Yield the lines that call phases, as far as they are known."""
    for noted in run.environment.get("phase_lines") or ():
        yield SourceLine(noted["file"], noted["line"], "")


def name_of_function(run: Run, function: FunctionSamples) -> str:
    """Return a function and its lines: "augment (train.py:44)"."""
    name = _name(function)
    return f"{name} ({_lines(run, function)})" if name else _lines(run, function)


def _name(function: FunctionSamples) -> str:
    """Return the name of a function; "" for the program itself."""
    name = function.line.function.rpartition("<locals>.")[2]
    return "" if name.startswith("<") else name


def _lines(run: Run, function: FunctionSamples) -> str:
    line = run.name_of_line(function.line)
    return line if function.last == function.line.line else f"{line}-{function.last}"
