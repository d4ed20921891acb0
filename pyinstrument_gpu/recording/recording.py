# SPDX-License-Identifier: Apache-2.0
"""Recordings: from `record()` to a `Run`."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinstrument_gpu.at_exit import call_at_exit
from pyinstrument_gpu.core import program_facts
from pyinstrument_gpu.core.file.run_path import (
    check_writable,
    in_the_way,
    path_of_attempt,
    path_of_rank,
)
from pyinstrument_gpu.core.file.shared_page import keep_last_steps
from pyinstrument_gpu.core.watcher import watchers_of
from pyinstrument_gpu.errors import RecordingActiveError, RecordingError, RunPathError
from pyinstrument_gpu.native import DISABLED, native, require_native
from pyinstrument_gpu.recording import (
    device_timing,
    environment,
    hang_program,
    interactive,
    uncommitted,
)
from pyinstrument_gpu.recording.lost_peer import exception_facts
from pyinstrument_gpu.recording.options import RecordingOptions, check_sink, takes_options
from pyinstrument_gpu.recording.program_watch import ProgramWatch

if TYPE_CHECKING:
    from pyinstrument_gpu.core.run import Run
    from pyinstrument_gpu.recording.read_back import ReadBack
    from pyinstrument_gpu.sinks.feeder import SinkFeeder
    from pyinstrument_gpu.sinks.sink import Sink

_LONGEST_TIMEOUT_S = 1e9
_SINKS_DEADLINE_S = 5.0
_SINKS_INTERVAL_S = 1.0
# More than numpy's libraries take, which end the process where there is no room for them.
_NUMPY_BYTES = 256 << 20
# Given back as the recording ends, which takes memory. Room in the address space, of which no page
# is touched.
_RESERVE_BYTES = 2 << 20
_NO_MEMORY = "there was no memory for all that the recording does as it ends"
_MOST_STEP_NUMBERS = 64


class Recording:
    """A recording of this process: started by `start()`, or by entering the `with` block of
    `record()`.

    There is at most one at a time. In a forked child the parent's recording does nothing.
    """

    def __init__(self, options: RecordingOptions) -> None:
        self._options = options
        # Absolute: the program may change its directory before the file is read back.
        path = options.path
        self._path = None if path is None else path_of_rank(path_of_attempt(Path(path).absolute()))
        self._environment: dict[str, Any] = {}
        self._pid: int | None = None
        self._cancel_exit: Callable[[], None] | None = None
        self._is_ending = False
        self._stopped = False  # the log is here
        self._is_over = False  # and the sinks have the rest of it
        self._error: str | None = None
        self._reserve = b""
        self._no_memory: MemoryError | None = None  # that the recording met as it ended
        self._log: bytes | None = None
        self._run: Run | None = None
        self._runs: list[Run] = []
        self._feeder: SinkFeeder | None = None
        self._adding = threading.Lock()
        # For a recording around a whole program, which ends when the program starts its own.
        self._give_way: Callable[[], None] | None = None
        self._program = ProgramWatch()
        self._uncommitted = uncommitted.Uncommitted(None)
        # For its watchers, see `ActiveRecording`; neither is for programs.
        self.facts: dict[str, Any] = {}
        self.watchers = watchers_of(options)

    @property
    def path(self) -> Path | None:
        """The run file, with the rank in its name under a launcher; None for a recording in
        memory."""
        return self._path

    @property
    def run(self) -> Run:
        """The run, once the recording has stopped. It is read from the file when something of it is
        first asked for; that takes up to 200 bytes of memory for each span in the file.

        Raises:
            RecordingError: the recording has not stopped, or belongs to the parent of this process,
                or there is no memory to read the run.
        """
        try:
            return self._read_run()
        except (MemoryError, ImportError) as error:
            raise self._unread(error) from error

    def _read_run(self) -> Run:
        if "numpy" not in sys.modules:
            bytes(_NUMPY_BYTES)  # touches none of it
        if self._no_memory is not None:
            self._finish()  # what there was no memory for, if there is now
        log = self._log  # first: whoever makes the run then lets go of it
        if self._run is None:
            if not self._stopped:
                self._check_mine()
                raise RecordingError(
                    "the recording has not stopped: snapshot() gives the run so far, stop() ends it"
                )
            run = _nothing() if log is None else self._deferred(log)
            if self._no_memory is not None:
                run.notes = (*run.notes, _NO_MEMORY)
            # One of several threads sets it, in one instruction.
            self._runs.append(run)
            self._run = self._runs[0]
            self._log = None
        return self._run

    def stop(self) -> Run:
        """Stop and return the run. If it has already stopped, this only returns the run.

        Writes what is outstanding and completes the file, which takes milliseconds. The run is not
        read back before something of it is asked for, see `run`.

        Raises:
            RecordingError: the recording was never started, or belongs to the parent of this
                process, or there is no memory to read the run. It has stopped then, and `run` reads
                it later.
        """
        self._finish_in_any_case()
        return self.run

    def snapshot(self) -> Run:
        """Return the run so far, without stopping. Brings the file up to date and reads it.

        Raises:
            RecordingError: the recording was never started, or belongs to the parent of this
                process, or there is no memory to read the run.
        """
        try:
            return self._snapshot()
        except (MemoryError, ImportError) as error:
            raise self._unread(error) from error

    def _snapshot(self) -> Run:
        if self._stopped:
            return self.run
        self._check_mine()
        if DISABLED:
            return _nothing()
        self._tell_of_program()
        for watcher in self.watchers.values():
            watcher.write()
        native.harvest()
        error = native.status()["error"]
        if active() is not self:
            return self.run  # another thread has stopped it meanwhile
        self._error = error
        return self._read_back(self._from_memory).run()

    def flush(self, timeout: float = 1.0) -> bool:
        """Bring the file up to date, and wait for outstanding device times, which are those of
        spans that have ended on the CPU but not yet on the GPU.

        It polls every millisecond and never synchronises with the GPU: if the GPU hangs, this
        takes `timeout` seconds. `stop()` also does this once.

        Args:
            timeout: the most seconds to wait, beyond a tenth of one that is waited in any case if
                the CUDA driver does not answer.

        Returns:
            Whether no device times are outstanding. After `stop()` none are; what was unknown then
            stays unknown, and `Run.dropped` counts it.

        Raises:
            RecordingError: the recording was never started, or belongs to the parent of this
                process.
            ValueError: `timeout` is negative or not a number.
        """
        if not timeout >= 0:
            raise ValueError(f"timeout must be a number of seconds >= 0, got {timeout!r}")
        self._check_mine()
        if self._stopped or DISABLED:
            return True
        return native.flush(min(timeout, _LONGEST_TIMEOUT_S))

    def add_sink(self, sink: Sink, *, interval_s: float = _SINKS_INTERVAL_S) -> None:
        """Pass what is new from now on to `sink`: `TensorBoardSink`, `PrometheusSink`, `WandbSink`,
        `MLflowSink` or your own. `record(sinks=[...])` does so from the beginning.

        The training thread is not involved: a thread of the recording collects what is new and
        passes it to the sinks. That thread takes at most a twentieth of one processor's time on
        average; if a sink takes more, updates become less frequent. `stop` gives every sink what is
        left and waits for them, for at most five seconds. A sink that raises is switched off with
        a warning.

        Args:
            sink: the sink, which is opened here and closed at the end: a `Sink`, or an object with
                its methods. It can serve only one recording.
            interval_s: seconds between updates. With several sinks, the shortest applies to all.

        Raises:
            RecordingError: the recording is not active, or belongs to the parent of this process.
            SinkError: the sink cannot be opened.
            MissingDependencyError: the sink needs a package that is not installed.
            TypeError: `sink` is no sink.
            ValueError: `interval_s` is not above 0.

        With `PYINSTRUMENT_GPU=0` in the environment this does nothing.
        """
        if not 0 < interval_s < math.inf:
            raise ValueError(f"interval_s must be a number of seconds above 0, got {interval_s!r}")
        check_sink(sink)
        self._check_mine()
        if self._is_ending:
            raise RecordingError("the recording has stopped: add sinks while it is active")
        if DISABLED:
            return
        sink.open()
        self._feed(sink, interval_s)

    def _feed(self, sink: Sink, interval_s: float = _SINKS_INTERVAL_S) -> None:
        with self._adding:
            if self._feeder is None:
                from pyinstrument_gpu.sinks.feeder import SinkFeeder

                path = None if self._path is None else os.fspath(self._path)
                self._feeder = SinkFeeder(self, self._environment, _SINKS_DEADLINE_S, path)
        self._feeder.add(sink, interval_s)

    def __enter__(self) -> Recording:
        self._start()
        return self

    def __exit__(self, _: object, exception: BaseException | None, __: object) -> None:
        if exception is not None and not isinstance(exception, (SystemExit, GeneratorExit)):
            try:
                self.facts.setdefault("program_end", exception_facts(exception))
            except MemoryError as error:
                self._note_no_memory(error)
        self._finish_if_mine()

    def _start(self) -> None:
        if self._pid is not None:
            raise RecordingError(
                "a recording can only be started once: make a new one with record() or start()"
            )
        if DISABLED:
            self._pid = os.getpid()
            return
        require_native()
        other = active()
        if other is not None:
            other._make_way()
        if self._path is not None:
            check_writable(self._path)
            keep_last_steps()
            if active() is None and not self._options.overwrite:
                interactive.set_aside(self._path)
        opened: list[Sink] = []
        try:
            for sink in self._options.sinks:
                sink.open()
                opened.append(sink)
            self._begin()
            while opened:
                self._feed(opened[0])
                del opened[0]
        except BaseException:  # a Ctrl-C just now must not leave it active with nobody to stop it
            if active() is self:
                self._pid = os.getpid()
                self._finish()
            for sink in opened:
                with contextlib.suppress(Exception):  # why it did not start is what matters
                    sink.close()
            raise

    def _begin(self) -> None:
        # How far the program's own frame is from here is known to native.start.
        options = self._options
        facts = {**environment.gather(options.arguments), **options.facts()}
        for watcher in self.watchers.values():
            facts |= watcher.first_facts()
        try:
            started = native.start(
                self,
                None if self._path is None else os.fsencode(self._path),
                _encode(facts),
                overwrite=options.overwrite or self._is_run_again(),
                history_spans=options.history_spans_kept,
                max_bytes=options.max_bytes_kept,
                nvtx=False,  # not while the overhead is measured
                watchdog_ns=options.watchdog_ns,
            )
        except FileExistsError as error:
            assert self._path is not None
            raise RunPathError(in_the_way(self._path, options.overwrite)) from error
        except OSError as error:
            raise RunPathError(
                f"can't write the run file {self._path}: {error.strerror}"
            ) from error
        if started is None:
            other = active()
            into = "memory" if other is None or other._path is None else str(other._path)
            raise RecordingActiveError(
                f"a recording is already active (into {into}): "
                "a process can have only one at a time, so stop() it first"
            )
        self._pid = os.getpid()
        hang_program.install(self._path if options.watchdog_ns else None, options.on_hang)
        try:
            self._reserve = bytes(_RESERVE_BYTES)
        except MemoryError as error:
            self._note_no_memory(error)
        self._cancel_exit = call_at_exit(self._finish_if_mine)
        facts.update(started)
        facts["overhead"] = environment.overhead_facts()
        native.set_nvtx(options.nvtx)
        device_timing.start(
            options.device_timing, options.device_timing_budget, options.graph_phases
        )
        self._program.begin(self._tell_of_program)
        for watcher in self.watchers.values():
            watcher.begin(self)
        self._environment = facts
        if "revision" in facts and not facts.get("local_rank"):
            self._uncommitted = uncommitted.ask(Path(facts["program_folder"]))
        if self._path is not None:
            interactive.note_file(self._path, facts["run_id"])
        self._tell_of_program()
        native.set_document(self, "environment", _encode(self._environment))

    def _is_run_again(self) -> bool:
        """Return whether an earlier execution of a notebook's cell wrote the file."""
        return self._path is not None and interactive.is_of_earlier_execution(self._path)

    def _make_way(self) -> None:
        """End this recording, if nothing else will, because another is about to start."""
        if self._give_way is not None:
            self._give_way()
        # An exception has kept stop() from its end, or the block from being left properly.
        elif self._is_ending or native.owner_is_left_over():
            self._finish()

    def _finish(self) -> None:
        # Any part of it may be interrupted, and done again by the next call or by another thread.
        if self._is_over:
            return
        self._check_mine()
        self._is_ending = True
        self._reserve = b""
        if not DISABLED and not self._stopped:
            hang_program.remove()
            ended = native.stop(self, self._last_environment())
            if ended is not None and self._run is None:
                self._error, self._log = ended
        self._stopped = True
        if self._feeder is not None:
            self._feeder.stop()
        native.release(self)
        cancel_exit, self._cancel_exit = self._cancel_exit, None  # it holds this recording
        if cancel_exit is not None:
            cancel_exit()
        self._is_over = True

    def _last_environment(self) -> bytes | None:
        """End what watches the program. Returns the environment with what it has found; None where
        there is no memory for that."""
        ends = [watcher.end for watcher in self.watchers.values()]
        for end in (self._tell_of_program, *ends, self._note_end, self._program.end):
            try:
                end()
            except MemoryError as error:  # the others end all the same
                self._note_no_memory(error)
        try:
            return _encode(self._environment)
        except MemoryError as error:
            self._note_no_memory(error)
            return None

    def _note_end(self) -> None:
        # What has come after the start.
        self._environment.update(environment.last_facts())
        self._environment.update(self.facts)

    def _note_no_memory(self, error: MemoryError) -> None:
        self._no_memory = self._no_memory or error.with_traceback(None)  # which holds frames

    def _tell_of_program(self) -> dict[str, Any]:
        """Bring what the environment says of the program up to date, and return it."""
        if not self._program.is_on or self._pid != os.getpid() or not self._environment:
            return {}
        try:
            facts = self._program.facts()
            if self._program.has_ranks:
                for watcher in self.watchers.values():
                    watcher.has_ranks(self._environment["anchor"], self._program.members)
            known = {program_facts.KEY: facts, **self._uncommitted.facts()}
            if not known.items() <= self._environment.items():
                # A new one: other threads may be reading the one that there is.
                self._environment = {**self._environment, **known}
                native.set_document(self, "environment", _encode(self._environment))
            return facts
        except Exception:  # it may be called in the middle of the program: it stays as it is
            return {}

    def note_step_number(self, number: int) -> None:
        """Note that the next step has this number in the whole training, of which this run may be a
        later attempt. Nothing within a step, or in a forked child, and nothing is raised."""
        if self._pid != os.getpid() or not self._environment or native.open_place()[1] >= 0:
            return
        try:
            noted = [*self._environment.get("step_numbers", ())]
            noted.append({"at_ns": native.read_clocks()[0], "number": number})
            del noted[1:-_MOST_STEP_NUMBERS]  # the first one counts from the begin on
            self._environment = {**self._environment, "step_numbers": noted}
            native.set_document(self, "environment", _encode(self._environment))
        except Exception:  # it is called in the middle of the program: the number stays unknown
            return

    def _finish_if_mine(self) -> None:
        # A forked child that comes by here leaves the recording to its parent.
        if self._pid == os.getpid():
            self._finish_in_any_case()

    def _finish_in_any_case(self) -> None:
        """Finish even without memory: at least the recording stops, and `run` and the end of the
        program try again."""
        try:
            self._finish()
        except MemoryError as error:
            self._note_no_memory(error)
            try:
                native.stop(self, None)
            except MemoryError:  # it is the log that there is no memory for
                return

    def _unread(self, error: Exception) -> RecordingError:
        # Of numpy, where there is no room for its libraries.
        why = error.__cause__ or error if isinstance(error, ImportError) else "there is no memory"
        later = "" if self._path is None else f"; {self._path} can be read by another process"
        return RecordingError(f"the run can't be read: {why}{later}")

    def _from_memory(self) -> Run:
        from pyinstrument_gpu.core.run import Run

        log = native.log_bytes(self) or self._log
        # It is gone where another thread has stopped the recording and made the run meanwhile.
        return self.run if log is None else Run.from_bytes(log)

    def _deferred(self, log: bytes) -> Run:
        from pyinstrument_gpu.core.run import Run

        # A function of the bytes alone: the run does not keep this recording.
        return self._read_back(partial(Run.from_bytes, log)).deferred()

    def _read_back(self, from_memory: Callable[[], Run]) -> ReadBack:
        from pyinstrument_gpu.recording.read_back import ReadBack

        run_id = self._environment["run_id"]
        return ReadBack(self._path, run_id, self._error, self._stopped, from_memory)

    def _check_mine(self) -> None:
        if self._pid is None:
            raise RecordingError(
                "the recording was never started: use `with record(...)`, or start()"
            )
        if self._pid != os.getpid():
            raise RecordingError(
                f"the recording belongs to process {self._pid}, and this process is a fork of it: "
                "nothing is recorded here. Start a recording with another path"
            )


