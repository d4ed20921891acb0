# SPDX-License-Identifier: Apache-2.0
"""The modules of a run, apart from its phases.

In a file, a pass through a module is a span like those of phases. What tells them apart is the
path: the kind in the upper bits of its name. Its parent is the path of the phase around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.modules.data import (
    MODULE_SPAN_DTYPE,
    ModulePass,
    Modules,
    PassStatistics,
)
from pyinstrument_gpu.core.file.statistics import Phases
from pyinstrument_gpu.core.statistics import merged, over_scopes


def take_modules_out(run: dict[str, Any], kinds: NDArray[np.uint32]) -> None:
    """Put what a file has of modules where `Run` has it, and leave the rest as if there had
    been none.

    Args:
        run: the arguments of `Run`.
        kinds: of each path.
    """
    names, parents, of_paths = run["names"], run["path_parents"], run["path_names"]
    is_phase = kinds == 0
    # A name that is used by no path may be that of a phase whose path is lost.
    is_name = np.ones(len(names), np.bool_)
    is_name[of_paths[~is_phase]] = False
    is_name[of_paths[is_phase]] = True
    new_paths, new_names = _numbered(is_phase), _numbered(is_name)

    spans = run["spans"]
    of_module = ~is_phase[spans["path"]]
    passes, of_passes = _passes(spans[of_module], kinds, new_paths[parents])
    run["module_spans"] = passes
    run["module_names"] = tuple(names[name] for name in of_passes)
    run["modules"], counted = _modules(run["statistics"], kinds, names, of_paths)
    run["phases_recorded"] -= counted

    for column in ("spans", "span_self_ns", "span_device_ns", "span_device_clock_ns"):
        run[column] = run[column][~of_module]
    run["spans"]["path"] = new_paths[run["spans"]["path"]]
    run["spans"]["phase"] = new_names[run["spans"]["phase"]]
    run["statistics"] = {
        (int(new_paths[path]), scope): phase
        for (path, scope), phase in run["statistics"].items()
        if is_phase[path]
    }
    events = run["syncs"].events
    events["path"] = _looked_up(new_paths, events["path"])
    run["names"] = [name for name, kept in zip(names, is_name, strict=True) if kept]
    run["path_parents"] = _looked_up(new_paths, parents[is_phase])
    run["path_names"] = new_names[of_paths[is_phase]]


def _numbered(kept: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.where(kept, np.cumsum(kept) - 1, -1)


def _looked_up(table: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Look numbers up; -1 stays."""
    return np.append(table, -1)[numbers]


def _passes(
    spans: NDArray[np.void], kinds: NDArray[np.uint32], around: NDArray[np.int64]
) -> tuple[NDArray[np.void], list[int]]:
    """Return spans as passes, and the names of their modules, by which they are numbered.

    Args:
        around: the new number of the path around each path, -1 for none.
    """
    passes = np.empty(len(spans), MODULE_SPAN_DTYPE)
    for column in set(MODULE_SPAN_DTYPE.names or ()) & set(spans.dtype.names or ()):
        passes[column] = spans[column]
    passes["kind"] = kinds[spans["path"]].astype(np.int64) - 1
    passes["path"] = around[spans["path"]]
    distinct, first, inverse = np.unique(spans["phase"], return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    passes["module"] = np.argsort(order)[inverse]
    return passes, distinct[order].tolist()


def _modules(
    statistics: Phases,
    kinds: NDArray[np.uint32],
    names: Sequence[str],
    of_paths: NDArray[np.uint32],
) -> tuple[Modules, int]:
    """The statistics of modules, and how many passes they count."""
    of_modules = {key: phase for key, phase in statistics.items() if kinds[key[0]] != 0}
    by_module = merged(
        ((names[of_paths[path]], ModulePass(int(kinds[path]) - 1)), phase)
        for path, phase in over_scopes(of_modules).items()
    )
    folded = {
        key: PassStatistics(phase.host, phase.device)
        for key, phase in by_module.items()
        if phase.host is not None
    }
    return Modules(folded), sum(phase.count for phase in of_modules.values())
