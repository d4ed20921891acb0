# SPDX-License-Identifier: Apache-2.0
"""What the report says of profiled steps, on runs made by hand."""

import numpy as np
from msgspec.structs import replace

from pyinstrument_gpu.aspects.operations.data import DeviceUse, Operation, Operations
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import STEP_DTYPE
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.report.document import document_of

MS = 1_000_000

OPERATIONS = Operations(
    profiled=((1, 1), (4, 5)),
    first_step=4,
    last_step=5,
    steps=2,
    operations=(
        Operation("aten::mm", "forward", 4.5, 4 * MS, 7 * MS, 4.5),
        Operation("aten::mm", "backward", 2, 0.5 * MS, 2 * MS, 2),
        Operation("aten::item", None, 0.5, 0.5 * MS, 1 * MS, 0.5),
    ),
    device=DeviceUse(1, 20 * MS, 25 * MS),
    stopped_ns=300 * MS,
    trace="/tmp/trace.json",
)


def run_with(operations: Operations | None, steps_ms: tuple[int, ...] = ()) -> Run:
    ends = np.cumsum(steps_ms) * MS
    steps = np.array(
        [
            (index, end_ns - length * MS, end_ns, np.nan, 1, True, 0)
            for index, (length, end_ns) in enumerate(zip(steps_ms, ends, strict=True))
        ],
        STEP_DTYPE,
    )
    return Run(steps=Steps(steps), operations=operations)


STEPS_MS = (99, 50, 10, 12, 20, 30, 11, 13, 11)


def section(run: Run) -> str:
    report = run.report(verbose=True, width=100)
    return report[report.index("Operations (") :]


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_operations_and_phases_per_step() -> None:
    text = section(run_with(OPERATIONS, STEPS_MS))
    assert text.startswith("Operations (profiled steps 4-5): ms per step\n")
    lines = rows(text)
    for row in (
        "operation calls host % host launches device % device",
        "aten::mm 4.50 4.000 80.0 4.50 7.000 70.0 forward",
        "aten::mm 2 0.500 10.0 2 2.000 20.0 backward",
        "aten::item 0.50 0.500 10.0 0.50 1.000 10.0 (outside phases)",
        "phase calls host % host launches device % device",
        "forward 4.50 4.000 80.0 4.50 7.000 70.0",
        "backward 2 0.500 10.0 2 2.000 20.0",
        "(outside phases) 0.50 0.500 10.0 0.50 1.000 10.0",
        "all 7 5.000 100.0 7 10.000 100.0",
    ):
        assert lines.count(row.split()) == 1, row
    assert "Device idle: 5.00 ms of 25.0 ms (20.0%)\n" in text
    assert "Training stood still for 300 ms" in text
    assert "Trace: /tmp/trace.json" in text


def times_around(run: Run) -> tuple[float | None, float | None, float | None]:
    found = document_of(run).sections["operations"]
    return found.step_ns, found.step_before_ns, found.step_after_ns


def test_what_the_profiler_cost() -> None:
    run = run_with(OPERATIONS, STEPS_MS)
    # Step 0 is left out, and step 1 was profiled: before the window there are two.
    assert times_around(run) == (25 * MS, None, 11 * MS)
    assert "A step took 25.0 ms profiled, 11.0 ms after." in section(run)
    only_last = replace(OPERATIONS, profiled=((4, 5),))
    assert times_around(run_with(only_last, STEPS_MS)) == (25 * MS, 12 * MS, 11 * MS)
    assert times_around(run_with(OPERATIONS)) == (None, None, None)


def test_without_a_device_there_are_no_columns_of_one() -> None:
    rows_on_host = tuple(
        replace(one, device_ns=None, launches=None) for one in OPERATIONS.operations
    )
    operations = replace(OPERATIONS, operations=rows_on_host, device=None)
    text = section(run_with(operations, STEPS_MS))
    assert ["operation", "calls", "host", "%", "host"] in rows(text)
    assert "No work of a device was seen" in " ".join(text.split())
    assert "idle" not in text


def test_more_operations_than_fit_are_counted() -> None:
    many = tuple(Operation(f"op{i}", "forward", 1, 100 - i, None, None) for i in range(40))
    text = section(run_with(replace(OPERATIONS, operations=many, device=None), STEPS_MS))
    assert "... and 25 more operations" in text
    assert "op14 " in text
    assert "op15 " not in text


def test_texts_are_shown_as_they_are() -> None:
    name = "load[red]\x1b[31m"
    strange = replace(
        OPERATIONS,
        operations=(Operation(name, name, 1, 100, 5, 1),),
        device=DeviceUse(1, 5, 9),
        trace=name,
    )
    text = section(run_with(strange, STEPS_MS))
    assert text.count("load[red]\\x1b[31m") == 4
    assert "\x1b" not in text


def test_nothing_profiled_is_nothing_said() -> None:
    for operations in (None, Operations()):
        assert "Operations" not in run_with(operations, STEPS_MS).report(verbose=True)
