# SPDX-License-Identifier: Apache-2.0
"""Python programs in processes of their own that need not import torch first.

To start Python and to import torch takes seconds; to fork a process that has done so takes
milliseconds. `run_python` runs what `python ARGUMENTS` would run in a fork of such a server, from
its `__main__` to the end of the interpreter. The server has imported torch and nothing of ours.
Where that makes a difference (the program must see torch be imported), `run_fresh_python` is right.
A program gets a new process too if its environment has variables that only a new one reads.

The server is `python -m tests.helpers.python_server`. A line of JSON asks for a program, and is
answered by the child's process number and, once it has ended, its wait status.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]

# Only a program that hangs takes as long.
HANGS_AFTER_S = 600

# What the dynamic loader, the allocator, the interpreter or libraries read when they start.
_READ_AT_START = ("LD_", "GLIBC_", "MALLOC_", "OMP_", "MKL_", "ATEN_", "PYTHON", "LC_", "LANG")
_FOLLOWED = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")


class PythonServer:
    """The process that forks. Started by the first program.

    Args:
        modules: what it imports beside torch, where that takes long.
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._server: subprocess.Popen[str] | None = None
        self._environment: dict[str, str] = {}

    def run(
        self,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        folder: Path = ROOT,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run `python ARGUMENTS`: options are `-c SOURCE` and `-m MODULE`.

        Args:
            environment: all of the program's; this process's where None.
            folder: its working directory.
        """
        argv = [str(argument) for argument in arguments]
        env = dict(os.environ if environment is None else environment)
        if self._server is None:
            self._start()
        if any(
            env.get(name) != self._environment.get(name)
            for name in env.keys() | self._environment.keys()
            if name.startswith(_READ_AT_START) and name not in _FOLLOWED
        ):
            return run_fresh_python(*argv, environment=env, folder=folder, stdin=stdin)
        with tempfile.TemporaryDirectory() as files:
            Path(files, "0").write_text(stdin)
            request = {"argv": argv, "environment": env, "folder": str(folder), "files": files}
            status = self._ask(json.dumps(request))
            return subprocess.CompletedProcess(
                [sys.executable, *argv],
                os.waitstatus_to_exitcode(status),
                *(Path(files, name).read_text() for name in ("1", "2")),
            )

    def _start(self) -> None:
        self._environment = dict(os.environ)
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.python_server", *self._modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
        atexit.register(self.close)

    def _ask(self, request: str) -> int:
        assert self._server is not None
        stdin, stdout = self._server.stdin, self._server.stdout
        assert stdin is not None and stdout is not None
        print(request, file=stdin, flush=True)
        pid = int(stdout.readline())
        if not select.select([stdout], [], [], HANGS_AFTER_S)[0]:
            os.kill(pid, signal.SIGKILL)
            stdout.readline()
            raise TimeoutError(f"after {HANGS_AFTER_S} s still running: {request}")
        return int(stdout.readline())

    def close(self) -> None:
        if self._server is None:
            return
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait()
        self._server = None


# One for each process that runs tests.
_server = PythonServer()
run_python = _server.run


def run_fresh_python(
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    folder: Path = ROOT,
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    """The same by a new process."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment,
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER_S,
    )


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
        print(pid, file=answers, flush=True)
        print(os.waitpid(pid, 0)[1], file=answers, flush=True)
    os._exit(0)


def _code_of(argv: Sequence[str]) -> types.CodeType:
    """The program's, once `sys` and `__main__` are laid out as `python ARGV` has them."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    sys.orig_argv = [sys.executable, *argv]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    added = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:1] = ["", *added]
    if argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        return compile(argv[1], "<string>", "exec")
    if argv[0] == "-m":
        sys.argv = list(argv[1:])  # of which runpy replaces the first
        sys.path[0] = os.getcwd()
        source = f"import runpy; runpy.run_module({argv[1]!r}, run_name='__main__', alter_sys=True)"
        return compile(source, "<string>", "exec")
    sys.argv = list(argv)
    sys.path[0] = str(Path(argv[0]).resolve().parent)
    main.__file__ = argv[0]
    return compile(Path(argv[0]).read_bytes(), argv[0], "exec")


def _main() -> None:
    request = _serve()
    files = Path(str(request["files"]))
    argv, environment = request["argv"], request["environment"]
    assert isinstance(argv, list) and isinstance(environment, dict)
    os.dup2(os.open(files / "0", os.O_RDONLY), 0)
    for descriptor in (1, 2):
        os.dup2(
            os.open(files / str(descriptor), os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor
        )
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(str(request["folder"]))
    code = _code_of(argv)
    try:
        exec(code, sys.modules["__main__"].__dict__)
    except Exception as error:
        # As the interpreter would, without the frame of this function.
        traceback = error.__traceback__
        assert traceback is not None
        error.__traceback__ = traceback.tb_next
        sys.excepthook(type(error), error, traceback.tb_next)
        sys.exit(1)


if __name__ == "__main__":
    _main()
