# SPDX-License-Identifier: Apache-2.0
"""The tokens of steps whose batches have `input_ids`."""

from __future__ import annotations

import json
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.core.run import Run
from tests.cli.test_commands import invoke
from tests.recording.test_step_readings import values_of

torch = pytest.importorskip("torch")


def batch_of(rows: int, length: int = 8) -> dict[str, Any]:
    return {
        "labels": torch.zeros(rows),
        "input_ids": torch.ones(rows, length, dtype=torch.int64),
    }


def recorded(batches: Iterable[object], **options: Any) -> Run:
    with pig.record() as recording:
        for _ in pig.gpu_steps(batches, **options):
            pass
    return recording.run


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_tokens_of_a_batch_are_the_elements_of_its_input_ids(
    kind: Callable[[Mapping[str, Any]], object],
) -> None:
    batches = [kind(batch_of(4)), kind(batch_of(3, 16)), kind(batch_of(0))]
    assert values_of(recorded(batches), "tokens") == {0: 32, 1: 48, 2: 0}
    assert values_of(recorded(batches * 2, accumulate=3), "tokens") == {0: 80, 1: 80}


class Watched(torch.Tensor):  # type: ignore[misc, name-defined]
    pass


@pytest.mark.parametrize(
    "batch",
    [
        *({"input_ids": ids} for ids in (torch.ones(8), torch.ones(2, 2, 2), [[1, 2]], None)),
        {"input_ids": torch.ones(2, 2).as_subclass(Watched)},
        *({"ids": torch.ones(2, 2)}, {}, torch.ones(2, 2), (torch.ones(2, 2),), "input_ids", 7),
        UserDict(),
    ],
)
def test_tokens_of_any_other_batch_are_unknown(batch: object) -> None:
    assert recorded([batch]).metric_names == ()
    known = batch_of(4)
    run = recorded([known, batch, batch, known, known, known], accumulate=2)
    assert values_of(run, "tokens") == {2: 64}


def test_no_code_of_the_program_is_run_and_no_value_is_read() -> None:
    class Fields(UserDict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise AssertionError(key)

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc, name-defined]
        def __torch_function__(self, function: Any, *_: Any) -> Any:
            raise AssertionError(function)

    fields = Fields()
    fields.data["input_ids"] = torch.empty(4, 8, device="meta")  # has no values
    with pig.record() as recording, Mode():
        for _ in pig.gpu_steps([fields, {"input_ids": fields.data["input_ids"]}]):
            pass
    assert values_of(recording.run, "tokens") == {0: 32, 1: 32}


def train(loader: Iterable[Any], validation: Iterable[Any] = (), accumulate: int = 1) -> None:
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number, batch in enumerate(loader):
        model(batch["input_ids"].float()).mean().backward()
        if number % accumulate == accumulate - 1:
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        for batch in validation:
            model(batch["input_ids"].float())


def loader_of(items: int, rows: int = 4) -> Any:
    return torch.utils.data.DataLoader([{"input_ids": torch.ones(8)}] * items, batch_size=rows)


