# SPDX-License-Identifier: Apache-2.0
"""The check of one step: what goes into modules and comes out of them, their weights, the loss, and
the gradients that each node of the backward pass computes.

Calls of modules are hooked below their Python objects, for the steps that are checked alone. Nodes
have hooks as autograd offers them, which change nothing and are gone as the backward pass ends.
The numbers that autograd gives its nodes say in which call of a module a node was made.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch._guards import TracingContext

from pyinstrument_gpu.aspects.nonfinite.extremes import Measurements, Place
from pyinstrument_gpu.patching.tensor_device import is_fake_tensor

_P = ParamSpec("_P")
_T = TypeVar("_T")
_MOST_NODES = 20_000
_MOST_LOOKS = 64
"""In lists and dictionaries of tensors."""
_WRAPPED = re.compile(
    r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)
_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")
_next_node: Callable[[], int] = vars(torch.autograd)["_get_sequence_nr"]
_LEAF = "torch::autograd::AccumulateGrad"
_VIEWS = frozenset(
    f"{name}Backward0"
    for name in ("View", "UnsafeView", "ReshapeAlias", "T", "Transpose", "Permute", "Unsqueeze")
)
"""Nodes that hand on the gradient that they get, which is looked at where it was computed."""

Kind = Literal["weights", "buffer", "input", "output", "loss", "gradient"]


def _unheard(look: Callable[_P, _T]) -> Callable[_P, _T]:
    """Have a look at tensors of which the program's modes and classes of tensors hear nothing."""

    @wraps(look)
    def looks(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with torch._C.DisableTorchFunction():
            return look(*args, **kwargs)

    return looks


class Call(NamedTuple):
    """A call of a module, and the numbers of the nodes that were made in it."""

    module: str
    module_class: str
    begin: int
    end: int = 0


class Event(NamedTuple):
    """A tensor that was looked at.

    Attributes:
        call: of the module whose weights, input or output it is; of the loss and gradients None.
        around: the call of the module that has made the call.
        detail: the name of a weight, or of the node.
        node: the thread that began the backward pass, and the number of the node.
        is_computed: of an input: autograd knows how it was made.
        is_leaf: a gradient of something that no node has made, such as weights.
    """

    kind: Kind
    place: Place
    call: Call | None = None
    around: Call | None = None
    detail: str = ""
    node: tuple[int, int] = (0, 0)
    is_computed: bool = False
    is_leaf: bool = False


class StepCheck:
    """The events of one step, in their order.

    Args:
        pool: of its measurements.
        is_whole: whether modules and gradients are looked at; the loss is in any case.
    """

    def __init__(self, pool: list[Any], is_whole: bool) -> None:
        self.measurements = Measurements(pool)
        self.is_whole = is_whole
        self.index = -1
        self.is_scaled = False
        self.events: list[Event] = []
        self.calls: dict[int, list[Call]] = {}
        self._stacks: dict[int, list[Call]] = {}
        self._names: dict[int, str] = {}
        self._seen: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._thread = threading.get_ident()

    @_unheard
    def enters(self, module: nn.Module, arguments: Iterable[Any]) -> Call | None:
        """Note that a module is called."""
        thread, recomputes = threading.get_ident(), torch._C._current_graph_task_id() != -1
        if _is_tracing() or not (thread == self._thread or recomputes):
            return None
        stack = self._stacks.setdefault(thread, [])
        if not stack:
            wrapper = "module." if type(module).__name__ in _WRAPPERS else ""
            for name, inner in module.named_modules():
                name = _WRAPPED.sub("", f"{name}.".removeprefix(wrapper))[:-1]
                self._names.setdefault(id(inner), name or type(inner).__name__)
        kind = type(module).__name__
        call = Call(self._names.get(id(module), kind), kind, _next_node())
        if not recomputes:
            around = stack[-1] if stack else None
            for tensor in tensors_in(arguments):
                self._note("input", tensor, call, around, is_computed=tensor.grad_fn is not None)
            for name, weight in module._parameters.items():
                self._note("weights", weight, call, around, name)
            for name, buffer in module._buffers.items():
                self._note("buffer", buffer, call, around, name)
        stack.append(call)
        return call

    @_unheard
    def leaves(self, call: Call, result: Any) -> None:
        """Note the end of that call, with a result, or by an exception with False."""
        thread = threading.get_ident()
        stack = self._stacks.get(thread, [])
        if not any(one is call for one in stack):
            return
        while stack.pop() is not call:
            pass
        end = _next_node()
        self.calls.setdefault(thread, []).append(call._replace(end=end))
        if torch._C._current_graph_task_id() == -1:
            for tensor in tensors_in((result,)):
                self._note("output", tensor, call, stack[-1] if stack else None)

    @_unheard
    def backward_begins(self, roots: Any, gradients: Any) -> list[Any]:
        """Note that a backward pass begins at these tensors. Returns what ends with it."""
        if _is_tracing():
            return []
        thread = threading.get_ident()
        nested = torch._C._current_graph_task_id() != -1
        for tensor in () if nested else tensors_in((roots, gradients)):
            self._note("loss", tensor)
        if not self.is_whole:
            return []
        handles: list[Any] = []
        todo = [_computing(root.grad_fn) for root in tensors_in((roots,)) if root.grad_fn]
        seen = set(todo)
        while todo:
            node = todo.pop()
            following = [each and _computing(each) for each, _ in node.next_functions]
            leaves = [each is not None and each.name() == _LEAF for each in following]
            note = partial(self._gradients, node.name(), (thread, node._sequence_nr()), leaves)
            handles.append(node.register_hook(note))
            if len(handles) == _MOST_NODES:
                self.measurements.unknown += len(todo)
                break
            for each, is_leaf in zip(following, leaves, strict=True):
                if each is not None and not is_leaf and each not in seen:
                    seen.add(each)
                    todo.append(each)
        return handles

    @_unheard
    def _gradients(
        self, name: str, node: tuple[int, int], leaves: list[bool], given: Any, _: Any
    ) -> None:
        for number, gradient in enumerate(given if isinstance(given, tuple) else (given,)):
            if isinstance(gradient, Tensor):
                is_leaf = number < len(leaves) and leaves[number]
                self._note("gradient", gradient, detail=name, node=node, is_leaf=is_leaf)

    def _note(
        self,
        kind: Kind,
        tensor: Tensor | None,
        call: Call | None = None,
        around: Call | None = None,
        detail: str = "",
        **more: Any,
    ) -> None:
        """Look at a tensor, unless it was just looked at, and has not changed since."""
        if tensor is None or is_fake_tensor(tensor):
            return
        if kind not in ("loss", "gradient"):
            version = -1 if tensor.is_inference() else tensor._version
            known = self._seen.get(id(tensor))
            if known is not None and known[0]() is tensor and known[1] == version and version >= 0:
                return
            self._seen[id(tensor)] = weakref.ref(tensor), version
        place = self.measurements.take(tensor)
        if place is not None:
            self.events.append(Event(kind, place, call, around, detail, **more))


def _computing(node: Any) -> Any:
    """A node, or the first one behind it that is more than a view."""
    while node.name() in _VIEWS and node.next_functions[0][0] is not None:
        node = node.next_functions[0][0]
    return node


def _is_tracing() -> bool:
    """Return whether the program only shows a compiler what it would do."""
    return torch._C._is_tracing() or TracingContext.try_get() is not None


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors in these values, as far as lists, tuples and dictionaries show them."""
    todo, looks = [*values][::-1], 0
    while todo and looks < _MOST_LOOKS:
        value, looks = todo.pop(), looks + 1
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            todo += value[:_MOST_LOOKS][::-1]
        elif isinstance(value, dict):
            todo += [*value.values()][:_MOST_LOOKS][::-1]
