# SPDX-License-Identifier: Apache-2.0
"""Whether `try` finds the best edit of programs of which it is known, and nothing in their healthy
twins: those of `benchmarks.causes` whose cause an edit takes away.

For each program: the winners, whether the best edit is among them, whether the interval of the best
winner holds a fresh measurement in pairs, and whether the program's folder is as it was. With
`--busy` two loops compute beside them, and `--twins` tries the healthy twins alone.

    python -m benchmarks.tries --minutes 10 --only slow_collate,threads
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyinstrument_gpu as pig
from benchmarks.causes.runner import busy_loops
from benchmarks.causes.scoring import unmarked
from benchmarks.causes.table import PROGRAMS
from benchmarks.machine import describe_machine
from pyinstrument_gpu.trial.child import MadeEdit
from pyinstrument_gpu.trial.search import Candidate
from pyinstrument_gpu.trial.trials import TrialRunner
from pyinstrument_gpu.trial.tries import Tries, TriesResult
from pyinstrument_gpu.trial.working_copy import WorkingCopy

BEST = {
    "slow_transform": "loader",
    "slow_collate": "loader",
    "file_per_item": "loader",
    "cold_reads": "loader",
    "too_few_workers": "loader",
    "too_many_workers": "loader",
    "workers_in_memory": "loader",
    "workers_each_epoch": "loader",
    "zip_read": "loader",
    "parse_text": "loader",
    "sleep_retry": "loader",
    "list_to_tensor": "loader",
    "tokenizer": "loader",
    "optimizer_loop": "optimizer",
    "threads": "threads",
    "cpu_limit": "threads",
    "garbage": "gc",
    "anomaly": "modes",
    "python_rnn": "compile",
}
"""By program, the group of the edit that gains most."""
_PAIRS = 6
_SCALE = 60
"""Programs train for longer than any trial."""


@dataclass(frozen=True)
class Row:
    """A program that was tried.

    Attributes:
        winners: what was found, the best first.
        low, change, high: of the best one.
        fresh: its change in pairs of runs made after all.
        is_unchanged: whether the program's folder is as it was.
    """

    name: str
    expected: str
    winners: tuple[str, ...]
    groups: tuple[str, ...]
    low: float | None
    change: float | None
    high: float | None
    fresh: float | None
    is_unchanged: bool
    seconds: float

    @property
    def is_found(self) -> bool:
        return self.expected in self.groups

    @property
    def holds(self) -> bool | None:
        if self.fresh is None or self.low is None or self.high is None:
            return None
        return self.low <= self.fresh <= self.high


@contextlib.contextmanager
def _program(name: str) -> Iterator[Path]:
    """A folder with the program, which is the working directory."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "train.py").write_text(unmarked(PROGRAMS / f"{name}.py"))
        shutil.copy(PROGRAMS / "setting.py", folder)
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


def _digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    texts = (f"{path.relative_to(folder)} {path.read_bytes()!r}" for path in files)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def row_of(name: str, minutes: float, is_twin: bool, show: bool) -> Row:
    with _program(name) as folder, tempfile.TemporaryDirectory() as place:
        before = _digest(folder)
        copy = WorkingCopy(folder, Path(place).resolve())
        words = ["train.py", *(["--fixed"] if is_twin else [])]
        runner = TrialRunner(words, Path(place).resolve(), copy)
        expected = BEST[name]
        result = Tries(runner, copy, True, _progress if show else _quiet).run(60 * minutes)
        winners = result.outcome.winners
        best = result.outcome.confirmed[winners[0],] if winners else None
        fresh = None if not winners or is_twin else _fresh(runner, result, winners[0])
        return Row(
            name,
            expected,
            tuple(one.text for one in winners),
            tuple(one.edit.group for one in winners),
            None if best is None else best.low,
            None if best is None else best.share,
            None if best is None else best.high,
            fresh,
            _digest(folder) == before,
            result.outcome.duration_s,
        )


def _fresh(runner: TrialRunner, result: TriesResult, winner: Candidate) -> float:
    """The change that pairs of runs made after all have."""
    ratios = []
    for number in range(_PAIRS):
        sides: list[tuple[MadeEdit, ...]] = [(), (winner.made,)]
        in_turn = sides if number % 2 else sides[::-1]
        times = {side: runner.trial(side, result.plan).step_ns for side in in_turn}
        ratios.append(math.log(times[sides[1]] / times[sides[0]]))
    return math.expm1(math.fsum(ratios) / len(ratios))


def _progress(what: str, left_s: float) -> None:
    print(f"    {what}, {left_s:.0f} s left", flush=True)


def _quiet(what: str, left_s: float) -> None:
    pass


def _line(one: Row) -> str:
    change = "-" if one.change is None else f"{one.change:+.1%} ({one.low:+.0%} to {one.high:+.0%})"
    fresh = "-" if one.fresh is None else f"{one.fresh:+.1%}"
    found = "yes" if one.is_found else "no"
    return (
        f"{one.name:20} {one.expected:10} {found:5} {change:26} {fresh:8} {one.seconds:5.0f} s  "
        f"{'' if one.is_unchanged else 'FILES CHANGED '}{'; '.join(one.winners)}"
    )


def _total(rows: Sequence[Row], are_twins: bool) -> str:
    changed = sum(not one.is_unchanged for one in rows)
    if are_twins:
        false = sum(bool(one.winners) for one in rows)
        return f"winners in {false} of {len(rows)} healthy programs; files changed in {changed}"
    found, held = sum(one.is_found for one in rows), [one.holds for one in rows]
    return (
        f"the best edit is among the winners in {found} of {len(rows)}; the interval holds a fresh "
        f"measurement in {held.count(True)} of {len(held) - held.count(None)}; files changed in "
        f"{changed}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--only", metavar="NAMES", help="separated by commas")
    parser.add_argument("--minutes", type=float, default=10.0, help="for each program")
    parser.add_argument("--twins", action="store_true", help="the healthy twins")
    parser.add_argument("--busy", action="store_true", help="two busy loops beside the programs")
    parser.add_argument("--progress", action="store_true", help="what is being tried")
    parser.add_argument("--results", type=Path, metavar="FILE", help="write all as JSON")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(BEST)
    if unknown := set(names) - set(BEST):
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    os.environ["CAUSES_SCALE"] = str(_SCALE)
    os.environ["PYTHONPATH"] = str(Path(pig.__file__).parents[1])
    print(f"{'program':20} {'expected':10} found {'best winner':26} {'fresh':8}   took  winners")
    rows: list[Row] = []
    with busy_loops(2) if options.busy else contextlib.nullcontext():
        for name in names:
            try:
                rows.append(one := row_of(name, options.minutes, options.twins, options.progress))
            except pig.TrialError as error:
                print(f"{name:20} failed: {error}")
                continue
            print(_line(one), flush=True)
            if options.results is not None:  # each result as it is had
                found = {"machine": describe_machine(), "busy": options.busy}
                found |= {"twins": options.twins, "minutes": options.minutes}
                text = json.dumps({**found, "rows": [asdict(row) for row in rows]}, indent=1)
                options.results.write_text(text + "\n")
    if rows:
        print(_total(rows, options.twins))
    if len(rows) < len(names):
        sys.exit(1)


if __name__ == "__main__":
    main()
