# SPDX-License-Identifier: Apache-2.0
"""Of which phases operations in graphs of torch.compile are.

A graph calls its kernels in the order in which its code has them. What the profiler shows directly
inside a call of it is matched with them by name. Where it shows a name more or less often than the
code has it, what has that name is given to no phase of the graph.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence

from pyinstrument_gpu.aspects.operations.events import HostEvent
from pyinstrument_gpu.patching.graph_labels import Kernel, Label
from pyinstrument_gpu.patching.inductor import GraphCall

_CALL = "## Call CompiledFxGraph "


class CompiledCalls:
    """The calls of graphs in a window."""

    def __init__(self, calls: Iterable[GraphCall] = ()) -> None:
        self._calls: dict[int, list[GraphCall]] = defaultdict(list)
        for call in calls:
            self._calls[call.native_thread].append(call)
        self._begins_ns = {
            thread: [call.begin_ns for call in of] for thread, of in self._calls.items()
        }
        self._paths: dict[int, str] = {}  # by the ids of events

    def match(self, events: Iterable[tuple[HostEvent, Sequence[HostEvent]]]) -> None:
        """Match the events of one thread, which come in order of their begin, with kernels.

        Args:
            events: each with those around it, from the outermost in.
        """
        shown: dict[int, dict[str, list[int]]] = {}
        calls: dict[int, HostEvent] = {}
        for event, parents in events:
            if parents and parents[-1].name.startswith(_CALL):
                call = parents[-1]
                calls[id(call)] = call
                by_name = shown.setdefault(id(call), defaultdict(list))
                by_name[event.name].append(id(event))
        for number, by_name in shown.items():
            labels: dict[str, list[Label]] = defaultdict(list)
            for kernel in self._kernels_of(calls[number]):
                labels[kernel.name].append(kernel.label)
            for name, of in labels.items():
                if len(by_name[name]) == len(of):
                    for event_number, label in zip(by_name[name], of, strict=True):
                        self._paths[event_number] = "/".join(map(_escaped, label))

    def path_of(self, event: HostEvent, parents: Sequence[HostEvent]) -> str | None:
        """The phases inside the graph that an event is of, as a path; None for none."""
        around = (*parents, event)
        for place in range(len(parents) - 1, -1, -1):
            if around[place].name.startswith(_CALL):
                return self._paths.get(id(around[place + 1])) or None
        return None

    def _kernels_of(self, call: HostEvent) -> tuple[Kernel, ...]:
        # Who calls it notes that just before.
        place = bisect_right(self._begins_ns.get(call.native_thread, []), call.begin_ns)
        return self._calls[call.native_thread][place - 1].kernels or () if place else ()


def _escaped(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F")
