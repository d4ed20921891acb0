# SPDX-License-Identifier: Apache-2.0
"""Phases inside torch.compile.

Dynamo cannot look into a C function. It is told to take `nullcontext()` for a phase when it traces
one: the graph does not break, nothing is recorded there. Telling it means importing it, which takes
more than a second; so that is done only when the program imports it anyway.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from pyinstrument_gpu._native import native

_DYNAMO = "torch._dynamo"


def register_when_imported() -> None:
    """Register now if Dynamo is loaded, else when it will be."""
    if _DYNAMO in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _DynamoFinder())


def _register() -> None:
    try:
        import torch

        substitute: Any = torch.compiler.substitute_in_graph
        substitute(native.gpu_phase, skip_signature_check=True)(_null_phase)
        substitute(native.gpu_phase.scope, skip_signature_check=True)(_null_phase)
        substitute(native.frame_begin, skip_signature_check=True)(_no_frame)
        substitute(native.frame_end, skip_signature_check=True)(_do_nothing)
    except Exception as error:
        warnings.warn(
            f"phases inside torch.compile will break its graphs: {error!r}",
            RuntimeWarning,
            stacklevel=2,
        )


def _null_phase(name: str, /) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def _no_frame(phase: Any, /) -> int:
    return 0


def _do_nothing(phase: Any, token: int, /) -> None:
    return None


class _DynamoFinder(importlib.abc.MetaPathFinder):
    """Finds torch._dynamo as the others do, and has us called when it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _DYNAMO:
            return None
        others: list[Any] = [finder for finder in sys.meta_path if finder is not self]
        for finder in others:
            spec: importlib.machinery.ModuleSpec | None = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _RegisteringLoader(spec.loader, self)
                return spec
        return None


class _RegisteringLoader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, finder: _DynamoFinder) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # From here on everything looks as if we had not been there.
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _register()
