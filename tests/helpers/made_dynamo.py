# SPDX-License-Identifier: Apache-2.0
"""A compiler that is built as torch._dynamo is, by a clock of its own."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

from pyinstrument_gpu.aspects.compilations.watch import CompilationWatch

NAME = "made_dynamo"
MS = 1_000_000
_REALTIME_NS = 1_700_000_000 * 10**9


class _Handler:
    """Of callbacks: as `torch._dynamo.callback.CompilationCallbackHandler`."""

    def __init__(self) -> None:
        self.start_callbacks: list[Any] = []
        self.end_callbacks: list[Any] = []

    @contextmanager
    def install_callbacks(self, trigger: Any, compile_id: str) -> Iterator[None]:
        for callback in self.start_callbacks:
            callback()
        try:
            yield
        finally:
            for callback in self.end_callbacks:
                callback()

    def clear(self) -> None:
        self.start_callbacks.clear()
        self.end_callbacks.clear()


class MadeDynamo:
    """The compiler: its handler, its records, and what time it is."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.callback_handler = _Handler()
        self.records: list[Any] = []
        self.graph_break_reasons: list[Any] = []

    def clocks(self) -> tuple[int, int]:
        return self.now_ns, _REALTIME_NS + self.now_ns

    def get_compilation_metrics(self) -> list[Any]:
        return self.records[-64:]

    def load(self) -> None:
        """Have the program import it."""
        module: Any = ModuleType(NAME)
        module.callback_handler = self.callback_handler
        sys.modules[NAME], sys.modules[f"{NAME}.utils"] = module, self  # type: ignore[assignment]

    def watch(self) -> CompilationWatch:
        return CompilationWatch(self.clocks, NAME)

    @contextmanager
    def compiling(
        self, compile_id: str = "0/0", kind: str = "DYNAMO", **record: Any
    ) -> Iterator[None]:
        """A compilation, of what it leaves a record."""
        begin_us = self.clocks()[1] // 1000
        with self.callback_handler.install_callbacks(SimpleNamespace(name=kind), compile_id):
            yield
        self.note(compile_id, begin_us, is_forward=kind != "LAZY_BACKWARD", **record)

    def compiles(self, ms: int, compile_id: str = "0/0", **record: Any) -> None:
        """A compilation that takes so long."""
        with self.compiling(compile_id, **record):
            self.now_ns += ms * MS

    def note(self, compile_id: str, begin_us: int | None = None, **record: Any) -> None:
        now_us = self.clocks()[1] // 1000
        names = (
            *("co_name", "co_filename", "co_firstlineno", "recompile_reason", "fail_type"),
            *("fail_reason", "inductor_cumulative_compile_time_us", "is_forward"),
        )
        times = {"start_time_us": now_us if begin_us is None else begin_us, "end_time_us": now_us}
        known = dict.fromkeys(names) | {"compile_id": compile_id} | times
        self.records.append(SimpleNamespace(**known | record))

    def breaks(self, reason: str, line: int) -> None:
        """The graph of a function breaks."""
        frame = SimpleNamespace(filename="/p/gpt.py", lineno=line, name="forward")
        one = SimpleNamespace(reason=reason, user_stack=[frame])
        self.graph_break_reasons.append(one)


FORWARD: dict[str, Any] = {"co_name": "forward", "co_filename": "/p/gpt.py", "co_firstlineno": 88}
"""What a record says of a function."""
