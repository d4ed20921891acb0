# SPDX-License-Identifier: Apache-2.0
"""What a phase costs in instructions, and what it did when that was last written down.

`python -m tests.helpers.hot_path` writes it down, for the compiler that has built the programs.
"""

import json
import subprocess
from pathlib import Path

from tests.helpers.callgrind import instructions, native_program

COUNTS = Path(__file__).with_name("hot_path_instructions.json")
WRITE = "python -m tests.helpers.hot_path"
LOOPS = ("not_recording", "recording", "nested", "device", "device_shared", "nvtx")

_ROUNDS = 900


def build() -> str:
    """The compiler, its version, the architecture and the flags: what counts depend on."""
    program = native_program("test_hot_path_cost")
    return subprocess.run(
        [program, "--build"], capture_output=True, text=True, check=True
    ).stdout.strip()


def count() -> dict[str, float]:
    """Instructions of one round of each loop, less those of the empty loop."""
    program = native_program("test_hot_path_cost")
    stub = {"PYINSTRUMENT_GPU_LIBCUDA": str(native_program("stub_cuda.so"))}

    empty, *counts = (
        instructions(program, loop, _ROUNDS, environment=stub) for loop in ("empty", *LOOPS)
    )
    return {
        loop: round((each - empty) / _ROUNDS, 2) for loop, each in zip(LOOPS, counts, strict=True)
    }


def written() -> dict[str, dict[str, float]]:
    """The counts that were written down, by build."""
    counts: dict[str, dict[str, float]] = json.loads(COUNTS.read_text())
    return counts


def changed(before: dict[str, float], now: dict[str, float], by: float) -> dict[str, str]:
    """The loops whose instructions are more than so large a share above or below, each in words.

    Below too: while counts that are too high are written down, the next growth hides in them.
    """
    return {
        loop: f"{before[loop]:g} instructions before, {now[loop]:g} now"
        for loop in before
        if abs(now[loop] - before[loop]) > before[loop] * by
    }


def main() -> None:
    counts = {**(written() if COUNTS.exists() else {}), build(): count()}
    COUNTS.write_text(json.dumps(dict(sorted(counts.items())), indent=1) + "\n")
    print(json.dumps(counts[build()], indent=1))


if __name__ == "__main__":
    main()
