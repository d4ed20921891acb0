# SPDX-License-Identifier: Apache-2.0
"""The log of compilations while a recording goes on, from whatever thread.

When one begins and ends is told by whoever calls. What was compiled and why stands in torch's own
records of compilations, of which torch keeps the last 64. It writes one after the compilation has
ended, so a record is looked for when the next one begins, and before the document is written.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Protocol

from pyinstrument_gpu.aspects.compilations import (
    DYNAMO,
    MOST_COMPILATIONS,
    MOST_LINES,
    MOST_TEXT,
)
from pyinstrument_gpu.native import native

_BACKWARD = "lazy_backward"
_MOST_FUNCTIONS = 4096
_MOST_WAITING = 64
_LIMIT = re.compile(
    r"exceeding the (\w+) cache size limit(?: \(currently set to (\d+)\))?"
    r"|^(\w+) reached"  # torch 2.10
)
_HINT = re.compile(r" \(HINT: (.*)\)")
_NUMBER = re.compile(r"^\S*/\d+: ")
"""Of the compiled version that did not fit, in front of a reason."""


class DynamoRecords(Protocol):
    """The records that torch._dynamo.utils keeps of compilations."""

    graph_break_reasons: list[Any]

    def get_compilation_metrics(self) -> list[Any]: ...


@dataclass
class _Open:
    """A compilation that has not ended; or one that waits for torch's record of it."""

    noted: dict[str, Any]
    id: str
    realtime_us: int
    depth: int = 1


