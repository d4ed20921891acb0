# SPDX-License-Identifier: Apache-2.0
"""A table of the programs of `tests/programs`: what is true of each, and what `run` says of it.

python -m tests.helpers.program_table [NAME ...]
"""

import sys
import tempfile
from pathlib import Path

from pyinstrument_gpu.core.run import Run
from tests.helpers.program_truth import Found, Truth, found_in, shared_waits
from tests.helpers.programs import Programs
from tests.helpers.training_programs import (
    ENDINGS,
    LIBRARIES,
    PACKAGED,
    RUN_RANKS,
    SCRIPTS,
    SUDDEN_ENDINGS,
    WAYS,
    run_in,
    run_ranks,
    truth,
)

COLUMNS = (
    *("program", "style", "steps: true, run, preview", "phases in steps"),
    *("lines that wait: true, found, false", "plain = run = preview"),
)


def row_of(name: str, programs: Programs, folder: Path) -> tuple[str, ...]:
    """Of a program, or of `endings: ` and how it ends."""
    script, _, ending = name.partition(": ")
    if script == "ddp":
        return _row_of_ranks(folder)
    plain = run_in(folder / f"{name}-plain", programs, script, ending=ending)
    found: dict[str, Found] = {}
    different = []
    for way, options in WAYS.items():
        file = folder / f"{name}-{way}.gpurun"
        written = ("-o", str(file), *options)
        outcome = run_in(folder / f"{name}-{way}", programs, script, *written, ending=ending)
        found[way] = found_in(Run.load(file))
        try:
            outcome.check_same(plain)
        except AssertionError:
            different.append(way)
    true = truth(script)
    if ending in SUDDEN_ENDINGS:
        # What the harvester had not written yet is lost, so the counts are not those of the loop.
        steps = "as far as written"
        return name, true.style, steps, steps, steps, _same(different)
    return _row(name, true, found, different)


def _row_of_ranks(folder: Path) -> tuple[str, ...]:
    plain = run_ranks(folder / "ddp-plain")
    found: dict[str, Found] = {}
    different = []
    for way, options in WAYS.items():
        outcome = run_ranks(folder / f"ddp-{way}", *RUN_RANKS, *options)
        found[way] = found_in(Run.load(outcome.files[0]))
        if (outcome.exit_code, outcome.output) != (plain.exit_code, plain.output):
            different.append(way)
    return _row("ddp", truth("ddp"), found, different)


def _row(name: str, true: Truth, found: dict[str, Found], different: list[str]) -> tuple[str, ...]:
    return (
        name,
        true.style,
        f"{true.steps}, {found['run'].steps}, {found['preview'].steps}",
        _phases(true, found),
        _waits(true, found["preview"]),
        _same(different),
    )


def _same(different: list[str]) -> str:
    return f"no: {', '.join(different)}" if different else "yes"


def _phases(true: Truth, found: dict[str, Found]) -> str:
    text = ", ".join(f"{name} {count}" for name, count in true.phases.items()) or "none"
    for way, one in found.items():
        for name in sorted(true.phases.keys() | one.phases.keys()):
            count = one.phases.get(name, 0)
            if count != true.phases.get(name, 0):
                text += f"; {way} says {name} {count}"
    return text


def _waits(true: Truth, found: Found) -> str:
    lines = found.waits.keys() - shared_waits()
    missed, false = true.waits.keys() - lines, lines - true.waits.keys()
    text = f"{len(true.waits)}, {len(lines) - len(false)}, {len(false)}"
    text += f"; not found: {', '.join(sorted(missed))}" if missed else ""
    return text + (f"; false: {', '.join(sorted(false))}" if false else "")


def _all() -> list[str]:
    endings = [f"endings: {ending}" for ending in (*ENDINGS, *SUDDEN_ENDINGS)]
    return [*SCRIPTS, PACKAGED, "ddp", *endings]


def main() -> None:
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    programs = Programs(*LIBRARIES)
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or _all():
            print(f"| {' | '.join(row_of(name, programs, Path(folder)))} |", flush=True)


if __name__ == "__main__":
    main()
