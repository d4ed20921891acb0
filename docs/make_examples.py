# SPDX-License-Identifier: Apache-2.0
"""Runs the examples and puts what they print into examples/README.md.

Usage: python docs/make_examples.py [NAME...]
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "examples" / "README.md"
COMMANDS = {
    "digits": ["examples/digits.py"],
    "language_model": ["examples/language_model.py"],
    "image_classifier": ["examples/image_classifier.py"],
    "ddp": ["-m", "torch.distributed.run", "--nproc-per-node", "2", "examples/ddp.py"],
}
"""What Python runs, in the folder of the project, by the name of the example."""
WIDTH = "120"


def block(name: str) -> re.Pattern[str]:
    """Where in the page stands what an example prints: a fence behind a comment with its name."""
    return re.compile(rf"(<!-- {name} prints -->\n```text\n).*?(```\n)", re.DOTALL)


def printed(name: str, folder: Path, *options: str) -> str:
    """What an example prints, run with these options in addition; its run file goes into a
    folder."""
    script, *rest = COMMANDS[name][::-1]
    command = [sys.executable, *rest[::-1], str(ROOT / script), *options]
    command += ["--output", str(folder / f"{name}.gpurun")]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": WIDTH},
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    text = done.stdout.replace(sys.executable, "python").replace(str(ROOT) + "/", "")
    # The heading has as much of it as there is room for.
    return re.sub(r" --output [^,\n]*(?=,)", "", text).replace(f"{folder}/", "")


def main() -> None:
    page = PAGE.read_text("utf-8")
    for name in sys.argv[1:] or list(COMMANDS)[1:]:  # the README has only the end of the first
        with tempfile.TemporaryDirectory() as folder:
            text = printed(name, Path(folder))
        place = block(name).search(page)
        assert place is not None, f"{PAGE} has no place for {name}"
        page = page[: place.end(1)] + text + page[place.start(2) :]
    PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
