# SPDX-License-Identifier: Apache-2.0
"""The cases of examples/cases: their scripts, what is predicted of them, and the page."""

import dataclasses
import functools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("scipy")

from examples.cases import measure, page, prediction
from examples.cases.case import CASES, SIDES, Case
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.record import Thread
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SPAN_DTYPE, STEP_DTYPE
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.core.sync_kind import SyncKind
from pyinstrument_gpu.core.syncs import SYNC_DTYPE, Syncs, SyncSite
from tests.helpers.script import run_script

MS = 1_000_000
STEPS = 20

# --- the scripts ---

STEPS_TRAINED = 4

# What happens now and then in a script happens every second step.
TRAIN = """
import contextlib, importlib, io, json, sys
outputs = {}
for name, steps, seed in json.loads(sys.argv[1]):
    module = importlib.import_module(name)
    for constant in [constant for constant in vars(module) if constant.endswith("_EVERY")]:
        setattr(module, constant, 2)
    module.EVALUATION_BATCHES = 2
    sys.argv = [name, "--steps", str(steps), "--seed", str(seed)]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        module.main()
    outputs[f"{name} {seed}"] = output.getvalue()
without = "examples.cases.metrics.before"
sys.modules.pop(without, None)
sys.modules["torchmetrics.classification"] = None
try:
    importlib.import_module(without)
except SystemExit as end:
    outputs["without torchmetrics"] = str(end)
print(json.dumps(outputs))
"""


@functools.cache
def outputs_of(name: str) -> dict[str, list[str]]:
    """What the scripts of a case printed, by their module and the seed."""
    chosen = [(f"examples.cases.{name}.{side}", STEPS_TRAINED, 3) for side in SIDES]
    chosen.append((f"examples.cases.{name}.after", STEPS_TRAINED, 4))
    found: dict[str, str] = json.loads(run_script(TRAIN, json.dumps(chosen)).stdout)
    return {name: output.splitlines() for name, output in found.items()}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case.name == "metrics" else pytest.mark.thorough)
        for case in CASES
    ],
    ids=lambda case: case.name,
)
def test_the_edit_does_not_change_what_is_trained(case: Case) -> None:
    before, after = (outputs_of(case.name)[f"{case.module(side)} 3"] for side in SIDES)

    assert before[-1].startswith("final loss ")
    assert before[-1] == after[-1]


def test_another_seed_trains_otherwise() -> None:
    name, outputs = "examples.cases.metrics.after", outputs_of("metrics")

    assert outputs[f"{name} 3"][-1] != outputs[f"{name} 4"][-1]


def test_torchmetrics_and_the_accumulator_count_the_same() -> None:
    before, after = (outputs_of("metrics")[f"examples.cases.metrics.{side} 3"] for side in SIDES)

    assert before[-2].startswith("accuracy ")
    assert before[-2] == after[-2]


def test_without_torchmetrics_a_script_says_what_to_install() -> None:
    (message,) = outputs_of("metrics")["without torchmetrics"]

    assert "pip install torchmetrics" in message


# --- what is predicted ---


def made_run(
    *,
    waits: Sequence[tuple[SyncKind, int, int]] = (),
    evaluations: bool = False,
    is_watched: bool = True,
) -> Run:
    """A run of steps of 10 ms: 2 ms of data, 5 ms of forward, and 3 ms without a phase.

    Args:
        waits: their kinds, and begin and end in a step, in ms.
        evaluations: behind each fifth step there are 8 ms, with two phases of 2 ms from 1 ms and
            from 4 ms on.
    """
    gaps_ns = np.where((np.arange(STEPS) % 5 == 4) & evaluations, 8 * MS, 0)
    begins_ns = np.arange(STEPS) * 10 * MS + np.append(0, np.cumsum(gaps_ns)[:-1])
    steps = np.zeros(STEPS, STEP_DTYPE)
    steps["index"], steps["complete"], steps["samples"] = np.arange(STEPS), True, np.nan
    steps["begin_ns"], steps["end_ns"] = begins_ns, begins_ns + 10 * MS
    rows = []
    for step, begin_ns in enumerate(begins_ns.tolist()):
        rows += [
            (0, step, begin_ns, begin_ns + 2 * MS),
            (1, step, begin_ns + 2 * MS, begin_ns + 7 * MS),
        ]
        if gaps_ns[step]:
            end_ns = begin_ns + 10 * MS
            rows += [(2, -1, end_ns + at * MS, end_ns + (at + 2) * MS) for at in (1, 4)]
    spans = np.full(len(rows), -1, np.int64).astype(SPAN_DTYPE)
    for name, values in zip(
        ("path", "step", "host_begin_ns", "host_end_ns"), zip(*rows, strict=True), strict=True
    ):
        spans[name] = values
    spans["phase"], spans["thread"], spans["depth"], spans["flags"] = spans["path"], 0, 0, 1
    sites = tuple(
        SyncSite("train.py", 1 + i, "main", kind, False) for i, (kind, *_) in enumerate(waits)
    )
    events = [
        (begin_ns + at * MS, (until - at) * MS, 4, site, -1, step, 0)
        for step, begin_ns in enumerate(begins_ns.tolist())
        for site, (_, at, until) in enumerate(waits)
    ]
    end_ns = int(begins_ns[-1]) + 18 * MS
    return Run(
        names=["data", "forward", "eval"],
        path_parents=[-1] * 3,
        path_names=range(3),
        threads=[Thread(1, "MainThread")],
        spans=spans,
        span_self_ns=durations_ns_of(spans, "host_"),
        steps=Steps(steps),
        syncs=Syncs(sites, np.array(events, SYNC_DTYPE), ((0, end_ns),) if is_watched else ()),
        duration_ns=end_ns,
    )