class CompilationLog:
    """Notes compilations; bounded. What begins inside of one, on its thread, is a part of it.

    Args:
        records: of torch.
        clocks: the time of the run, and the wall clock's, in ns; None for those of the recording.
    """

    def __init__(
        self, records: DynamoRecords, clocks: Callable[[], tuple[int, int]] | None = None
    ) -> None:
        self._records = records
        self._clocks = clocks or native.read_clocks
        # Again by the thread that has it: a signal's handler may call a compiled function.
        self._lock = threading.RLock()
        _logs.add(self)
        self._open: dict[int, _Open] = {}
        self._waiting: deque[_Open] = deque(maxlen=_MOST_WAITING)
        self._functions: dict[str, dict[str, Any]] = {}
        self._reasons: dict[str, Any] = {}
        self._count = self._total_ns = self._since_ns = self._lost = 0
        self._step = -1
        self._compilations: list[dict[str, Any]] = []
        self._limits: list[dict[str, Any]] = []
        self._breaks: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._last_record: Any = None
        for record in self._new_records():  # of before, whose functions may be compiled again
            self._function_of(record)
        self._breaks_seen = len(records.graph_break_reasons)

    def begins(self, trigger: Any, compile_id: Any) -> None:
        """Note that the calling thread begins to compile, as torch's callbacks say it."""
        thread = threading.get_ident()
        with self._lock:
            self._learn()
            if thread in self._open:
                self._open[thread].depth += 1
                return
            begin_ns, realtime_ns = self._clocks()
            path, step, _ = native.open_place()
            self._pass_time(begin_ns, step)
            noted = {
                "begin_ns": begin_ns,
                "kind": _text(getattr(trigger, "name", DYNAMO)).lower(),
                "thread": threading.get_native_id(),
                "step": None if step < 0 else step,
                "path": None if path < 0 else path,
            }
            self._open[thread] = _Open(noted, str(compile_id), realtime_ns // 1000)

    def ends(self) -> bool:
        """Note that the calling thread is done with what it last began. Return whether with all."""
        thread = threading.get_ident()
        with self._lock:
            ending = self._open.get(thread)
            if ending is None:
                return False
            ending.depth -= 1
            if ending.depth:
                return False
            end_ns, _ = self._clocks()
            self._pass_time(end_ns, native.open_place()[1])
            del self._open[thread]
            self._count += 1
            if len(self._compilations) < MOST_COMPILATIONS:
                ending.noted["duration_ns"] = end_ns - ending.noted["begin_ns"]
                self._compilations.append(ending.noted)
                self._waiting.append(ending)
            return True

    def forget_lock(self) -> None:
        """Replace the lock in a forked child: a thread that does not exist there may hold it."""
        self._lock = threading.RLock()

    def facts(self) -> dict[str, Any]:
        """Return the document; empty where nothing was compiled."""
        with self._lock:
            self._learn()
            if not (self._count or self._limits or self._breaks):
                return {}
            return {
                "count": self._count,
                "total_ns": self._total_ns,
                "compilations": [dict(one) for one in self._compilations],
                "limits": list(self._limits),
                "breaks": [dict(one) for one in self._breaks.values()],
                "lost": self._lost,
            }

    def _pass_time(self, now_ns: int, step: int) -> None:
        """Count the time since the number of compiling threads last changed, once, and for the step
        that was open all the while. Call it before that number changes."""
        if self._open:
            took_ns = now_ns - self._since_ns
            self._total_ns += took_ns
            if step == self._step:
                native.add_to_step("compile_ns", took_ns)
        self._since_ns, self._step = now_ns, step

    def _learn(self) -> None:
        """Take what is new in torch's records. Another version of torch may have others."""
        with contextlib.suppress(Exception):
            for record in self._new_records():
                self._take_record(record)
        with contextlib.suppress(Exception):
            self._take_breaks(self._records.graph_break_reasons)

    def _new_records(self) -> Iterator[Any]:
        records = self._records.get_compilation_metrics()
        new = list(takewhile(lambda one: one is not self._last_record, reversed(records)))
        if records:
            self._last_record = records[-1]
        yield from reversed(new)

    def _function_of(self, record: Any) -> dict[str, Any]:
        """Return of what function a record is. Records of backward graphs and of limits name none,
        only an id, which begins like those of the function's compilations."""
        function_id = str(record.compile_id).rpartition("/")[0]
        if record.co_name is not None:
            if len(self._functions) >= _MOST_FUNCTIONS:
                self._functions.clear()
                self._reasons.clear()
            self._functions[function_id] = {
                "function": _text(record.co_name),
                "file": _text(record.co_filename),
                "line": record.co_firstlineno,
            }
        return self._functions.get(function_id, {})

    def _take_record(self, record: Any) -> None:
        function, compile_id = self._function_of(record), str(record.compile_id)
        is_backward = record.is_forward is False
        if not is_backward:
            self._reasons[compile_id] = record.recompile_reason
        reason = self._reasons.get(compile_id)  # of a backward graph that of its function
        place = {**function, "reason": None if reason is None else _reason(reason)}
        for ended in self._waiting:
            if (
                ended.id == compile_id
                and (ended.noted["kind"] == _BACKWARD) == is_backward
                and record.start_time_us <= ended.realtime_us <= record.end_time_us
            ):
                self._waiting.remove(ended)
                ended.noted.update(place, recompiled=reason is not None)
                if record.inductor_cumulative_compile_time_us is not None:
                    ended.noted["inductor_ns"] = record.inductor_cumulative_compile_time_us * 1000
                if record.fail_type is not None:
                    ended.noted["failure"] = _text(f"{record.fail_type}: {record.fail_reason}")
                return
        limit = _LIMIT.search(record.fail_reason or "")
        if limit is None:
            return
        if len(self._limits) == MOST_LINES:
            self._lost += 1
            return
        now_ns, realtime_ns = self._clocks()
        at_ns = max(0, now_ns - (realtime_ns - record.end_time_us * 1000))
        words = (limit[1] or limit[3]) + (f" ({limit[2]})" if limit[2] else "")
        hint = _HINT.search(str(reason))
        more = {"at_ns": at_ns, "limit": words, "hint": _text(hint[1]) if hint else None}
        self._limits.append(place | more)

    def _take_breaks(self, reasons: Sequence[Any]) -> None:
        # torch._dynamo.reset() clears them.
        first = self._breaks_seen if len(reasons) >= self._breaks_seen else 0
        self._breaks_seen = len(reasons)
        for one in reasons[first:]:
            line = one.user_stack[-1]
            place = _text(line.filename), line.lineno, _text(line.name), _break_reason(one.reason)
            if place not in self._breaks:
                if len(self._breaks) == MOST_LINES:
                    self._lost += 1
                    continue
                names = ("file", "line", "function", "reason")
                self._breaks[place] = {**dict(zip(names, place, strict=True)), "count": 0}
            self._breaks[place]["count"] += 1


def _text(value: object) -> str:
    return " ".join(str(value).split())[:MOST_TEXT]


def _reason(reason: object) -> str:
    """Return what failed, with the line of the guard, without torch's hint and stack."""
    return _text(_HINT.sub("", _NUMBER.sub("", str(reason))).partition("\n")[0])


def _break_reason(reason: object) -> str:
    """Return what torch says first, and its explanation, without hints."""
    text = str(reason)
    if text.startswith("generic_jump"):
        return "Data-dependent branching"
    what, _, more = text.partition("\n")
    explanation = re.search(r"Explanation: (.*)", more)
    return _text(what + (f": {explanation[1]}" if explanation else ""))


_logs: weakref.WeakSet[CompilationLog] = weakref.WeakSet()


def _forget_locks() -> None:
    for log in list(_logs):
        log.forget_lock()


os.register_at_fork(after_in_child=_forget_locks)
