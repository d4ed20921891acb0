# SPDX-License-Identifier: Apache-2.0
"""What the report says of modules, on a run whose every nanosecond is known."""

import itertools
from typing import Any

import numpy as np
import pytest

from pyinstrument_gpu.aspects.modules.aspect import MAX_MODULES, ModuleMeans
from pyinstrument_gpu.aspects.modules.data import (
    MODULE_SPAN_DTYPE,
    ModulePass,
    Modules,
    fold_module_spans,
)
from pyinstrument_gpu.aspects.modules.per_step import ModulePerStep, PassPerStep, modules_per_step
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import STEP_DTYPE
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.report.document import document_of
from tests.helpers.made_runs import run_of

FORWARD, BACKWARD, RECOMPUTE = ModulePass
MS = 1_000_000
STEP_MS = 20
NAMES = ("embed", "layers.0", "layers.0.attn", "layers.1", "layers.1.attn")

TIMES_MS = (
    *(("embed", FORWARD, 0, 1), ("embed", BACKWARD, 13, 3)),
    *(("layers.0.attn", FORWARD, 1, 1), ("layers.0", FORWARD, 1, 2)),
    *(("layers.1.attn", FORWARD, 3, 1), ("layers.1", FORWARD, 3, 2)),
    *(("layers.1", RECOMPUTE, 6, 2), ("layers.1", BACKWARD, 5, 5), ("layers.0", BACKWARD, 10, 3)),
)
"""When each step has what, and for how long, in ms since its begin."""


def passes(*rows: tuple[str, ModulePass, int, int], step: int, device: bool = False) -> list[Any]:
    """Passes, which on the device begin twice as late and take twice as long."""
    found = []
    for name, kind, begin_ms, ms in rows:
        begin_ns = max(step, 0) * STEP_MS * MS
        times_ns = begin_ns + begin_ms * MS, begin_ns + (begin_ms + ms) * MS
        device_ns = begin_ns + 2 * begin_ms * MS, begin_ns + 2 * (begin_ms + ms) * MS
        on_device = (7, *device_ns) if device else (-1, -1, -1)
        found.append((*times_ns, NAMES.index(name), kind, step, 0, -1, 0, *on_device))
    return found


def training(steps: int, *others: Any, device_steps: int = 0, **parts: Any) -> Run:
    spans = [
        one for i in range(steps) for one in passes(*TIMES_MS, step=i, device=i < device_steps)
    ]
    rows = [(i, i * STEP_MS * MS, (i + 1) * STEP_MS * MS, 1, 1, True, 0) for i in range(steps)]
    made = {
        "steps": Steps(np.array(rows, STEP_DTYPE)),
        "module_names": NAMES,
        "module_spans": np.array([*spans, *others], MODULE_SPAN_DTYPE),
    }
    return run_of([], **(made | parts))


def section(run: Run, width: int = 80) -> list[str]:
    """The lines of the section, without those between the blocks."""
    report = run.report(verbose=True, width=width, color=False)
    (part,) = [part for part in report.split("\n\n") if part.startswith("Modules: ")]
    return [line for line in part.splitlines() if set(line) != {"-", " "}]


def rows_of(run: Run) -> tuple[ModuleMeans, ...]:
    """The rows of the section as data."""
    rows: tuple[ModuleMeans, ...] = document_of(run).sections["modules"].rows
    return rows


def test_groups_come_first_with_times_per_step() -> None:
    assert section(training(4)) == [
        "Modules: ms per step",
        "module         calls  forward  backward  recompute  % step",
        "layers.*        2.00    4.000     6.000      2.000    60.0",
        "layers.*.attn   2.00    2.000         -          -    10.0",
        "embed           1.00    1.000     3.000          -    20.0",
        "Times include the modules inside, so rows don't add up",
        "recompute happens during the backward pass, and is not part of backward here",
        "where a module checkpoints within its own call, only the rows inside have it",
        "- in backward: no backward pass was seen to go through the module",
    ]


def test_passes_outside_steps_are_left_out() -> None:
    validation = [passes(("embed", FORWARD, 0, 9), step=-1)[0]] * 2
    with_validation = training(4, *validation)

    assert section(with_validation)[1:5] == section(training(4))[1:5]
    assert "Outside steps, and not in the table: 2 of 38 passes" in section(with_validation)
    assert with_validation.modules["embed"].calls == 6


def test_kept_history_stands_for_the_whole() -> None:
    """Of 8 steps with as many calls outside, the last 4 are kept."""
    both = [*passes(("embed", FORWARD, 0, 2), step=-1)]
    whole = np.array(
        [one for i in range(8) for one in (*passes(("embed", FORWARD, 0, 4), step=i), *both)],
        MODULE_SPAN_DTYPE,
    )
    run = training(8, modules=Modules(fold_module_spans(whole, NAMES)), module_spans=whole[8:])

    forward = PassPerStep(count=1.0, host_ns=4.0 * MS, device_ns=None)
    share = 4 / STEP_MS
    found = modules_per_step(run)
    assert found == {"embed": ModulePerStep({FORWARD: forward}, share)}
    assert "Outside steps, and not in the table: 4 of 8 passes in the history" in section(run)


