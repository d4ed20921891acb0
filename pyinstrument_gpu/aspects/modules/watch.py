# SPDX-License-Identifier: Apache-2.0
"""Times of a model's modules, forward and backward.

The calls of modules, and the marks on autograd's nodes that show the backward pass, are timed in
csrc/modules and csrc/record/module_times.cpp.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from pyinstrument_gpu.core.watcher import Watcher
from pyinstrument_gpu.native import DISABLED, IMPORT_ERROR, native
from pyinstrument_gpu.patching.import_hook import when_imported
from pyinstrument_gpu.patching.problems import not_seen

if TYPE_CHECKING:
    from torch import nn

_MOST_ROOTS = 16
_TOO_MANY_ROOTS = (
    f"the program trains more than {_MOST_ROOTS} models at once; the modules of further ones are "
    "not timed"
)
_COMPILED_BACKWARD = (
    "compiled autograd traces the backward pass, and can't trace marks on its nodes: backward "
    "times of modules end where it began"
)
_MOST_WRAPPERS = 4
_WRAPPERS = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
}
_MOST_NOTED = 8
_AUTO = 0
_MOST_EVERY = 1_000_000

_watches: list[ModuleWatch] = []
"""Those that are active, of the whole process."""
_lock = threading.Lock()
_is_observed = False


class ModuleWatch:
    """The timed modules of one model, as `watch_modules` returns it. As a context manager it ends
    the watch with the block.

    Attributes:
        names: the names of the modules that are timed.
        notes: what is not timed as asked, in sentences.
    """

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.notes: list[str] = []
        self._every = 1
        self._model: Any = None  # a weak reference
        self._numbers: dict[str, int] = {}
        self._modules: dict[str, Any] = {}  # weak references

    def remove(self) -> None:
        """End the watch. What was recorded stays. Calling it again does nothing."""
        with _lock:
            if self not in _watches:
                return
            self.notes = list(self._all_notes())
            _watches.remove(self)
            for number in self._numbers.values():
                native.unwatch_module(number)
            _choose_steps()
            _stop_observing()

    def __enter__(self) -> ModuleWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _is_alive(self) -> bool:
        """Return whether any of its modules exists."""
        return any(module() is not None for module in self._modules.values())

    def _has(self, part: nn.Module) -> bool:
        """Return whether its model has this module, which activation checkpointing, for example,
        calls on its own."""
        model = None if self._model is None else self._model()
        return model is not None and any(one is part for one in model.modules())

    def _all_notes(self) -> Iterator[str]:
        yield from self.notes
        model = None if self._model is None else self._model()
        if model is None or not self._numbers:
            return
        with contextlib.suppress(Exception):
            now = dict(model.named_modules())
            replaced = [
                name for name, module in self._modules.items() if now.get(name) is not module()
            ]
            if replaced:
                yield (
                    "modules of the model were replaced after the watch began, and what came in "
                    f"their place was not timed: {_listed(replaced)}"
                )
            silent = [
                name
                for name, number in self._numbers.items()
                if name not in replaced and not native.was_module_called(number)
            ]
            if silent and len(silent) == len(self._numbers):
                yield (
                    "none of the watched modules was called while it was recorded: inside "
                    "torch.compile, and in scripted modules, calls can't be observed"
                )


class RootWatch:
    """Watches each model that a program calls for training.

    Attributes:
        notes: why a model is not watched, in sentences.
    """

    def __init__(self, select: str, every: int | None = None) -> None:
        self._select, self._every = select, _AUTO if every is None else every
        self._watches: list[ModuleWatch] = []
        self.notes: list[str] = []

    def begin(self) -> None:
        """Begin once torch is there, if it isn't yet."""
        global _root_watch
        _root_watch = self
        self._withdraw = when_imported("torch", self._begin)

    def end(self) -> None:
        global _root_watch
        if _root_watch is not self:
            return
        _root_watch = None
        self._withdraw()
        native.set_root_function(None)
        for watch in self._watches:
            watch.remove()
        _stop_observing()

    def _begin(self) -> None:
        if IMPORT_ERROR is None and _observe() is None:
            native.set_root_function(self._watch)

    def _watch(self, model: Any) -> bool:
        """Watch a model; return whether it need not be asked about this one again."""
        try:
            if next(model.parameters(), None) is not None:
                if not model.training:
                    return False
                self._watches = [watch for watch in self._watches if watch in _watches]
                if any(watch._has(model) for watch in self._watches):
                    return True
                if sum(watch._is_alive() for watch in self._watches) < _MOST_ROOTS:
                    self._watches.append(_watch(_unwrapped(model), self._select, self._every))
                elif _TOO_MANY_ROOTS not in self.notes:
                    self.notes.append(_TOO_MANY_ROOTS)
        except Exception as error:
            self.notes.append(f"the modules of {type(model).__qualname__} are not timed: {error!r}")
        return True


_root_watch: RootWatch | None = None


