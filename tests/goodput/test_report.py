# SPDX-License-Identifier: Apache-2.0
"""What is said of a job's life: text, JSON, the page, and what Prometheus reads."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from pyinstrument_gpu.cli import main
from pyinstrument_gpu.core.condition import ProcessState
from pyinstrument_gpu.goodput.report import _tenths
from pyinstrument_gpu.watch.process import MachineClocks, observation_of
from tests.goodput.lives import BEFORE_NS, EPOCH_NS, MONOTONIC_NS, MS, attempt, saved

TEXT = """\
train.py --epochs 3
2 attempts, joined by their command and folder; from 2001-09-09 01:46:40 UTC to
its last heartbeat: it has ended
24.7 % of 1 s went into productive steps; most of the rest was between attempts,
43.7 %.

ms                        time      %    cost
----------------------  ------  -----  ------
productive steps         300.0   24.7   30.00  #####
steps again or cut off   170.0   14.0   17.00  ###
start-up                 200.0   16.5   20.00  ###
checkpoints                0.0    0.0    0.00
evaluation                 0.0    0.0    0.00
waiting for stragglers     0.0    0.0    0.00
hung                       0.0    0.0    0.00
outside steps             14.0    1.1    1.40
between attempts         530.0   43.7   53.00  #########
----------------------  ------  -----  ------
wall time               1214.0  100.0  121.40
"""


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyinstrument_gpu.cli.goodput._WAIT_S", 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    failed = {"exit_code": 1, "exception": "ValueError"}
    saved(
        tmp_path,
        attempt(0, 20, tail_ms=70),
        attempt(900, 20, start=10, tail_ms=14, is_killed=False, program_end=failed),
    )
    return tmp_path


def goodput(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, ["goodput", *map(str, arguments)])


@given(st.lists(st.integers(0, 10**20), min_size=1, max_size=9).filter(any))
def test_percents_add_up_to_a_hundred(times_ns: list[int]) -> None:
    found = _tenths(times_ns)
    assert sum(found) == 1000
    whole = sum(times_ns)
    for tenths, time_ns in zip(found, times_ns, strict=True):
        assert abs(tenths * whole - 1000 * time_ns) < whole


def test_the_text(folder: Path) -> None:
    result = goodput(folder, "--price-per-hour", "360000")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(TEXT)
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "30 productive steps, 10 steps computed again, 1 cut off" in lines
    assert "1 1 2001-09-09 01:46:40 370 ms 0 to 20 0 cut off" in lines
    assert "2 1 2001-09-09 01:46:40 314 ms 10 to 29 10 failed (ValueError)" in lines


def test_json_has_what_the_text_has(folder: Path) -> None:
    document = json.loads(goodput(folder, "--json").stdout)
    assert sum(one["time_ns"] for one in document["buckets"]) == document["wall_ns"]
    pieces = document["pieces"]
    assert sum(one["duration_ns"] for one in pieces) == document["wall_ns"]
    ends = [one["begin_ns"] + one["duration_ns"] for one in pieces]
    assert [one["begin_ns"] for one in pieces] == [0, *ends[:-1]]
    assert document["attempts"][0]["files"] == [f"{folder}/run-0.gpurun"]
    assert not document["is_running"]
    assert "price_per_hour" not in document


def test_prometheus_reads_it(folder: Path) -> None:
    result = goodput(folder, "--prometheus")
    samples = {
        tuple(one.labels.values()): one.value
        for family in text_string_to_metric_families(result.stdout)
        for one in family.samples
    }
    assert samples["train.py --epochs 3", "productive"] == 30
    seconds = [
        one.value
        for family in text_string_to_metric_families(result.stdout)
        for one in family.samples
        if family.name == "pyinstrument_gpu_job_seconds"
    ]
    assert sum(seconds) == pytest.approx(1.214)


def test_the_page_has_a_band(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "life.html"
    result = goodput(folder, "--html", page)
    assert result.stdout == f"Page: {page}\n"
    text = page.read_text()
    assert 'aria-label="The life of the job: start-up: 100 ms, from 0 ns on; ' in text
    assert "between attempts: 530 ms" in text


def test_bad_input(tmp_path: Path) -> None:
    result = goodput(tmp_path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: there is no run file (.gpurun) in {tmp_path}\n"
    assert goodput(tmp_path, "--json", "--prometheus").exit_code == 2
    assert goodput(tmp_path, "--price-per-hour", "-1").exit_code == 2
    assert "No such file" in goodput(tmp_path / "none.gpurun").stderr


def test_of_another_machine_it_can_not_be_seen(tmp_path: Path) -> None:
    saved(tmp_path, attempt(0, 20))
    text = " ".join(goodput(tmp_path).stdout.split())
    assert "to its last heartbeat: whether it has ended can't be seen from here" in text


def test_a_process_that_lives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last heartbeat was 40 ms ago."""
    saved(folder, attempt(0, 20))
    now_ns = BEFORE_NS + 205 * MS + 40 * MS
    clocks = MachineClocks("box", MONOTONIC_NS + now_ns, MONOTONIC_NS + now_ns, EPOCH_NS + now_ns)
    monkeypatch.setattr("pyinstrument_gpu.cli.goodput.MachineClocks.now", lambda: clocks)
    monkeypatch.setattr(
        "pyinstrument_gpu.cli.goodput.observation_of",
        partial(observation_of, process=lambda *_: ProcessState.ALIVE),
    )
    document = json.loads(goodput(folder / "run-0.gpurun", "--json").stdout)
    assert document["is_running"]
    assert document["wall_ns"] == now_ns
    assert document["attempts"][0]["ended"] == "running"
