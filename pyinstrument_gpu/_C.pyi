"""The border to the native module: everything Python may ask of it."""

from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, final

_F = TypeVar("_F", bound=Callable[..., Any])

@final
class Phase:
    """The cached handle of one phase name: context manager, decorator, begin()/end()."""

    @property
    def name(self) -> str: ...
    def __enter__(self) -> Phase: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
        /,
    ) -> None: ...
    def __call__(self, function: _F, /) -> _F: ...
    def begin(self) -> None: ...
    def end(self) -> None: ...

@final
class Scope:
    """A context manager that closes exactly the span it opened."""

    @property
    def name(self) -> str: ...
    def __enter__(self) -> Scope: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
        /,
    ) -> None: ...

@final
class _GpuPhase:
    def __call__(self, name: str, /) -> Phase: ...
    def scope(self, name: str, /) -> Scope: ...

gpu_phase: _GpuPhase

# Frames by token, for decorators and steps. A token is 0 when nothing is being recorded.
def frame_begin(phase: Phase, /) -> int: ...
def frame_end(phase: Phase, token: int, /) -> None: ...
def frame_cancel(phase: Phase, token: int, /) -> None:
    """Close the frame and record nothing."""

# Steps. A token > 0 is an open step; 0: nothing is being recorded; -1: a step is open already.
def step_begin() -> int: ...
def step_item(token: int, samples: float) -> None:
    """Count an item and its samples (NaN: unknown) into the step."""

def step_end(token: int, complete: bool) -> None:
    """End the step. For one that was opened inside an open step: count it."""

def step_drop(token: int) -> None: ...

# The one recording of the process.
def start(
    path: bytes | None,
    environment: bytes,
    *,
    overwrite: bool,
    history_spans: int,
    max_bytes: int,
    nvtx: bool,
) -> dict[str, Any]:
    """Start recording and return the run's id, the clock and its first anchor.

    Raises:
        OSError: the file can't be written (FileExistsError, ...), or no thread is to be had.
        RuntimeError: a recording is active.
    """

def stop(environment: bytes) -> None:
    """Stop, drain and finish the log. Releases the GIL while it does."""

def flush() -> None:
    """Drain every thread's ring and bring the log up to date. Releases the GIL while it does."""

def log_bytes() -> bytes:
    """The log of a recording without a path, as a run file. Of one whose file failed: all but the
    history."""

def set_environment(environment: bytes) -> None: ...
def status() -> dict[str, Any]:
    """`{"recording": bool, "error": str | None}`; error is what ended the writing of history."""

# Between these two, what the calling thread records goes nowhere: to measure what a phase costs.
def begin_scratch() -> None: ...
def end_scratch() -> None: ...
def disable() -> None:
    """No NVTX ranges, and no error for too many names: with PYINSTRUMENT_GPU=0 nothing matters."""

def set_nvtx(enabled: bool) -> None: ...
def set_hooks(
    *,
    decorate: Callable[[Phase, Callable[..., Any]], Callable[..., Any]],
    thread_name: Callable[[], str],
    history_stopped: Callable[[], None],
    phase_name_error: type[Exception],
) -> None: ...
