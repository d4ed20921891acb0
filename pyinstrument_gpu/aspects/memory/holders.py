# SPDX-License-Identifier: Apache-2.0
"""The holders of a device's memory: parameters, gradients and optimizer state, by module.

Only what stands in the objects themselves is read: no code of the program runs, and no tensor is
made.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyinstrument_gpu.atomic_file import atomic_write

MOST_MODULES = 8
MOST_SNAPSHOT_BYTES = 256 << 20
_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_WRAPPERS = ("DataParallel", "DistributedDataParallel")
"""Modules that a wrapper holds, and wrappers, whose names are none of the model's."""
_GRADIENTS = "gradients_bytes"
_MOST_DEPTH = 3
"""Of the containers in which an optimizer keeps the tensors of a parameter."""


class _Storages:
    """Storages on one device, each of which is counted once."""

    def __init__(self, device: str) -> None:
        torch: Any = sys.modules["torch"]
        self._device = torch.device(device)
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._seen: set[int] = set()

    def new_bytes(self, tensor: Any) -> int:
        """Return the bytes of the tensor's storage, if it is on the device and was not counted."""
        try:
            if type(tensor) not in self._plain:  # a DTensor has no storage of its own
                tensor = getattr(tensor, "_local_tensor", tensor)
            if tensor.device == self._device:
                storage = tensor.untyped_storage()
                address = storage.data_ptr()
                if address and address not in self._seen:
                    self._seen.add(address)
                    return int(storage.nbytes())
        except Exception:  # some kinds of tensors have no storage
            return 0
        return 0


class Held:
    """The memory held on a device, each storage counted once, for what it was added as first.

    Args:
        device: as torch calls it.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._storages = _Storages(device)
        self._names: dict[int, str] = {}  # of the modules of parameters
        self._by_module: Counter[tuple[str, str]] = Counter()
        self.kinds: Counter[str] = Counter()

    def add(self, kind: str, tensor: Any, module: str | None = None) -> int:
        """Add a tensor; return how many bytes are new."""
        size_bytes = self._storages.new_bytes(tensor)
        if size_bytes:
            self.kinds[kind] += size_bytes
            if module is not None:
                self._by_module[kind, module] += size_bytes
        return size_bytes

    def module_of(self, parameter: Any) -> str | None:
        """The first module that was found to have it."""
        return self._names.get(id(parameter))

    def add_parameter(self, parameter: Any, module: str | None = None) -> None:
        """Add a parameter and its gradient."""
        if module is not None:
            self._names.setdefault(id(parameter), module)
        module = module or self._names.get(id(parameter))
        self.add("parameters_bytes", parameter, module)
        if parameter.is_leaf and parameter.grad is not None:
            self.add(_GRADIENTS, parameter.grad, module)

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
            for parameter in _parameters_of(optimizer):
                if id(parameter) not in self._names:
                    self.add_parameter(parameter)
            for parameter, state in vars(optimizer)["state"].items():
                module_name = self._names.get(id(parameter))
                for tensor in tensors_in(state):
                    self.add("optimizer_state_bytes", tensor, module_name)

    def after_backward(self, modules: list[Any], optimizers: list[Any]) -> Held:
        """Return what is held by the same once a backward pass has ended: no activations, and the
        gradients that are there now."""
        found = Held(self._device)
        gone = _GRADIENTS, "activations_bytes"
        found.kinds.update({kind: one for kind, one in self.kinds.items() if kind not in gone})
        found._by_module.update(
            {key: one for key, one in self._by_module.items() if key[0] not in gone}
        )
        parameters = {
            id(parameter): parameter
            for _, module in named_modules(modules)
            for parameter in vars(module)["_parameters"].values()
            if parameter is not None
        }
        for optimizer in optimizers:
            parameters |= {id(one): one for one in _parameters_of(optimizer)}
        for key, parameter in parameters.items():
            if parameter.is_leaf and parameter.grad is not None:
                found.add(_GRADIENTS, parameter.grad, self._names.get(key))
        return found

    def facts(self) -> dict[str, Any]:
        """Return the facts as the run file has them."""
        by_module: Counter[str] = Counter()
        for (_, module), held in self._by_module.items():
            by_module[module] += held
        return {**self.kinds, "modules": largest(by_module)}


def _parameters_of(optimizer: Any) -> list[Any]:
    groups = vars(optimizer)["param_groups"]
    return [parameter for group in groups for parameter in group["params"]]


def largest(by_module: Counter[str]) -> list[dict[str, Any]]:
    """Return the modules that hold most."""
    return [{"name": name, "bytes": held} for name, held in by_module.most_common(MOST_MODULES)]


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


def tensors_in(held: Any) -> list[Any]:
    """Return the tensors in dictionaries, lists and tuples, as deep as an optimizer's are."""
    tensor = sys.modules["torch"].Tensor
    found, todo = [], [(held, 0)]
    while todo:
        one, depth = todo.pop()
        if isinstance(one, tensor):
            found.append(one)
        elif isinstance(one, (dict, list, tuple)) and depth < _MOST_DEPTH:
            inside = one.values() if isinstance(one, dict) else one
            todo += [(each, depth + 1) for each in inside]
    return found


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
        with atomic_write(path, follow_links=False) as file:
            pickle.dump(snapshot(), _Bounded(file, MOST_SNAPSHOT_BYTES))
        return path.name
    return None
