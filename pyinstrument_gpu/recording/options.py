# SPDX-License-Identifier: Apache-2.0
"""The options of a recording: names, defaults and checks, in one place for `record` and `start`."""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from pyinstrument_gpu.recording import device_timing
from pyinstrument_gpu.recording.device_timing import DeviceTimingMode

if TYPE_CHECKING:
    from typing import ParamSpec

    from pyinstrument_gpu.recording.recording import Recording

    _P = ParamSpec("_P")

_MIN_MAX_BYTES = 1 << 20
_DEFAULT_HISTORY_IN_MEMORY = 1_000_000
_UNLIMITED = 2**62


@dataclass(frozen=True)
class RecordingOptions:
    """The arguments of `record`, which documents them.

    Raises:
        ValueError, TypeError: an argument is wrong.
    """

    path: str | os.PathLike[str] | None = None
    _: KW_ONLY
    overwrite: bool = False
    history_spans: int | None = None
    max_bytes: int = 1 << 30
    nvtx: bool = True
    device_timing: DeviceTimingMode = "auto"
    device_timing_budget: float = 0.001

    def __post_init__(self) -> None:
        spans, budget = self.history_spans, self.device_timing_budget
        if spans is not None and (not isinstance(spans, int) or spans < 0):
            raise ValueError(f"history_spans must be an int >= 0 or None, got {spans!r}")
        if not isinstance(self.max_bytes, int) or self.max_bytes < _MIN_MAX_BYTES:
            raise ValueError(
                f"max_bytes must be an int >= {_MIN_MAX_BYTES}, got {self.max_bytes!r}"
            )
        if not isinstance(self.nvtx, bool) or not isinstance(self.overwrite, bool):
            raise TypeError(
                f"nvtx and overwrite must be bool, got {self.nvtx!r} and {self.overwrite!r}"
            )
        if self.device_timing is not False and self.device_timing not in ("auto", "force"):
            raise ValueError(
                f'device_timing must be "auto", "force" or False, got {self.device_timing!r}'
            )
        if isinstance(budget, bool) or not isinstance(budget, (int, float)):
            raise TypeError(f"device_timing_budget must be a number, got {budget!r}")
        if not budget > 0:  # NaN too
            raise ValueError(
                f"device_timing_budget must be more than 0, got {budget!r}: "
                "device_timing=False turns device times off"
            )

    @property
    def history_spans_kept(self) -> int:
        """How many spans the recorder keeps."""
        if self.history_spans is None:
            return _DEFAULT_HISTORY_IN_MEMORY if self.path is None else _UNLIMITED
        return min(self.history_spans, _UNLIMITED)

    @property
    def max_bytes_kept(self) -> int:
        """How many bytes the recorder keeps."""
        return min(self.max_bytes, _UNLIMITED)

    def facts(self) -> dict[str, Any]:
        """What a run's environment says of them."""
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
        }


def _taking(
    make: Callable[_P, RecordingOptions],
) -> Callable[[Callable[[RecordingOptions], Recording]], Callable[_P, Recording]]:
    """A decorator that makes a function of options one of their arguments."""
    signature = inspect.signature(make).replace(return_annotation="Recording")
    names = ", ".join(signature.parameters)

    def decorate(function: Callable[[RecordingOptions], Recording]) -> Callable[_P, Recording]:
        @functools.wraps(function)
        def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> Recording:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(
                    f"{function.__name__}() {error}; its arguments are {names}"
                ) from None
            return function(make(*args, **kwargs))

        wrapper.__signature__ = signature  # type: ignore[attr-defined]
        return wrapper

    return decorate


takes_options = _taking(RecordingOptions)
"""Makes a function of `RecordingOptions` one of their arguments, with their signature."""
