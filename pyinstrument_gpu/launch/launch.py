# SPDX-License-Identifier: Apache-2.0
"""Records a whole program with automatic phases, and reports when it ends.

The report is printed to standard error after everything else, even the program's own `atexit`
functions. Errors of the recorder are reported there; they change neither what the program does nor
how it ends.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import resource
import shlex
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyinstrument_gpu.aspects.collectives.flight_recorder import SIZE_VARIABLES
from pyinstrument_gpu.aspects.modules.watch import RootWatch
from pyinstrument_gpu.aspects.operations.profile_steps import (
    FIRST_STEP,
    ProfiledRecording,
    window_options,
)
from pyinstrument_gpu.aspects.startup.watch import LaunchWatch
from pyinstrument_gpu.aspects.syncs.watching import Watching
from pyinstrument_gpu.auto import AutoPhases
from pyinstrument_gpu.core.file.run_path import (
    check_writable,
    in_the_way,
    is_free,
    path_of_attempt,
    path_of_rank,
)
from pyinstrument_gpu.core.launcher import launcher_number
from pyinstrument_gpu.core.program_facts import CHILDREN
from pyinstrument_gpu.errors import PyinstrumentGpuError, RunPathError
from pyinstrument_gpu.launch.program import Program, note_interrupt
from pyinstrument_gpu.launch.rank_files import finished_job, pattern_of_ranks, start_of_job
from pyinstrument_gpu.native import DISABLED
from pyinstrument_gpu.patching.own_imports import OwnImports
from pyinstrument_gpu.patching.problems import print_error
from pyinstrument_gpu.recording.lost_peer import exception_facts, lost_peer_facts
from pyinstrument_gpu.recording.recording import Recording, record
from pyinstrument_gpu.report.no_steps import no_steps

if TYPE_CHECKING:
    from pyinstrument_gpu.job.report import JobDocument

_OTHER_RANKS_DEADLINE_S = 5.0
"""By then the first steps are over, in which memory is allocated and kernels are chosen."""
_FLIGHT_RECORDER_ENTRIES = "500"
"""A longer ring, such as the 2,000 that torch 2.13 has by itself, would not show a larger share of
the operations: each reading would hold the GIL for longer, and there would be fewer of them."""
EXIT_SYNC = 3
"""Exit code of `--fail-on-sync`."""
_WRONG_USAGE = 2
"""Exit code of most parsers of command lines."""
_DEADLINE_S = 60
_RECURSION = 1000  # Python's own default


@dataclass(frozen=True)
class LaunchOptions:
    """Options of `pyinstrument-gpu run`; its help says what they mean."""

    output: str | None
    overwrite: bool
    warmup: int
    steps: int | None
    sync_watch: bool
    as_if_cuda: bool
    fail_on_sync: bool
    memory: Literal["sampled", "exact", "off"]
    oom_snapshot: bool
    energy: bool
    nonfinite: int | None
    stop_on_nonfinite: bool
    flops: bool
    stacks: bool
    aspects: tuple[str, ...]
    compiled_phases: bool
    watchdog: float
    on_hang: str | None
    time_collectives: bool
    no_report: bool
    html: bool
    modules: str | None
    modules_every: int | None
    profile_steps: int | None
    profile_at: int | None
    keep_trace: str | None
    misplaced: str | None = None
    """The first argument of the program that is called as an option of `run`."""


class Launch:
    """A program run by `pyinstrument-gpu run`."""

    def __init__(self, program: Program, options: LaunchOptions) -> None:
        self._program = program
        self._options = options
        self._pid = os.getpid()
        self._recording: Recording | None = None
        counts_steps = options.warmup > 0 or options.steps is not None
        self._phases = AutoPhases(
            self._count_step if counts_steps else None,
            self._count_own_step if counts_steps else None,
        )
        self._watching = Watching(options.as_if_cuda)
        self._modules = (
            None if options.modules is None else RootWatch(options.modules, options.modules_every)
        )
        # Now: a trace that can't be written is no reason to run the program in vain.
        self._profiling = (
            None
            if options.profile_steps is None
            else window_options(options.profile_steps, options.keep_trace)
        )
        self._steps = 0
        self._own_steps = 0
        self._is_over = False
        self._gave_way = False
        self._own_file: tuple[int, ...] | None = None
        self._said: list[str] = []
        self._program_end: dict[str, Any] | None = None

    def run(self) -> None:
        """Run the program; raises what `Program.load` and `Program.run` raise.

        Raises, before the program runs:
            RunPathError: the run file exists or can't be written.
            RecordingError: nothing can be recorded on this platform.
        """
        if DISABLED:
            self._program.load()
            self._program.run()
            return
        self._path = self._choose_path()
        _set_up_flight_recorder(self._options.time_collectives)
        # Before the recording's own and the program's: it is called after them.
        atexit.register(self._finish)
        startup = LaunchWatch(is_whole=self._options.warmup == 0)
        startup.begin()
        self._phases.install()
        if self._options.sync_watch:
            self._watching.begin()
        if self._modules is not None:
            self._modules.begin()
        try:
            self._program.load()  # first: where there is no program, there should be no run file
            if self._options.warmup == 0 and self._recording is None:
                self._start()
        except BaseException:
            atexit.unregister(self._finish)
            raise
        startup.program_begins()
        try:
            self._program.run(self._phases.end_open_step)
        except SystemExit as end:
            self._program_end = {"exit_code": _exit_code(end.code)}
            if self._program_end["exit_code"] == _WRONG_USAGE and self._options.misplaced:
                self._say(
                    f"if {self._options.misplaced} was meant for `run`, write it before the program"
                )
            if self._program_end["exit_code"]:
                self._program_end.update(lost_peer_facts(end))
            if end.code not in (None, 0):
                raise
        except BaseException as error:
            self._program_end = _end_by(error)
            raise
        else:
            self._program_end = {"exit_code": 0}
        self._check_syncs()

    def _check_syncs(self) -> None:
        if not self._options.fail_on_sync or self._recording is None:
            return
        self._phases.remove()  # ends the step that is open, with its update
        with OwnImports():
            syncs = self._recording.snapshot().syncs
            waits = syncs.events[~syncs.is_allowed(syncs.events)]
            count = int((waits["step"] >= 0).sum())
        if count:
            self._say(f"--fail-on-sync: {count} syncs happened inside steps")
            sys.exit(EXIT_SYNC)

    # The recording

    def _choose_path(self) -> Path:
        """Return the path of the run, without the rank. Raises RunPathError if it exists, or can't
        be written."""
        overwrite = self._options.overwrite
        if self._options.output is not None:
            path = path_of_attempt(Path(self._options.output).absolute())
            of_rank = path_of_rank(path)
            with contextlib.suppress(OSError, ValueError):  # what is wrong with it is said below
                of_rank.parent.mkdir(parents=True, exist_ok=True)
            check_writable(of_rank)
            if not is_free(of_rank, overwrite):
                raise RunPathError(in_the_way(of_rank, overwrite, "--overwrite"))
            return path
        paths = map(path_of_attempt, self._new_paths())
        return next(path for path in paths if is_free(path_of_rank(path), overwrite=False))

    def _new_paths(self) -> Iterator[Path]:
        stem = f"{self._program.name}-{time.strftime('%Y%m%d-%H%M%S', start_of_job())}"
        for number in itertools.count(1):
            suffix = f"-{number}" if number > 1 else ""
            yield Path(f"{stem}{suffix}.gpurun").absolute()

    def _start(self) -> None:
        recording = record(
            self._path,
            overwrite=self._options.overwrite,
            memory=False if self._options.memory == "off" else self._options.memory,
            oom_snapshot=self._options.oom_snapshot,
            energy=self._options.energy,
            nonfinite=self._options.nonfinite or False,
            stop_on_nonfinite=self._options.stop_on_nonfinite,
            flops=self._options.flops,
            stacks=self._options.stacks,
            aspects=self._options.aspects,
            compiled_phases=self._options.compiled_phases,
            watchdog_s=self._options.watchdog or None,
            on_hang=self._options.on_hang,
        )
        recording._path = path_of_rank(self._path)  # which is that of this attempt already
        recording._give_way = self._give_way
        recording._start()
        self._watching.tell_recording()
        if self._profiling is not None:
            at = self._options.profile_at
            after = FIRST_STEP if at is None else at
            ProfiledRecording.of(recording).ask(self._profiling, after)
        # Its end is ours to call, when the last step has been closed.
        if recording._cancel_exit is not None:
            recording._cancel_exit()
        self._recording = recording

    def _stop(self) -> None:
        """End what is recorded; the program goes on."""
        self._is_over = True
        self._phases.remove()
        self._watching.end()
        if self._recording is None:
            return
        self._recording.facts.update(self._phases.facts())
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._recording.facts[CHILDREN] = children.ru_utime + children.ru_stime
        if self._program_end is not None:
            self._recording.facts["program_end"] = self._program_end
        self._said += [*self._phases.problems(), *self._watching.problems()]
        self._recording._finish_if_mine()
        if self._modules is not None:
            self._modules.end()

    def _give_way(self) -> None:
        self._gave_way = True
        self._say("the program started a recording of its own, so this one ended there")
        self._stop()
        self._own_file = _file_state(self._path)

    # The count of steps

    def _count_step(self) -> None:
        self._steps += 1
        self._at_step(self._steps)

    def _count_own_step(self) -> None:
        # It is told when they begin.
        self._own_steps += 1
        self._at_step(self._steps + self._own_steps - 1)

    def _at_step(self, ended: int) -> None:
        if self._is_over or os.getpid() != self._pid:
            return
        if self._recording is None and ended >= self._options.warmup:
            try:
                self._start()
            except PyinstrumentGpuError as error:
                self._is_over = True
                self._say(f"nothing was recorded: {error}")
        steps = self._options.steps
        if steps is not None and ended >= self._options.warmup + steps:
            self._stop()

    # The end

    def _finish(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child that ends as a program does
        with spare_limits(), OwnImports():
            try:
                if not self._is_over:
                    self._stop()
                with warnings.catch_warnings():
                    # Of libraries that the report imports. Ours are of another category.
                    warnings.simplefilter("ignore", UserWarning)
                    text = "\n".join(self._report())
            except Exception as error:
                text = self._report_by_child(error)
        if text:
            print_error(text)
        if self._program.was_interrupted:
            note_interrupt()

    def _report(self) -> Iterator[str]:
        rank = launcher_number("RANK") or 0
        ranks = launcher_number("WORLD_SIZE") or 1
        if rank == 0:
            yield ""
        if self._recording is None:
            if not self._said:
                self._say(
                    f"nothing was recorded: the program ended within the {self._options.warmup} "
                    "warm-up steps"
                )
        elif ranks == 1 and self._is_superseded():
            os.unlink(path_of_rank(self._path))
            self._say(f"{path_of_rank(self._path)} was empty, and is removed")
        elif rank == 0:
            run = self._recording.run
            # The program reports what its own recording holds; of ours, which is empty, there is
            # nothing to say.
            gave_way = self._gave_way and not run.phases
            shows = not self._options.no_report and not gave_way
            shows = shows and bool(run.phases or ranks > 1)
            job = self._job(ranks) if ranks > 1 and (shows or self._options.html) else None
            if job is not None and shows:
                from pyinstrument_gpu.job.report import job_report

                # First: one rank's own report says little of ranks that wait for each other.
                yield job_report(job)
                yield ""
                yield "Rank 0 by itself"
            if shows:
                yield run.report(file=str(self._recording.path))
            elif not (gave_way or self._options.no_report or run.step_totals.count):
                self._say(f"no steps: {no_steps(run)}. Run file: {self._recording.path}")
            if self._options.html or shows:
                yield from self._report_ending(job)
        yield from (f"pyinstrument-gpu: {sentence}" for sentence in self._said)

    def _is_superseded(self) -> bool:
        """Return whether the program has recorded itself, and all is in its own recording: ours
        gave way before anything happened, and its file is as we left it."""
        ended_well = self._program_end == {"exit_code": 0}
        if self._own_file is None or not ended_well or _file_state(self._path) != self._own_file:
            return False
        assert self._recording is not None
        run = self._recording.run
        return not (run.phases or run.step_totals.count or len(run.module_spans))

    def _job(self, ranks: int) -> JobDocument | None:
        """The ranks together, of as many as have ended by now."""
        from pyinstrument_gpu.job.report import job_document_of

        paths = {i: path_of_rank(self._path, i) for i in range(ranks)}
        try:
            return job_document_of(finished_job(paths, _OTHER_RANKS_DEADLINE_S))
        except (PyinstrumentGpuError, OSError) as error:
            self._say(f"there is no report of the ranks together: {error}")
            return None

    def _report_ending(self, job: JobDocument | None) -> Iterator[str]:
        """Yield where the run file is, and how to look at it."""
        assert self._recording is not None
        yield ""
        yield f"Run file: {self._recording.path}"
        if self._options.html:
            yield self._write_page(job)
        elif job is not None and len(job.ranks) > 1:  # else the report has said it
            files = pattern_of_ranks(*(path_of_rank(self._path, rank) for rank in (0, 1)))
            files = files or shlex.quote(str(self._recording.path))
            yield f"Look at it: pyinstrument-gpu report --html {files}"

    def _write_page(self, job: JobDocument | None) -> str:
        """Write the page of the run, or of the job, and return where it is, or why it is not."""
        from pyinstrument_gpu.core.run import Run
        from pyinstrument_gpu.page.job_view import ranks_on_page
        from pyinstrument_gpu.page.page import html_page, page_beside, write_page

        assert self._recording is not None
        try:
            path = path_of_rank(self._path)
            page = page_beside(path)
            if job is None:
                text = html_page([self._recording.run], [path.name])
            else:
                paths = [path_of_rank(self._path, rank) for rank in ranks_on_page(job)]
                runs = [Run.load(path) for path in paths]
                text = html_page(runs, [path.name for path in paths], job)
            write_page(text, page)
        except (PyinstrumentGpuError, OSError) as error:
            return f"pyinstrument-gpu: no page was written: {error}"
        return f"Page: {page}"

    def _report_by_child(self, error: Exception) -> str:
        """The report by another process, which has nothing of what the program has changed here."""
        reason = f"pyinstrument-gpu: the report failed: {error!r}"
        is_first = (launcher_number("RANK") or 0) == 0
        if self._recording is None or self._options.no_report or not is_first:
            return reason
        path = self._recording.path
        try:
            report = report_by_child(path)
        except Exception:
            return f"{reason}\nRun file: {path}"
        if self._options.html:
            self._say(f"no page was written: {error!r}")
        said = [f"pyinstrument-gpu: {sentence}" for sentence in self._said]
        return "\n".join(["", report, f"Run file: {path}", *said])

    def _say(self, sentence: str) -> None:
        self._said.append(sentence)


def _set_up_flight_recorder(time_collectives: bool) -> None:
    """Have torch's flight recorder note collective operations, in a program that is one of several
    ranks. What its environment says of that stays."""
    if (launcher_number("WORLD_SIZE") or 1) > 1 and not any(
        name in os.environ for name in SIZE_VARIABLES
    ):
        os.environ[SIZE_VARIABLES[0]] = _FLIGHT_RECORDER_ENTRIES
    if time_collectives:
        os.environ.setdefault("TORCH_NCCL_ENABLE_TIMING", "1")


def _file_state(path: Path) -> tuple[int, ...] | None:
    """Return what tells a rank's file from another one, and from itself when it is written."""
    try:
        found = os.stat(path_of_rank(path))
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _exit_code(code: object) -> int:
    """Return the exit code that Python makes of the argument of `sys.exit`."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _end_by(error: BaseException) -> dict[str, Any]:
    """End the program as an exception that nobody caught does. Its text may be anything."""
    end = exception_facts(error)
    # Ctrl-C ends the process by a signal.
    return end if isinstance(error, KeyboardInterrupt) else {"exit_code": 1, **end}


def report_by_child(path: Path | None) -> str:
    """Return what `pyinstrument-gpu report` prints.

    Raises:
        OSError, subprocess.SubprocessError: it can't be started, fails or takes too long.
    """
    import subprocess  # only for this

    done = subprocess.run(
        [sys.executable, "-m", "pyinstrument_gpu", "report", str(path)],
        cwd="/",  # the program's may be gone
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        timeout=_DEADLINE_S,
    )
    return done.stdout.rstrip("\n")


@contextlib.contextmanager
def spare_limits() -> Iterator[None]:
    """Let calls nest as deeply, and as many files be open, as is usual or permitted."""
    recursion = sys.getrecursionlimit()
    sys.setrecursionlimit(max(recursion, _RECURSION))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, files)
        with contextlib.suppress(RecursionError):  # deeper than it already is
            sys.setrecursionlimit(recursion)
