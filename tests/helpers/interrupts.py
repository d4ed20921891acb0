# SPDX-License-Identifier: Apache-2.0
"""KeyboardInterrupt at a chosen instruction.

Python handles signals between instructions only, after calls and at the jumps back of loops. Here
the exception comes before any instruction, which includes all of those. It does not come before
the two by which a handler of exceptions begins and ends. Python handles no signal there, and is not
made for an exception there: the one that the handler was for would stay the one handled for good.
"""

import functools
import opcode
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pyinstrument_gpu
from pyinstrument_gpu.aspects.memory.looks import MemoryLooks
from pyinstrument_gpu.aspects.memory.watch import MemoryWatch
from pyinstrument_gpu.aspects.startup.watch import StartupWatch
from pyinstrument_gpu.recording import device_timing, native_callbacks

_CALLBACKS = {
    function.__code__
    for function in (
        native_callbacks._look_at_program,
        device_timing.attach_if_initialized,
        device_timing.warn,
        native_callbacks._history_stopped,
        native_callbacks._thread_name,
        MemoryLooks._before_step,
        MemoryWatch._take,
        StartupWatch._first_step_begins,
    )
}
"""What the recorder itself calls, when it suits it: these are left out."""
# After these Python looks for signals, in one of its versions, or may have run a function that did.
_SIGNALS_AFTER = ("CALL", "FOR_ITER", "JUMP", "RESUME", "RETURN", "SEND", "WITH", "YIELD")
_OURS = pyinstrument_gpu.__file__.removesuffix("__init__.py")
_OF_HANDLERS = {opcode.opmap.get(name) for name in ("PUSH_EXC_INFO", "POP_EXCEPT")}


class Interrupter:
    """Counts the instructions of the package, or of some of its modules, and of some functions,
    while they are called by `call`, and raises KeyboardInterrupt before one of them."""

    def __init__(self, *functions: Callable[..., Any], modules: tuple[str, ...] = ("",)) -> None:
        self._codes = {function.__code__ for function in functions}
        self._files = tuple(_OURS + module for module in modules)
        self._at = -1
        self._handler: Callable[[], object] | None = None
        self.seen: list[tuple[CodeType, int]] = []
        """The instructions that were reached, each as the code and the offset in it."""

    def signal_points(self) -> list[int]:
        """When those of `seen` were reached before which Python may handle a signal."""
        points = []
        begun: set[CodeType] = set()
        may_handle = True
        for at, (code, offset) in enumerate(self.seen):
            if may_handle or code not in begun:
                points.append(at)
            begun.add(code)
            name = opcode.opname[_bytecode(code)[offset]]
            may_handle = any(part in name for part in _SIGNALS_AFTER)
        return points

    def call(
        self,
        function: Callable[[], object],
        at: int = -1,
        handler: Callable[[], object] | None = None,
    ) -> bool:
        """Call a function and interrupt it before the instruction with this number. Returns whether
        the exception came out of it. A handler is called instead of raising."""
        self.seen.clear()
        self._at = at
        self._handler = handler
        handled = sys.exc_info()[1]
        before = sys.gettrace()
        sys.settrace(self._trace)
        was_interrupted = False
        try:
            function()
        except KeyboardInterrupt:
            was_interrupted = True
        finally:
            sys.settrace(before)
        assert sys.exc_info()[1] is handled, "an exception was left as the one handled"
        return was_interrupted

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if code not in self._codes and not code.co_filename.startswith(self._files):
            return None
        outer: FrameType | None = frame
        while outer is not None:
            if outer.f_code in _CALLBACKS:
                return None
            outer = outer.f_back
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        if event == "opcode" and _bytecode(code)[frame.f_lasti] not in _OF_HANDLERS:
            self.seen.append((code, frame.f_lasti))
            if len(self.seen) - 1 == self._at:
                sys.settrace(None)
                if self._handler is None:
                    raise KeyboardInterrupt
                self._handler()
                return None
        return self._trace


@functools.cache
def _bytecode(code: CodeType) -> bytes:
    return code.co_code  # made anew each time
