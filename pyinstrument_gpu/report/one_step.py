# SPDX-License-Identifier: Apache-2.0
"""One step, the way people write it by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.step_times import phases_ns, spans_lost_within
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.schema import SpanFlag, span_scopes
from pyinstrument_gpu.model.statistics import Scope
from pyinstrument_gpu.report.phase_tree import tree
from pyinstrument_gpu.report.table import MAX_PATHS, UNKNOWN, Row, counted, share, table, unshown


def one_step(run: RunData, index: int, width: int) -> list[Text | Table]:
    """Each phase of the step in seconds, their sum, the total and what is missing.

    Of a phase that began in an earlier step or outlasts this one, the part inside this step. Where
    the device was timed in this step, the stream times stand beside: of whole calls, and without a
    sum, for they overlap the host's and each other.

    Raises:
        KeyError: there is no such step, or its spans are no longer kept.
    """
    step = run.steps.by_index(index)
    kept = analysis.of(run).kept_steps
    if index not in kept["index"]:
        raise KeyError(
            f"step {index} is known by its duration only: its spans are no longer kept"
            + (
                f"; those of steps {kept['index'][0]} to {kept['index'][-1]} are"
                if len(kept)
                else ""
            )
        )
    row = kept[kept["index"] == index]
    ended = step.duration_ns is not None
    if not ended:
        row["end_ns"] = run.duration_ns
    total_ns = int(row["end_ns"][0] - row["begin_ns"][0])
    sum_ns = int(phases_ns(run, row)[0])
    missing_ns = total_ns - sum_ns
    decimals = 6 if total_ns >= 1e6 else 9

    def seconds(time_ns: int | None) -> str:
        return UNKNOWN if time_ns is None else f"{time_ns / 1e9:.{decimals}f} s"

    scopes = span_scopes(run.spans)
    begun_here = run.spans["step"] == index
    open_before = (run.spans["step"] < index) & (run.spans["host_end_ns"] > step.begin_ns)
    of_thread = (scopes == Scope.STEP) & (run.spans["thread"] == step.thread)
    own = np.flatnonzero(of_thread & (begun_here | open_before))
    others = np.flatnonzero(begun_here & (scopes == Scope.OTHER_THREADS))
    on_device = bool((run.spans["flags"][begun_here] & SpanFlag.DEVICE).any()) or bool(
        (run.span_device_ns[begun_here] >= 0).any()
    )
    headers = ["", "host", "device"] if on_device else []
    beside = [""] if on_device else []
    sums = [
        Row("sum", [seconds(sum_ns), *beside]),
        Row("total" if ended else "total so far", [seconds(total_ns), *beside]),
        Row("missing", [seconds(missing_ns), *beside], note=share(missing_ns, total_ns).strip()),
    ]
    facts = [f"Step {index}"]
    if step.samples is not None:
        facts.append(f"{step.samples:g} samples")
    if not step.complete:
        facts.append("left before its end" if ended else "had not ended")
    parts: list[Text | Table] = [Text(", ".join(facts), "bold")]
    paths = _tree_of(run, own)
    rows = _phase_rows(run, own, paths, row, on_device, seconds)
    parts += [table(headers, [rows, sums], width)]
    parts += unshown(paths)
    if len(others):
        paths = _tree_of(run, others)
        parts += [Text(), Text("Other threads meanwhile")]
        rows = _phase_rows(run, others, paths, row, on_device, seconds)
        parts += [table(headers, [rows], width)]
        parts += unshown(paths)
    if run.device_timing is not None and not on_device:
        parts.append(Text("The device was not timed in this step"))
    lost = spans_lost_within(run)
    if lost:
        parts.append(
            Text(f"! {counted(lost, 'span')} of the run lost, maybe of this step", "yellow")
        )
    return parts


def _tree_of(run: RunData, members: NDArray[np.intp]) -> list[tuple[int, int]]:
    return tree(run, np.unique(run.spans["path"][members]).tolist())


def _phase_rows(
    run: RunData,
    members: NDArray[np.intp],
    paths: list[tuple[int, int]],
    step: NDArray[np.void],
    on_device: bool,
    seconds: Callable[[int | None], str],
) -> list[Row]:
    spans, device_ns = run.spans[members], run.span_device_ns[members]
    (index,), (begin_ns,), (end_ns,) = step["index"], step["begin_ns"], step["end_ns"]
    begins_ns = np.maximum(spans["host_begin_ns"], begin_ns)
    inside_ns = np.maximum(np.minimum(spans["host_end_ns"], end_ns) - begins_ns, 0)
    rows = []
    for path, depth in paths[:MAX_PATHS]:
        name = run.names[run.path_names[path]]
        of_path = spans["path"] == path
        calls = int(np.count_nonzero(of_path))
        if not calls:  # it began outside the steps
            rows.append(Row(name, [""] * (1 + on_device), depth))
            continue
        remarks = [f"{calls} calls"] if calls > 1 else []
        since = int(spans["step"][of_path].min())
        if since < index:
            remarks.append(f"since step {since}")
        if spans["host_end_ns"][of_path].max() > end_ns:
            remarks.append("outlasts the step")
        cells = [seconds(int(inside_ns[of_path].sum()))]
        if on_device:
            known_ns = device_ns[of_path & (device_ns >= 0)]
            cells.append(seconds(int(known_ns.sum()) if len(known_ns) else None))
            if 0 < len(known_ns) < calls:
                remarks.append(f"device: of {len(known_ns)}")
            if (spans["flags"][of_path] & SpanFlag.DEVICE_UNFINISHED).any():
                remarks.append("device work not finished")
        note = f"({', '.join(remarks)})" if remarks else ""
        rows.append(Row(name, cells, depth, note))
    return rows
