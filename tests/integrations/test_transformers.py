# SPDX-License-Identifier: Apache-2.0
"""The callback for Hugging Face's Trainer: steps, items and samples are what it trains on."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import auto
from pyinstrument_gpu.core.run import Run
from tests.integrations.cases import (
    ONE,
    Case,
    LanguageModel,
    Texts,
    steps_of,
    tiny_trainings,
    tokens_of,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the Trainer

CASES = {
    "accumulation": Case(
        [(4, 32.0), (2, 12.0)] * 2, {"gradient_accumulation_steps": 4}, samples=44
    ),
    "evaluation in the middle": Case([ONE] * 12, {"eval_strategy": "steps", "eval_steps": 4}),
    "evaluation first": Case([ONE] * 12, {"eval_strategy": "epoch", "eval_on_start": True}),
    "early stop": Case([ONE] * 3, stop_at=3),
    "most steps": Case([(2, 16.0)] * 4, {"max_steps": 4, "gradient_accumulation_steps": 2}),
    "a stream": Case([ONE] * 5, {"max_steps": 5}, stream=True),
    "resumed": Case(
        [(2, 16.0)] * 4,
        {"save_strategy": "steps", "save_steps": 2, "gradient_accumulation_steps": 2},
        resume_at=2,
    ),
}


@pytest.fixture(scope="module")
def trainings() -> Iterator[Any]:
    """The module that imports the Trainer."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from tests.integrations import trainer_trainings

    with tiny_trainings():
        yield trainer_trainings


@pytest.mark.parametrize("name", CASES)
def test_callback_records_the_steps_that_the_trainer_counts(
    trainings: Any, name: str, tmp_path: Path
) -> None:
    case = CASES[name]
    callback = trainings.GpuPhaseCallback(tmp_path / "train.gpurun")
    training, warned = trainings.train(tmp_path, case, callback)
    assert not warned
    run = callback.run
    assert run.complete
    assert steps_of(run) == case.steps
    assert run.environment["framework"] == f"transformers {trainings.transformers.__version__}"
    assert run.environment["framework_steps"] == len(case.steps)
    assert training.state.global_step - (case.resume_at or 0) == len(case.steps)
    [told] = run.environment["step_numbers"]
    assert told["number"] == (case.resume_at or 0)
    assert told["at_ns"] <= run.steps[0].begin_ns
    assert run.program_facts.loader_workers == 0
    batches = sum(items for items, _ in case.steps)
    counts = {path: phase.count for path, phase in run.phases.items()}
    assert counts["forward"] == counts["backward"] == batches
    assert counts["optimizer"] == len(case.steps)
    assert counts["data"] == batches + counts.get("eval", 0)
    assert auto.installed() is None


def test_tokens_are_those_that_the_trainer_trains_on(trainings: Any, tmp_path: Path) -> None:
    """Its own `num_items_in_batch` counts labels, so prompts are no part of it."""
    case = CASES["accumulation"]
    callback, model = trainings.GpuPhaseCallback(), LanguageModel()
    trainings.trainer(tmp_path, case, callback, model=model, data=Texts(case.samples)).train()
    expected = model.by_step([batches for batches, _ in case.steps])
    assert tokens_of(callback.run) == expected
    assert len(set(expected)) == len(expected)
    items = [float(one["num_items_in_batch"]) for one in model.more]
    rows = [samples for batches, samples in case.steps for _ in range(batches)]
    real = [step[1] for step, (n, _) in zip(expected, case.steps, strict=True) for _ in range(n)]
    assert items == [total - prompts for total, prompts in zip(real, rows, strict=True)]


def test_two_trainings_are_two_runs(
    trainings: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each prints its report. And no training leaves anything behind in accelerate."""
    from accelerate import data_loader

    before = data_loader.DataLoaderShard.__iter__
    callback = trainings.GpuPhaseCallback(tmp_path / "train.gpurun")
    training, _ = trainings.train(tmp_path, CASES["early stop"], callback)
    training.train()
    runs = [Run.load(tmp_path / name) for name in ("train.gpurun", "train-2.gpurun")]
    assert [steps_of(run) for run in runs] == [CASES["early stop"].steps] * 2
    assert copy.deepcopy(callback).recording is None
    assert data_loader.DataLoaderShard.__iter__ is before
    said = capsys.readouterr().err
    assert said.count("3 steps in ") == said.count("More: pyinstrument-gpu report -v") == 2


def test_callback_that_is_passed_twice_makes_one_recording(trainings: Any, tmp_path: Path) -> None:
    case, callback = CASES["resumed"], trainings.GpuPhaseCallback(tmp_path / "train.gpurun")
    _, warned = trainings.train(tmp_path, case, callback, callback)
    assert not warned
    assert steps_of(callback.run) == case.steps
    assert callback.run.environment["framework_steps"] == len(case.steps)
    assert [path.name for path in tmp_path.glob("*.gpurun")] == ["train.gpurun"]


def test_report_that_is_turned_off(
    trainings: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = trainings.GpuPhaseCallback(report=False)
    trainings.train(tmp_path, CASES["early stop"], callback)
    assert callback.run.steps_ended == 3
    assert "per step" not in capsys.readouterr().err


def test_exception_ends_the_recording_and_propagates(trainings: Any, tmp_path: Path) -> None:
    callback = trainings.GpuPhaseCallback()
    training = trainings.trainer(
        tmp_path, CASES["early stop"], callback, model=trainings.Classifier(fails_at=3)
    )
    with pytest.raises(KeyError, match="the program's own"):
        training.train()
    assert [step.complete for step in callback.run.steps] == [True, True, False]
    assert auto.installed() is None


def test_recording_of_the_program_gets_the_steps(trainings: Any, tmp_path: Path) -> None:
    callback = trainings.GpuPhaseCallback()
    with pig.record() as recording:
        _, warned = trainings.train(tmp_path, CASES["accumulation"], callback)
    assert not warned
    assert callback.recording is None
    assert steps_of(recording.run) == CASES["accumulation"].steps
