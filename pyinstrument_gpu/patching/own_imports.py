# SPDX-License-Identifier: Apache-2.0
"""Keeps our imports and a program's apart, where both have modules of the same name.

A program that we run may have a `rich.py`, a `json.py` or a `click.py` of its own. It must find
them although we have loaded others by these names, and we must not find them: our imports would
run its code once more, and then lack what we need. So `make_room` takes our modules out of its way
before it begins, and `OwnImports` brings them back while we import something ourselves.

As the first module of the package, this one imports nothing that a program could have put in its
place. When it is imported it takes the working directory off the path, which
`python -m pyinstrument_gpu` has put there.
"""

import sys
import time
from _collections_abc import Iterable  # of Python itself; since 3.13 `collections` is not loaded
from _frozen_importlib import BuiltinImporter, FrozenImporter
from _frozen_importlib_external import PathFinder  # importlib.machinery may import more
from types import ModuleType

IMPORTED_NS = time.monotonic_ns()
"""When the package began to be imported."""
_AT_START = frozenset(sys.modules)
_NEVER = ("__main__", "pyinstrument_gpu", "torch")  # torch is watched, wherever it comes from
_ONLY_OURS = ("click", "json")  # needed before the program, and by nothing that it is given

_folder: str | None = None
_path: list[str] = []
_modules: dict[str, ModuleType] = {}


def _leave_out_working_directory() -> bool:
    # While Python looks for the module, the first argument is "-m".
    arguments: list[str] = getattr(
        sys, "argv", []
    )  # there are none in another program's interpreter
    module = "".join(sys.orig_argv[-len(arguments) :][:1]) if arguments[:1] == ["-m"] else ""
    if not module.endswith("pyinstrument_gpu"):
        return False
    if getattr(sys.flags, "safe_path", sys.flags.isolated):
        return False  # Python has put nothing there
    del sys.path[0]
    return True


WORKING_DIRECTORY_LEFT_OUT = _leave_out_working_directory()
"""Whether the first entry that Python gave to the path is no longer there."""


def make_room(folder: str) -> None:
    """Have a program find its own modules in its folder, which will be on the path.

    What Python itself, or what started us, had loaded before us stays.
    """
    global _folder, _path
    _folder = folder
    _path = [entry for entry in sys.path if entry not in ("", folder)]
    _modules.update(sys.modules)
    _modules.pop("__main__", None)
    _set_aside(_top_level_names(sys.modules) - _AT_START)
    # The program may write a module there in the next moment, which a listing of now would lack.
    sys.path_importer_cache.pop(folder, None)


class OwnImports:
    """While the block runs, imports give us what they gave before the program began.

    Other threads of the program see that, too. If `make_room` was not called, nothing changes.
    """

    def __enter__(self) -> None:
        if _folder is None:
            return
        self._path = sys.path
        self._before = dict(sys.modules)
        sys.path = [*_path]
        for name in _top_level_names(self._before):
            if _comes_from_the_program(name):
                _remove(name)
        sys.modules.update(_modules)

    def __exit__(self, *_: object) -> None:
        if _folder is None:
            return
        sys.path = self._path
        _set_aside(_top_level_names(sys.modules.keys() - self._before.keys()))
        for name in _modules.keys() - self._before.keys():
            sys.modules.pop(name, None)
        sys.modules.update(self._before)


def _top_level_names(names: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def _set_aside(names: set[str]) -> None:
    for name in names:
        if name in _ONLY_OURS or (name not in _NEVER and _is_in_folder(name)):
            _modules.update(_remove(name))


def _remove(name: str) -> dict[str, ModuleType]:
    """Take a module and what is inside it from the table of modules."""
    names = [full for full in sys.modules if full.partition(".")[0] == name]
    return {full: sys.modules.pop(full) for full in names}


def _is_in_folder(name: str) -> bool:
    """Return whether the program's `import name` finds something in its folder."""
    assert _folder is not None
    if BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name):
        return False
    spec = PathFinder.find_spec(name, [_folder])
    return spec is not None and spec.loader is not None  # else a folder that is no package


def _comes_from_the_program(name: str) -> bool:
    """Return whether a loaded module is the program's, and our path has another by its name."""
    origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
    if name in _NEVER or not isinstance(origin, str) or not origin.startswith(f"{_folder}/"):
        return False
    ours = PathFinder.find_spec(name, _path)
    return ours is not None and ours.origin != origin
