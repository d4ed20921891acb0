# SPDX-License-Identifier: Apache-2.0
"""The holders of a device's memory when there is none left, found among all objects of the program.

Modules, optimizers and tensors are looked for among the objects that Python's garbage collector
knows, so nothing is paid before. No code of the program runs, and no tensor is made.

Activations are what autograd has saved in the graphs of all tensors that Python knows: of the
forward pass that goes on, of a backward pass that goes on, and of results that were kept with their
graph. What a backward pass releases meanwhile must not be looked at. While one goes on, a device's
nodes run in one thread of autograd, which is the one that has run out of memory: so only nodes of
this device are looked at, and none while another thread than that one is in a backward pass.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable
from typing import Any

from pyinstrument_gpu.aspects.memory.holders import Held
from pyinstrument_gpu.aspects.memory.node_modules import NodeModules
from pyinstrument_gpu.aspects.memory.saved_tensors import SavedTensors

_BACKWARD = "_engine_run_backward", "graph.py"
"""The function of torch in which each thread waits for a backward pass, and its file."""


def holders_of(
    device: str, phases_of: Callable[[list[tuple[int, int]]], list[tuple[int | None, int]]]
) -> dict[str, Any] | None:
    """Return what the program's modules, optimizers and autograd hold on a device, as the run file
    has it; None if there is none of them. It takes longer the more objects Python's garbage
    collector knows.

    Args:
        device: as torch calls it.
        phases_of: says in which phases nodes of autograd were made, which are given with their
            numbers and the bytes that they have saved.
    """
    torch: Any = sys.modules["torch"]
    with torch._C.DisableTorchFunction():
        objects = gc.get_objects()
        modules = _of_class(objects, torch.nn.Module, "_parameters", "_buffers", "_modules")
        optimizers = _of_class(objects, torch.optim.Optimizer, "state", "param_groups")
        nodes: list[Any] = []
        with contextlib.suppress(Exception):  # of tensors of a kind of their own
            nodes = _nodes(objects)
        del objects
        if not (modules or optimizers or nodes):
            return None
        held = Held(device)
        held.add_program(modules, optimizers)
        facts = held.facts()
        with contextlib.suppress(Exception):  # of nodes of a kind of their own
            is_visible = _visible_nodes(device)
            if is_visible is not None:
                graph = SavedTensors(held, is_visible)
                made_in = NodeModules(graph.walk(nodes), held.module_of)
                known = graph.facts(made_in.module_at)
                facts = {**held.facts(), **known, "phases": phases_of(graph.saved)}
        return facts


def _visible_nodes(device: str) -> Callable[[Any], bool] | None:
    """Return which nodes of autograd may be inspected now; None: not any."""
    torch: Any = sys.modules["torch"]
    wanted = torch.device(device)
    if torch._C._current_graph_task_id() != -1:
        return lambda node: all(one.device == wanted for one in node._input_metadata[:1])
    frames: list[Any] = [*sys._current_frames().values()]
    while frames:
        frame = frames.pop()
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if name == _BACKWARD[0] and file.endswith(_BACKWARD[1]):
            return None
        if frame.f_back is not None:
            frames.append(frame.f_back)
    return lambda node: True


def _nodes(objects: list[Any]) -> list[Any]:
    """Return the nodes that made the tensors among these objects, each once. A class of the
    program's may say that its tensors have others."""
    torch: Any = sys.modules["torch"]
    node_of = torch._C.TensorBase.grad_fn.__get__
    found = [node_of(one) for one in objects if issubclass(type(one), torch.Tensor)]
    return [*{one for one in found if one is not None}]


def _of_class(objects: list[Any], base: type, *attributes: str) -> list[Any]:
    """Return a class's complete objects, by `type()`: proxies may lie about `__class__`."""
    found = [one for one in objects if issubclass(type(one), base)]
    return [one for one in found if all(name in vars(one) for name in attributes)]
