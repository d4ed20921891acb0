# SPDX-License-Identifier: Apache-2.0
"""Makes the page, the picture and README's quotation of a file of results.

`python -m benchmarks.publish benchmarks/results/DATE-MACHINE.json`
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.board import Board
from benchmarks.page import markdown
from benchmarks.plot import draw
from benchmarks.quote import quoted
from pyinstrument_gpu.errors import MissingDependencyError

ROOT = Path(__file__).parents[1]


def read(results: Path) -> Board:
    """The results of a file."""
    return Board.from_json(json.loads(results.read_text()))


def publish(results: Path, readme: Path) -> None:
    """Writes the page and the picture beside the results, and what the README quotes of them.

    Raises:
        MissingDependencyError: matplotlib is not installed; nothing has been written then.
    """
    board = read(results)
    picture = results.with_suffix(".png")
    draw(board, picture)
    results.with_suffix(".md").write_text(markdown(board, picture.name))
    path = results.resolve().relative_to(readme.resolve().parent).as_posix()
    readme.write_text(quoted(readme.read_text(), board, path))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.publish", description=__doc__)
    parser.add_argument("results", type=Path, metavar="RESULTS.json")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md", metavar="FILE")
    options = parser.parse_args(arguments)
    try:
        publish(options.results, options.readme)
    except MissingDependencyError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