def active() -> Recording | None:
    """The recording of this process that has not ended."""
    owner: Recording | None = native.owner()
    return owner


@takes_options
def record(options: RecordingOptions) -> Recording:
    """Record the `with` block: `with record("train.gpurun") as recording: ...`, then
    `recording.run`.

    Args:
        path: the run file, which is written during the run; None keeps the run in memory. Under a
            launcher (`WORLD_SIZE` > 1), the rank becomes part of the name: `train.rank3.gpurun`, or
            wherever the name has `{rank}`. A name that has it already is left as it is. When
            torchrun or Slurm have started the program again, so does the number of the attempt:
            `train.restart1.rank3.gpurun`.
        overwrite: replace the file if it exists and is a run file. Another file, or a link, is
            never replaced. In a notebook, a cell that is run again replaces what this kernel has
            recorded there, without being asked; see docs/page.md.
        history_spans: how many of the newest spans to keep, rounded up to whole blocks of several
            hundred. Older ones are dropped, and counted. None means a million in memory, and no
            separate limit in a file. Statistics always cover the whole run.
        max_bytes: the limit for the run file, or for the memory used, at least 1 MiB. The oldest
            spans are dropped to keep within it. Names, paths and statistics are never dropped:
            with tens of thousands of paths they alone can exceed the limit.
        nvtx: emit NVTX ranges while recording.
        device_timing: "auto" also times phases on the GPU, if PyTorch uses an NVIDIA GPU, without
            ever waiting for it. "force" includes side streams with CUDA_DEVICE_MAX_CONNECTIONS=1,
            where timing events can keep streams from overlapping. False turns it off.
        device_timing_budget: the share of the step time that device timing may cost. If steps are
            too short for that, the device is timed in every k-th step only; `math.inf` times all.
        graph_phases: "auto" times phases inside CUDA graphs in each replay (`Run.graph_phases`):
            where a phase begins or ends while `torch.cuda.graph` or `make_graphed_callables`
            captures, a kernel of one thread becomes part of the graph, 256 of them in one graph at
            most. Each takes the device about two microseconds in every replay, also after the
            recording, since the graph keeps it. True: without that bound. False: no such kernel.
        memory: "sampled" reads how much memory is in use where phases begin and end: that of
            PyTorch's allocator on the GPU, or else that of the process. It does so in the first
            three steps, and then in so many that it takes at most 0.05 % of the time. Nothing
            is reset, and nothing waits for the GPU. "exact" finds the exact peak of every phase on
            the GPU: it reads in every step, and resets the allocator's peaks in between, which
            Python code doesn't see; each phase takes some ten microseconds longer. Where
            that is not possible, memory is sampled, and `Run.notes` say why. False turns it off.
        oom_snapshot: when a GPU has no memory left for the first time, save the snapshot of
            PyTorch's allocator beside the run file, as PATH.oom.pickle, of at most 256 MiB.
        flops: count the floating-point operations of the steps that are profiled, and have the
            step with index 10 profiled if no others are asked for (docs/modules.md). That one is
            slower, and training stands still around it for up to a second or so.
        energy: read the GPU's energy counter ten times a second, by a thread of its own that needs
            the GIL for some microseconds each time. Without NVML or such a counter, the run has
            no energy.
        nonfinite: find the module that makes the first NaN or infinite value, forward or backward
            (`Run.nonfinite`): in one of 100 steps, with a number in one of so many; 1: in each.
            Each output of a module and each gradient of a node is then read once more by the
            device, and waited for by nobody.
        stop_on_nonfinite: raise a `NonFiniteError` at the first backward pass after that is known,
            some steps later on a GPU. Implies `nonfinite`.
        stacks: sample the Python stack of the main thread, at most 50 times a second, for the
            lines that each phase consists of (`Run.stacks`). It takes a 400th of a processor at
            most. None is taken while those before have stopped that thread for more than a
            thousandth of the time. Interpreters without a GIL have none.
        compiled_phases: also time phases inside of what torch.compile compiles with TorchInductor
            from now on, forward and backward, by marks in its code. What is fused stays the same,
            but each graph is compiled once more, as torch's caches have it without marks. A mark
            costs what a phase does, and on the CPU it parts kernels that would run as one. Where it
            is not possible, as under CUDA graphs, the report says so. False leaves one time for
            each call of a graph.
        watchdog_s: if nothing happens for so many seconds, and ten times as long as 99 % of the
            steps took, the run gets the stacks of all threads and how far the process groups are
            (`Run.stalls`), and standard error one sentence. Until ten steps have ended, the limit
            is three times as long. Nothing is ended. None turns it off.
            Beside the run file, `why` leaves its text as `train.why.txt`.
        on_hang: a command, or an http(s) URL, that then gets the JSON of `why`, once for all ranks:
            the command as its standard input, by no shell, and the URL by POST. Both have a minute,
            and whether they fail says the text of `why` alone.
        arguments: keep the command line, with what looks like a secret masked (SECURITY.md). False
            keeps none of it.
        aspects: names of aspects of installed plug-ins that are recorded as well.
        sinks: live sinks, which are told once a second what is new (`Recording.add_sink`), or names
            of sinks of installed plug-ins. They are opened when the block is entered, before
            anything is recorded.

    Raises:
        ValueError, TypeError: an argument is invalid, at once.
        RecordingActiveError: a recording is active, as the block is entered (before any training).
        RunPathError: the file exists or cannot be written, likewise.
        RecordingError: there is no native module on this platform, likewise.
        SinkError, MissingDependencyError: a sink cannot be opened, likewise.

    With `PYINSTRUMENT_GPU=0` in the environment, nothing is recorded and no file is written.
    """
    return Recording(options)


@takes_options
def start(options: RecordingOptions) -> Recording:
    """Start recording now; `recording.stop()` returns the run. Arguments and errors are those of
    `record`.

    A recording that is not stopped is completed when the interpreter exits.
    """
    recording = Recording(options)
    recording._start()
    return recording


def _nothing() -> Run:
    from pyinstrument_gpu.core.run import Run

    return Run.empty("nothing was recorded: PYINSTRUMENT_GPU in the environment turns it off")


def _encode(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts).encode()
