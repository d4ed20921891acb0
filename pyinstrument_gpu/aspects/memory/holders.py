# SPDX-License-Identifier: Apache-2.0
"""Who holds the memory of a device: parameters, gradients and optimizer state, by module.

When memory has run out, they are looked for among the objects that Python's garbage collector
knows, so nothing is paid before. Only what stands in the objects themselves is read: no code of the
program runs, and no tensor is made.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MOST_MODULES = 8
MOST_SNAPSHOT_BYTES = 256 << 20
_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_WRAPPERS = ("DataParallel", "DistributedDataParallel")
"""Modules that a wrapper holds, and wrappers, whose names are none of the model's."""
_MOST_DEPTH = 3
"""Of the containers in which an optimizer keeps the tensors of a parameter."""


class _Storages:
    """Storages on one device, each of which is counted once."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._seen: set[int] = set()

    def new_bytes(self, tensor: Any) -> int:
        """Of the tensor's storage, if it is on the device and was not counted."""
        tensor = getattr(tensor, "_local_tensor", tensor)  # a DTensor has none of its own
        with contextlib.suppress(Exception):  # some kinds of tensors have no storage
            if tensor.device == self._device:
                storage = tensor.untyped_storage()
                address = storage.data_ptr()
                if address and address not in self._seen:
                    self._seen.add(address)
                    return int(storage.nbytes())
        return 0


class Held:
    """What is held on a device, each storage counted once, for what it was added as first.

    Args:
        device: as torch calls it.
    """

    def __init__(self, device: str) -> None:
        self._storages = _Storages(sys.modules["torch"].device(device))
        self._names: dict[int, str] = {}  # of the modules of parameters
        self._by_module: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()

    def add(self, kind: str, tensor: Any, module: str | None = None) -> int:
        """Returns how many bytes are new."""
        size_bytes = self._storages.new_bytes(tensor)
        self.kinds[kind] += size_bytes
        if module is not None and size_bytes:
            self._by_module[module] += size_bytes
        return size_bytes

    def add_parameter(self, parameter: Any, module: str | None = None) -> None:
        """With its gradient."""
        if module is not None:
            self._names.setdefault(id(parameter), module)
        module = module or self._names.get(id(parameter))
        self.add("parameters_bytes", parameter, module)
        if parameter.is_leaf and parameter.grad is not None:
            self.add("gradients_bytes", parameter.grad, module)

    def add_program(self, modules: list[Any], optimizers: list[Any]) -> None:
        """Parameters, gradients and buffers of modules and all inside, and what optimizers keep."""
        for name, module in named_modules(modules):
            held = vars(module)
            for parameter in held["_parameters"].values():
                if parameter is not None:
                    self.add_parameter(parameter, name)
            for buffer in held["_buffers"].values():
                self.add("buffers_bytes", buffer, name)
        for optimizer in optimizers:
            held = vars(optimizer)
            for group in held["param_groups"]:
                for parameter in group["params"]:
                    self.add_parameter(parameter)
            for parameter, state in held["state"].items():
                for tensor in tensors_in(state):
                    self.add("optimizer_state_bytes", tensor, self._names.get(id(parameter)))

    def facts(self) -> dict[str, Any]:
        """As the run file has it."""
        return {**self.kinds, "modules": largest(self._by_module)}


def largest(by_module: Counter[str]) -> list[dict[str, Any]]:
    """Those modules that hold most."""
    return [{"name": name, "bytes": held} for name, held in by_module.most_common(MOST_MODULES)]


def holders_of(device: str) -> dict[str, Any] | None:
    """What the program's modules and optimizers hold on a device, as the run file has it; None if
    it has neither. It takes longer the more objects Python's garbage collector knows."""
    torch: Any = sys.modules["torch"]
    with torch._C.DisableTorchFunctionSubclass():
        objects = gc.get_objects()
        modules = _of_class(objects, torch.nn.Module, "_parameters", "_buffers", "_modules")
        optimizers = _of_class(objects, torch.optim.Optimizer, "state", "param_groups")
        del objects
        if not (modules or optimizers):
            return None
        held = Held(device)
        held.add_program(modules, optimizers)
        return held.facts()


def _of_class(objects: list[Any], base: type, *attributes: str) -> list[Any]:
    """Those that are fully made. Their own type counts: a proxy may say that it is another."""
    found = [one for one in objects if issubclass(type(one), base)]
    return [one for one in found if all(name in vars(one) for name in attributes)]


def named_modules(modules: list[Any]) -> Iterator[tuple[str, Any]]:
    """Modules with their names in the model that contains them, or that of their class."""
    inner = {id(child) for module in modules for child in vars(module)["_modules"].values()}
    seen = set()
    todo = [("", module) for module in reversed(modules) if id(module) not in inner]
    while todo:
        name, module = todo.pop()
        if module is None or id(module) in seen or "_modules" not in vars(module):
            continue
        seen.add(id(module))
        yield name or type(module).__name__, module
        for key, child in reversed(vars(module)["_modules"].items()):
            is_wrapped = key in _WRAPPED or type(module).__name__ in _WRAPPERS
            todo.append((name if is_wrapped else f"{name}.{key}" if name else key, child))


def tensors_in(held: Any, depth: int = 0) -> Iterator[Any]:
    """Those in dictionaries, lists and tuples, as deep as an optimizer's are."""
    if isinstance(held, sys.modules["torch"].Tensor):
        yield held
    elif isinstance(held, (dict, list, tuple)) and depth < _MOST_DEPTH:
        for value in held.values() if isinstance(held, dict) else held:
            yield from tensors_in(value, depth + 1)


class _Bounded:
    """A file of which no more than so many bytes are written."""

    def __init__(self, file: Any, most_bytes: int) -> None:
        self._file, self._left_bytes = file, most_bytes

    def write(self, data: Any) -> int:
        self._left_bytes -= memoryview(data).nbytes
        if self._left_bytes < 0:
            raise OverflowError("the snapshot is too large")
        return int(self._file.write(data))


def save_snapshot(snapshot: Callable[[], object], run: Path) -> str | None:
    """Save a snapshot of PyTorch's allocator beside a run file, as pytorch.org/memory_viz reads it.

    Returns:
        The name of the file; None if it could not be written, or would have been larger than
        `MOST_SNAPSHOT_BYTES`: then there is none.
    """
    path = run.with_name(f"{run.name}.oom.pickle")
    with contextlib.suppress(Exception):
        with tempfile.NamedTemporaryFile(dir=run.parent, delete=False) as file:
            try:
                pickle.dump(snapshot(), _Bounded(file, MOST_SNAPSHOT_BYTES))
                file.flush()
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
        return path.name
    return None
