# SPDX-License-Identifier: Apache-2.0
"""Runs the examples and puts what they print into examples/README.md, and the demo into README.md.

Usage: python docs/make_examples.py [NAME...]    # of an example, or demo
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "examples" / "README.md"
README = ROOT / "README.md"
DEMO = ROOT / "examples" / "demo.py"
IN_TURN = ("before-1", "after-1", "after-2", "before-2", "before-3", "after-3")
"""The runs of `make demo`, of which two sides are compared."""
COMMANDS = {
    "language_model": ["examples/language_model.py"],
    "image_classifier": ["examples/image_classifier.py"],
    "ddp": ["-m", "torch.distributed.run", "--nproc-per-node", "2", "examples/ddp.py"],
}
"""What Python runs, in the folder of the project, by the name of the example."""
WIDTH = "120"
SIDES = ("before", "after")


def block(name: str) -> re.Pattern[str]:
    """Where in a page stands what an example prints: a fence behind a comment that says so."""
    return re.compile(rf"(<!-- {name} -->\n```text\n).*?(```\n)", re.DOTALL)


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


def command(folder: Path, *words: str, width: str = "80") -> str:
    """What `pyinstrument-gpu` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "pyinstrument_gpu", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": width},
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout if words[0] == "compare" else done.stderr


def demo_report(folder: Path, *options: str) -> str:
    """The report on the demo, as far as what is worth trying."""
    shutil.copy(DEMO, folder)
    text = command(folder, "run", "-o", "demo.gpurun", "--overwrite", "demo.py", *options)
    return text.strip().partition("\n\nOutside steps: ")[0] + "\n"


def demo_proof(folder: Path) -> str:
    """The verdict of the comparison of the demo with its mended twin."""
    for name in IN_TURN:
        fixed = ["--fixed"] if name.startswith("after") else []
        command(folder, "run", "-q", "-o", f"{name}.gpurun", "demo.py", *fixed)
    runs = {side: [f"{one}.gpurun" for one in IN_TURN if one.startswith(side)] for side in SIDES}
    text = command(folder, "compare", "--before", *runs["before"], "--after", *runs["after"])
    return next(part for part in text.split("\n\n") if " elapsed time " in part) + "\n"


def put(page: Path, name: str, text: str) -> None:
    """Put what is printed into its place in a page."""
    shown = page.read_text("utf-8")
    place = block(name).search(shown)
    assert place is not None, f"{page} has no place for {name}"
    page.write_text(shown[: place.end(1)] + text + shown[place.start(2) :], "utf-8")


def main() -> None:
    for name in sys.argv[1:] or ["demo", *COMMANDS]:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            if name == "demo":
                put(README, "demo prints", demo_report(folder))
                put(README, "demo proves", demo_proof(folder))
            else:
                put(PAGE, f"{name} prints", printed(name, folder))


if __name__ == "__main__":
    main()