def test_steps_in_which_modules_were_timed_stand_for_all() -> None:
    """The first step, of 20 ms, stands for itself, and the last, of 40, for four."""
    begins_ms = (0, 20, 40, 60, 80, 120)
    rows = [
        (i, begin_ms * MS, end_ms * MS, 1, 1, True, 0)
        for i, (begin_ms, end_ms) in enumerate(itertools.pairwise(begins_ms))
    ]
    spans = [
        *passes(("embed", FORWARD, 0, 5), step=0),
        *passes(("embed", FORWARD, 0, 10), step=4),
    ]
    run = run_of(
        [],
        steps=Steps(np.array(rows, STEP_DTYPE)),
        module_names=NAMES,
        module_spans=np.array(spans, MODULE_SPAN_DTYPE),
        module_step_weights=np.array([1, 0, 0, 0, 4]),
    )
    forward = PassPerStep(count=1.0, host_ns=9.0 * MS, device_ns=None)
    share = (5 + 4 * 10) / (20 + 4 * 40)
    assert modules_per_step(run) == {"embed": ModulePerStep({FORWARD: forward}, share)}
    assert "Modules were timed in 2 of 5 steps, which stand for all" in section(run)


def test_steps_that_lost_their_oldest_passes_do_not_count_among_them() -> None:
    whole = np.array(
        [one for i in range(4) for one in passes(*TIMES_MS[:2], step=i)], MODULE_SPAN_DTYPE
    )
    run = training(
        4,
        modules=Modules(fold_module_spans(whole, NAMES)),
        module_spans=whole[3:],
        module_step_weights=np.ones(4, np.int64),
    )
    found = modules_per_step(run)["embed"]
    assert found.passes == {
        FORWARD: PassPerStep(1.0, 1.0 * MS, None),
        BACKWARD: PassPerStep(1.0, 3.0 * MS, None),
    }
    assert found.share == 4 / STEP_MS
    assert "Modules were timed in" not in "".join(section(run))


def test_nothing_is_said_where_no_step_was_timed() -> None:
    run = training(
        4,
        module_spans=np.array(passes(*TIMES_MS[:2], step=-1), MODULE_SPAN_DTYPE),
        module_step_weights=np.zeros(4, np.int64),
    )
    assert section(run)[2].split() == ["embed", "-", "-", "-", "-"]
    assert modules_per_step(run)["embed"].share is None


def test_nothing_is_said_per_step_where_no_history_is_left() -> None:
    whole = training(4)
    run = training(4, modules=whole.modules, module_spans=np.empty(0, MODULE_SPAN_DTYPE))

    assert section(run)[4].split() == ["embed", "-", "-", "-", "-", "-"]
    assert "- elsewhere: none of these passes is left in the history" in section(run)
    embed = rows_of(run)[-1]
    assert (embed.calls, embed.forward_ns, embed.share) == (None, None, None)


def test_device_times_of_some_steps_stand_for_all() -> None:
    found = section(training(4, device_steps=1))

    assert found[1].endswith("device fwd device bwd device rec % step")
    assert found[2].split() == [
        *("layers.*", "2.00", "4.000", "6.000", "2.000", "8.000", "12.000", "4.000", "60.0")
    ]
    assert found[-1] == "Device times are known of 9 of 36 passes; their mean stands for all"
    assert not any("Device times" in line for line in section(training(4, device_steps=4)))


def test_without_steps_times_are_of_the_whole_run() -> None:
    run = training(0, *passes(*TIMES_MS, step=-1), *passes(*TIMES_MS, step=-1))

    assert section(run)[:4] == [
        "Modules: ms over the whole run",
        "module         calls  forward  backward  recompute",
        "layers.*           4    8.000    12.000      4.000",
        "layers.*.attn      4    4.000         -          -",
    ]
    assert rows_of(run)[0].forward_ns == 8 * MS
    assert rows_of(run)[0].share is None


def test_wide_report_says_how_many_modules_a_row_has() -> None:
    found = section(training(2), width=100)

    assert [line.rpartition("  ")[2] for line in found[2:5]] == ["2 modules", "2 modules", "20.0"]


@pytest.mark.parametrize("width", [20, 60])
def test_narrow_report_has_whole_numbers(width: int) -> None:
    found = section(training(4, device_steps=4), width)

    assert any("4.000 6.000" in " ".join(line.split()) for line in found)


def test_names_cannot_break_the_layout() -> None:
    run = training(4, module_names=("a\nb\x1b[31m", *NAMES[1:]))

    assert any(line.startswith(r"a\nb\x1b[31m  ") for line in section(run, 100))


def test_long_tables_end() -> None:
    names = [f"layer{i}" for i in range(MAX_MODULES + 2)]
    rows = [(0, 1, i, FORWARD, 0, 0, -1, 0, -1, -1, -1) for i in range(len(names))]
    run = training(1, module_names=names, module_spans=np.array(rows, MODULE_SPAN_DTYPE))

    assert "... and 2 more rows (report --json --all-rows has all)" in section(run)
    assert len(rows_of(run)) == MAX_MODULES + 2


def test_run_without_modules_says_nothing_of_them() -> None:
    run = training(4, module_names=(), module_spans=None)

    assert "odule" not in run.report(verbose=True, color=False)
    assert document_of(run).sections["modules"] is None