def watch_modules(
    model: nn.Module, select: str = "coarse", *, every: int | Literal["auto"] = "auto"
) -> ModuleWatch:
    """Time the modules of a model, forward and backward, while a recording is active.

    The forward time of a module is that of its calls. Its backward time is what the backward pass
    spends between the node of its output and that of its input: marks on autograd's nodes divide
    the whole pass, so the times of modules side by side add up to it. Recomputation by activation
    checkpointing is part of that, and also known for itself. Times include those of the modules
    inside. `run.modules` has them by name; docs/modules.md says what they mean and where they are
    not known.

    Args:
        model: the model, before it is compiled or wrapped; it is not changed, and not kept alive.
        select: "coarse": the children of each `ModuleList` and their own children, and what stands
            beside a `ModuleList` (without one: two levels of children). "all": every module.
            Otherwise a regular expression that must match a module's whole name, as
            `model.named_modules()` has it.
        every: time modules in one of every so many steps, drawn by chance; 1: in each. "auto": in
            so many that watching costs at most 0.2 % of the time of all steps and, on a GPU, in
            those whose device times are taken. In any case in the first three, and outside steps.
            Where several watches are given a number the smallest counts for all.

    Returns:
        The watch; `remove()` ends it.

    Raises:
        TypeError: `model` is no `torch.nn.Module`, `select` no str, or `every` neither an int nor
            "auto".
        ValueError: `select` is a regular expression that can't be compiled, or `every` less than 1
            or more than 1,000,000.

    A selection that matches nothing, and a model or module that is watched already, give a
    RuntimeWarning and a note in the run.

    Cost: two to eight microseconds for a call of a watched module and its marks together, in the
    steps that are timed (docs/modules.md). On a GPU an event at each of these boundaries, in the
    steps that device timing's budget lets it time. Never synchronises. Under `PYINSTRUMENT_GPU=0`,
    and where there is no native module, it does nothing.
    """
    from torch import nn

    if not isinstance(model, nn.Module):
        raise TypeError(
            f"watch_modules needs a torch.nn.Module, got {type(model).__qualname__}: {model!r:.80}"
        )
    if not isinstance(select, str):
        raise TypeError(f"select must be a str, got {type(select).__qualname__}: {select!r:.80}")
    watch = _watch(model, select, _checked(every))
    for note in watch.notes:
        with contextlib.suppress(RuntimeWarning):
            warnings.warn(note, RuntimeWarning, stacklevel=2)
    return watch


def _checked(every: object) -> int:
    if every == "auto":
        return _AUTO
    if not isinstance(every, int) or isinstance(every, bool):
        raise TypeError(
            f'every must be an int or "auto", got {type(every).__qualname__}: {every!r:.80}'
        )
    if not 1 <= every <= _MOST_EVERY:
        raise ValueError(f"every must be from 1 to {_MOST_EVERY:,}, got {every}")
    return every


def _watch(model: nn.Module, select: str, every: int) -> ModuleWatch:
    import weakref

    from pyinstrument_gpu.aspects.modules.torch_model import new_marks, prefixes, selected

    watch = ModuleWatch()
    watch._every = every
    chosen = selected(model, select)
    if DISABLED or IMPORT_ERROR is not None:
        return watch
    with _lock:
        reason = _observe()
        if reason is not None:
            watch.notes.append(reason)
            return watch
        # Programs may train one model after the other.
        _watches[:] = [one for one in _watches if one.notes or one._is_alive()]
        known = {id(one()) for other in _watches for one in other._modules.values()} - {id(None)}
        again = [name for name, module in chosen if id(module) in known]
        if again:
            watch.notes.append(
                "modules of the model were watched already, and keep their earlier names: "
                f"{_listed(again)}"
            )
        if not chosen:
            watch.notes.append(
                f"no module of {type(model).__qualname__} is selected by {select!r}, so none is "
                "timed"
            )
        for name, module in chosen:
            if id(module) in known:
                continue
            numbers = watch._numbers
            around = (numbers[outer] for outer in prefixes(name) if outer in numbers)
            try:
                number = native.watch_module(module, name, next(around, -1))
            except (OverflowError, MemoryError) as error:
                watch.notes.append(f"{error}: {name} and those after it are not timed")
                break
            except TypeError:
                continue  # it can't be weakly referenced
            native.set_module_marks(number, *new_marks(number))
            watch._numbers[name] = number
            watch._modules[name] = weakref.ref(module)
        watch.names = tuple(watch._numbers)
        watch._model = weakref.ref(model)
        _watches.append(watch)
        _choose_steps()
    return watch


def _unwrapped(model: Any) -> Any:
    """The model itself, whose names are the program's own."""
    for _ in range(_MOST_WRAPPERS):
        wrapped = _WRAPPERS.get(type(model).__name__)
        if wrapped is None:
            break
        model = getattr(model, wrapped)
    return model


def _observe() -> str | None:
    """Observe the calls of modules; returns why that can't be done."""
    global _is_observed
    from pyinstrument_gpu.aspects.modules.torch_model import observe

    _is_observed = _is_observed or observe()
    return None if _is_observed else not_seen("modules", ["Module.__call__", "run_backward"])


def _choose_steps() -> None:
    """Choose steps as those who watch would have it."""
    native.sample_modules(
        min((watch._every for watch in _watches if watch._every != _AUTO), default=_AUTO)
    )


def _stop_observing() -> None:
    """Stop observing where nobody watches any more."""
    global _is_observed
    if not _watches and _root_watch is None:
        native.unobserve_modules()
        _is_observed = False


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NOTED
    return ", ".join(names[:_MOST_NOTED]) + (f" and {more} more" if more > 0 else "")


class ModuleNotes(Watcher):
    """Gives the recording, as it ends, what is to be said of the modules."""

    def end(self) -> None:
        recording = self._recording
        with _lock:
            notes = [] if _root_watch is None else list(_root_watch.notes)
            notes += [note for watch in _watches for note in watch._all_notes()]
        if _is_observed and native.is_backward_compiled():
            notes.append(_COMPILED_BACKWARD)
        if notes and recording is not None:
            recording.facts["module_notes"] = notes
        super().end()


def watcher(options: object) -> Watcher:
    return ModuleNotes()
