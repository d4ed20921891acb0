# SPDX-License-Identifier: Apache-2.0
"""Edits as they are made in front of torch's own functions, and where they are noted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyinstrument_gpu.trial.edits.edit import Facts, Hand
from pyinstrument_gpu.trial.edits.table import EDITS, edits
from tests.helpers.plugins import install, on_the_path

torch = pytest.importorskip("torch")
Loader = torch.utils.data.DataLoader
SGD = torch.optim.SGD
PROGRAM = Facts(
    shares={"data": 0.3, "data start": 0.1, "forward": 0.2, "backward": 0.2, "optimizer": 0.1},
    workers=2,
    collector_share=0.1,
    cores=8,
    ranks=2,
)


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch as it was, behind each test."""
    owners: list[tuple[Any, str]] = [
        (Loader, "__init__"),
        (torch, "set_num_threads"),
        (torch, "set_anomaly_enabled"),
        (torch, "use_deterministic_algorithms"),
        (torch.optim.Optimizer, "zero_grad"),
        (torch.nn.Module, "zero_grad"),
        (torch.nn.parallel.DistributedDataParallel, "__init__"),
        *((one, "__init__") for one in vars(torch.optim).values() if isinstance(one, type)),
    ]
    for owner, name in owners:
        if name in vars(owner):
            monkeypatch.setattr(owner, name, getattr(owner, name))
    threads = torch.get_num_threads()
    yield
    monkeypatch.undo()
    torch.set_num_threads(threads)


def line() -> int:
    return sys._getframe(1).f_lineno


@pytest.mark.parametrize(
    ("name", "value", "options", "expected"),
    [
        ("workers", 1, {}, {"num_workers": 1}),
        ("workers", [1, True], {}, {"num_workers": 1, "persistent_workers": True}),
        ("workers", 0, {"num_workers": 1, "persistent_workers": True}, {"num_workers": 0}),
        ("persistent_workers", True, {"num_workers": 1}, {"persistent_workers": True}),
        ("prefetch_factor", 8, {"num_workers": 1}, {"prefetch_factor": 8}),
    ],
)
def test_a_loader_is_made_with_other_arguments(
    name: str, value: Any, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    hand = Hand()
    edits()[name].make(value, hand)
    made, at = Loader([1, 2, 3, 4], **options), line()
    assert {key: getattr(made, key) for key in expected} == expected
    assert [(place.file, place.line, place.call) for place in hand.met] == [
        (__file__, at, "DataLoader")
    ]


def test_a_dry_run_notes_where_and_changes_nothing() -> None:
    hand = Hand(is_dry=True)
    edits()["workers"].make(2, hand)
    made, at = Loader([1], shuffle=True), line()
    other, below = Loader([1]), line()
    assert made.num_workers == other.num_workers == 0
    assert {(place.line, place.rank) for place in hand.met} == {(at, 2), (below, 0)}


def test_only_the_chosen_lines_are_edited() -> None:
    hand = Hand(places={(__file__, line() + 2)})
    edits()["workers"].make(2, hand)
    made = Loader([1])
    other = Loader([1])
    assert (made.num_workers, other.num_workers) == (2, 0)


def test_an_iterable_dataset_keeps_its_workers() -> None:
    class Rows(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[int]:
            return iter(())

    hand = Hand()
    edits()["workers"].make(2, hand)
    assert Loader(Rows()).num_workers == 0 and not hand.is_met


def test_the_line_that_makes_an_object_counts_not_its_class() -> None:
    class Own(SGD):  # type: ignore[misc, valid-type]
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, lr=0.1)

    hand = Hand()
    edits()["optimizer"].make("foreach", hand)
    made, at = Own([torch.zeros(2, requires_grad=True)]), line()
    assert made.defaults["foreach"] is True
    assert [(place.line, place.call) for place in hand.met] == [(at, "Own")]


def test_wrong_arguments_are_still_the_functions_own_error() -> None:
    edits()["workers"].make(2, Hand())
    with pytest.raises(TypeError, match="unexpected keyword argument 'wrong'"):
        Loader([1], wrong=True)


def test_gradients_are_dropped() -> None:
    hand = Hand()
    edits()["set_to_none"].make(True, hand)
    parameter = torch.ones(2, requires_grad=True)
    optimizer = SGD([parameter], lr=0.1)
    parameter.sum().backward()
    optimizer.zero_grad(set_to_none=False)
    assert parameter.grad is None and len(hand.met) == 1


def test_threads_stay_whatever_the_program_sets() -> None:
    edits()["threads"].make(1, Hand())
    torch.set_num_threads(3)
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("name", ["anomaly", "determinism"])
def test_a_mode_is_not_turned_on(name: str) -> None:
    hand = Hand()
    edits()[name].make(True, hand)
    with torch.autograd.set_detect_anomaly(True):
        assert torch.is_anomaly_enabled() is (name == "determinism")
    torch.use_deterministic_algorithms(True)
    is_on = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    assert is_on is (name == "anomaly")
    assert hand.is_met


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["channels_last", "autocast", "compile"])
def test_the_model_is_edited_at_its_first_call_in_training(name: str) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))
    transform = torch.nn.Identity()  # which is in training, and no model
    images = torch.zeros(2, 3, 8, 8)
    hand = Hand()
    edits()[name].make(True, hand)
    model.eval()(transform(images))
    assert not hand.is_met
    model.train()(images)
    assert [place.call for place in hand.met] == ["Sequential"]
    if name == "channels_last":
        assert model(images).is_contiguous(memory_format=torch.channels_last)
    elif name == "autocast":
        assert model(images).dtype is torch.bfloat16
    else:
        assert model._compiled_call_impl is not None


def test_settings_of_a_gpu_are_tried_only_where_there_is_one() -> None:
    of_gpu = {"pin_memory", "cudnn_benchmark", "matmul_precision", "expandable_segments"}
    with_gpu = Facts(**{**vars(PROGRAM), "has_gpu": True})
    for edit in EDITS:
        if edit.name in of_gpu:
            assert not edit.reach(PROGRAM) and edit.reach(with_gpu)


def test_no_edit_reaches_further_than_what_it_touches() -> None:
    nothing = Facts(shares={})
    assert not [edit.name for edit in EDITS if edit.reach(nothing)]
    for edit in EDITS:
        assert 0 <= edit.reach(PROGRAM) <= 1


def test_an_edit_says_what_people_would_write() -> None:
    texts = [edit.text(value) for edit in EDITS for value in edit.values(PROGRAM)]
    assert "DataLoader(num_workers=8)" in texts
    assert "torch.set_num_threads(1)" in texts
    assert len(texts) == len(set(texts))


ADDED = """
from pyinstrument_gpu.trial.edits.edit import Changes, Edit

class Own(Edit):
    name, group, changes = "own", "own", Changes.NOTHING

OWN = Own()
"""


def test_edits_of_other_packages_are_tried_too(tmp_path: Path) -> None:
    install(tmp_path, ADDED, {"edits": "added:OWN"})
    edits.cache_clear()
    with on_the_path(tmp_path):
        assert "own" in edits() and "workers" in edits()
    edits.cache_clear()
    assert "own" not in edits()
