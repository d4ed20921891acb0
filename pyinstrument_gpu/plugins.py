# SPDX-License-Identifier: Apache-2.0
"""Features of other packages, found by their entry points ("Plug-ins" in docs/architecture.md).

An entry point of the group `pyinstrument_gpu.exporters`, `.sinks`, `.commands`, `.rules`, `.edits`
or `.aspects` has the name that the feature is asked for by. Its package is imported when the
feature is used, and not before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from types import MethodType
from typing import Any

from pyinstrument_gpu.patching.own_imports import OwnImports
from pyinstrument_gpu.patching.problems import warn_of


@cache
def installed(kind: str) -> Mapping[str, Any]:
    """Return the entry points of a kind, such as "exporters", by name. None of them is loaded."""
    with OwnImports():
        from importlib.metadata import entry_points  # takes longer than the rest of a short start

        return {point.name: point for point in entry_points(group=f"pyinstrument_gpu.{kind}")}


@cache
def load(kind: str, name: str, check: Callable[[Any], bool], file: str = "") -> Any:
    """Load an installed plug-in. One that is broken is named in a warning, once.

    Args:
        check: whether an object is a plug-in of that kind.
        file: the module of the package that has it, as `aspect:ASPECT`, for an entry point that
            names a package.

    Returns:
        What its entry point names; None if that can't be loaded, or is something else.
    """
    point = installed(kind)[name]
    try:
        with OwnImports():
            module, _, attribute = file.partition(":")
            if file:
                point = type(point)(name, f"{point.value}.{module}:{attribute}", point.group)
            found = point.load()
        if check(found):
            return found
        problem = f"{point.value} is {found!r}"
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    leave_out(name, problem)
    return None


def leave_out(name: str, problem: str) -> None:
    """Say in a warning, which is never an error, that a plug-in is not used any further."""
    warn_of(f"the plug-in {name!r} of pyinstrument_gpu is left out: {problem}")


def load_all(kind: str, check: Callable[[Any], bool], file: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name of each installed plug-in of a kind, and what it is, without broken ones."""
    for name in installed(kind):
        found = load(kind, name, check, file)
        if found is not None:
            yield name, found


class Guarded:
    """Stands for an object of a plug-in. When a method of it raises, the plug-in is named in a
    warning, and from then on `instead` is asked in its place."""

    def __init__(self, name: str, plugin: object, instead: object) -> None:
        self._name, self._plugin, self._instead = name, plugin, instead
        self._is_broken = False

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._plugin, attribute)
        return partial(self._call, attribute) if isinstance(found, MethodType) else found

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        if not self._is_broken:
            try:
                answer = getattr(self._plugin, method)(*args, **options)
                return [*answer] if isinstance(answer, Iterator) else answer
            except Exception as error:
                self._is_broken = True
                leave_out(self._name, f"{method}() raised {type(error).__name__}: {error}")
        return getattr(self._instead, method)(*args, **options)
