# SPDX-License-Identifier: Apache-2.0
"""What is true of a training program, as its comments say, and what a run says of it.

    # steps: 6
    # phases: forward 6, loss 6          how often each phase happens inside steps
    # phases, unseen: loss 1             of these, how many are known not to be found
    # loader workers: 2                  of the DataLoader that feeds the steps, if any

and at the end of lines, perhaps with a reason after a colon:

    # waits                              would wait if the tensors were on a GPU
    # waits in torch/optim/lbfgs.py      in these files of libraries
    # waits, unseen                      is known not to be found
    # waits not                          is known to be found, and wrongly

All of it follows from the program, and from what PyTorch's documentation and source say of tensors
on a GPU. None of it is taken from a report.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.core.sync_kind import SyncKind

FOLDER = Path(__file__).parents[1] / "programs"
_MARK = re.compile(r"  # waits(?P<how>, unseen| not)?(?: in (?P<libraries>[^:]+))?(?::.*)?$")


class Truth(NamedTuple):
    """Lines are `FOLDER/FILE:NUMBER`, with the files of libraries in which they wait."""

    steps: int
    phases: Mapping[str, int]
    unseen_phases: Mapping[str, int]
    loader_workers: int | None
    """None: no DataLoader feeds the steps."""
    waits: Mapping[str, Sequence[str]]
    unseen: frozenset[str]
    """Lines of `waits` that are known not to be found."""
    misnamed: frozenset[str]
    """Lines that don't wait, and are known to be found."""


class Found(NamedTuple):
    steps: int
    phases: Mapping[str, int]
    waits: Mapping[str, frozenset[str]]


def truth_of(file: Path, *others: Path) -> Truth:
    """What stands in a program's file, and of lines that wait also in others of its package."""
    text = file.read_text()
    marks = {_key(path, i): mark for path in (file, *others) for i, mark in _marks_in(path)}
    waits = {key: mark for key, mark in marks.items() if mark["how"] != " not"}
    phases = _counts(_comment(text, "phases"))
    return Truth(
        steps=int(_comment(text, "steps")),
        phases=phases,
        unseen_phases=_counts(_comment(text, "phases, unseen")),
        loader_workers=int(_comment(text, "loader workers") or 0) if "data" in phases else None,
        waits={key: (mark["libraries"] or "").split(", ") for key, mark in waits.items()},
        unseen=frozenset(key for key, mark in waits.items() if mark["how"]),
        misnamed=frozenset(marks.keys() - waits.keys()),
    )


def truth_of_script(name: str) -> Truth:
    return truth_of(FOLDER / f"{name}.py")


def shared_waits() -> frozenset[str]:
    """Lines of `common.py` that wait in those programs whose parameters are there at the end."""
    return frozenset(_key(FOLDER / "common.py", i) for i, _ in _marks_in(FOLDER / "common.py"))


def found_in(run: Run) -> Found:
    phases = Counter[str]()
    for path, phase in run.phases_in(Scope.STEP).items():
        phases[path.rpartition("/")[2]] += phase.count
    waits = defaultdict[str, set[str]](set)
    for site in run.syncs.sites:
        if site.kind not in (SyncKind.UNPLACED, SyncKind.PRESUMED):
            waits[_key(Path(site.file), site.line)].add(site.library.file if site.library else "")
    return Found(
        run.step_totals.count, dict(phases), {key: frozenset(one) for key, one in waits.items()}
    )


def _key(path: Path, line: int) -> str:
    return f"{path.parent.name}/{path.name}:{line}"


def _marks_in(path: Path) -> list[tuple[int, re.Match[str]]]:
    lines = enumerate(path.read_text().splitlines(), 1)
    return [(i, mark) for i, line in lines if (mark := _MARK.search(line))]


def _comment(text: str, what: str) -> str:
    """The comment with this name; lines that are indented further belong to it."""
    found = re.search(rf"^# {what}: (.*(?:\n#  .*)*)$", text, re.M)
    return re.sub(r"\n#\s+", " ", found[1]) if found else ""


def _counts(items: str) -> dict[str, int]:
    pairs = (item.rpartition(" ") for item in items.split(", ") if item)
    return {name: int(count) for name, _, count in pairs}
