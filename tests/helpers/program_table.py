# SPDX-License-Identifier: Apache-2.0
"""A table of the programs of `tests/programs`: what is true of each, and what `run` says of it.

python -m tests.helpers.program_table [NAME ...]
"""

import sys
import tempfile
from pathlib import Path

from pyinstrument_gpu.run import Run
from tests.helpers.program_truth import Found, Truth, found_in, shared_waits
from tests.helpers.programs import Programs
from tests.helpers.training_programs import LIBRARIES, PACKAGED, SCRIPTS, WAYS, run_in, truth

COLUMNS = (
    *("program", "style", "steps: true, run, preview", "phases in steps"),
    *("lines that wait: true, found, false", "plain = run = preview"),
)


def row_of(name: str, programs: Programs, folder: Path) -> tuple[str, ...]:
    true = truth(name)
    plain = run_in(folder / f"{name}-plain", programs, name)
    found: dict[str, Found] = {}
    different = ""
    for way, options in WAYS.items():
        file = folder / f"{name}-{way}.gpurun"
        outcome = run_in(folder / f"{name}-{way}", programs, name, "-o", str(file), *options)
        found[way] = found_in(Run.load(file))
        try:
            outcome.check_same(plain)
        except AssertionError:
            different += f" {way} differs"
    return (
        name,
        true.style,
        f"{true.steps}, {found['run'].steps}, {found['preview'].steps}",
        _phases(true, found),
        _waits(true, found["preview"]),
        different.strip() or "yes",
    )


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


def main() -> None:
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    programs = Programs(*LIBRARIES)
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or [*SCRIPTS, PACKAGED]:
            print(f"| {' | '.join(row_of(name, programs, Path(folder)))} |", flush=True)
    programs.close()


if __name__ == "__main__":
    main()
