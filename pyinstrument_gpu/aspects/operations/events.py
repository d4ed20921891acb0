# SPDX-License-Identifier: Apache-2.0
"""Events that torch.profiler has seen, as plain tuples.

They are read from the results of Kineto and not from `events()` of the profiler, which makes an
object of dozens of fields of each, nor from an exported trace, where times are rounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

_LEFT_OUT = {
    # As in `torch.autograd.profiler_util`.
    *("[memory]", "[OutOfMemory]", "aten::is_leaf", "aten::output_nr", "aten::_version"),
    "profiler::_record_function_enter",
    "profiler::_record_function_enter_new",
    "profiler::_record_function_exit",
}
_BACKWARD_SCOPE = 1  # at::RecordScope::BACKWARD_FUNCTION
_ENQUEUES = re.compile("Launch|Mem(cpy|set).*Async")
"""In the name of a function of the runtime or the driver: a call of it enqueues something."""

_OF_RUNTIME = re.compile("(cuda|cu|hip)[A-Z]")


class CallFlops(NamedTuple):
    """The floating-point operations of a call of an operator.

    Attributes:
        flops: all of them.
        again: those that only repeat what the forward pass has done, as fused attention does.
        dtype: the type of the numbers.
        is_programs: by a formula of the program, which stands for all that the operator calls.
    """

    flops: int
    again: int
    dtype: str
    is_programs: bool = False


class HostEvent(NamedTuple):
    """An operator, a node of autograd, or a range that the program has named.

    Times are by the wall clock, in nanoseconds. `thread` is torch's number of the thread and
    `native_thread` the system's. `sequence` is that of the node of autograd which it makes or, with
    `forward_thread` (0: none), runs; -1 for none. `is_node`: it runs a node of autograd. `flops`:
    of an operator with a formula, if they were asked for.
    """

    name: str
    begin_ns: int
    end_ns: int
    thread: int
    native_thread: int
    correlation: int
    sequence: int = -1
    forward_thread: int = 0
    is_node: bool = False
    is_annotation: bool = False
    flops: CallFlops | None = None


class DeviceEvent(NamedTuple):
    """A kernel or copy. `operator` is the correlation of the event of the host that launched it, 0
    for none."""

    begin_ns: int
    end_ns: int
    device: int
    operator: int


@dataclass(frozen=True)
class Events:
    """The events of a window.

    Attributes:
        host: in no order.
        device: in no order.
        launches: for each call that enqueued something, the correlation of the host's event around
            it, 0 for none.
    """

    host: list[HostEvent]
    device: list[DeviceEvent]
    launches: list[int]

    def begun(self, when: Callable[[int], bool]) -> Events:
        """Return those of the host that began at such times, and what they launched."""
        others = {event.correlation for event in self.host if not when(event.begin_ns)}
        return Events(
            [event for event in self.host if event.correlation not in others],
            [event for event in self.device if event.operator not in others],
            [operator for operator in self.launches if operator not in others],
        )


def events_of(
    kineto_events: Iterable[Any], flops_of: Callable[[Any], CallFlops | None] | None = None
) -> Events:
    """Read what `_ProfilerResult.events()` gives, of torch 2.10 and newer.

    Args:
        flops_of: tells the floating-point operations of a call, if they are to be counted.
    """
    host: list[HostEvent] = []
    device: list[DeviceEvent] = []
    launches: list[int] = []
    for event in kineto_events:
        name, kind = event.name(), _kind(event)
        if kind in ("kernel", "gpu_memcpy", "gpu_memset"):
            begin_ns = event.start_ns()
            end_ns = begin_ns + event.duration_ns()
            operator = event.linked_correlation_id()
            device.append(DeviceEvent(begin_ns, end_ns, event.device_index(), operator))
        elif kind in ("cuda_runtime", "cuda_driver"):
            if _ENQUEUES.search(name):
                launches.append(event.linked_correlation_id())
        elif kind in ("cpu_op", "user_annotation") and name not in _LEFT_OUT:
            thread = event.start_thread_id()
            native_thread = event.device_resource_id()
            if event.is_async() or event.end_thread_id() != thread or not native_thread:
                continue  # it is no part of any thread's time; the profiler's own has no thread
            begin_ns = event.start_ns()
            host.append(
                HostEvent(
                    name,
                    begin_ns,
                    begin_ns + event.duration_ns(),
                    thread,
                    native_thread,
                    event.correlation_id(),
                    event.sequence_nr(),
                    event.fwd_thread_id(),
                    event.scope() == _BACKWARD_SCOPE
                    or name.startswith("autograd::engine::evaluate_function: "),
                    kind == "user_annotation",
                    None if flops_of is None else flops_of(event),
                )
            )
    return Events(host, device, launches)


def _kind(event: Any) -> str:
    """The type of a Kineto activity, as traces name it."""
    if hasattr(event, "activity_type"):
        kind: str = event.activity_type()
        return kind
    # torch 2.11 and older. What is no operator there has no correlation, or that of an operator.
    if "CPU" not in str(event.device_type()):
        return "gpu_user_annotation" if event.is_user_annotation() else "kernel"
    if event.linked_correlation_id() > 0 or _OF_RUNTIME.match(event.name()):
        return "cuda_runtime"
    if event.correlation_id() == 0:
        return "other"
    return "user_annotation" if event.is_user_annotation() else "cpu_op"
