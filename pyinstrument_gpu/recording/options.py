# SPDX-License-Identifier: Apache-2.0
"""The options of a recording: names, defaults and checks, in one place for `record` and `start`."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from pyinstrument_gpu import plugins
from pyinstrument_gpu.errors import ConfigurationError, SinkError
from pyinstrument_gpu.native import DISABLED
from pyinstrument_gpu.patching.own_imports import OwnImports
from pyinstrument_gpu.recording import device_timing
from pyinstrument_gpu.recording.configuration import record_settings
from pyinstrument_gpu.recording.device_timing import DeviceTimingMode, GraphPhasesMode
from pyinstrument_gpu.recording.hang_program import check_call

if TYPE_CHECKING:
    from typing import ParamSpec

    from pyinstrument_gpu.sinks.sink import Sink

    _P = ParamSpec("_P")

_R = TypeVar("_R")
MemoryMode = Literal["sampled", "exact", False]

_MIN_MAX_BYTES = 1 << 20
_DEFAULT_HISTORY_IN_MEMORY = 1_000_000
_UNLIMITED = 2**62


class RecordingOptions:
    """The arguments of `record`, which documents them.

    Not a dataclass: making one imports `inspect`, which would be a fifth of the package's import.

    Raises:
        ValueError, TypeError: an argument is wrong.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        overwrite: bool = False,
        history_spans: int | None = None,
        max_bytes: int = 1 << 30,
        nvtx: bool = True,
        device_timing: DeviceTimingMode = "auto",
        device_timing_budget: float = 0.001,
        graph_phases: GraphPhasesMode = "auto",
        memory: MemoryMode = "sampled",
        oom_snapshot: bool = True,
        energy: bool = False,
        nonfinite: bool | int = False,
        stop_on_nonfinite: bool = False,
        flops: bool = False,
        stacks: bool = True,
        compiled_phases: bool = False,
        watchdog_s: float | None = 30.0,
        on_hang: str | None = None,
        arguments: bool = True,
        aspects: str | Sequence[str] = (),
        sinks: Sequence[Sink | str] = (),
    ) -> None:
        spans, budget = history_spans, device_timing_budget
        if spans is not None and (not isinstance(spans, int) or spans < 0):
            raise ValueError(f"history_spans must be an int >= 0 or None, got {spans!r}")
        if not isinstance(max_bytes, int) or max_bytes < _MIN_MAX_BYTES:
            raise ValueError(f"max_bytes must be an int >= {_MIN_MAX_BYTES}, got {max_bytes!r}")
        if not isinstance(nvtx, bool) or not isinstance(overwrite, bool):
            raise TypeError(f"nvtx and overwrite must be bool, got {nvtx!r} and {overwrite!r}")
        if device_timing is not False and device_timing not in ("auto", "force"):
            raise ValueError(
                f'device_timing must be "auto", "force" or False, got {device_timing!r}'
            )
        if isinstance(budget, bool) or not isinstance(budget, (int, float)):
            raise TypeError(f"device_timing_budget must be a number, got {budget!r}")
        if not budget > 0:  # NaN too
            raise ValueError(
                f"device_timing_budget must be more than 0, got {budget!r}: "
                "device_timing=False turns device times off"
            )
        if graph_phases != "auto" and not isinstance(graph_phases, bool):
            raise ValueError(f'graph_phases must be "auto", True or False, got {graph_phases!r}')
        if not isinstance(energy, bool):
            raise TypeError(f"energy must be bool, got {energy!r}")
        if not isinstance(nonfinite, int) or nonfinite < 0:
            raise ValueError(f"nonfinite must be True, False or an int >= 1, got {nonfinite!r}")
        if not isinstance(stop_on_nonfinite, bool):
            raise TypeError(f"stop_on_nonfinite must be bool, got {stop_on_nonfinite!r}")
        if not isinstance(flops, bool):
            raise TypeError(f"flops must be bool, got {flops!r}")
        if not isinstance(stacks, bool):
            raise TypeError(f"stacks must be bool, got {stacks!r}")
        if not isinstance(compiled_phases, bool):
            raise TypeError(f"compiled_phases must be bool, got {compiled_phases!r}")
        if not isinstance(oom_snapshot, bool):
            raise TypeError(f"oom_snapshot must be bool, got {oom_snapshot!r}")
        if memory is not False and memory not in ("sampled", "exact"):
            raise ValueError(f'memory must be "sampled", "exact" or False, got {memory!r}')
        if watchdog_s is not None:
            if isinstance(watchdog_s, bool) or not isinstance(watchdog_s, (int, float)):
                raise TypeError(f"watchdog_s must be a number or None, got {watchdog_s!r}")
            if not 0 < watchdog_s < math.inf:  # NaN too
                raise ValueError(
                    f"watchdog_s must be a number of seconds above 0, got {watchdog_s!r}: "
                    "None turns the watchdog off"
                )
        if on_hang is not None:
            if not isinstance(on_hang, str):
                raise TypeError(f"on_hang must be a str or None, got {on_hang!r}")
            try:
                check_call(on_hang)
            except ValueError as error:
                raise ValueError(
                    f"on_hang must be a command or a URL, got {on_hang!r}: {error}"
                ) from error
        if not isinstance(arguments, bool):
            raise TypeError(f"arguments must be bool, got {arguments!r}")
        # No iterator, as options may be made more than once.
        if isinstance(sinks, str) or not isinstance(sinks, Sequence):
            raise TypeError(f"sinks must be a list of sinks, got {sinks!r}")
        self.sinks = tuple(_named_sink(sink) if isinstance(sink, str) else sink for sink in sinks)
        for sink in self.sinks:
            check_sink(sink)
        self.aspects = tuple(aspects.split(",") if isinstance(aspects, str) else aspects)
        for aspect in self.aspects:
            _check_installed("aspects", aspect)
        self.path = path
        self.overwrite = overwrite
        self.history_spans = history_spans
        self.max_bytes = max_bytes
        self.nvtx = nvtx
        self.device_timing = device_timing
        self.device_timing_budget = device_timing_budget
        self.graph_phases = graph_phases
        self.memory = memory
        self.oom_snapshot = oom_snapshot
        self.energy = energy
        self.nonfinite = nonfinite or stop_on_nonfinite
        self.stop_on_nonfinite = stop_on_nonfinite
        self.flops = flops
        self.stacks = stacks
        self.compiled_phases = compiled_phases
        self.watchdog_s = watchdog_s
        self.on_hang = on_hang
        self.arguments = arguments

    @property
    def history_spans_kept(self) -> int:
        """The number of spans that the recorder keeps."""
        if self.history_spans is None:
            return _DEFAULT_HISTORY_IN_MEMORY if self.path is None else _UNLIMITED
        return min(self.history_spans, _UNLIMITED)

    @property
    def max_bytes_kept(self) -> int:
        """The number of bytes that the recorder keeps."""
        return min(self.max_bytes, _UNLIMITED)

    @property
    def watchdog_ns(self) -> int:
        """The watchdog's limit; 0 if it is off."""
        return 0 if self.watchdog_s is None else max(1, round(min(self.watchdog_s, 1e9) * 1e9))

    def facts(self) -> dict[str, Any]:
        """Return the options as a run's environment has them."""
        spans, budget = self.history_spans_kept, self.device_timing_budget
        timing = {
            "mode": self.device_timing,
            "budget": None if budget == math.inf else budget,
            "share_boundaries_ns": device_timing.SHARE_BOUNDARIES_NS,
        }
        return {
            "limits": {
                "history_spans": None if spans == _UNLIMITED else spans,
                "max_bytes": self.max_bytes_kept,
            },
            "device_timing": None if self.device_timing is False else timing,
            "watchdog_ns": self.watchdog_ns,
        }