def test_where_nothing_waits_nothing_is_predicted_for_waits() -> None:
    run = made_run()

    for found in (
        prediction.without_reads(run),
        prediction.without_copies(run),
        prediction.without_copies_in_evaluation(run),
    ):
        assert (found.low_ns, found.likely_ns, found.high_ns) == (0, 0, 0)
        assert found.elapsed_ns == 10 * MS
        assert "wait for no device" in found.because


def test_unwatched_waits_are_unknown_and_not_nothing() -> None:
    run = made_run(is_watched=False)

    for found in (
        prediction.without_reads(run),
        prediction.without_copies(run),
        prediction.without_copies_in_evaluation(run),
    ):
        assert (found.likely_ns, found.high_ns) == (None, None)


def test_what_no_phase_covers_is_the_limit_of_other_work() -> None:
    found = prediction.without_work_outside_phases(made_run())

    assert (found.low_ns, found.likely_ns, found.high_ns) == (0, None, 3 * MS)


def test_waiting_is_not_other_work() -> None:
    run = made_run(waits=[(SyncKind.ITEM, 8, 9)])

    assert prediction.without_work_outside_phases(run).high_ns == 2 * MS
    assert prediction.without_copies(run).high_ns == 0


def test_a_wait_for_a_value_is_what_its_replay_saves() -> None:
    found = prediction.without_reads(made_run(waits=[(SyncKind.ITEM, 8, 9)]))

    # The next step waits for nothing that was waited for here: there is only one wait per step. At
    # the low end, it then waits for workers, of which nothing is known.
    assert found.likely_ns == pytest.approx(1 * MS, rel=0.05)
    assert found.high_ns == 1 * MS
    assert found.low_ns == 0


def test_an_edit_of_two_kinds_saves_what_both_do() -> None:
    run = made_run(waits=[(SyncKind.ITEM, 8, 9)])
    reads, own = prediction.without_reads(run), prediction.without_work_outside_phases(run)

    found = reads + own
    assert (found.low_ns, found.likely_ns, found.high_ns) == (reads.low_ns, None, 3 * MS)
    assert found.elapsed_ns == 10 * MS
    assert reads.because in found.because
    assert own.because in found.because


@pytest.mark.parametrize(
    ("workers", "cores", "likely_ns"),
    [(2, 8, 1.7 * MS), (2, 4, 1.7 * MS), (2, 3, 0), (2, 2, 0), (None, 8, None), (2, None, None)],
)
def test_more_workers_need_cores(
    workers: int | None, cores: int | None, likely_ns: float | None
) -> None:
    # To hand over a batch is likely to take 0.3 ms of the 2 ms.
    run = made_run()
    run.environment["program_facts"] = {"loader_workers": workers}
    if cores is not None:
        run.environment["cores"] = cores

    found = prediction.with_more_workers(run)

    assert (found.low_ns, found.likely_ns, found.high_ns) == (0, likely_ns, 2 * MS)


def test_half_the_evaluations() -> None:
    found = prediction.with_half_the_evaluations(made_run(evaluations=True))

    # Three times from the 5 ms between the first phase and the last to 8 ms. The last time it ends
    # with its last phase, and only the 4 ms of its phases are certain.
    assert found.elapsed_ns == (STEPS * 10 + 3 * 8 + 6) * MS / STEPS
    assert found.low_ns == (3 * 5 + 4) * MS / STEPS / 2
    assert found.high_ns == (3 * 8 + 6) * MS / STEPS / 2


def test_without_evaluations_half_of_them_is_unknown() -> None:
    assert prediction.with_half_the_evaluations(made_run()).high_ns is None


# --- what is measured, and the page ---


@pytest.mark.slow
def test_a_case_is_recorded_and_written(tmp_path: Path) -> None:
    file = tmp_path / "cases.json"

    options = ["--case", "evaluation", "--pairs", "1", "--steps", "4", "-o", str(file)]
    assert measure.main(options) == 0

    results = json.loads(file.read_text())
    assert results["failed"] == {}
    (found,) = results["cases"]
    assert found["name"] == "evaluation"
    assert found["final_losses"]["before"] == found["final_losses"]["after"]
    assert len(found["predictions"]) == 1
    assert found["comparison"]["elapsed"]["verdict"] == "AMBIGUOUS"  # of a single pair
    assert results["device"] in ("CPU", *found["gpus"])
    assert "| [evaluate every 200 steps, not every 100](evaluation/after.py) |" in page.table(
        results
    )


