# SPDX-License-Identifier: Apache-2.0
"""The analysis of one run: what follows from it, each part computed once, when it is asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, MutableMapping
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis import (
    advice,
    batches,
    bottleneck,
    correlation_points,
    host_timeline,
    ledger,
    module_steps,
    premises,
    run_ahead,
    savings,
    span_losses,
    step_times,
)
from pyinstrument_gpu.analysis.advice import Advice
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.statistics import Scope

_Part = TypeVar("_Part")
_Arguments = ParamSpec("_Arguments")

# The parts hold no reference to their run, so that they go when it goes.
_parts: MutableMapping[RunData, dict[Hashable, Any]] = WeakKeyDictionary()


def of(run: RunData) -> Analysis:
    """The analysis of a run. All that read it share its parts, as long as the run exists.

    The run must not change once a part of its analysis has been computed.
    """
    return Analysis(run, _parts.setdefault(run, {}))


def _once(
    compute: Callable[Concatenate[Analysis, _Arguments], _Part],
) -> Callable[Concatenate[Analysis, _Arguments], _Part]:
    @functools.wraps(compute)
    def part(self: Analysis, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Part:
        key = (compute.__name__, args, *kwargs.items())
        if key not in self._parts:
            self._parts[key] = compute(self, *args, **kwargs)
        found: _Part = self._parts[key]
        return found

    return part


class Analysis:
    """What follows from a run. `of` makes it."""

    def __init__(self, run: RunData, parts: dict[Hashable, Any]) -> None:
        self._run = run
        self._parts = parts

    @property
    @_once
    def kept_steps(self) -> NDArray[np.void]:
        return step_times.kept_steps(self._run, self.span_losses)

    @property
    @_once
    def span_losses(self) -> span_losses.SpanLosses:
        """The spans that are missing from the history for another reason than their age."""
        return span_losses.span_losses(self._run)

    @property
    @_once
    def step_quantiles(self) -> step_times.StepQuantiles:
        return step_times.step_quantiles(self._run, self.kept_steps)

    @property
    @_once
    def attribution(self) -> step_times.Attribution:
        return step_times.attribution(self._run)

    @property
    @_once
    def clock_uncertainty_ns(self) -> NDArray[np.float64]:
        return run_ahead.clock_uncertainty_ns(self._run)

    @_once
    def run_ahead(self, scope: Scope | None = None) -> Mapping[int, run_ahead.RunAhead]:
        """The run-ahead by path (an index into `Run.paths`), in one scope or all."""
        return run_ahead.run_ahead(self._run, self.clock_uncertainty_ns, scope)

    @property
    @_once
    def span_bottlenecks(self) -> NDArray[np.int64]:
        return bottleneck.span_bottlenecks(self._run, self.clock_uncertainty_ns)

    @_once
    def bottlenecks(self, scope: Scope | None = None) -> Mapping[int, bottleneck.PhaseBottleneck]:
        """What limits each path (an index into `Run.paths`), in one scope or all."""
        return bottleneck.bottlenecks(self._run, self.span_bottlenecks, scope)

    @property
    @_once
    def host_timeline(self) -> host_timeline.HostTimeline:
        return host_timeline.host_timeline(self._run, self.kept_steps)

    @property
    @_once
    def correlation_points(self) -> correlation_points.CorrelationPoints:
        return correlation_points.correlation_points(
            self._run, self.host_timeline, self.clock_uncertainty_ns
        )

    @property
    def knows_waits(self) -> bool:
        """Whether the device was timed, or syncs have prices. Without either, ledger and savings
        say no more than the times of the phases."""
        return bool((self._run.span_device_ns >= 0).any()) or self._run.syncs.are_priced

    @property
    @_once
    def ledger(self) -> ledger.Ledger:
        """Each step's time, entered once for the host and once for the device."""
        return ledger.ledger(self._run, self.host_timeline, self.correlation_points)

    @property
    @_once
    def modules_per_step(self) -> Mapping[str, module_steps.ModulePerStep]:
        """What a step spends in each row of `Run.modules`; nothing if no step ended."""
        return module_steps.modules_per_step(self._run)

    @property
    @_once
    def batches(self) -> batches.Batches:
        """When the loop asked for each batch, when it had it, and when the loader had made it."""
        return batches.batches(self._run, self.host_timeline)

    @property
    @_once
    def premises(self) -> premises.Premises:
        """What the conclusions from device times rest on, as far as it is known."""
        return premises.premises(self._run, self.correlation_points)

    @property
    @_once
    def savings(self) -> savings.Savings:
        """What changes could save."""
        return savings.savings(
            self._run,
            self.host_timeline,
            self.correlation_points,
            self.bottlenecks(Scope.STEP),
            self.batches,
            self.premises,
        )

    @property
    @_once
    def advice(self) -> list[Advice]:
        """What to change, the largest sure saving first."""
        return advice.advice(self._run, self.savings, self.ledger, self.premises)

    @property
    @_once
    def doubts(self) -> list[Advice]:
        """What may be worth a change or not, because the run can't tell; the likeliest first."""
        return advice.doubts(self._run, self.savings, self.premises)
