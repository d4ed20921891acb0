# SPDX-License-Identifier: Apache-2.0
"""Python programs in processes of their own that need not import torch first.

To start Python and to import torch takes seconds; to fork a process that has done so takes
milliseconds. `run_python` runs what `python ARGUMENTS` would run in a fork of such a server, from
its `__main__` to the end of the interpreter. The server has imported torch and not this package.
Where that makes a difference (the program must see torch be imported), `run_fresh_python` is right.
A program gets a new process too if its environment has variables that only a new one reads.

The server is `python -m tests.helpers.python_server`. A line of JSON asks for programs that run at
the same time, and is answered by their process numbers and, once all have ended, their wait
statuses.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib.util
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import types
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]

TORCH = ("torch", "torch._dynamo")
"""torch, and what the first step of an optimizer imports."""

# Only a program that hangs takes as long.
HANGS_AFTER_S = 600

# What the dynamic loader, the allocator, the interpreter or libraries read when they start.
_READ_AT_START = ("LD_", "GLIBC_", "MALLOC_", "OMP_", "MKL_", "ATEN_", "PYTHON", "LC_", "LANG")
_FOLLOWED = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")


class PythonServer:
    """The process that forks. Started by the first program.

    Args:
        modules: what it imports.
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
        if self._is_for_a_new_process(env):
            return run_fresh_python(*argv, environment=env, folder=folder, stdin=stdin)
        (done,) = self._run([env], argv, folder, stdin)
        return done

    def run_ranks(
        self,
        ranks: int,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        folder: Path = ROOT,
    ) -> list[subprocess.CompletedProcess[str]]:
        """Run the ranks of a job on this machine at the same time, as torchrun does: they meet at
        a store of the launcher. The server must have imported torch."""
        import torch.distributed as dist

        store = dist.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1", 0, is_master=True, wait_for_workers=False
        )
        common = {
            **(os.environ if environment is None else environment),
            **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_RESTART_COUNT": "0",
        }
        envs = [{**common, "RANK": str(i), "LOCAL_RANK": str(i)} for i in range(ranks)]
        assert not self._is_for_a_new_process(common)
        return self._run(envs, [str(argument) for argument in arguments], folder)

    def _is_for_a_new_process(self, environment: Mapping[str, str]) -> bool:
        if self._server is None:
            self._start()
        return any(
            environment.get(name) != self._environment.get(name)
            for name in environment.keys() | self._environment.keys()
            if name.startswith(_READ_AT_START) and name not in _FOLLOWED
        )

    def _run(
        self,
        environments: Sequence[Mapping[str, str]],
        argv: list[str],
        folder: Path,
        stdin: str = "",
    ) -> list[subprocess.CompletedProcess[str]]:
        with tempfile.TemporaryDirectory() as parent:
            requests = []
            for number, environment in enumerate(environments):
                files = Path(parent, str(number))
                files.mkdir()
                (files / "0").write_text(stdin)
                request = {"environment": dict(environment), "files": str(files)}
                requests.append({"argv": argv, "folder": str(folder), **request})
            codes = map(os.waitstatus_to_exitcode, self._ask(requests))
            command = [sys.executable, *argv]
            return [
                subprocess.CompletedProcess(
                    command, code, *(Path(parent, str(i), name).read_text() for name in ("1", "2"))
                )
                for i, code in enumerate(codes)
            ]

    def _start(self) -> None:
        import pytest  # not in the server

        for module in self._modules:
            if importlib.util.find_spec(package := module.partition(".")[0]) is None:
                pytest.skip(f"{package} is not installed")
        self._environment = dict(os.environ)
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.python_server", *self._modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={
                name: value
                for name, value in os.environ.items()
                if name not in ("PYTHONPATH", "PYTHONSAFEPATH")
            },
        )
        atexit.register(self.close)

    def _ask(self, requests: Sequence[Mapping[str, Any]]) -> list[int]:
        assert self._server is not None
        stdin, stdout = self._server.stdin, self._server.stdout
        assert stdin is not None and stdout is not None
        print(json.dumps(requests), file=stdin, flush=True)
        pids = json.loads(stdout.readline())
        if not select.select([stdout], [], [], HANGS_AFTER_S)[0]:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            stdout.readline()
            raise TimeoutError(f"after {HANGS_AFTER_S} s still running: {requests}")
        return list(json.loads(stdout.readline()))

    def close(self) -> None:
        if self._server is None:
            return
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait()
        self._server = None


# One for each process that runs tests.
_server = PythonServer(*TORCH)
run_python = _server.run
run_ranks = _server.run_ranks


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


def _serve() -> dict[str, Any]:
    """Forks for each request. Returns in the child, with its request."""
    before = set(sys.modules)
    atexit.register(lambda: _leave_out(before, imported))  # the first, and so called as the last
    for module in sys.argv[1:]:
        importlib.import_module(module)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    imported = dict(sys.modules)
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False
    gc.freeze()  # children neither look at what is here nor copy its pages
    answers: IO[str] = os.fdopen(os.dup(1), "w")
    while line := sys.stdin.readline():
        pids = []
        for request in json.loads(line):
            pids.append(os.fork())
            if pids[-1] == 0:
                return dict(request)
        print(pids, file=answers, flush=True)
        print([os.waitpid(pid, 0)[1] for pid in pids], file=answers, flush=True)
    os._exit(0)


def _leave_out(before: set[str], imported: dict[str, types.ModuleType]) -> None:
    """Have the end of the interpreter not take apart what the server has imported. It takes ten
    times as long as a short program, most of it copying pages."""
    for name in imported.keys() - before:
        if sys.modules.get(name) is imported[name]:
            del sys.modules[name]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(imported))


def _at_end(function: str, argument: int | None) -> None:
    """Have a function of C be called behind the end of the interpreter."""
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(libc[function], ctypes.c_void_p(argument), None)


def _run(argv: Sequence[str]) -> None:
    """Run what `python ARGV` runs, with `sys` and `__main__` as that lays them out."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    sys.orig_argv = [sys.executable, *argv]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    added = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:1] = ["", *added]
    if argv[0] == "-m":
        sys.argv = ["-m", *argv[2:]]
        sys.path[0] = os.getcwd()
        if first_of_ours := sys.modules.get("pyinstrument_gpu.patching.own_imports"):
            importlib.reload(first_of_ours)  # what it notes is of this process, and from now on
        runpy._run_module_as_main(argv[1])  # type: ignore[attr-defined]
        return
    if argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        code = compile(argv[1], "<string>", "exec")
    else:
        sys.argv = list(argv)
        sys.path[0] = str(Path(argv[0]).resolve().parent)
        main.__file__ = argv[0]
        code = compile(Path(argv[0]).read_bytes(), argv[0], "exec")
    exec(code, main.__dict__)


def _main() -> None:
    request = _serve()
    files = Path(request["files"])
    os.dup2(os.open(files / "0", os.O_RDONLY), 0)
    for descriptor in (1, 2):
        os.dup2(
            os.open(files / str(descriptor), os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor
        )
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    # What libraries of the server do at the end of a process comes behind this, and not at all.
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)
    _at_end("fflush", None)
    try:
        _run(request["argv"])
    except SystemExit:
        raise
    except BaseException as error:
        # As the interpreter would, without the frames of this module.
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_globals is globals():
            traceback = traceback.tb_next
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        if isinstance(error, KeyboardInterrupt):
            _at_end("raise", signal.SIGINT)
        sys.exit(1)


if __name__ == "__main__":
    _main()
