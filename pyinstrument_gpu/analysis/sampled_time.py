# SPDX-License-Identifier: Apache-2.0
"""The part of a phase's time in which the main thread was in certain functions, by samples of its
stack. A share of samples holds however busy the machine is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyinstrument_gpu.core.record import SourceLine
from pyinstrument_gpu.core.statistics import Scope

if TYPE_CHECKING:  # what runs hold of aspects is found by their table
    from pyinstrument_gpu.core.run import Run

LEAST_SAMPLES = 20
"""Fewer say nothing of a phase."""
_LIBRARIES = ("site-packages", "dist-packages", "/torch/")
_DEVIATIONS = 2
"""So many standard deviations a share may be off, as samples are few."""
_WAITS_FILE = "torch/utils/data/dataloader.py"
_WAITS = ("._try_get_data", "._get_data", "._next_data")


def share_range(share: float, samples: int) -> tuple[float, float, float]:
    """Return a share of so many samples, the likely one, the most and the least that it may be."""
    doubt = _DEVIATIONS * (share * (1 - share) / samples) ** 0.5
    return share, min(1.0, share + doubt), max(0.0, share - doubt)


def nodes_of_phase(stacks: Any, phase: str) -> Iterator[tuple[int, int | None, Any]]:
    """Yield the lines below a phase in steps, phases inside it left out, the outer ones first: the
    number of each, that of the line around it or None, and its node."""
    numbers: dict[int, int | None] = {}
    for number, node in enumerate(() if stacks is None else stacks.nodes):
        if node.scope is not None:
            is_in_steps = node.scope is Scope.STEP and node.place >= 0
            if is_in_steps and stacks.paths[node.place] == phase:
                numbers[number] = None
        elif node.parent in numbers:
            yield number, numbers[node.parent], node
            numbers[number] = number


def sampled_range(
    run: Run, phase: str, is_meant: Callable[[str, str], bool]
) -> tuple[float, float, float] | None:
    """Return the part of the time of a phase in steps, phases inside it left out, in which a
    function was at work, itself or by what it calls: the likely one, the most and the least that it
    may be; 0 for each where no sample has it. None where samples are too few.

    Args:
        phase: its path.
        is_meant: whether it is one of the functions; gets its file and its name.
    """
    stacks: Any = run.stacks
    are_inside: dict[int | None, bool] = {None: False}
    time_ns = {True: 0, False: 0}
    samples = 0
    for number, around, node in nodes_of_phase(stacks, phase):
        function = stacks.functions[stacks.places[node.place][0]]
        are_inside[number] = are_inside[around] or is_meant(*function)
        time_ns[are_inside[number]] += node.time_ns
        samples += node.samples
    whole_ns = sum(time_ns.values())
    if not whole_ns or samples < LEAST_SAMPLES:
        return None
    return share_range(time_ns[True] / whole_ns, samples)


def line_that_calls(run: Run, is_meant: Callable[[str, str], bool]) -> SourceLine | None:
    """Return the line of the program that calls a function in steps, itself or by a library; of
    several the one with most samples. None where no sample has it."""
    stacks: Any = run.stacks
    times_ns: Counter[SourceLine] = Counter()
    lines: dict[int, SourceLine | None] = {}
    callers: dict[int, SourceLine | None] = {}
    for number, node in enumerate(() if stacks is None else stacks.nodes):
        if node.scope is not None:
            continue
        function, line = stacks.places[node.place]
        file, name = stacks.functions[function]
        around = lines.get(node.parent)
        caller = around if is_meant(file, name) else callers.get(node.parent)
        callers[number] = caller
        if caller is not None:
            times_ns[caller] += 1 + node.time_ns
        is_of_library = any(part in file for part in _LIBRARIES)
        lines[number] = around if is_of_library else SourceLine(file, line, name)
    return times_ns.most_common(1)[0][0] if times_ns else None


def _sampled_share(run: Run, phase: str, is_meant: Callable[[str, str], bool]) -> float | None:
    found = sampled_range(run, phase, is_meant)
    return None if found is None else found[0]


def waiting_share(run: Run, phase: str) -> float | None:
    """Return the part of the time in the phase in which the loop waits for a loader's worker; the
    rest is its own work, such as that of a generator around the loader."""
    return _sampled_share(
        run, phase, lambda file, name: file.endswith(_WAITS_FILE) and name.endswith(_WAITS)
    )
