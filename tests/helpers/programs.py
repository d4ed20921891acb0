# SPDX-License-Identifier: Apache-2.0
"""Programs that use torch, each in a process of its own that finds torch loaded.

Importing torch takes seconds, so one process imports it and forks for each program. The child runs
the program from its `__main__` to the end of the interpreter, as `python` would.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

ROOT = Path(__file__).parents[2]


class Done(NamedTuple):
    exit_code: int  # minus the signal's number, as with subprocess
    output: str
    errors: str


class Programs:
    """The process that forks.

    Args:
        modules: what else it imports before the programs run, where that takes long.
    """

    def __init__(self, *modules: str) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.programs", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            # Programs find what lies in their working directory, also where these tests may not.
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": ""},
        )

    def run(
        self,
        program: Path | str,
        *,
        options: Sequence[str] | None = None,
        is_module: bool = False,
        environment: Mapping[str, str] | None = None,
        working_directory: Path = ROOT,
    ) -> Done:
        """Run a script.

        Args:
            options: those of `pyinstrument-gpu run`, or None to run it without.
            is_module: whether the program is the name of a module, as after `python -m`.
        """
        assert self._server.stdin is not None and self._server.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            request = {
                "program": str(program),
                "options": options,
                "is_module": is_module,
                "folder": folder,
                "environment": dict(environment or {}),
                "working_directory": str(working_directory),
            }
            print(json.dumps(request), file=self._server.stdin, flush=True)
            code = os.waitstatus_to_exitcode(int(self._server.stdout.readline()))
            return Done(code, *(Path(folder, name).read_text() for name in ("output", "errors")))

    def close(self) -> None:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait()


def _serve() -> dict[str, object]:
    """Forks for each request. Returns in the child, with its request."""
    import torch
    import torch._dynamo  # as the first step of an optimizer does

    for module in sys.argv[1:]:
        importlib.import_module(module)
    torch.set_num_threads(1)
    gc.freeze()  # children neither look at what is here nor copy its pages
    answers: IO[str] = os.fdopen(os.dup(1), "w")
    while line := sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            return dict(json.loads(line))
        print(os.waitpid(pid, 0)[1], file=answers, flush=True)
    os._exit(0)


def _redirect(descriptor: int, path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, descriptor)
    os.close(file)


def _main() -> None:
    request = _serve()
    folder, program, options = Path(str(request["folder"])), request["program"], request["options"]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _redirect(1, folder / "output")
    _redirect(2, folder / "errors")
    environment = request["environment"]
    assert isinstance(environment, dict)
    os.environ.update(environment)
    os.chdir(str(request["working_directory"]))
    if isinstance(options, list):
        from pyinstrument_gpu.cli import main

        module = ["-m"] if request["is_module"] else []
        main(["run", *options, *module, str(program)], prog_name="pyinstrument-gpu")
    else:
        from pyinstrument_gpu.launch.program import Program

        loaded = Program(str(program), is_module=bool(request["is_module"]))
        loaded.load()
        loaded.run()


if __name__ == "__main__":
    _main()