def _check_installed(kind: str, name: object) -> None:
    """Raise a ValueError unless a plug-in of that name is installed."""
    known = plugins.installed(kind)
    if name not in known:
        there_are = f"there are {', '.join(sorted(known))}" if known else "there are none"
        raise ValueError(f"{kind} of plug-ins are named as installed, got {name!r}: {there_are}")


def _named_sink(name: str) -> Sink:
    """Make the sink of a plug-in, from the class or function that its entry point names."""
    _check_installed("sinks", name)
    make = plugins.load("sinks", name, callable)
    if make is None:
        raise SinkError(f"the sink {name!r} can't be loaded")
    return cast("Sink", make())


def check_sink(sink: object) -> None:
    """Raise a TypeError unless it is an object with the methods of a sink."""
    if isinstance(sink, type):
        what = f"the class {sink.__qualname__}: pass an object of it"
    else:
        methods = ("open", "write", "close")
        missing = [name for name in methods if not callable(getattr(sink, name, None))]
        if not missing:
            return
        what = (
            f"an object of type {type(sink).__qualname__}, which has no {' and no '.join(missing)}"
        )
    raise TypeError(
        "a sink is a TensorBoardSink, a PrometheusSink, another one of pyinstrument_gpu or an "
        f"object of a class derived from pyinstrument_gpu.Sink; got {what}"
    )


def _taking(
    make: Callable[_P, RecordingOptions],
) -> Callable[[Callable[[RecordingOptions], _R]], Callable[_P, _R]]:
    """A decorator that makes a function of options one of their arguments."""

    def decorate(function: Callable[[RecordingOptions], _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                options = make(*args, **kwargs)
            except TypeError:
                _check_call(function.__name__, make, *args, **kwargs)
                raise
            # What the call says is right by itself: else settings would be blamed for it.
            return function(options if DISABLED else with_settings(make, args, kwargs) or options)

        wrapper.__wrapped__ = make  # type: ignore[assignment]  # whose signature help() shows
        return wrapper

    return decorate


def with_settings(
    make: Callable[..., RecordingOptions], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> RecordingOptions | None:
    """The options with those settings that the call leaves open; None if there are none."""
    settings = record_settings(SETTABLE)
    values = {name: one.value for name, one in settings.items() if name not in kwargs}
    if not values:
        return None
    for name in values:  # one by one, as an error has to name its source
        try:
            make(*args, **kwargs, **{name: values[name]})
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"{settings[name].source}: {error}") from None
    return make(*args, **kwargs, **values)


def _check_call(name: str, make: Callable[..., object], *args: object, **kwargs: object) -> None:
    """Raise a TypeError that says how a function is called, if these are not its arguments."""
    with OwnImports():
        import inspect

    signature = inspect.signature(make)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        names = ", ".join(signature.parameters)
        raise TypeError(f"{name}() {error}; its arguments are {names}") from None


SETTABLE: Mapping[str, object] = {
    name: default
    for name, default in (RecordingOptions.__init__.__kwdefaults__ or {}).items()
    if name != "sinks"  # objects
}
"""The options that settings may give, with their defaults."""

takes_options = _taking(RecordingOptions)
"""Makes a function of `RecordingOptions` one of their arguments, with their signature."""
