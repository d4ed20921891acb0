# SPDX-License-Identifier: Apache-2.0
"""The report as plain values: the numbers of its tables, for JSON.

What is not known is None, never 0. Keys name the unit of their values: `_ns` nanoseconds, `_bytes`
bytes; shares are of 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

import numpy as np

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import subject
from pyinstrument_gpu.analysis.ledger import MeanEntry
from pyinstrument_gpu.analysis.module_steps import ModulePerStep
from pyinstrument_gpu.analysis.profiled_steps import profiled_steps
from pyinstrument_gpu.analysis.rules import findings
from pyinstrument_gpu.analysis.rules.finding import Finding
from pyinstrument_gpu.analysis.savings import SPREAD, Limit
from pyinstrument_gpu.analysis.step_detail import PhaseInStep
from pyinstrument_gpu.analysis.step_times import (
    QUANTILES,
    mean_per_step_ns,
    startup_ns,
)
from pyinstrument_gpu.model.modules import ModulePass, ModuleTimes
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.statistic import Statistic
from pyinstrument_gpu.model.statistics import PhaseStatistics, Scope
from pyinstrument_gpu.model.syncs import SyncSite
from pyinstrument_gpu.report.device_times import unfinished_work
from pyinstrument_gpu.report.energy import energy_facts
from pyinstrument_gpu.report.memory import memory_facts
from pyinstrument_gpu.report.metrics import metric_readings
from pyinstrument_gpu.report.recorder import recorder_cost
from pyinstrument_gpu.report.syncs import allowed_sites, listed_sites, waits_per_step

Facts: TypeAlias = dict[str, Any]

_STATISTIC = ("count", "total_ns", "mean_ns", "min_ns", "p50_ns", "p95_ns", "p99_ns", "max_ns")
_SAVING = ("calls", "time_ns", "low_ns", "likely_ns", "high_ns")
_ENVIRONMENT = ("command", "host", "rank", "world_size", "torch", "gpus")


def report_facts(run: RunData, step: int | None = None) -> Facts:
    """The numbers of a run's report, or of that of one of its steps, as values for JSON.

    Raises:
        KeyError: there is no such step, or its spans are no longer kept.
    """
    facts = _run(run) if step is None else _step(run, step)
    plain: Facts = _plain(facts)
    return plain


def _run(run: RunData) -> Facts:
    return {
        "environment": {name: run.environment.get(name) for name in _ENVIRONMENT},
        "program": run.program_facts._asdict(),
        "duration_ns": run.duration_ns,
        "is_complete": run.complete,
        "steps": _steps(run),
        "phases": _phases(run),
        "ledger": _ledger(run),
        "savings": _savings(run),
        "advice": [
            {"about": one.about, "edit": one.edit, "reason": one.reason}
            for one in (analysis.of(run).advice if analysis.of(run).knows_waits else ())
        ],
        "findings": [_finding(one) for one in findings(run)],
        "modules": _modules(run),
        "syncs": _syncs(run),
        "operations": _operations(run),
        "memory": memory_facts(run),
        "energy": energy_facts(run),
        "metrics": [
            {"name": name, **dict(zip(("last", "min", "max"), map(_reading, found), strict=True))}
            for name, found in metric_readings(run)
        ],
        "device_timed_every_steps": None if run.device_timing is None else run.device_timing.every,
        "device_clocks": [
            {name: getattr(clock, name) for name in ("device", "uncertainty_ns", "drift_ppm")}
            for clock in run.device_clocks
        ],
        "recorder": recorder_cost(run),
        "dropped": run.dropped,
        "notes": run.notes,
        "open_phases": [
            {"path": one.path, "thread": run.threads[one.thread].name, "begin_ns": one.begin_ns}
            for one in run.open_phases
        ],
        "open_step": None if run.open_step is None else run.open_step.index,
        "unfinished_device_work": unfinished_work(run),
    }


def _steps(run: RunData) -> Facts:
    totals, quantiles = run.step_totals, analysis.of(run).step_quantiles
    inside = analysis.of(run).attribution
    return {
        "count": totals.count,
        "completed": totals.complete,
        "total_ns": totals.duration.total_ns,
        "mean_ns": totals.duration.mean_ns if totals.count else None,
        **_quantiles(QUANTILES, quantiles.duration_ns),
        "quantiles_are_over": quantiles.steps,
        "quantiles_leave_out_profiled": quantiles.profiled,
        "phases_ns": inside.phases_ns,
        "unattributed_ns": inside.unattributed_ns,
        "spans_that_outlast_their_step": inside.crossing,
        "spans_lost": analysis.of(run).span_losses.spans,
        "startup_ns": startup_ns(run),
        "optimizer_seen": run.environment.get("optimizer_seen"),
        "steps_per_second": totals.steps_per_second,
        "samples_per_second": totals.samples_per_second,
        "samples_are_known_of": totals.sampled,
    }


def _phases(run: RunData) -> list[Facts]:
    found = analysis.of(run)
    return [
        {
            "path": run.paths[path],
            "scope": scope.name.lower(),
            "calls": phase.count,
            "host": _statistic(phase.host),
            "self": _statistic(phase.self_host),
            "stream": _statistic(phase.device),
            "blocked": _statistic(phase.blocked),
            "per_step": _per_step(run, path, phase) if scope == Scope.STEP else None,
            **_device_side(found, path, scope),
        }
        for (path, scope), phase in run.statistics.items()
    ]


def _per_step(run: RunData, path: int, phase: PhaseStatistics) -> Facts:
    quantiles_ns = analysis.of(run).step_quantiles.of_path(path)
    return {
        "host_ns": mean_per_step_ns(run, phase.host, phase.count),
        **_quantiles(QUANTILES, quantiles_ns, "host_"),
        "self_ns": mean_per_step_ns(run, phase.self_host, phase.count),
        "stream_ns": mean_per_step_ns(run, phase.device, phase.count),
        "blocked_ns": mean_per_step_ns(run, phase.blocked, phase.count),
    }


def _device_side(found: analysis.Analysis, path: int, scope: Scope) -> Facts:
    ahead, bottleneck = found.run_ahead(scope).get(path), found.bottlenecks(scope).get(path)
    is_judged = bottleneck is not None and bottleneck.kind != bottleneck.kind.UNKNOWN
    return {
        "run_ahead": None if ahead is None else asdict(ahead),
        "bottleneck": bottleneck.kind.name.lower() if bottleneck and is_judged else None,
        "bottleneck_is_certain": bottleneck.is_certain if bottleneck and is_judged else None,
    }


def _ledger(run: RunData) -> Facts | None:
    if not analysis.of(run).knows_waits or not len(analysis.of(run).ledger.entries):
        return None
    steps, means = analysis.of(run).ledger.means()
    return {
        "steps": steps,
        "per_step": [
            {"path": run.paths[path] if path >= 0 else None, **asdict(mean)}
            for path, mean in means.items()
        ],
        "total_per_step": asdict(MeanEntry.total(means.values())),
    }


def _savings(run: RunData) -> Facts | None:
    if not analysis.of(run).knows_waits:
        return None
    found = analysis.of(run).savings
    return {
        "steps": found.steps,
        "steps_replayed": found.replayed,
        "step_ns": found.step_ns if found.steps else None,
        "elapsed_ns": found.elapsed_ns if found.steps else None,
        "busy_ns": found.busy_ns,
        "per_step": [
            {
                "taken_out": row.change.value,
                "about": subject(run, row),
                "is_inside_steps": row.is_inside,
                "is_told": row.is_told,
                **{name: getattr(row, name) for name in _SAVING},
                "at_most_ns": None if row.limit == Limit.NONE else row.at_most_ns,
                "at_most_is_limited_by": row.limit.value,
                **_quantiles(SPREAD, row.spread_ns, "likely_"),
            }
            for row in found.rows
        ],
    }


def _finding(one: Finding) -> Facts:
    worth = one.worth
    return {
        "advice": one.advice,
        "promised": one.promised,
        "low_ns": None if worth is None else worth.low_ns,
        "high_ns": None if worth is None else worth.high_ns,
        "of_ns": None if worth is None else worth.whole_ns,
        "of": None if worth is None else worth.whole.value,
        "evidence": one.evidence,
        "edit": one.edit,
    }


def _modules(run: RunData) -> list[Facts] | None:
    return [_module(run, times) for times in run.modules.values()] or None


def _module(run: RunData, times: ModuleTimes) -> Facts:
    per_step = analysis.of(run).modules_per_step[times.name] if run.step_totals.count else None
    kinds = {kind.name.lower(): kind for kind in ModulePass}
    return {
        "name": times.name,
        "modules": times.modules,
        "calls": times.calls,
        **{name: _statistic(times.of_pass(kind)[0]) for name, kind in kinds.items()},
        **{f"stream_{name}": _statistic(times.of_pass(kind)[1]) for name, kind in kinds.items()},
        "per_step": per_step
        and {
            **{name: _pass_per_step(per_step, kind) for name, kind in kinds.items()},
            "share": per_step.share,
        },
    }


def _pass_per_step(module: ModulePerStep, kind: ModulePass) -> Facts | None:
    found = module.passes.get(kind)
    if found is None:
        return None
    return {"calls": found.count, "host_ns": found.host_ns, "stream_ns": found.device_ns}


def _syncs(run: RunData) -> Facts | None:
    syncs = run.syncs
    if not syncs.was_watched:
        return None
    return {
        "is_preview": syncs.is_as_if,
        "sites": [_site(run, site) for site in listed_sites(syncs)],
        "allowed": sum(site.totals.count for site in allowed_sites(syncs)),
        "dropped": syncs.dropped,
    }


def _site(run: RunData, site: SyncSite) -> Facts:
    per_step, blocked_ns_per_step = waits_per_step(run, site)
    library = site.library
    return {
        **asdict(site.program),
        "library": None if library is None else asdict(library),
        "what": site.kind.label,
        "count": site.totals.count,
        "count_per_step": per_step,
        "blocked_ns": site.blocked_ns,
        "blocked_ns_per_step": blocked_ns_per_step,
        "copied_bytes": site.totals.bytes,
    }


def _operations(run: RunData) -> Facts | None:
    operations = run.operations
    if operations is None:
        return None
    times = profiled_steps(run)
    return {**asdict(operations), "step_times": None if times is None else times._asdict()}


def _reading(reading: np.void | None) -> Facts | None:
    if reading is None:
        return None
    step = int(reading["step"])
    return {"value": float(reading["value"]), "step": step if step >= 0 else None}


def _step(run: RunData, index: int) -> Facts:
    found = analysis.of(run).step(index)

    def phases(by_path: Mapping[int, PhaseInStep]) -> list[Facts]:
        return [{"path": run.paths[path], **asdict(phase)} for path, phase in by_path.items()]

    return {
        "step": index,
        "begin_ns": found.step.begin_ns,
        "has_ended": found.step.duration_ns is not None,
        "is_complete": found.step.complete,
        "samples": found.step.samples,
        "total_ns": found.total_ns,
        "phases_ns": found.phases_ns,
        "unattributed_ns": found.unattributed_ns,
        "is_timed_on_device": found.is_timed,
        "phases": phases(found.phases),
        "other_threads": phases(found.other_threads),
        "spans_lost": analysis.of(run).span_losses.spans,
    }


def _statistic(statistic: Statistic | None) -> Facts | None:
    if statistic is None or not statistic.count:
        return None
    return {name: getattr(statistic, name) for name in _STATISTIC}


def _quantiles(quantiles: Iterable[float], values_ns: Iterable[float], prefix: str = "") -> Facts:
    """The values by name, as `p50_ns`; None where there are none."""
    names = (f"{prefix}p{100 * quantile:.0f}_ns" for quantile in quantiles)
    return dict(itertools.zip_longest(names, values_ns))


def _plain(value: Any) -> Any:
    """The value of lists, dicts and numbers that JSON has: it has none that is not finite."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
