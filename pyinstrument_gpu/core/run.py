# SPDX-License-Identifier: Apache-2.0
"""Everything that one process recorded, as plain data."""

from __future__ import annotations

import copy
import importlib
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyinstrument_gpu.core import program_facts
from pyinstrument_gpu.core.arrays import distinct, durations_ns_of
from pyinstrument_gpu.core.aspect import aspects, profiled_ranges
from pyinstrument_gpu.core.cause import NotedCauses
from pyinstrument_gpu.core.clocks import LATEST_START_NS, DeviceClock, began_ns
from pyinstrument_gpu.core.file import reader
from pyinstrument_gpu.core.file.blocks import Blocks
from pyinstrument_gpu.core.file.environment import ProgramFacts
from pyinstrument_gpu.core.file.state import DeviceTimingSummary
from pyinstrument_gpu.core.paths import join_paths
from pyinstrument_gpu.core.record import OpenPhase, SourceLine, Stream, Thread
from pyinstrument_gpu.core.schema import SPAN_DTYPE, SpanFlag, has_device_times, span_scopes
from pyinstrument_gpu.core.statistics import (
    PhaseStatistics,
    Scope,
    as_if_not_profiled,
    fold_spans,
    over_scopes,
)
from pyinstrument_gpu.core.steps import ProfiledSteps, Step, Steps, StepTotals, fold_steps, no_steps
from pyinstrument_gpu.core.syncs import Syncs

if TYPE_CHECKING:  # what runs hold of aspects is found by their table
    from pyinstrument_gpu.aspects.checkpoints_and_logging.data import CheckpointsAndLogging
    from pyinstrument_gpu.aspects.collectives.data import Collectives
    from pyinstrument_gpu.aspects.compilations.data import Compilations
    from pyinstrument_gpu.aspects.cpu_contention.data import CpuContention
    from pyinstrument_gpu.aspects.energy.data import GpuEnergy
    from pyinstrument_gpu.aspects.garbage_collection.data import GarbageCollection
    from pyinstrument_gpu.aspects.graphs.data import GraphPhases
    from pyinstrument_gpu.aspects.loader.data import Loaders
    from pyinstrument_gpu.aspects.memory.data import Memory
    from pyinstrument_gpu.aspects.modules.data import Modules
    from pyinstrument_gpu.aspects.nonfinite.data import Nonfinite
    from pyinstrument_gpu.aspects.operations.data import Operations
    from pyinstrument_gpu.aspects.setup_calls.data import SetupCalls
    from pyinstrument_gpu.aspects.slow_step_causes.data import SlowStepCauses
    from pyinstrument_gpu.aspects.stacks.data import Stacks
    from pyinstrument_gpu.aspects.stalls.data import Stall
    from pyinstrument_gpu.aspects.startup.data import Startup


def above(module: str) -> Any:
    """A module that builds on runs, and which a run hands itself to when it is asked to."""
    return importlib.import_module(f"pyinstrument_gpu.{module}")


