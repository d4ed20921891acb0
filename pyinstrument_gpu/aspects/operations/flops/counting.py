# SPDX-License-Identifier: Apache-2.0
"""Sums the floating-point operations of a window, and the time of operators without a formula.

Operators call each other. The innermost ones with a formula are counted, as those around them may
have been given something else than the numbers that are computed with: one example of the batch of
torch.func.vmap, the whole of a tensor that is divided among ranks, or what autocast then converts.
Only a formula that the program has registered stands for all that its operator calls, other than
that operator itself.

An operator that autograd records is numbered, so one with a number within a node of a backward pass
does again what a forward pass has done; unless all of that node's are numbered, which then is a
backward pass that is to be differentiated itself. So is what the closure of an optimizer's step
does for the model, other than what the optimizer does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pyinstrument_gpu.aspects.operations.events import DeviceEvent, HostEvent
from pyinstrument_gpu.core.flops import FlopCount, FlopKind, UnknownOperator

MOST_UNKNOWN = 20
_OPTIMIZER = "Optimizer.step#"
_CHECKPOINT = "CheckpointFunctionBackward"
_FORWARD_MODE = "aten::_fw_primal"  # called once an operator with tangents has its own result
_MODE = "PythonDispatchMode"
"""One of the program's modes answers for an operator: selective checkpoints by what they have kept.
"""
_NODE = "autograd::engine::evaluate_function: "
_COMPILED = ("Torch-Compiled Region", "## Call CompiledFxGraph", "CompiledFunction")
# They make, move and look at numbers, and compute none.
_NO_ARITHMETIC = frozenset(
    f"aten::{name}"
    for name in (
        *("alias", "as_strided", "cat", "chunk", "clone", "contiguous", "copy_", "detach"),
        *("detach_", "empty", "empty_like", "empty_strided", "expand", "expand_as", "fill_"),
        *("flatten", "full", "full_like", "gather", "index_select", "item", "lift_fresh"),
        *("_local_scalar_dense", "narrow", "new_empty", "new_empty_strided", "new_zeros", "ones"),
        *("ones_like", "permute", "_reshape_alias", "reshape", "resize_", "resolve_conj"),
        *("resolve_neg", "select", "set_", "slice", "split", "split_with_sizes", "squeeze"),
        *("stack", "t", "to", "_to_copy", "transpose", "unbind", "unflatten", "_unsafe_view"),
        *("unsqueeze", "view", "view_as", "zero_", "zeros", "zeros_like"),
    )
)


class FlopCounting:
    """The sums over the events of one window."""

    def __init__(self) -> None:
        self._calls: list[tuple[HostEvent, FlopKind | HostEvent, str | None]] = []
        # By their places:
        self._replaced: set[int] = set()  # those inside them count instead
        self._also: set[int] = set()  # those inside them are of their tangents, and count as well
        # By the correlations of events:
        self._inside: dict[int, int] = {}  # a call with a formula, or it itself: its place there
        self._around: set[int] = set()
        self._ordinary: set[int] = set()  # nodes of an ordinary backward pass
        self._others: list[tuple[HostEvent, int]] = []

    def add(
        self, event: HostEvent, self_ns: int, parents: Sequence[HostEvent], path: str | None
    ) -> None:
        """Add an event, on its thread in the order in which they began.

        Args:
            parents: the events around it, from the outermost in.
            path: the phase that it belongs to.
        """
        if parents and (number := self._inside.get(parents[-1].correlation)) is not None:
            outer, found, where = self._calls[number]
            assert outer.flops is not None
            if event.name == _MODE and parents[-1].correlation == outer.correlation:
                self._replaced.add(number)
                return  # and what it calls, if anything, is on its own
            if event.flops is None or (outer.flops.is_programs and event.name != outer.name):
                self._inside[event.correlation] = number
                if event.name == _FORWARD_MODE and number not in self._replaced:
                    self._also.add(number)
                return
            self._replaced.add(number)
            self._inside[event.correlation] = len(self._calls)
            self._calls.append((event, found, where))
            return
        depth = next((i for i in reversed(range(len(parents))) if _runs_node(parents[i])), None)
        node = None if depth is None else parents[depth]
        if node is not None and depth is not None:
            inner = (*parents[depth + 1 :], event)
            is_again = any(one.sequence >= 0 and not one.is_node for one in inner)
            if not is_again and not event.is_node and not event.is_annotation:
                self._ordinary.add(node.correlation)
            if event.name == _CHECKPOINT:
                self._ordinary.add(node.correlation)
        if event.flops is None:
            self._others.append((event, self_ns))
            return
        self._inside[event.correlation] = len(self._calls)
        self._around.update(one.correlation for one in parents)
        kind: FlopKind | HostEvent = FlopKind.FORWARD
        if node is not None:
            kind = node if is_again else FlopKind.BACKWARD
        elif event.sequence < 0 and any(one.name.startswith(_OPTIMIZER) for one in parents):
            kind = FlopKind.OPTIMIZER
        self._calls.append((event, kind, path))

    def counts(self) -> tuple[FlopCount, ...]:
        """Return the counts, the largest first."""
        sums: Counter[tuple[str | None, FlopKind, str]] = Counter()
        replaced = self._replaced - self._also
        for number, (event, found, path) in enumerate(self._calls):
            if number in replaced:
                continue
            assert event.flops is not None
            flops, again, dtype, _ = event.flops
            if isinstance(found, FlopKind):
                kind = found
            elif found.correlation in self._ordinary:
                kind = FlopKind.RECOMPUTE
            else:
                kind = FlopKind.BACKWARD
            sums[path, kind, dtype] += flops - again
            if again:
                sums[path, FlopKind.RECOMPUTE, dtype] += again
        return tuple(
            FlopCount(path, None, kind, dtype, flops)
            for (path, kind, dtype), flops in sums.most_common()
        )

    def unknown(self, device: Iterable[DeviceEvent]) -> tuple[UnknownOperator, ...]:
        """The operators without a formula, the longest first."""
        device = list(device)
        times_ns = self._on_device(device) if device else self._on_host()
        calls: Counter[str | None] = Counter(event.name for event, _ in self._others)
        found = sorted(times_ns.items(), key=lambda one: one[1], reverse=True)
        rows = [UnknownOperator(name, calls[name], ns) for name, ns in found if ns > 0]
        rest = rows[MOST_UNKNOWN:]
        if rest:
            sums = sum(one.calls for one in rest), sum(one.time_ns for one in rest)
            rows[MOST_UNKNOWN:] = [UnknownOperator(None, *sums)]
        return tuple(rows)

    def _on_host(self) -> Mapping[str | None, int]:
        times_ns: defaultdict[str | None, int] = defaultdict(int)
        for event, self_ns in self._others:
            is_work = not (event.is_annotation or event.name.startswith(_NODE))
            if event.name.startswith(_COMPILED) or (
                is_work
                and event.name not in _NO_ARITHMETIC
                and event.correlation not in self._around
            ):
                times_ns[event.name] += self_ns
        return times_ns

    def _on_device(self, device: Sequence[DeviceEvent]) -> Mapping[str | None, int]:
        names = {event.correlation: event.name for event, _ in self._others}
        times_ns: defaultdict[str | None, int] = defaultdict(int)
        for work in device:
            name = names.get(work.operator)
            if work.operator not in self._inside and name not in _NO_ARITHMETIC:
                times_ns[name] += work.end_ns - work.begin_ns
        return times_ns


def _runs_node(event: HostEvent) -> bool:
    return event.name.startswith(_NODE)
