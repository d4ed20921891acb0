# SPDX-License-Identifier: Apache-2.0
"""What a report says of tokens per second and utilization."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import pyinstrument_gpu as pig
from pyinstrument_gpu.aspects.operations.flops import peaks
from pyinstrument_gpu.aspects.throughput.aspect import ASPECT
from pyinstrument_gpu.aspects.throughput.utilization import Utilization, utilization
from pyinstrument_gpu.core.flops import Peak
from pyinstrument_gpu.core.run import Run
from tests.cli.test_commands import invoke
from tests.helpers.clock import fake_clock
from tests.helpers.launched import launched, write

SIDE = 64


@pytest.fixture(scope="module")
def run() -> Run:
    """A product in each step, of which step 10 is counted with half as many tokens as others."""
    weight = torch.rand(SIDE, SIDE, requires_grad=True)
    items = [SIDE // 2 if number == 10 else SIDE for number in range(14)]
    with pig.record(flops=True) as recording:
        for rows in pig.gpu_steps(items, tokens=lambda rows: (rows, rows // 4)):
            with pig.gpu_phase("forward"):
                loss = (torch.ones(rows, SIDE) @ weight).square().sum()
            with pig.gpu_phase("backward"):
                loss.backward()
    return recording.run


@contextmanager
def peaks_in(run: Run, *found: Peak) -> Iterator[None]:
    before = run.operations
    assert before is not None and before.flops is not None
    run.operations = replace(before, flops=replace(before.flops, peaks=found))
    try:
        yield
    finally:
        run.operations = before


def with_peaks(run: Run, *found: Peak) -> Utilization:
    with peaks_in(run, *found):
        used = utilization(run)
    assert used is not None
    return used


FLOPS = 2 * 2 * SIDE**3  # forward and backward, of a step that is not counted


def test_counts_are_those_of_a_mean_step_by_its_tokens(run: Run) -> None:
    used = with_peaks(run, Peak("float32", 1e13, "a test"))
    step_s = run.step_totals.duration.mean_ns / 1e9
    assert (used.first_step, used.last_step, used.scale) == (10, 10, 2)
    assert used.model_flops == used.hardware_flops == FLOPS
    assert used.model_flops_per_second == pytest.approx(FLOPS / step_s)
    assert used.mfu is not None
    assert used.mfu == used.hfu == pytest.approx(FLOPS / step_s / 1e13)
    rows = {row.name: (row.forward, row.backward) for row in used.phases}
    assert rows == {"forward": (FLOPS / 2, 0), "backward": (0, FLOPS / 2)}
    assert used.unknown_share is not None and used.mfu_at_most is not None
    assert used.mfu_at_most == min(1, used.mfu + used.unknown_share)
    assert sum(one.share for one in used.unknown) == pytest.approx(used.unknown_share)


def test_steps_that_were_cut_short_are_left_out() -> None:
    weight = torch.rand(SIDE, SIDE, requires_grad=True)
    with fake_clock() as advance, pig.record(flops=True) as recording:
        for number in pig.gpu_steps(range(13), tokens=SIDE):
            with pig.gpu_phase("forward"):
                loss = (torch.ones(SIDE, SIDE) @ weight).sum()
                advance(10**9)
            if number == 12:
                break
            with pig.gpu_phase("backward"):
                loss.backward()
                advance(10**9)
    used = with_peaks(recording.run, Peak("float32", 1e13, "a test"))
    assert used.model_flops_per_second == pytest.approx(FLOPS / 2)
    assert used.phases  # in a second each; what the profiler sees has the time of day
    assert all(row.per_second == pytest.approx(row.model_flops) for row in used.phases)
    section = ASPECT.section(recording.run)
    assert section is not None and section.tokens is not None
    assert (section.tokens.steps, section.tokens.per_second) == (11, SIDE / 2)


@given(st.floats(1e-3, 1e19))
def test_utilization_is_never_more_than_all(run: Run, rate: float) -> None:
    used = with_peaks(run, Peak("float32", rate, "a test"))
    if used.why_unknown is not None:
        assert (used.mfu, used.mfu_at_most, used.hfu) == (None, None, None)
        assert used.model_flops_per_second is not None and used.model_flops_per_second > rate
        assert "so that is not its peak" in used.why_unknown
        assert all(row.mfu is row.hfu is None for row in used.phases)
        return
    assert used.mfu is not None and used.hfu is not None and used.mfu_at_most is not None
    assert 0 < used.mfu <= used.mfu_at_most <= 1
    assert used.mfu <= used.hfu <= 1
    assert all(0 < row.mfu <= (row.hfu or 0) <= 1 for row in used.phases if row.mfu is not None)


def test_exports_have_it_by_phase(run: Run, tmp_path: Path) -> None:
    """Of phases in steps; what is not known is missing."""
    peak = Peak("float32", 1e13, "a test")
    with peaks_in(run, peak):
        run.export(str(tmp_path / "a.csv"), summary=True)
        run.export(str(tmp_path / "a.json"))
    rows = {row.name: row for row in with_peaks(run, peak).phases}
    with (tmp_path / "a.csv").open() as file:
        table = {line["path"]: line for line in csv.DictReader(file)}
    slices = [
        event
        for event in json.loads((tmp_path / "a.json").read_text())["traceEvents"]
        if event.get("cat") == "phase"
    ]
    for name in ("forward", "backward"):
        known = {key: getattr(rows[name], key) for key in KEYS}
        assert known["model_flops"] == FLOPS / 2 and known["mfu"] > 0
        assert {key: float(table[name][key]) for key in KEYS} == known
        (args, *others) = (event["args"] for event in slices if event["name"] == name)
        assert len(others) == 13 and {key: args[key] for key in KEYS} == known
    assert [table["data"][key] for key in KEYS] == [""] * 4
    with peaks_in(run):
        run.export(str(tmp_path / "b.csv"), summary=True)
    with (tmp_path / "b.csv").open() as file:
        (line,) = (line for line in csv.DictReader(file) if line["path"] == "forward")
    assert line["mfu"] == "" and float(line["model_flops"]) == FLOPS / 2


KEYS = ("model_flops", "hardware_flops", "mfu", "hfu")


def test_without_a_peak_it_is_unknown(run: Run) -> None:
    used = with_peaks(run, Peak("bfloat16", 1e15, "a test"))
    assert (used.mfu, used.model_flops) == (None, FLOPS)
    assert used.why_unknown is not None and "float32 is not known" in used.why_unknown


def test_the_report_has_both(run: Run) -> None:
    text = run.report(verbose=True, width=200)
    assert "75% of which are padding (known of 13 steps)" in text
    assert "1.05 MFLOP of the model per step, as counted in step 10; times 2" in text
    assert "Operators without a formula took" in text
    (line,) = (line for line in run.report(width=200).splitlines() if "Throughput" in line)
    assert "tokens/s (75% padding), " in line and "MFU" in line


def test_what_was_measured_is_found_by_later_recordings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYINSTRUMENT_GPU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(peaks, "_SIDES", (16, 32))
    measured = json.loads(invoke("peak", "--json", "--dtype", "float32").output)
    (peak,) = measured["peaks"]
    assert peak[0] == "float32" and peak[1] > 0 and "measured on" in peak[2]
    assert peaks.peaks_of(measured["device"]) == (Peak(*peak),)
    write(tmp_path, "train.py", TRAIN.format(threads=torch.get_num_threads()))
    done = launched(
        tmp_path,
        *("--flops", "train.py"),
        environment={"PYINSTRUMENT_GPU_CACHE_DIR": str(tmp_path / "cache")},
        imported="torch",
    )
    assert done.returncode == 0
    found = Run.load(tmp_path / "run.gpurun")
    assert found.operations is not None and found.operations.flops is not None, found.notes
    assert found.operations.profiled == ((10, 10),)
    assert found.operations.flops.peaks == (Peak(*peak),)
    document = json.loads(invoke("report", "--json", str(tmp_path / "run.gpurun")).output)
    assert document["throughput"]["utilization"]["model_flops"] == 2 * 2 * 4 * 8 * 2
    invoke("report", "--html", str(tmp_path / "run.gpurun"))
    assert "FLOP per step, phase" in (tmp_path / "run.html").read_text()


TRAIN = """
    import torch

    torch.set_num_threads({threads})
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in torch.utils.data.DataLoader(torch.ones(60, 8), batch_size=4):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("device", "dtype", "rate"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.5e12),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312e12),
        ("NVIDIA A100 80GB PCIe", "tf32", 156e12),
        ("NVIDIA L4", "float16", 121e12),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bfloat16", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bfloat16", None),
        ("NVIDIA L40", "bfloat16", None),
    ],
)
def test_peaks_of_the_table(device: str, dtype: str, rate: Any) -> None:
    found = {peak.dtype: peak.flops_per_second for peak in peaks.peaks_of(device)}
    assert found.get(dtype) == rate
