# SPDX-License-Identifier: Apache-2.0
"""The tensors that autograd has saved for a backward pass, found by a walk over its graph.

A node gives what it has saved in two ways. Its `_saved_*` unpack it, for which hooks of the program
are called: those of activation checkpointing would compute it anew, and those of offloading copy it
back. Its `_raw_saved_*` only show what lies there, which is what is held, and nothing else happens.
So a tensor that a hook has packed counts as what the hook has made of it, if that is tensors. Of
checkpointing it is the arguments that are kept for recomputation.

What a custom Function in Python keeps on its context is seen as well. A custom one in C++ shows
nothing of what it has saved: it is counted as one that was not seen.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from pyinstrument_gpu.aspects.memory.holders import Held, largest, tensors_in

MOST_NODES = 20_000
_RAW = "_raw_saved_"
LEAF = "AccumulateGrad"
_RELEASED = "backward through the graph a second time"
"""What torch says of a node that a backward pass has left with nothing saved."""
_CLOSED = ("CppFunction", "CopySlices")
"""What torch calls the types of nodes that do not show what they have saved."""


class SavedTensors:
    """A walk from where a backward pass begins. It keeps no tensor.

    Args:
        held: what is known to be held: parameters to whose gradients the pass adds, and all else
            that is saved, are added to it.
        is_visible: says of a node whether it may be looked at. Others are counted as unseen.

    Attributes:
        saved: the bytes that nodes were the first to save, with the numbers that autograd gave
            these, by which nodes of one thread are in the order in which they were made.
        unseen: how many nodes, or packed tensors, did not show what they hold.
    """

    def __init__(self, held: Held, is_visible: Callable[[Any], bool] = lambda node: True) -> None:
        self._all = held
        self._is_visible = is_visible
        torch: Any = sys.modules["torch"]
        self._tensor, self._function = torch.Tensor, torch._C._FunctionBase
        self._is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
        self._names: dict[type, list[str]] = {}  # of what nodes of a type save
        self._frames: set[int] = set()  # of checkpointing, by identity: the graph keeps them
        self.saved: list[tuple[int, int]] = []
        self.unseen = 0

    def walk(self, roots: list[Any]) -> list[tuple[int, Any]]:
        """Walk from these nodes over at most `MOST_NODES`: first the leaves, then the nodes in the
        order in which they were made, which are returned with their numbers."""
        todo = [*roots]
        seen = set(todo)
        while todo and len(seen) <= MOST_NODES:
            for following, _ in todo.pop().next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    todo.append(following)
        self.unseen += len(todo)
        nodes = []
        for node in seen:
            if type(node).__name__ == LEAF:
                self._all.add_parameter(node.variable)
            else:
                nodes.append((node._sequence_nr(), node))
        nodes.sort(key=itemgetter(0))
        for number, node in nodes:
            if self._is_visible(node):
                self._look_at_node(node, number)
            else:
                self.unseen += 1
        return nodes

    def facts(self, module_at: Callable[[int], str | None]) -> dict[str, Any]:
        """Return the facts for the run file.

        Args:
            module_at: says in which module the node with a number was made; None: not known.
        """
        in_modules: Counter[str] = Counter()
        for number, size_bytes in self.saved:
            module = module_at(number)
            if module is not None:
                in_modules[module] += size_bytes
        return {"unseen": self.unseen, "activation_modules": largest(in_modules)}

    def _add(self, tensor: Any, number: int) -> None:
        size_bytes = self._all.add("activations_bytes", tensor)
        if size_bytes:
            self.saved.append((number, size_bytes))

    def _look_at_node(self, node: Any, number: int) -> None:
        kind = type(node)
        names = self._names.get(kind)
        if names is None:
            names = self._names[kind] = saved_names(kind)
        for name in names:
            try:
                held = getattr(node, name)
            except RuntimeError as error:  # custom Functions and lists are not shown once released
                self.unseen += _RELEASED not in str(error)
                continue
            for saved in held if isinstance(held, tuple) else (held,):
                self._look_at(saved, number)
        if isinstance(node, self._function):
            for tensor in tensors_in(vars(node)):
                self._add(tensor, number)
        elif kind.__name__ in _CLOSED:
            self.unseen += 1

    def _look_at(self, saved: Any, number: int) -> None:
        """Inspect what torch calls a `SavedTensor`, or what checkpointing keeps in place of one."""
        held = getattr(saved, "data", saved)
        if isinstance(held, self._tensor):
            if self._is_wrapped(held):  # by torch.func: it has no storage of its own
                self.unseen += 1
            else:
                self._add(held, number)
            return
        packed = tensors_in(held)
        for tensor in packed:
            self._add(tensor, number)
        unpack = getattr(saved, "unpack_hook", None)
        if packed or unpack is None:
            return
        frame = _checkpoint_of(unpack)
        if frame is None:
            self.unseen += 1
        elif id(frame) not in self._frames:
            self._frames.add(id(frame))
            for argument in _kept_arguments(frame):
                self._look_at(argument, number)


def saved_names(kind: type) -> list[str]:
    """The attributes that show what nodes of a type have saved. It takes some 20 us."""
    return [name for name in dir(kind) if name.startswith(_RAW)]


def _checkpoint_of(unpack: Any) -> Any:
    """The checkpoint of torch.utils.checkpoint whose hook this is; None: it is another's."""
    for cell in getattr(unpack, "__closure__", None) or ():
        if type(cell.cell_contents).__name__ == "_CheckpointFrame":
            return cell.cell_contents
    return None


def _kept_arguments(frame: Any) -> Any:
    """Return what a checkpoint keeps to compute anew; some versions of torch have a node for it."""
    if hasattr(frame, "saved_args"):
        return frame.saved_args
    return frame.input_saver.grad_fn._raw_saved_tensors