class Run:
    """Everything that one process recorded, as plain data. It needs numpy and no native module.

    `spans` and `steps` are the history of the run, which is bounded: the oldest may have been
    dropped, and `dropped` counts them by cause. Statistics always cover the whole run.

    Arrays are numpy arrays. Where a number is missing it is -1, and indices that refer to nothing
    are -1 too. Times are nanoseconds since the run began.

    Attributes:
        names: The phase names.
        path_parents: For each path the index of the path around it (int64).
        path_names: For each path its last name, as an index into `names` (uint32).
        threads: The threads that took part.
        streams: The device streams that took part.
        environment: Where the run was recorded: host, rank, versions, command line, start, ...
            In a run that was read from a file, all values have the types and ranges that
            docs/run-file.md gives them; `notes` name what did not.
        dropped: What was not kept, counted by cause.
        spans: The spans, in the columns of `SPAN_DTYPE`; for each thread in the order in which
            they ended.
        span_self_ns: For each span its host time without nested phases (int64).
        span_device_ns: For each span its device time (int64). It is exact, because it is measured
            by the device's own clock. It can be known even if `device_begin_ns` is not, because
            nothing ties that clock to the run's.
        span_device_clock_ns: For each span with a device time, when it began by the device's own
            clock (int64).
        device_clocks: The clocks of the devices, as far as they are known, by device.
        device_timing: How the device was timed, or None if it never was.
        pending_device_work: By path the number of spans whose device work had not finished.
        steps: The steps.
        metric_names: The names of the metrics that were read.
        metrics: Their values, in the columns of `METRIC_DTYPE` and the order in which they were
            read.
        step_totals: Sums over all closed steps that were not profiled; over all if all were.
        profiled_totals: Sums over the closed steps that torch.profiler has slowed, unless they are
            in `step_totals`. The statistics of phases leave out these steps as well.
        open_phases: The phases that had not ended.
        open_step: The step that had not ended, which is also the last of `steps`, or None.
        complete: Whether the recording was stopped. If not, the process died or was still running.
        notes: Plain sentences on what is missing or damaged.
        duration_ns: The time from the start of the run to its end or last heartbeat.
        phases_recorded: The number of spans that ended in the whole run, including those that are
            no longer in `spans`.
        harvester_cpu_ns: The CPU time that the recorder's own thread used.
        anchor: The last reading of the machine's clocks together with the run's own. The first is
            `environment["anchor"]`.
        active_ns: When the program was last seen to do anything: a step or phase that begins or
            ends, a call of a module or loader, a collective operation, or CPU time.
        graph_phases: What phases inside CUDA graphs took in each replay; None if no graph was
            captured with phases in it.
        syncs: The places where the program made the host wait for a device.
        noted_causes: What may have made steps slow, as it was noted.
        modules: The times of the model's modules by name, if they were watched. Modules that differ
            by an index alone are also one group, as `layers.*.attn`.
        module_names: The names of the watched modules.
        module_spans: The passes through them, in the columns of `MODULE_SPAN_DTYPE`; for each
            thread in the order in which they ended. History, like `spans`.
        module_step_weights: For each closed step of `steps`, for how many steps the passes in it
            stand (int64), 0 where modules were not timed; None if they were timed in all steps.
        operations: What torch.profiler has seen in the steps that were profiled, or None.
        memory: Memory by phase and over steps, and when there was none left; None if it was not
            read.
        energy: The energy counters of GPUs, those that were read.
        loader: What the workers of DataLoaders did, if they were watched.
        loader_batches: When those of the loader with most batches made the newest of its last
            epoch: columns "number", "worker", "host_begin_ns" and "host_end_ns".
        cpu_contention: How the processors were used meanwhile, if that is known.
        garbage_collection: What Python's garbage collector did, if it was watched.
        checkpoints_and_logging: What wrote checkpoints and logs, if that was watched.
        setup_calls: The lines that make loaders and optimizers, and set modes of torch.
        slow_step_causes: What was looked for that holds threads up, if anything was.
        nonfinite: The first value that was not finite, if that was looked for.
        collectives: The collective operations, if PyTorch's flight recorder was read.
        startup: What the program did before its first step; None where that was not watched.
        compilations: What torch.compile did, if the program has imported its compiler.
        compilation_spans: When each of these compilations was, in the columns of
            `COMPILATION_DTYPE`.
        stacks: Samples of the main thread's Python stack, if they were asked for.
        stalls: The times in which the program did nothing for far longer than its steps take.
        error: Why the file could not be written to its end, or None.
    """

    if TYPE_CHECKING:
        collectives: Collectives
        garbage_collection: GarbageCollection | None
        compilation_spans: NDArray[np.void]
        startup: Startup | None
        compilations: Compilations | None
        energy: tuple[GpuEnergy, ...]
        graph_phases: GraphPhases | None
        setup_calls: SetupCalls
        slow_step_causes: SlowStepCauses | None
        memory: Memory | None
        metric_names: tuple[str, ...]
        metrics: NDArray[np.void]
        module_names: tuple[str, ...]
        module_spans: NDArray[np.void]
        module_step_weights: NDArray[np.int64] | None
        modules: Modules
        nonfinite: Nonfinite | None
        operations: Operations | None
        checkpoints_and_logging: CheckpointsAndLogging | None
        loader: Loaders | None
        loader_batches: NDArray[np.void]
        cpu_contention: CpuContention | None
        stacks: Stacks | None
        stalls: tuple[Stall, ...]

    def __init__(
        self,
        *,
        names: Sequence[str] = (),
        path_parents: ArrayLike = (),
        path_names: ArrayLike = (),
        threads: Sequence[Thread] = (),
        streams: Sequence[Stream] = (),
        environment: Mapping[str, Any] | None = None,
        dropped: Mapping[str, int] | None = None,
        spans: NDArray[np.void] | None = None,
        span_self_ns: NDArray[np.int64] | None = None,
        span_device_ns: NDArray[np.int64] | None = None,
        span_device_clock_ns: NDArray[np.int64] | None = None,
        device_clocks: Sequence[DeviceClock] | None = None,
        device_timing: DeviceTimingSummary | None = None,
        pending_device_work: Mapping[str, int] | None = None,
        steps: Steps | None = None,
        step_totals: StepTotals | None = None,
        profiled_totals: StepTotals | None = None,
        statistics: Mapping[tuple[int, Scope], PhaseStatistics] | None = None,
        open_phases: Sequence[OpenPhase] = (),
        open_step: Step | None = None,
        complete: bool = True,
        notes: Sequence[str] = (),
        duration_ns: int = 0,
        phases_recorded: int | None = None,
        harvester_cpu_ns: int = 0,
        anchor: Mapping[str, int] | None = None,
        active_ns: int = 0,
        syncs: Syncs | None = None,
        noted_causes: NotedCauses | None = None,
        error: str | None = None,
        **recorded: Any,
    ) -> None:
        """Make a run by hand.

        Args:
            span_device_ns, span_device_clock_ns, device_clocks: from the device times of `spans`
                when not given, as if devices shared the run's clock.
            statistics: by path and scope; computed from `spans` when not given, as are
                `step_totals` and `profiled_totals` from `steps`.
            phases_recorded: as many as `statistics` count when not given.
            recorded: what was recorded beside phases and steps. `modules` are computed from
                `module_spans` when not given.

        The other arguments are as the attributes.
        """
        self.names = tuple(names)
        self.path_parents = np.asarray(path_parents, dtype=np.int64)
        self.path_names = np.asarray(path_names, dtype=np.uint32)
        self.threads = tuple(threads)
        self.streams = tuple(streams)
        self.environment = dict(environment or {})
        self.dropped = dict(dropped or {})
        self.spans = np.empty(0, SPAN_DTYPE) if spans is None else spans
        self.span_self_ns = (
            np.full(len(self.spans), -1, dtype=np.int64) if span_self_ns is None else span_self_ns
        )
        timed = has_device_times(self.spans)
        begin_ns, end_ns = self.spans["device_begin_ns"], self.spans["device_end_ns"]
        if span_device_ns is None:
            span_device_ns = np.where(timed, end_ns - begin_ns, -1)
        if span_device_clock_ns is None:
            span_device_clock_ns = np.where(span_device_ns >= 0, begin_ns, -1)
        if device_clocks is None:
            devices = distinct(self.spans["device"][timed]).tolist()
            device_clocks = [DeviceClock.same_as_run(device) for device in devices if device >= 0]
        self.span_device_ns = span_device_ns
        self.span_device_clock_ns = span_device_clock_ns
        self.device_clocks = tuple(device_clocks)
        self.device_timing = device_timing
        self.pending_device_work = dict(pending_device_work or {})
        self.steps = Steps() if steps is None else steps
        profiled_steps = ProfiledSteps(profiled_ranges(recorded))
        if step_totals is None:
            closed = self.steps.closed
            profiled = profiled_steps.among(closed["index"])
            step_totals, profiled_totals = (
                fold_steps(closed[~profiled]),
                fold_steps(closed[profiled]),
            )
        if statistics is None:
            statistics = fold_spans(
                self.spans["path"],
                span_scopes(self.spans, profiled_steps.among(self.spans["step"])),
                host=durations_ns_of(self.spans, "host_"),
                self_host=self.span_self_ns,
                device=self.span_device_ns,
            )
        if profiled_totals is None:
            profiled_totals = no_steps()
        if not step_totals.count and profiled_totals.count:  # they are all that there is
            step_totals, profiled_totals = profiled_totals, no_steps()
            statistics = as_if_not_profiled(statistics)
        self.step_totals, self.profiled_totals = step_totals, profiled_totals
        self._statistics = dict(sorted(statistics.items()))
        self.open_phases = tuple(open_phases)
        self.open_step = open_step
        self.complete = complete
        self.notes = tuple(notes)
        self.duration_ns = duration_ns
        if phases_recorded is None:
            phases_recorded = sum(phase.count for phase in self._statistics.values())
        self.phases_recorded = phases_recorded
        self.harvester_cpu_ns = harvester_cpu_ns
        self.anchor = dict(anchor or {})
        self.active_ns = active_ns
        self.syncs = Syncs() if syncs is None else syncs
        self.noted_causes = NotedCauses() if noted_causes is None else noted_causes
        self.error = error
        given = {**recorded, "anchor": self.anchor}
        held = [aspect.attributes(given) for aspect in aspects()]
        unknown = recorded.keys() - {name for attributes in held for name in attributes}
        if unknown:
            raise TypeError(f"a run has no {', '.join(sorted(unknown))}")
        for attributes in held:
            vars(self).update(attributes)

    @classmethod
    def empty(cls, reason: str) -> Run:
        """The run of a recording that recorded nothing; `reason` becomes its note."""
        return cls(notes=(reason,))

    @classmethod
    def deferred(cls, read: Callable[[], Run]) -> Run:
        """The run that a function reads, which is called when something of the run is first asked
        for, and again if it raises."""
        run = cls.__new__(cls)
        vars(run)["_deferred"] = read, threading.RLock()
        return run

    if not TYPE_CHECKING:  # otherwise every attribute would be one

        def __getattr__(self, name: str) -> Any:
            """Look up an attribute that is not there."""
            deferred = vars(self).get("_deferred")
            if deferred is not None and not name.startswith("__"):
                read, lock = deferred
                with lock:
                    if "_deferred" in vars(self):
                        vars(self).update({**vars(read()), **vars(self)})
                        del self._deferred
                return getattr(self, name)
            kind = type(self).__name__
            raise AttributeError(f"{kind!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles: all that was recorded."""
        _ = self.names
        return vars(self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Run:
        """Read a run file.

        If the file was cut off or damaged, the run holds what is before the damage, and `notes` say
        what is missing.

        Raises:
            OSError: the file cannot be opened or read.
            RunFileDamagedError: it is not a run file, or nothing true can be read from it.
            RunFileVersionError: its format is newer than this version of the package can read.
        """
        return cls(**reader.load(path))

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Run:
        """Read the bytes of a run file; errors as in `load`."""
        return cls(**reader.decode(data))

    @classmethod
    def from_blocks(cls, blocks: Blocks) -> Run:
        """The run in the blocks of a run file. Where only the newest blocks of its history were
        taken, it has that much of the history, and its statistics are those of the whole run.

        Raises:
            RunFileDamagedError: nothing true can be read from them.
        """
        return cls(**reader.decode_blocks(blocks))

    def report(
        self,
        *,
        step: int | None = None,
        verbose: bool = False,
        file: str | None = None,
        width: int | None = None,
        color: bool | None = None,
    ) -> str:
        """Return a report of the run for the terminal: at most 25 lines of 80 columns.

        Args:
            step: the index of the only step to show; None for the whole run.
            verbose: whether to show everything that is known, in full tables.
            file: the run's file, for the commands that the report names.
            width: number of columns; None for the width of the terminal.
            color: whether to use colours; None if the terminal supports them.

        Raises:
            KeyError: there is no such step.
        """
        report = above("report.overview").report
        text: str = report(self, step=step, verbose=verbose, file=file, width=width, color=color)
        return text

    def page(self, *, file: str | None = None, height: int = 720) -> Any:
        """The page of the run (`report --html`), which a notebook shows in a frame: as the last
        line of a cell, or by `display`. Its `html` is the text.

        It is a part of the output, so the notebook grows by the size of the page, which is 0.2 MB
        as a rule and at most 2 MB. It costs the whole analysis of the run.

        Args:
            file: the run's file, for the commands that the page names.
            height: of the frame, in pixels.

        Raises:
            ExportError: the page would be larger.
            MissingDependencyError: jinja2 is not installed.
        """
        return above("page.notebook").notebook_page(self, file, height)

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the short report with the step as a bar."""
        text: str = above("page.notebook").run_html(self)
        return text

    def export(
        self, path: str | os.PathLike[str], format: str | None = None, **options: Any
    ) -> None:
        """Write the run in another format.

        Formats and suffixes are `csv` (.csv), `perfetto` (.json), `parquet` (.parquet; a folder,
        written `name/`, is `parquet-folder`), `nvtxt` (.nvtxt) and, by name only,
        `tensorboard` (a log directory).
        `pyinstrument_gpu.export.export` writes several runs at once, the ranks of one job.

        Of a run that lacks spans, or was cut short, what is there is written, without a warning:
        `complete`, `dropped` and `notes` say what is missing, and so do Perfetto's files, Parquet's
        and the metadata beside CSV.

        Args:
            path: the file or folder to write. An existing file is replaced once the new one is
                complete, but a run file never is.
            format: name of the format; None to choose it by the suffix of `path`.
            options: options of the format: `summary`, `steps`, `metrics`, `syncs` or `modules=True`
                for CSV and Parquet, `neutralize_formulas=True` for CSV.

        Raises:
            ExportError: there is no such format, it cannot hold this run, or the file cannot be
                written.
            MissingDependencyError: the format needs a package or program that is not installed.
            TypeError: the format has no such option.
        """
        above("export").export([self], path, format, **options)

    def with_history_of(self, earlier: Run) -> Run:
        """Return this run with the spans, closed steps, metrics and collectives of another copy.

        For a recording whose file failed: its history stands in the file, up to the failure, and
        all else is known from memory.

        Args:
            earlier: the same run as it was written before; its names, paths and streams are the
                first of this one's.
        """
        run = copy.copy(self)
        run.spans = earlier.spans.copy()
        # Whether device work finished after the file failed is not known.
        run.spans["flags"] &= ~np.uint32(SpanFlag.DEVICE_UNFINISHED)
        run.span_self_ns = earlier.span_self_ns
        run.span_device_ns = earlier.span_device_ns
        run.span_device_clock_ns = earlier.span_device_clock_ns
        run.steps = Steps.with_open(earlier.steps.closed, self.open_step)
        run.noted_causes = earlier.noted_causes
        for aspect in aspects():
            aspect.join_history(run, earlier)
        return run

    def name_of_line(self, line: SourceLine) -> str:
        """A line as `file:line`, the file as it is seen from the working directory of the program,
        or from the program's folder."""
        folders = (self.environment.get(key) for key in ("cwd", "program_folder"))
        return line.seen_from([folder for folder in folders if folder is not None])

    def line_of_phase(self, path: int) -> str | None:
        """Return the line of the program that called a phase first, as `name_of_line` has it. None
        where that was not noted: only automatic phases have one."""
        name = self.names[self.path_names[path]]
        for noted in self.environment.get("phase_lines", ()):
            if noted["phase"] == name:
                return self.name_of_line(SourceLine(noted["file"], noted["line"], ""))
        return None

    def are_named(self, names: Collection[str]) -> NDArray[np.bool_]:
        """Return for each path whether its last name is one of these."""
        return np.array([self.names[name] in names for name in self.path_names], dtype=bool)

    @property
    def program_facts(self) -> ProgramFacts:
        """What is known of the program beside its phases."""
        return ProgramFacts(**self.environment.get(program_facts.KEY, {}))

    @property
    def began_realtime_ns(self) -> int | None:
        """The begin of the run, in nanoseconds since the epoch by the wall clock of its machine.
        None if that is not known: the run was made by hand, or its environment is damaged."""
        for anchor in (self.environment.get("anchor", {}), self.anchor):
            found_ns = began_ns(anchor, "realtime_ns")
            if found_ns is not None:
                return found_ns if 0 <= found_ns < LATEST_START_NS else None
        return None

    @property
    def profiled(self) -> ProfiledSteps:
        """The steps that were profiled."""
        return ProfiledSteps(profiled_ranges(vars(self)))

    @property
    def steps_ended(self) -> int:
        """The number of steps that ended, profiled or not."""
        return self.step_totals.count + self.profiled_totals.count

    @property
    def overhead(self) -> dict[str, Any]:
        """The cost of the recorder, as it measured itself; see `environment`."""
        return dict(self.environment.get("overhead", {}))

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The phase paths: names from the outermost in, joined by "/".

        In a name "/" stands as %2F and "%" as %25. Beyond 2**25 characters in all, as a thousand
        paths can have that are a thousand names deep, a path has its number, as "%path12", in the
        place of the names around its last.
        """
        return join_paths(self.names, self.path_parents, self.path_names)

    @cached_property
    def phases(self) -> Mapping[str, PhaseStatistics]:
        """The statistics of each path over all scopes, in order of first appearance. Steps that
        were profiled are left out, unless all were."""
        return {self.paths[path]: phase for path, phase in over_scopes(self._statistics).items()}

    def phases_in(self, scope: Scope) -> Mapping[str, PhaseStatistics]:
        """The statistics of each path in one scope only, in the same order as `phases`."""
        return {
            self.paths[path]: phase
            for (path, where), phase in self._statistics.items()
            if where == scope
        }

    @property
    def statistics(self) -> Mapping[tuple[int, Scope], PhaseStatistics]:
        """The statistics by path (an index into `paths`) and scope, from which `phases` is made.
        Those of steps that were profiled have scopes of their own."""
        return self._statistics

    def __repr__(self) -> str:
        return (
            f"<Run of {self.duration_ns / 1e9:.3f} s: {len(self.spans)} spans, "
            f"{len(self.steps)} steps, "
            f"{len(self.phases)} phases{'' if self.complete else ', not complete'}>"
        )
