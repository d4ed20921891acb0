# SPDX-License-Identifier: Apache-2.0
"""A use of torch's profiler, and whether it can be used."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pyinstrument_gpu.atomic_file import atomic_write
from pyinstrument_gpu.native import native

_INJECTED_BY = ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
"""Variables by which a tool that holds CUPTI has itself loaded: Nsight Systems and others."""

_KINETO_LEVEL = "KINETO_LOG_LEVEL"

_HEAD_BYTES = 1 << 20
"""Of a trace, in which its events begin."""
_FIRST_EVENT = re.compile(rb'"traceEvents":\s*\[\s*(?=\{)')
_BASE_TIME = re.compile(rb'"baseTimeNanoseconds":\s*(\d+)')


class ProfilerInUse(Exception):
    """Why torch's profiler is left alone."""


class TorchProfiler:
    """torch's profiler, from its making until `stop`, on all threads.

    torch must have been imported. `stop` may be called by any thread.

    Args:
        gives_way: called before the program starts a profiler of its own, which would end this one
            without a word.

    Raises:
        ProfilerInUse: the profiler, or what it needs, is not available.
    """

    def __init__(
        self, *, with_stack: bool, record_shapes: bool, gives_way: Callable[[], None]
    ) -> None:
        torch: Any = sys.modules["torch"]
        reason = _why_not(torch)
        if reason is not None:
            raise ProfilerInUse(reason)
        self.uses_device = bool(torch.cuda.is_initialized())
        self._profile = torch.autograd.profiler.profile(
            use_device="cuda" if self.uses_device else None,
            use_kineto=True,
            with_stack=with_stack,
            record_shapes=record_shapes,
            # So it may be stopped by another thread than this one, too.
            experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True),
        )
        self._is_stopped = False
        with _quiet_kineto():
            self._profile.__enter__()
        self._stand_guard(gives_way)

    def stop(self) -> None:
        """End it. Waits for the device, as torch's profiler does. Calling it again does nothing."""
        if self._is_stopped:
            return
        self._stand_down()
        was_in_call = native.in_watched_call()
        native.set_in_watched_call(True)  # that wait is none of the program's
        try:
            self._profile.__exit__(None, None, None)
            self._is_stopped = True
        finally:
            native.set_in_watched_call(was_in_call)

    def events(self) -> Iterable[Any]:
        """Return what Kineto has seen, once it has stopped."""
        events: Iterable[Any] = self._profile.kineto_results.events()
        return events

    def save(self, path: Path, events_from: Callable[[int], list[str]]) -> None:
        """Write the trace as JSON, compressed if the name ends in `.gz`. Once.

        Args:
            events_from: makes the texts of further events, whose times are microseconds since the
                time given, in nanoseconds by the wall clock.
        """
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            trace = f"{folder}/trace.json"
            self._profile.export_chrome_trace(trace)
            with (
                open(trace, "rb") as plain,
                atomic_write(path) as file,
                contextlib.ExitStack() as leave,
            ):
                sink: Any = file
                if path.suffix == ".gz":
                    sink = leave.enter_context(gzip.open(file, "wb"))
                head = plain.read(_HEAD_BYTES)
                with contextlib.suppress(Exception):  # a trace of another shape is kept as it is
                    head = _with_events(head, events_from)
                sink.write(head)
                shutil.copyfileobj(plain, sink)

    def _stand_guard(self, gives_way: Callable[[], None]) -> None:
        profile_type: Any = type(self._profile)
        prepare = profile_type._prepare_trace

        def prepare_trace(profile: Any) -> None:
            gives_way()
            prepare(profile)

        def stand_down() -> None:
            if profile_type._prepare_trace is prepare_trace:
                profile_type._prepare_trace = prepare

        self._stand_down = stand_down
        profile_type._prepare_trace = prepare_trace


def _with_events(head: bytes, events_from: Callable[[int], list[str]]) -> bytes:
    """Return the begin of a trace with more events in front of the first."""
    begin, base = _FIRST_EVENT.search(head), _BASE_TIME.search(head)
    if begin is None:
        return head
    more = ",\n".join(events_from(0 if base is None else int(base[1])))
    separator = ",\n" if more else ""
    return head[: begin.end()] + f"{more}{separator}".encode() + head[begin.end() :]


@contextlib.contextmanager
def _quiet_kineto() -> Iterator[None]:
    """Kineto has a line for each begin and end of a profiler, which would be none of the program's.
    It asks for its level once, when a process first starts a profiler."""
    if _KINETO_LEVEL in os.environ:
        yield
        return
    os.putenv(_KINETO_LEVEL, "9")  # and not in os.environ, which is the program's
    try:
        yield
    finally:
        os.unsetenv(_KINETO_LEVEL)


def _why_not(torch: Any) -> str | None:
    if not torch.autograd.kineto_available():
        return "this build of torch has no profiler"
    if torch.autograd.profiler._is_profiler_enabled or torch.autograd._profiler_enabled():
        return "a profiler is active already"
    monitor: Any = sys.modules.get("torch.profiler._cupti_monitor")
    if monitor is not None and monitor.get_monitor() is not None:
        return "torch's CUPTI monitor is active"
    if torch.cuda.is_initialized():
        for variable in _INJECTED_BY:
            if os.environ.get(variable):
                return f"another tool holds CUPTI, as {variable} in the environment says"
    return None
