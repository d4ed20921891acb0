# SPDX-License-Identifier: Apache-2.0
"""The tables of `watch` as text."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from pyinstrument_gpu.parts.choice import Choice, sparkline
from pyinstrument_gpu.watch.live_run import LiveRun
from pyinstrument_gpu.watch.views import VIEWS, heading
from tests.helpers.watched import MS, live, running


@pytest.fixture
def run(tmp_path: Path) -> LiveRun:
    return live(running(), tmp_path / "train.gpurun")


def table(name: str, run: LiveRun, sort: str | None = None, width: int = 78) -> list[str]:
    view = next(view for view in VIEWS if view.name == name)
    console = Console(file=io.StringIO(), width=width)
    console.print(view.render(run, [run], Choice(sort or view.sorts[0]), width))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("values", "from_zero", "text"),
    [
        ([0, 1, 2, 3, 4, 5, 6], True, "▁▂▃▄▅▆▇"),
        ([100, 101, 100], True, "▇▇▇"),
        ([100, 101, 100], False, "▁▇▁"),
        ([-1, None, 1], False, "▁ ▇"),
        ([0, 0], True, "▁▁"),
        ([None], True, ""),
        ([], True, ""),
    ],
)
def test_a_row_of_blocks(values: list[float | None], from_zero: bool, text: str) -> None:
    assert sparkline(values, from_zero) == text


def test_modules(run: LiveRun) -> None:
    keys = ["name", "modules", "calls", "forward_mean_ns", "backward_mean_ns"]
    keys += ["window_forward_per_step_ns", "window_backward_per_step_ns"]
    values = [
        ("encoder", 1, 12, 1 * MS, None, 2 * MS, None),
        ("layers.*", 4, 48, 3 * MS, 5 * MS, 12 * MS, 20 * MS),
    ]
    run.aspects["modules"] = [dict(zip(keys, of, strict=True)) for of in values]
    found = table("Modules", run)
    header, _, *rows = (" ".join(line.split()) for line in found)
    assert header == "ms per step forward backward ms a call backward"
    assert rows == [
        "layers.* 12.000 20.000 3.000 5.000 48 calls of 4 modules",
        "encoder 2.000 - 1.000 - 12 calls",
    ]
    assert table("Modules", run, "first")[2].startswith("encoder")


def test_what_is_wrong_is_in_the_heading(run: LiveRun) -> None:
    memory = {"device": 0, "allocated_bytes": 5 << 30, "peak_bytes": 7 << 29, "out_of_memory": 2}
    run.aspects["memory"] = memory
    recorder = replace(run.recorder, dropped={"ring_full": 2000, "depth": 1}, damaged_blocks=1)
    lines = heading(replace(run, recorder=recorder), 200).plain.splitlines()
    assert lines[3] == (
        "▇▇▇▇▇  cuda:0 5.00 GiB, peak 3.50 GiB  recorder 1.0 % of a core  ! 2,001 dropped, "
        "1 damaged block, out of memory 2 times"
    )
    assert table("Recorder", replace(run, recorder=recorder, profiled=((3, 5),)))[-4:] == [
        "dropped (ring_full): 2,000",
        "dropped (depth): 1",
        "1 block of the file can't be read",
        "steps 3 to 5 were profiled: `pyinstrument-gpu report` shows them",
    ]