def test_a_case_that_fails_is_named_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = dataclasses.replace(CASES[0], name="no_such_case")
    monkeypatch.setattr(measure, "CASES", [missing, dataclasses.replace(missing, name="nor_this")])
    file = tmp_path / "cases.json"

    assert measure.main(["--pairs", "1", "-o", str(file)]) == 1

    results = json.loads(file.read_text())
    assert results["cases"] == []
    assert list(results["failed"]) == ["no_such_case", "nor_this"]
    reason = results["failed"]["no_such_case"]
    # Chance decides which side runs first.
    assert re.fullmatch(
        r"examples\.cases\.no_such_case\.(before|after) ended with exit code 1", reason
    )
    assert f"* `no_such_case` could not be measured: {reason}" in page.table(results)
    assert "No module named" in capsys.readouterr().err


def results_of(
    change: float, interval: Any, *predicted: tuple[float, Any, Any], verdict: str = "FASTER"
) -> dict[str, Any]:
    """Results of one case, with predictions of an elapsed time of 200 ns per step."""
    elapsed = {"change": change, "interval": interval, "verdict": verdict}
    predictions = [
        {"low_ns": low, "likely_ns": likely, "high_ns": high, "elapsed_ns": 200.0, "because": "a"}
        for low, likely, high in predicted
    ]
    case = {
        "name": "workers",
        "final_losses": {"before": [0.5, 0.25], "after": [0.5, 0.125]},
        "predictions": predictions,
        "comparison": {
            "elapsed": elapsed,
            "uneven": [],
            "without_uneven": None,
        },
        "warnings": ["Python version differs: 3.10 and 3.11"],
    }
    machine = {"cpu": "A CPU", "cores": 2, "torch": "2.13", "date": "2026-01-31", "load": 0.1}
    return {"device": "CPU", "machine": machine, "pairs": 2, "cases": [case], "failed": {}}


@pytest.mark.parametrize(
    ("results", "cells"),
    [
        (
            results_of(-0.05, (-0.07, -0.03), (0, 10, 20), (4, 14, 40), (2, 12, 30)),
            "1.0 to 15.0, likely 6.0 | +5.0 | +3.0 to +7.0 | FASTER | yes",
        ),
        (
            results_of(0.05, (0.03, 0.07), (0, None, 20)),
            "0.0 to 10.0 | -5.0 | -7.0 to -3.0 | FASTER | **no**",
        ),
        (
            results_of(-0.05, (-0.07, -0.03), (0, 0, 0)),
            "0.0 | +5.0 | +3.0 to +7.0 | FASTER | **no**",
        ),
        (
            results_of(-0.05, (-0.07, -0.03), (0, None, None)),
            "unknown | +5.0 | +3.0 to +7.0 | FASTER | nothing was predicted",
        ),
        (
            results_of(0.0, (-0.07, 0.07), (0, 0, 0), verdict="AMBIGUOUS"),
            "0.0 | +0.0 | -7.0 to +7.0 | AMBIGUOUS | not contradicted",
        ),
        (results_of(-0.05, None, (0, 0, 0)), "0.0 | +5.0 | unknown | FASTER | unknown"),
    ],
)
def test_a_row_has_what_was_predicted_and_what_was_saved(
    results: dict[str, Any], cells: str
) -> None:
    row = next(line for line in page.table(results).splitlines() if "workers/after.py" in line)

    assert row.endswith(f"| {cells} |")


def test_a_table_names_where_and_what_it_rests_on() -> None:
    text = page.table(results_of(-0.05, None, (0, 0, 0)))

    assert text.startswith("**CPU** (A CPU, 2 cores, load 0.1, torch 2.13, 2026-01-31), 2 pairs")
    assert "* `workers`: predicted from a. The last loss was the same in 1 of 2 pairs." in text
    assert "Warning: Python version differs: 3.10 and 3.11." in text


def test_a_table_for_each_device_and_word_of_what_is_missing() -> None:
    marked = "<!-- begin results -->\nold\n<!-- end results -->\n"
    on_cpu = results_of(-0.05, None, (0, 0, 0))
    on_gpu = on_cpu | {"device": "A GPU"}

    nothing, one, both = (page.filled(marked, some) for some in ([], [on_cpu], [on_cpu, on_gpu]))

    assert "Nothing has been measured yet." in nothing
    assert "no figures from a GPU" in nothing
    assert "**CPU**" in one
    assert "no figures from a GPU" in one
    assert both.index("**CPU**") < both.index("**A GPU**")
    assert "no figures" not in both
    assert "old" not in nothing + one + both


def test_the_page_has_the_results_as_they_are() -> None:
    text = page.PAGE.read_text()

    assert page.filled(text, page.newest_results()) == text
