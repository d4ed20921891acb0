# SPDX-License-Identifier: Apache-2.0
"""torch under `watch_syncs`, and after it, is the torch that the program knows."""

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import pyinstrument_gpu as pig
from pyinstrument_gpu.aspects.syncs import watch
from pyinstrument_gpu.core.sync_kind import SyncKind
from tests.helpers.host_watch import watched_host
from tests.helpers.python_server import ROOT, run_python
from tests.helpers.type_slots import slots


class Plain(torch.Tensor):
    """A class of a program's own."""


class Overriding(torch.Tensor):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)


KINDS = (torch._C.TensorBase, torch.Tensor, torch.nn.Parameter, Plain, Overriding)
INDEXING = {"mapping 1", "mapping 2"}
"""`mp_subscript` and `mp_ass_subscript`, the only slots that the watch uses."""


def all_slots() -> dict[tuple[str, str], int]:
    return {(kind.__name__, name): at for kind in KINDS for name, at in slots(kind).items()}


@pytest.fixture(params=[False, True], ids=["watching", "as_if_cuda"])
def as_if_cuda(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Nothing is left behind, whatever the test does meanwhile."""
    before = all_slots()
    yield request.param
    assert all_slots() == before


def test_nothing_is_hooked_where_nothing_can_wait(
    as_if_cuda: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "can_wait", lambda: False)
    before = all_slots(), torch.cuda.synchronize
    with pig.record() as recording, pig.watch_syncs(as_if_cuda=as_if_cuda):
        during = all_slots(), torch.cuda.synchronize
    assert during == before  # a preview hooks none of them anywhere
    assert recording.run.syncs.was_watched


def test_a_class_made_under_the_watch_is_put_back_too(as_if_cuda: bool) -> None:
    with pig.watch_syncs(as_if_cuda=as_if_cuda):

        class Younger(torch.Tensor):
            pass

        class Borrowing(torch.Tensor):
            __getitem__ = torch.Tensor.__getitem__

    for kind in (Younger, Borrowing):
        for name in INDEXING:
            assert slots(kind)[name] == slots(torch.Tensor)[name], (kind, name)
        assert torch.ones(3).as_subclass(kind)[torch.tensor([True, False, True])].numel() == 2


def test_every_way_of_indexing_is_seen() -> None:
    mask = torch.tensor([True, False, True])

    def index(x: Any) -> None:
        x[mask]
        x[(mask,)]
        x.__getitem__(mask)
        torch.Tensor.__getitem__(x, mask)
        x[mask] = torch.zeros(2)
        x.__setitem__(mask, torch.zeros(2))

    values = [
        torch.ones(3),
        torch.ones(3).as_subclass(Plain),
        torch.ones(3).as_subclass(Overriding),
    ]
    for value in values:
        with pig.record() as recording, watched_host():
            index(value)
        sites = [site for site in recording.run.syncs.sites if site.totals.count]
        assert {site.kind for site in sites} == {SyncKind.BOOLEAN_INDEX}
        assert sum(site.totals.count for site in sites) == 6, type(value)


def test_errors_of_an_index_are_those_of_torch(as_if_cuda: bool) -> None:
    def errors() -> list[str]:
        found = []
        x: Any = torch.ones(3)
        for index in (
            torch.ones(2).bool(),
            torch.ones(2),
            "a",
            (torch.ones(4).bool(), 1),
            object(),
        ):
            for act in (x.__getitem__, lambda at: x.__setitem__(at, x), x.__delitem__):
                with pytest.raises((IndexError, TypeError, RuntimeError)) as caught:
                    act(index)
                found.append(f"{caught.type.__name__}: {caught.value}")
        return found

    without = errors()
    with pig.watch_syncs(as_if_cuda=as_if_cuda):
        assert errors() == without


def test_ctrl_c_in_an_index_reaches_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    mask = torch.tensor([True, False])
    with pig.record(), watched_host():
        for place in ("_is_mask", "site_of"):  # asked before the call, and after it
            with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
                patched.setattr(watch, place, interrupt)
                torch.ones(2)[mask]
        assert torch.ones(2)[mask].numel() == 1


def test_watches_come_and_go_while_threads_index() -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        x, mask = torch.arange(3), torch.tensor([True, False, True])
        try:
            while not stop.is_set():
                assert x[mask].tolist() == [0, 2]
                x[mask] = x[mask]
                class_ = type("Younger", (torch.Tensor,), {})
                assert x.as_subclass(class_)[mask].numel() == 2
        except BaseException as error:
            failures.append(error)

    before = all_slots()
    threads = [threading.Thread(target=work) for _ in range(2)]
    try:
        for thread in threads:
            thread.start()
        for turn in range(10):
            with pig.watch_syncs(as_if_cuda=bool(turn % 2)):
                torch.ones(2)[torch.tensor([True, False])]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert all_slots() == before


def test_methods_taken_earlier_are_seen_too() -> None:
    x = torch.tensor([1.0])
    item, where = x.item, torch.where
    with pig.record() as recording, watched_host():
        item()
        where(x > 0)
        where(condition=x > 0, input=x, other=x)
    kinds = [site.kind for site in recording.run.syncs.sites if site.totals.count]
    assert kinds == [SyncKind.ITEM, SyncKind.DATA_DEPENDENT_SHAPE]


# torch's own samples of its operators, in a process of their own: importing them changes torch


def compare_operators(*names: str) -> int:
    """Compares what operators do with and without us; returns how many there were."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = run_python("-m", "tests.helpers.operator_samples", *names, environment=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout.split()[-1])


@pytest.mark.thorough
def test_operators_that_wait_do_what_they_did() -> None:
    waiting = ("item", "nonzero", "argwhere", "unique", "unique_consecutive", "masked_select")
    more = ("bincount", "equal", "allclose", "repeat_interleave", "where", "to", "__getitem__")
    assert compare_operators(*waiting, *more) >= 8


@pytest.mark.slow
def test_all_operators_do_what_they_did() -> None:
    assert compare_operators() > 500
