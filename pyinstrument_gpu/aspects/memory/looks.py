# SPDX-License-Identifier: Apache-2.0
"""Inspections of who holds memory as a backward pass begins and ends: two moments near the peak of
a training loop, at which all that is held for long can be counted from the program's objects.

In a step that is looked at, calls of modules are hooked below their Python objects, so that names
of parameters are known, and which nodes of autograd were made in which module. As the pass begins,
the saved tensors are found in its graph. As it ends these are gone, and gradients are there. The
pass is kept that has the moment at which most is held.

The first step is looked at that comes after one in which an optimizer has made its step, so that
its state is there. If the peak of memory grows later, another one is: `MOST_LOOKS` at most. All
other steps cost nothing. No tensor is kept, but weak references for the rest of the step.
"""

from __future__ import annotations

import bisect
import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from pyinstrument_gpu.aspects.memory import holders, saved_tensors
from pyinstrument_gpu.aspects.memory.fold import Reading, saved_by_phase, steps_of
from pyinstrument_gpu.aspects.memory.holders import Held, named_modules, tensors_in
from pyinstrument_gpu.aspects.memory.saved_tensors import SavedTensors
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.import_hook import when_imported
from pyinstrument_gpu.patching.own_imports import OwnImports

MOST_LOOKS = 4
GROWN = 1.1
"""By what factor the peak must have grown for another look."""
MOST_STEPS = 64
"""That are waited for the step of an optimizer, and for a backward pass in the next one."""
_LAST_STEPS = 2
"""Of these, in which a backward pass is looked for also without an optimizer."""
_MOST_BACKWARDS = 2
_MOST_MARKS = 100_000
_MOST_OBJECTS = 16
_NEVER, _RESULT = 0, 6  # patching.hooks.QuickCheck, which needs torch


