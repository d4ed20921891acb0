# SPDX-License-Identifier: Apache-2.0
"""`profile_steps`: ask for a window of torch's profiler."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyinstrument_gpu.core.file.run_path import (
    check_writable,
    path_of_attempt,
    path_of_rank,
)
from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher, active
from pyinstrument_gpu.errors import RecordingError
from pyinstrument_gpu.native import DISABLED, native
from pyinstrument_gpu.patching.own_imports import OwnImports

if TYPE_CHECKING:
    from pyinstrument_gpu.aspects.operations.window import OperationsDocument, ProfileWindow


_NAME = "operations"
FIRST_STEP = 10
"""That is profiled where no other was named: loaders, caches and compilers have started by then."""


class WindowOptions(NamedTuple):
    """The arguments of `profile_steps`. `trace` is where to keep the trace, or None."""

    steps: int
    trace: Path | None
    with_stack: bool
    record_shapes: bool
    flops: bool


class ProfiledRecording(Watcher):
    """The windows of one recording, of which one at a time is to come or under way.

    Args:
        flops: whether to count the operations of every window, and of one step if no other window
            is asked for.
    """

    _window: ProfileWindow | None = None
    _document: OperationsDocument | None = None

    def __init__(self, flops: bool = False) -> None:
        self._flops = flops
        self._is_own = False  # whether the window is the one that gives way to any other

    @classmethod
    def of(cls, recording: ActiveRecording) -> ProfiledRecording:
        profiled = recording.watchers[_NAME]
        assert isinstance(profiled, cls)
        return profiled

    def begin(self, recording: ActiveRecording) -> None:
        super().begin(recording)
        if self._flops:
            self._is_own = self.ask(window_options(1), after=FIRST_STEP)

    def ask(self, options: WindowOptions, after: int = 0) -> bool:
        """Ask for a window of the steps that come after so many others. False where another one is
        still to come or to end."""
        recording = self._recording
        if recording is None:
            return False
        if self._window is not None and not self._window.is_over:
            if self._window.has_begun or not self._is_own:
                return False
            self._window.is_over = True
        self._is_own = False
        with OwnImports():  # here, as it loads numpy
            from pyinstrument_gpu.aspects.operations.window import OperationsDocument, ProfileWindow

        self._document = self._document or OperationsDocument(recording)
        options = options._replace(flops=options.flops or self._flops)
        self._window = ProfileWindow(recording, self._document, *options)
        native.call_before_step(self._window.begin, after=after)
        return True

    def end(self) -> None:
        window = self._window
        if window is not None and not window.is_over:
            if not window.has_begun:
                window.is_over = True
                window.document.note("no steps were profiled: the recording ended before")
            window.end_early("the recording ended")
        super().end()


def profile_steps(
    n: int,
    *,
    keep_trace: str | os.PathLike[str] | None = None,
    with_stack: bool = False,
    record_shapes: bool = False,
    flops: bool = False,
) -> None:
    """Profile the next `n` steps of the active recording with torch.profiler.

    What it sees is summed up by operation and phase, and is in the run as `Run.operations` and in
    its report. It begins where the next step begins, and ends by itself.

    Profiled steps are slower. Before the first and after the last of them training stands still,
    for the profiler to start and stop, which waits for the GPU, and for the sums: about 10 us for
    each event, so between milliseconds and seconds. At other times nothing is added.

    Nothing is raised into training later: if a profiler is active already, if another tool holds
    CUPTI, or if torch has no profiler, no steps are profiled, and `Run.notes` say why.

    Args:
        n: how many steps, at least 1. Profiling ends after 60 seconds in any case.
        keep_trace: a file for the profiler's own trace, as JSON for Perfetto, compressed if the
            name ends in `.gz`. Under a launcher the rank becomes part of its name. An existing file
            is replaced.
        with_stack: have the trace hold Python stacks, which makes the steps slower still.
        record_shapes: have the trace hold the shapes of inputs.
        flops: count floating-point operations, which needs the shapes (docs/modules.md).

    Raises:
        RecordingError: no recording is active.
        RunPathError: `keep_trace` can't be written.
        TypeError, ValueError: an argument is wrong.

    If steps are being profiled already, this warns and does nothing. With `PYINSTRUMENT_GPU=0` in
    the environment it does nothing.
    """
    options = window_options(n, keep_trace, with_stack, record_shapes, flops)
    if DISABLED:
        return
    recording = active()
    if recording is None:
        raise RecordingError("profile_steps needs an active recording: use record() or start()")
    if not ProfiledRecording.of(recording).ask(options):
        warnings.warn(
            "profile_steps: other steps are still to be profiled, so these are not",
            RuntimeWarning,
            stacklevel=2,
        )


def window_options(
    steps: Any,
    keep_trace: Any = None,
    with_stack: Any = False,
    record_shapes: Any = False,
    flops: Any = False,
) -> WindowOptions:
    """The checked arguments of `profile_steps`, which says what is raised."""
    if not isinstance(steps, int) or isinstance(steps, bool):
        raise TypeError(f"n must be a number of steps, got {steps!r}")
    if steps < 1:
        raise ValueError(f"n must be at least 1, got {steps!r}")
    flags = {"with_stack": with_stack, "record_shapes": record_shapes, "flops": flops}
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name} must be bool, got {flag!r}")
    trace = None
    if keep_trace is not None:
        trace = path_of_rank(path_of_attempt(Path(keep_trace).absolute()))
        check_writable(trace)
    return WindowOptions(steps, trace, with_stack, record_shapes, flops)


def watcher(options: Any) -> Watcher:
    return ProfiledRecording(options.flops)
