# SPDX-License-Identifier: Apache-2.0
"""Callbacks for when the program imports a module, without importing it oneself."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from pyinstrument_gpu.patching.own_imports import OwnImports

if TYPE_CHECKING:
    # Before Python 3.14 it imports tempfile, zipfile and what these need.
    import importlib.abc
    import importlib.machinery


def when_imported(name: str, call: Callable[[], None]) -> Callable[[], None]:
    """Call `call` now if the module is loaded, else once it will be.

    Returns the function that takes this back, as long as it has not happened.
    """
    module = sys.modules.get(name)
    # One that is being imported is half there: it counts as loaded only when it is done.
    spec = getattr(module, "__spec__", None)  # what stands in for a module may have none
    if module is not None and not getattr(spec, "_initializing", False):
        call()
        return _nothing
    finder = _Finder(name, call)
    sys.meta_path.insert(0, finder)
    return finder.withdraw


def undo_all(undo: list[Callable[[], None]]) -> None:
    """Call what a list holds, the last first, and empty it. Calling it again does nothing."""
    with contextlib.suppress(IndexError):  # a second call, or another thread's
        while True:
            undo.pop()()


def _nothing() -> None:
    pass


class _Finder:
    """Finds one module as the others do, and calls back when it is loaded."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self._name = name
        self.call = call

    def withdraw(self) -> None:
        self.call = _nothing
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        position = sys.meta_path.index(self) if self in sys.meta_path else -1
        others: list[Any] = sys.meta_path[position + 1 :]
        for finder in others:
            spec: importlib.machinery.ModuleSpec | None = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = cast("importlib.abc.Loader", _CallingLoader(spec.loader, self))
                return spec
        return None


class _CallingLoader:
    def __init__(self, loader: importlib.abc.Loader, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # From here on everything looks as if we had not been there.
        call = self._finder.call
        self._finder.withdraw()
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        with OwnImports():
            call()


def torch_with_cuda() -> Any:
    """The program's torch if it has initialised CUDA, else None. Never the first to touch CUDA."""
    torch: Any = sys.modules.get("torch")
    try:
        # On a CPU build, and with ROCm, there is no such version.
        is_in_use = torch.version.cuda is not None and torch.cuda.is_initialized()
    except Exception:  # not imported, or half, or something that stands in for it
        return None
    return torch if is_in_use else None


DRIVERS = ("/dev/nvidiactl", "/dev/dxg")
"""Without any of these files no program can use an NVIDIA GPU: of Linux, and of WSL."""


def can_use_cuda() -> bool:
    """Return whether the program's torch may use CUDA, now or later. Opens no file."""
    torch: Any = sys.modules.get("torch")
    build = getattr(getattr(torch, "version", None), "cuda", "")
    return build is not None and any(map(os.path.exists, DRIVERS))
