# SPDX-License-Identifier: Apache-2.0
"""One step, the way people write it by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from pyinstrument_gpu.report.layout import Row, percent, table
from pyinstrument_gpu.report.step_times import (
    kept_steps,
    phases_ns,
    spans_lost_within,
    tree,
)
from pyinstrument_gpu.run import Run, Scope, span_scopes


def one_step(run: Run, index: int, width: int) -> list[Text | Table]:
    """Each phase of the step in seconds, their sum, the total and what is missing.

    Raises:
        KeyError: there is no such step, or its spans are no longer kept.
    """
    step = run.steps.by_index(index)
    kept = kept_steps(run)
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

    def seconds(time_ns: int) -> str:
        return f"{time_ns / 1e9:.{decimals}f} s"

    spans = run.spans[run.spans["step"] == index]
    scopes = span_scopes(spans)
    own = _phase_rows(run, spans[scopes == Scope.STEP], seconds)
    others = _phase_rows(run, spans[scopes == Scope.OTHER_THREADS], seconds)
    sums = [
        Row("sum", [seconds(sum_ns)]),
        Row("total" if ended else "total so far", [seconds(total_ns)]),
        Row("missing", [seconds(missing_ns)], note=f"({percent(missing_ns, total_ns)}%)"),
    ]
    facts = [f"Step {index}"]
    if step.samples is not None:
        facts.append(f"{step.samples:g} samples")
    if not step.complete:
        facts.append("left before its end" if ended else "had not ended")
    parts: list[Text | Table] = [
        Text(", ".join(facts), "bold"),
        table([], [own, sums], width),
    ]
    if others:
        parts += [Text(), Text("Other threads meanwhile"), table([], [others], width)]
    lost = spans_lost_within(run)
    if lost:
        parts.append(
            Text(f"! {lost:,} spans of the run are lost, maybe some of this step", "yellow")
        )
    return parts


def _phase_rows(run: Run, spans: NDArray[np.void], seconds: Callable[[int], str]) -> list[Row]:
    durations_ns = spans["host_end_ns"] - spans["host_begin_ns"]
    rows = []
    for path, depth in tree(run, np.unique(spans["path"]).tolist()):
        of_path = spans["path"] == path
        calls = int(np.count_nonzero(of_path))
        name = run.names[run.path_names[path]]
        time = seconds(int(durations_ns[of_path].sum())) if calls else ""
        rows.append(Row(name, [time], depth, f"({calls} calls)" if calls > 1 else ""))
    return rows
