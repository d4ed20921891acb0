# SPDX-License-Identifier: Apache-2.0
"""Runs a Python program in this process, as `python train.py` or `python -m train` would.

The program finds the same arguments, `__main__` and import path, and so does `multiprocessing`.
Uncaught exceptions and Ctrl-C end it in the same way. Only `sys.orig_argv` is that of this process.
"""

from __future__ import annotations

import ctypes
import os
import pkgutil
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, NoReturn

from pyinstrument_gpu.patching import own_imports
from pyinstrument_gpu.patching.hidden_frames import without_our_frames

_PROBED = 500
_PROBE = compile(
    """
def depth(calls):
    try:
        return depth(calls + 1)
    except RecursionError:
        return calls
calls = depth(1)
""",
    "<probe>",
    "exec",
)
"""At the top of a program its `calls` are one less than the limit."""


class Program:
    """A program, to be loaded and run once: a script, a folder or archive with a `__main__.py`, or
    a module by its name."""

    def __init__(self, target: str, arguments: Sequence[str] = (), is_module: bool = False) -> None:
        self._target = target
        self._arguments = list(arguments)
        self._is_module = is_module
        self.was_interrupted = False
        """Whether Ctrl-C ended the program."""

    @property
    def name(self) -> str:
        """The name of the program: the script's without suffix, or the module's."""
        if self._is_module:
            return self._target
        return os.path.splitext(os.path.basename(os.path.abspath(self._target)))[0] or "program"

    def load(self) -> None:
        """Compile the program and set `__main__`, `sys.argv` and the import path for it.

        Of a module, this imports the packages that contain it.

        Raises:
            SystemExit: there is no such program. The message that `python` gives has been printed.
            BaseException: the program can't be compiled, or a package failed; printed as by `run`.
        """
        self._main = ModuleType("__main__")
        self._main.__dict__.update(__builtins__=__builtins__, __annotations__={})
        self._launcher = sys.modules["__main__"]  # its functions are still running
        sys.modules["__main__"] = self._main
        with self._printed_if_uncaught():
            self._code = self._load()

    def run(self, at_end: Callable[[], None] = lambda: None) -> None:
        """Run the program, which must have been loaded. `at_end` is called as its code is over,
        before an uncaught exception is printed and before the functions of `atexit`.

        It raises what the program raises, `SystemExit` included, and the process should end then.
        An uncaught exception has been printed already, without frames of this package, and Python
        does not print it again.
        """
        # Calls nest as deeply as without our frames. How these count depends on Python's version.
        limit, found = sys.getrecursionlimit(), {"calls": 0}
        sys.setrecursionlimit(_PROBED)
        try:
            exec(_PROBE, found)
        finally:
            sys.setrecursionlimit(limit)
        raised = limit + _PROBED - 1 - found["calls"]
        sys.setrecursionlimit(raised)
        with self._printed_if_uncaught():
            try:
                exec(self._code, self._main.__dict__)
            finally:
                if sys.getrecursionlimit() == raised:  # the program has left it
                    sys.setrecursionlimit(limit)
                at_end()

    @contextmanager
    def _printed_if_uncaught(self) -> Iterator[None]:
        try:
            yield
        except SystemExit:
            raise
        except BaseException as error:
            self.was_interrupted = isinstance(error, KeyboardInterrupt)
            _print_uncaught(error)
            if self.was_interrupted:
                note_interrupt()
            raise

    def _load(self) -> CodeType:
        sys.argv = [self._target, *self._arguments]
        names = self._main.__dict__
        code: CodeType
        if self._is_module:
            _set_first_path(os.getcwd())
            sys.argv[0] = "-m"  # while it is being found
            try:
                # No public function has Python's own messages.
                _, spec, code = runpy._get_module_details(self._target, _NotFound)  # type: ignore[attr-defined]
            except _NotFound as error:
                _fail(str(error))
            sys.argv[0] = spec.origin
            names.update(__spec__=spec, __package__=spec.parent, __file__=spec.origin)
            names.update(__cached__=spec.cached, __loader__=spec.loader)
            return code
        importer: Any = pkgutil.get_importer(self._target)
        if importer is not None:
            folder = os.path.abspath(self._target)
            _set_first_path(folder)
            spec = importer.find_spec("__main__")
            if spec is None:
                _fail(f"can't find '__main__' module in {folder!r}")
            names.update(__spec__=spec, __package__="", __file__=spec.origin)
            names.update(__loader__=spec.loader)
            code = spec.loader.get_code(spec.name)
            return code
        path = os.path.join(os.getcwd(), self._target)  # as Python does it: a ".." stays
        _set_first_path(os.path.dirname(os.path.realpath(path)))
        loader = SourceFileLoader("__main__", path)
        names.update(__file__=path, __loader__=loader, __package__=None, __cached__=None)
        try:
            source = loader.get_data(path)
        except OSError as error:
            _fail(f"can't open file {path!r}: [Errno {error.errno}] {error.strerror}", 2)
        return compile(source, path, "exec", dont_inherit=True)


class _NotFound(Exception):
    """Raised if there is no such module, or if it can't be run."""


def _fail(message: str, code: int = 1) -> NoReturn:
    print(f"{sys.executable}: {message}", file=sys.stderr)
    sys.exit(code)


def _set_first_path(path: str) -> None:
    # Where this is off, Python has put no folder of its own there either.
    if getattr(sys.flags, "safe_path", sys.flags.isolated):
        return
    if not own_imports.WORKING_DIRECTORY_LEFT_OUT:
        del sys.path[0]  # the folder of the command that started us
    own_imports.make_room(path)
    sys.path.insert(0, path)


def _print_uncaught(error: BaseException) -> None:
    without_our_frames(error)
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception as failure:
        # Of the program's own hook.
        without_our_frames(failure)
        failure.__context__ = None
        for title, shown in (
            ("Error in sys.excepthook:", failure),
            ("\nOriginal exception was:", error),
        ):
            print(title, file=sys.stderr)
            sys.__excepthook__(type(shown), shown, shown.__traceback__)
    finally:
        # Python prints the error, too, when it comes there.
        _be_silent_once()


def note_interrupt() -> None:
    """Have this process die of SIGINT when the interpreter has ended, as a script does that Ctrl-C
    ends.

    Python notes by itself that a script was interrupted, but not under `python -m`, as which we may
    run; and it forgets when more code is run by `exec`, as our report does.
    """
    _be_silent_once()
    ctypes.pythonapi.PyRun_SimpleString(b"raise KeyboardInterrupt")


def _be_silent_once() -> None:
    hook = sys.excepthook

    def silent(*_: object) -> None:
        sys.excepthook = hook

    sys.excepthook = silent