def test_automatic_steps_have_the_tokens_that_they_train_on() -> None:
    with pig.auto_phases(), pig.record() as recording:
        train(loader_of(10), loader_of(40))
        train(loader_of(16), accumulate=2)
    tokens = {0: 32, 1: 32, 2: 16, 3: 64, 4: 64}
    assert [step.samples for step in recording.run.steps] == [n / 8 for n in tokens.values()]
    assert values_of(recording.run, "tokens") == tokens


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps of 8, 16, 24 and 32 tokens."""
    file = tmp_path_factory.mktemp("run") / "train.gpurun"
    with pig.record(file):
        for _ in pig.gpu_steps([batch_of(rows) for rows in (1, 2, 3, 4)]):
            pass
    return file


ROW = ["step/tokens", "32", "3", "8", "0", "32", "3"]


def test_report_and_its_json(path: Path) -> None:
    assert ROW in [line.split() for line in invoke("report", "-v", str(path)).output.splitlines()]
    document = json.loads(invoke("report", "--json", str(path)).output)
    (tokens,) = document["metrics"]
    assert (tokens["name"], tokens["last"], tokens["last_step"]) == ("step/tokens", 32, 3)


def masked(rows: int, kept: int, **options: Any) -> dict[str, Any]:
    mask = torch.zeros(rows, 8, **options)
    mask[:, :kept] = 1
    return {**batch_of(rows), "attention_mask": mask}


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_padding_is_known_by_the_mask(dtype: Any) -> None:
    run = recorded([masked(4, 3, dtype=dtype), masked(2, 8, dtype=dtype), batch_of(4)])
    assert values_of(run, "tokens_without_padding") == {0: 12, 1: 16}
    assert values_of(run, "tokens") == {0: 32, 1: 16, 2: 32}


@pytest.mark.parametrize(
    "mask",
    [
        torch.ones(4, 8),
        torch.ones(4, 7, dtype=torch.int64),
        torch.ones(8, 4, dtype=torch.int64).T,
        torch.ones(4, 8, 1, dtype=torch.int64),
        torch.empty(4, 8, dtype=torch.int64, device="meta"),  # as on a GPU, none is read
        None,
    ],
)
def test_padding_by_any_other_mask_is_unknown(mask: object) -> None:
    run = recorded([{**batch_of(4), "attention_mask": mask}])
    assert values_of(run, "tokens") == {0: 32}
    assert values_of(run, "tokens_without_padding") == {}


def test_tokens_that_the_loop_gives_take_the_place_of_those_of_batches() -> None:
    batches = [masked(4, 3, dtype=torch.int64)] * 4
    assert values_of(recorded(batches, tokens=7, accumulate=2), "tokens") == {0: 14, 1: 14}
    both = recorded(batches, samples=4, tokens=lambda batch: (batch["input_ids"].numel(), 5))
    assert values_of(both, "tokens") == dict.fromkeys(range(4), 32)
    assert values_of(both, "tokens_without_padding") == dict.fromkeys(range(4), 5)
    assert [step.samples for step in both.steps] == [4.0] * 4


@pytest.mark.parametrize("wrong", [-1, float("nan"), (1, 2, 3), (), torch.tensor(4), None])
def test_tokens_of_a_function_that_fails_are_unknown_from_then_on(wrong: object) -> None:
    given = iter([5, wrong, 6])
    with pytest.warns(RuntimeWarning, match="the function `tokens` returned") as warned:
        run = recorded([batch_of(4)] * 3, samples=2, tokens=lambda _: next(given))
    assert len(warned) == 1
    assert values_of(run, "tokens") == {0: 5}
    assert [step.samples for step in run.steps] == [2.0] * 3


def test_wrong_tokens_are_an_error() -> None:
    with pytest.raises(ValueError, match="tokens must be a number >= 0, got -1"):
        pig.gpu_steps([], tokens=-1)
    with pytest.raises(TypeError, match="tokens must be a number or a function of the item"):
        pig.gpu_steps([], tokens="many")  # type: ignore[arg-type]


def rows_of(*lengths: int, full: int = 3, kind: Any = torch.int64) -> list[Any]:
    """Batches of two rows each, whose second is padded behind its first elements."""
    batches = [torch.ones(2, length, dtype=kind) for length in lengths]
    for batch in batches:
        batch[1, full:] = 0
    return batches


def test_elements_of_batches_are_read_where_rows_differ_in_length() -> None:
    run = recorded(rows_of(8, 8, 16, 8))
    assert values_of(run, "batch_elements") == {2: 32, 3: 16}
    assert values_of(run, "batch_elements_without_padding") == {2: 19, 3: 11}
    assert recorded([rows_of(8)[0], rows_of(8)[0][:1]]).metric_names == ()  # an epoch's last


@pytest.mark.parametrize(
    "nest",
    [
        lambda rows: (rows, torch.zeros(2)),
        lambda rows: [rows, [torch.zeros(2)]],
        lambda rows: {"text": rows, "labels": torch.zeros(2)},
    ],
)
def test_elements_are_those_of_what_comes_first(nest: Callable[[Any], Any]) -> None:
    run = recorded([nest(rows) for rows in rows_of(4, 6)])
    assert values_of(run, "batch_elements") == {1: 12}


@pytest.mark.parametrize(
    "batches",
    [
        rows_of(4, 6, kind=torch.float32),
        rows_of(4, 60_000),  # far too many to read
        [[torch.zeros(4, dtype=torch.int64)] * 2, [torch.zeros(6, dtype=torch.int64)] * 2],
        [[row for rows in rows_of(4, 4, 4) for row in (rows,)] * n for n in (2, 3)],  # samples
        [batch_of(4), batch_of(4, 16)],  # whose tokens say as much
        [[], (), {}, "text"],
    ],
)
def test_of_other_batches_no_elements_are_read(batches: list[Any]) -> None:
    names = recorded(batches).metric_names
    assert not any("elements" in name for name in names)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_size_of_a_nested_tensor_is_not_asked_for() -> None:
    rows = [torch.ones(length, dtype=torch.int64) for length in (1, 3)]
    assert recorded([torch.nested.nested_tensor(rows)] * 2).metric_names == ()


def test_rows_that_are_mostly_zeros_are_not_padded() -> None:
    graphs = [torch.eye(nodes, dtype=torch.int64).flip(0) for nodes in (30, 40)]
    run = recorded(graphs)
    assert values_of(run, "batch_elements") == {1: 1600}
    assert values_of(run, "batch_elements_without_padding") == {}


def test_a_batch_that_contains_itself_is_looked_at_all_the_same() -> None:
    batch: list[Any] = []
    batch.append(batch)
    assert recorded([batch, batch]).metric_names == ()