class MemoryLooks:
    """The looks of one recording.

    Args:
        is_on: whether the recording goes on.
        device: whose memory is counted, as torch calls it.
        allocated_bytes: what is allocated there now; None: not known.
    """

    def __init__(
        self,
        is_on: Callable[[], bool],
        device: Callable[[], str],
        allocated_bytes: Callable[[], int | None],
    ) -> None:
        self._is_on = is_on
        self._device = device
        self._allocated_bytes = allocated_bytes
        self._leave = self._leaves  # one object each, by which the hooks are known
        self._leave_module = self._leaves_module
        self._leave_optimizer = self._leaves_optimizer
        self._torch_is_there = False
        self._optimizers: dict[int, weakref.ref[Any]] = {}
        self._hooked_steps: set[int] = set()
        self._taken = 0
        self._waited = 0
        self._is_wanted = False
        self._peak_bytes = 0  # of the run, after the last look
        self._best: dict[str, Any] | None = None
        self._most_bytes = 0  # that it has found
        self._unplaced: list[tuple[int, int]] = []  # what of it was saved, until phases are known
        self._step = _Step()

    def begin(self) -> Callable[[], None]:
        """Begin once torch is there. Returns what withdraws that."""
        return when_imported("torch", self._start)

    def end(self) -> None:
        for leave in (self._leave, self._leave_module, self._leave_optimizer):
            native.unhook(leave)
        self._is_wanted, self._step = False, _Step()

    def facts(self) -> dict[str, Any] | None:
        """Return the part of the document: the backward pass with which most was held."""
        return None if self._best is None else dict(self._best)

    def add(self, readings: Iterable[Reading]) -> None:
        """Add the readings of steps that have ended: they say which phases made what was saved."""
        for step in steps_of(readings) if self._unplaced else ():
            if self._best is not None and step[0][-1] <= self._unplaced[-1][0] < step[-1][-1]:
                self._best["phases"] = saved_by_phase(step, self._unplaced)
                self._unplaced = []
                break

    def note_peak(self, peak_bytes: int) -> None:
        """Note the most that was in use so far. The thread that opens steps calls this."""
        if self._is_wanted or not self._taken:
            return
        if self._peak_bytes and peak_bytes > GROWN * self._peak_bytes:
            self._want()
        self._peak_bytes = self._peak_bytes or peak_bytes

    def forget(self) -> None:
        """Forget all: it is another device whose memory is read from now on."""
        self._best, self._most_bytes, self._unplaced = None, 0, []
        self._want()

    # Between steps

    def _start(self) -> None:
        with contextlib.suppress(Exception):  # of a torch that is not built as expected
            with OwnImports():
                from pyinstrument_gpu.patching import dynamo, hooks

            dynamo.leave_out(sys.modules[__name__], holders, saved_tensors)
            hooks.look_at_torch()
            self._torch_is_there = True
            self._want()

    def _want(self) -> None:
        if self._torch_is_there and not self._is_wanted and self._taken < MOST_LOOKS:
            self._is_wanted, self._waited, self._peak_bytes = True, 0, 0
            self._optimizers, self._hooked_steps = {}, set()  # others may be there by now
            native.call_before_step(self._before_step)

    def _before_step(self) -> None:
        if not self._is_on():
            return
        native.unhook(self._leave)
        native.unhook(self._leave_module)
        was_looked_at, self._step = self._step.looks, _Step()
        self._waited += 1
        if was_looked_at or self._waited > MOST_STEPS:
            self._taken += 1
            self._is_wanted = False
            native.unhook(self._leave_optimizer)
            return
        with contextlib.suppress(Exception):  # of a torch that is not built as expected
            torch: Any = sys.modules["torch"]
            self._follow_optimizers(torch)
            if self._optimizers or self._waited > MOST_STEPS - _LAST_STEPS:
                backward = type(torch.autograd.Variable._execution_engine).run_backward
                native.hook_call(backward, _NEVER, enter=self._enters, leave=self._leave)
                native.hook_call(
                    torch.nn.Module.__call__,
                    _RESULT,
                    enter=self._enters_module,
                    leave=self._leave_module,
                    from_c=True,
                )
        native.call_before_step(self._before_step)

    def _follow_optimizers(self, torch: Any) -> None:
        """Hook the functions inside which optimizers make their steps, below what torch has wrapped
        them in, which it does when there is the first one of a class."""
        classes = [torch.optim.Optimizer]
        for each in classes:
            classes += each.__subclasses__()
            step = getattr(each.step, "__wrapped__", None)
            if step is not None and id(step) not in self._hooked_steps:
                self._hooked_steps.add(id(step))
                enter, leave = self._enters_optimizer, self._leave_optimizer
                native.hook_call(step, _NEVER, enter=enter, leave=leave, from_c=True)

    def _enters_optimizer(self, args: tuple[Any, ...], kwargs: object) -> None:
        optimizer = args[0]
        if len(self._optimizers) < _MOST_OBJECTS and isinstance(
            optimizer, sys.modules["torch"].optim.Optimizer
        ):
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)

    def _leaves_optimizer(self, token: object, args: object, succeeded: object) -> None:
        """Do nothing."""

    # In a step that is looked at

    def _enters_module(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        step = self._step
        if step.thread != threading.get_ident() or not step.may_go_on():
            return None
        began_ns = time.perf_counter_ns()
        with contextlib.suppress(Exception):  # of a model of a kind of its own
            if not step.stack:
                step.model_is_called(args[0], [*args[1:], *(kwargs or {}).values()])
        step.mark(step.names.get(id(args[0])))
        step.cost_ns += time.perf_counter_ns() - began_ns
        return step

    def _leaves_module(self, step: _Step, args: object, result: object) -> None:
        step.unmark()

    def _enters(self, args: tuple[Any, ...], kwargs: object) -> Any:
        step, torch = self._step, sys.modules["torch"]
        if step.thread != threading.get_ident() or not step.may_go_on():
            return None
        if native.open_place()[1] < 0 or torch._C._current_graph_task_id() != -1:
            return None
        step.is_in_backward, step.held, step.found = True, None, {}
        self._look(step, partial(self._count_begin, args[1]))
        return step

    def _leaves(self, step: _Step, args: object, succeeded: object) -> None:
        step.is_in_backward = False
        if succeeded and step is self._step:
            self._look(step, self._count_end)

    def _look(self, step: _Step, count: Callable[[list[Any], list[Any]], None]) -> None:
        """Inspect memory as a backward pass begins, or has ended."""
        began_ns = time.perf_counter_ns()
        torch: Any = sys.modules["torch"]
        try:
            with torch._C.DisableTorchFunction():
                count(_alive(step.models), _alive(self._optimizers.values()))
        except Exception:  # of objects of a kind of their own: it is not known
            return
        finally:
            step.looks += 1
            step.cost_ns += time.perf_counter_ns() - began_ns
            step.found["cost_ns"] = step.cost_ns

    def _count_begin(self, roots: Any, modules: list[Any], optimizers: list[Any]) -> None:
        step, held = self._step, Held(self._device())
        held.add_program(modules, optimizers)
        for tensor in _alive(step.inputs):
            held.add("inputs_bytes", tensor)
        graph = SavedTensors(held)
        graph.walk([one.grad_fn for one in tensors_in(roots) if one.grad_fn is not None])
        step.held, step.saved = held, graph.saved
        step.found = {
            "step": native.open_place()[1],
            "optimizers": len(optimizers),
            **graph.facts(step.module_at),
        }
        self._note("begin", held)

    def _count_end(self, modules: list[Any], optimizers: list[Any]) -> None:
        if self._step.held is not None:
            self._note("end", self._step.held.after_backward(modules, optimizers))

    def _note(self, moment: str, held: Held) -> None:
        step, known_bytes = self._step, held.kinds.total()
        step.found[moment] = {**held.facts(), "allocated_bytes": self._allocated_bytes()}
        if known_bytes > self._most_bytes:
            self._most_bytes, self._best, self._unplaced = known_bytes, step.found, step.saved


class _Step:
    """The known facts of the step that is inspected, which may be one that isn't."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.looks = 0
        self.cost_ns = 0
        self.held: Held | None = None  # as the last backward pass began
        self.found: dict[str, Any] = {}  # of that pass
        self.saved: list[tuple[int, int]] = []  # the numbers of nodes, and what they have saved
        self.is_in_backward = False
        self.models: list[weakref.ref[Any]] = []
        self.inputs: list[weakref.ref[Any]] = []
        self.names: dict[int, str] = {}
        self.stack: list[str | None] = []
        self._numbers: list[int] = []  # of the next node, where a call begins or ends,
        self._modules: list[str | None] = []  # and in which module that node is

    def may_go_on(self) -> bool:
        return not self.is_in_backward and self.looks < 2 * _MOST_BACKWARDS

    def model_is_called(self, model: Any, arguments: list[Any]) -> None:
        """Note that a module is called by no other one."""
        is_known = any(one is model for one in _alive(self.models))
        if len(self.models) < _MOST_OBJECTS and not is_known:
            self.models.append(weakref.ref(model))
            for name, module in named_modules([model]):
                self.names.setdefault(id(module), name)
        torch: Any = sys.modules["torch"]
        with torch._C.DisableTorchFunction():
            for tensor in tensors_in(arguments):
                if tensor.grad_fn is None and len(self.inputs) < _MOST_OBJECTS:
                    self.inputs.append(weakref.ref(tensor))

    def mark(self, module: str | None) -> None:
        """Note that a call of the module begins."""
        self.stack.append(module)
        self._note()

    def unmark(self) -> None:
        """Note that a call ends."""
        if self.stack:
            self.stack.pop()
        self._note()

    def _note(self) -> None:
        if len(self._numbers) < _MOST_MARKS:
            self._numbers.append(sys.modules["torch"].autograd._get_sequence_nr())
            self._modules.append(self.stack[-1] if self.stack else None)

    def module_at(self, number: int) -> str | None:
        """Return in which module's own code the node was made."""
        place = bisect.bisect_right(self._numbers, number) - 1
        return None if place < 0 else self._modules[place]


def _alive(references: Iterable[weakref.ref[Any]]) -> list[Any]:
    return [one for reference in references if (one := reference()) is not None]
