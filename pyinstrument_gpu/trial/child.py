# SPDX-License-Identifier: Apache-2.0
"""A trial in its process: runs the program with an edit for so many steps, and ends it there.

Nothing is recorded. Automatic phases count the steps, the clock is read at the end of the warm-up
and at the end of the last step, and a device is waited for at these two moments. The process then
ends at once, as `kill` would end it: no code of the program runs any more, which could catch an
exception, save a checkpoint or go on. What it was given to write lies in a copy.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from pyinstrument_gpu.atomic_file import atomic_write
from pyinstrument_gpu.auto import AutoPhases
from pyinstrument_gpu.core.launcher import launcher_number
from pyinstrument_gpu.launch.program import Program
from pyinstrument_gpu.patching.import_hook import when_imported
from pyinstrument_gpu.patching.own_imports import OwnImports
from pyinstrument_gpu.trial.edits.edit import CallPlace, Hand, Value
from pyinstrument_gpu.trial.edits.table import edits
from pyinstrument_gpu.trial.results import EARLY, Results, Witness

_MOST_PATHS = 50
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGED = {"os.rename": 2, "os.link": 2, "os.remove": 1, "os.mkdir": 1, "os.rmdir": 1}
_CHANGED |= {"shutil.rmtree": 1}
"""How many of the first arguments of an audit event are paths that it changes."""
EXIT_PROBLEM = 70


class MadeEdit(Struct, frozen=True):
    """An edit with its variant, and where it is made: None for each call that it would change."""

    name: str
    value: Value = True
    places: tuple[tuple[str, int], ...] | None = None


class TrialOrder(Struct, frozen=True, kw_only=True):
    """What a trial is to do.

    Attributes:
        result: the path for what it finds; of several ranks each appends its own number.
        warmup, steps: how many steps are left out, and after how many of all it ends.
        edits: those to be made.
        is_dry: whether it is only noted where they would be made.
        folder: in which it may write; what is written elsewhere is noted. "" to note nothing.
    """

    result: str
    warmup: int
    steps: int
    edits: tuple[MadeEdit, ...] = ()
    is_dry: bool = False
    folder: str = ""


class Met(Struct, frozen=True):
    """Where an edit was made, or would have been: nowhere in particular if there is no place."""

    is_met: bool
    places: tuple[CallPlace, ...] = ()


class TrialData(Struct, frozen=True, kw_only=True):
    """What a trial found.

    Attributes:
        steps: how many ended, of which `elapsed_ns` is the time of those behind the warm-up.
        startup_ns: from the begin of the process to the end of the warm-up.
        waiting_ns: for how long the thread of the loop waited for a processor meanwhile.
        met: where each of the edits was made.
        world_size: how many processes train together.
        threads: those of torch's operations on the CPU.
        written: what it wrote outside of its folder.
    """

    steps: int
    warmup: int
    elapsed_ns: int
    startup_ns: int
    waiting_ns: int
    results: Results
    met: tuple[Met, ...]
    world_size: int = 1
    threads: int | None = None
    written: tuple[str, ...] = ()


def path_of_rank(result: str, rank: int) -> Path:
    return Path(f"{result}.{rank}")


class Trial:
    """A program that is run for a trial."""

    def __init__(self, program: Program, order: Path) -> None:
        self._program = program
        self._order = msgspec.json.decode(order.read_bytes(), type=TrialOrder)
        self._begin_ns = time.monotonic_ns()
        self._hands = [
            Hand(self._order.is_dry, None if edit.places is None else {*edit.places})
            for edit in self._order.edits
        ]
        self._phases = AutoPhases(self._step_ended, self._own_step_begins)
        self._witness = Witness()
        self._written: dict[str, None] = {}
        # Asked now: in an audit hook, whose lock it takes may be held already.
        temporary = os.path.realpath(tempfile.gettempdir())
        caches = os.environ.get("TORCHINDUCTOR_CACHE_DIR", temporary)
        self._free = (self._order.folder, temporary, caches, "/dev", "/proc")
        self._ended = self._own = 0
        self._warm_ns = self._warm_waiting_ns = 0
        self._is_over = False
        self._pid = os.getpid()

    def run(self) -> None:
        """Run the program; raises what it raises before it has made so many steps."""
        when_imported("torch", self._torch_is_there)
        when_imported("numpy", lambda: sys.modules["numpy"].random.seed(0))
        random.seed(0)
        if self._order.folder:
            sys.addaudithook(self._audit)
        self._phases.install()
        self._program.load()
        self._program.run(self._program_ended)

    def _torch_is_there(self) -> None:
        torch: Any = sys.modules["torch"]
        torch.manual_seed(0)  # a program without a seed of its own has the same draws each time
        self._witness.hook()
        for edit, hand in zip(self._order.edits, self._hands, strict=True):
            try:
                edits()[edit.name].make(edit.value, hand)
            except Exception:
                if not self._order.is_dry:  # one that can't be made has no place
                    raise
        if self._order.folder:
            original = torch.save

            def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> Any:
                if isinstance(f, str | os.PathLike):
                    self._note_written(f)
                return original(obj, f, *args, **kwargs)

            torch.save = save

    # Steps

    def _step_ended(self) -> None:
        self._ended += 1
        self._at_step(self._ended)

    def _own_step_begins(self) -> None:
        self._own += 1
        self._at_step(self._ended + self._own - 1)

    def _at_step(self, ended: int) -> None:
        if self._is_over or os.getpid() != self._pid:
            return
        try:
            self._look(ended)
        except Exception:  # whoever called us would go on without a word
            traceback.print_exc()
            self._leave(EXIT_PROBLEM)

    def _look(self, ended: int) -> None:
        if ended in EARLY:
            with OwnImports():
                self._witness.note()
        if ended == self._order.warmup:
            for hand in self._hands:
                for function in hand.at_steps:
                    function()
            _wait_for_device()
            self._warm_waiting_ns = _waiting_ns()
            self._warm_ns = time.monotonic_ns()
        elif ended >= self._order.steps:
            self._end(ended)

    def _program_ended(self) -> None:
        """The program's own end, before it has made so many steps: a closed last step counts. One
        that fails has no result."""
        error = sys.exc_info()[1]
        if error is not None and getattr(error, "code", error) not in (None, 0):
            return
        self._phases.end_open_step()
        ended = self._ended + self._own
        if self._warm_ns and ended > self._order.warmup and not self._is_over:
            self._end(ended)

    def _end(self, ended: int) -> None:
        _wait_for_device()
        end_ns = time.monotonic_ns()
        waiting_ns = _waiting_ns() - self._warm_waiting_ns
        self._is_over = True
        with OwnImports():
            data = TrialData(
                steps=ended,
                warmup=self._order.warmup,
                elapsed_ns=end_ns - self._warm_ns,
                startup_ns=self._warm_ns - self._begin_ns,
                waiting_ns=waiting_ns,
                results=self._witness.results(),
                met=tuple(Met(hand.is_met, tuple(hand.met)) for hand in self._hands),
                world_size=launcher_number("WORLD_SIZE") or 1,
                threads=sys.modules["torch"].get_num_threads(),
                written=tuple(self._written),
            )
            path = path_of_rank(self._order.result, launcher_number("RANK") or 0)
            with atomic_write(path, follow_links=False) as file:
                file.write(msgspec.json.encode(data))
        self._leave(0)

    def _leave(self, code: int) -> None:
        self._is_over = True
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        for worker in multiprocessing.active_children():
            worker.kill()
        os._exit(code)

    # Files

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        try:
            if event == "open":
                path, mode, flags = args
                if isinstance(path, int):
                    return
                writes = set("wax+") & set(mode) if isinstance(mode, str) else flags & _WRITING
                if writes:
                    self._note_written(path)
            elif event in _CHANGED:
                # The last argument is the descriptor of the folder from which the path leads.
                is_relative = isinstance(args[-1], int) and args[-1] >= 0
                for path in args[: 0 if is_relative else _CHANGED[event]]:
                    self._note_written(path)
        except Exception:  # an audit hook that raises ends what was begun
            pass

    def _note_written(self, path: Any) -> None:
        if self._is_over or len(self._written) >= _MOST_PATHS:
            return
        full = os.path.realpath(os.fsdecode(path))
        is_free = any(full == place or full.startswith(place + os.sep) for place in self._free)
        if not is_free and "__pycache__" not in full:
            self._written[full] = None


def _wait_for_device() -> None:
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _waiting_ns() -> int:
    """For how long this thread has waited for a processor; 0 where the kernel doesn't say it."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
