# SPDX-License-Identifier: Apache-2.0
"""log_every: readings for a callback on another thread, and none that is lost.

When the thread looks is not known: the tests hold for any time.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

import pyinstrument_gpu as pig
from tests.helpers.script import run_script

torch = pytest.importorskip("torch")

from tests.helpers.metric_gpu import metric_gpu  # noqa: E402

LOGITS, TARGET = torch.eye(4), torch.arange(4)
WAIT_S = 600
"""For what comes in any case."""


class Collected:
    """A callback that keeps the readings, and lets others wait for them."""

    def __init__(self) -> None:
        self.readings: list[pig.Reading] = []
        self.threads: set[threading.Thread] = set()
        self._came = threading.Condition()

    def __call__(self, reading: pig.Reading) -> None:
        with self._came:
            self.threads.add(threading.current_thread())
            self.readings.append(reading)
            self._came.notify_all()

    def wait_for(self, count: int) -> None:
        with self._came:
            assert self._came.wait_for(lambda: len(self.readings) >= count, WAIT_S)


def add(metrics: pig.MetricAccumulator, updates: int) -> None:
    for _ in range(updates):
        metrics.update(LOGITS, TARGET, 2.0)


def test_nothing_is_lost_and_each_call_has_enough_updates() -> None:
    metrics, got = pig.MetricAccumulator(topk=1), Collected()
    with metrics.log_every(3, got):
        for calls in range(1, 4):
            add(metrics, 3)
            got.wait_for(calls)
        add(metrics, 2)
    updates = [reading.update for reading in got.readings]
    assert updates == [3, 6, 9, 11]
    assert [reading.values["count"] for reading in got.readings] == [12, 12, 12, 8]
    assert got.threads.isdisjoint(threading.enumerate())  # ours, and it has ended
    add(metrics, 10)
    assert len(got.readings) == 4


@pytest.mark.parametrize("updates_before", [0, 2])
def test_there_is_no_call_for_what_a_reset_has_discarded(updates_before: int) -> None:
    metrics, got = pig.MetricAccumulator(topk=1), Collected()
    add(metrics, updates_before)
    with metrics.log_every(1000, got):
        add(metrics, 3)
        metrics.update_scalar("lr", 0.5)
        metrics.reset()
    assert not got.readings
    with metrics.log_every(1000, got):
        add(metrics, 3)
        metrics.reset()
        metrics.update_scalar("lr", 0.5)
    assert [reading.values["lr_weight"] for reading in got.readings] == [1]


def test_a_busy_callback_gets_all_that_came_meanwhile_at_once() -> None:
    metrics = pig.MetricAccumulator(topk=1)
    entered, goes_on = threading.Event(), threading.Event()
    got: list[pig.Reading] = []

    def slow(reading: pig.Reading) -> None:
        got.append(reading)
        entered.set()
        assert goes_on.wait(WAIT_S)

    log = metrics.log_every(1, slow)
    add(metrics, 1)
    assert entered.wait(WAIT_S)
    add(metrics, 100)
    assert len(got) == 1
    goes_on.set()
    log.close()
    assert [reading.update for reading in got] == [1, 101]
    assert got[1].values["count"] == 400


def test_a_callback_that_raises_is_not_called_again() -> None:
    metrics = pig.MetricAccumulator(topk=1)
    calls = 0

    def fails(reading: pig.Reading) -> None:
        nonlocal calls
        calls += 1
        raise KeyError("no such key")

    with pytest.warns(
        RuntimeWarning, match=r"not called again:\n(.*\n)*KeyError: 'no such key'"
    ) as caught:
        log = metrics.log_every(1, fails)
        add(metrics, 1)
        log._thread.join(WAIT_S)
        add(metrics, 1)
        log.close()
    assert calls == 1
    assert [each.filename for each in caught] == [__file__]
    assert metrics.compute()["count"] == 8


def test_closing_in_the_callback_and_twice() -> None:
    metrics, closed = pig.MetricAccumulator(topk=1), threading.Event()
    updates: list[int] = []

    def once(reading: pig.Reading) -> None:
        updates.append(reading.update)
        log.close()
        closed.set()

    log = metrics.log_every(2, once)
    add(metrics, 2)
    assert closed.wait(WAIT_S)
    log.close()
    assert updates == [2]


def test_running_values_alone() -> None:
    metrics, got = pig.MetricAccumulator(), Collected()
    with metrics.log_every(2, got):
        for number in range(2):
            metrics.update_scalar("reward", number)
        got.wait_for(1)
        metrics.update_scalar("reward", 9)
    assert [reading.values["reward"] for reading in got.readings] == [0.5, 9]


def test_two_logs_and_a_reset() -> None:
    metrics, often, rarely = pig.MetricAccumulator(topk=1), Collected(), Collected()
    with metrics.log_every(1, often), metrics.log_every(1000, rarely):
        add(metrics, 2)
        often.wait_for(1)
        metrics.reset()
        add(metrics, 3)
    assert sum(reading.values["count"] for reading in often.readings) in (8 + 12, 4 + 12)
    assert [reading.values["count"] for reading in rarely.readings] == [12]


def test_from_a_device_comes_what_has_arrived() -> None:
    with metric_gpu() as gpu:
        metrics, got = pig.MetricAccumulator(topk=1), Collected()
        with metrics.log_every(2, got):
            add(metrics, 1)
            gpu.run_nothing_on_launch("pig_metric_update_float32_thread")
            add(metrics, 1)  # this one is not done yet
            metrics.update(LOGITS.double(), TARGET)  # another kernel, which is
            got.wait_for(1)
        assert [reading.update for reading in got.readings] == [2]
        assert gpu.violations == []


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, print), ValueError, "n must be an int >= 1, got 0"),
        ((2.0, print), ValueError, "n must be an int"),
        ((2, None), TypeError, "callback must be a function, got NoneType"),
    ],
)
def test_arguments(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        pig.MetricAccumulator().log_every(*arguments)


SCRIPT = """
import os
import sys
import torch
import pyinstrument_gpu as pig

metrics = pig.MetricAccumulator(topk=1)
log = metrics.log_every(1000, lambda reading: print(reading.update, flush=True))
for _ in range(3):
    metrics.update(torch.eye(4), torch.arange(4))
"""


def test_the_rest_comes_when_the_program_fails() -> None:
    assert run_script(SCRIPT + "raise ValueError", exit_code=1).stdout.split() == ["3"]


def test_the_rest_comes_when_a_child_of_multiprocessing_ends() -> None:
    done = run_script(
        """
import multiprocessing
import torch
import pyinstrument_gpu as pig

def train():
    metrics = pig.MetricAccumulator(topk=1)
    metrics.log_every(1000, lambda reading: print(reading.update, flush=True))
    for _ in range(3):
        metrics.update(torch.eye(4), torch.arange(4))

child = multiprocessing.get_context("fork").Process(target=train)
child.start()
child.join()
print(child.exitcode)
"""
    )
    assert done.stdout.split() == ["3", "0"]


def test_the_rest_comes_when_the_program_ends_and_a_forked_child_logs_its_own() -> None:
    done = run_script(
        SCRIPT
        + """
child = os.fork()
if child == 0:
    metrics.update(torch.eye(4), torch.arange(4))
    log.close()
    with metrics.log_every(1, lambda reading: print("child", reading.update, flush=True)):
        metrics.update(torch.eye(4), torch.arange(4))
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
metrics.update(torch.eye(4), torch.arange(4))
"""
    )
    assert sorted(done.stdout.split("\n")) == ["", "4", "child 5"]


def test_many_forks_while_a_thread_looks() -> None:
    """A lock that is held at the moment of a fork would hold the child up forever."""
    metrics, got = pig.MetricAccumulator(topk=1, num_classes=2000, confusion=True), Collected()
    logits, target = torch.eye(2000)[:4], torch.arange(4)
    with metrics.log_every(1, got):
        for _ in range(20):
            metrics.update(logits, target)
            child = os.fork()
            if child == 0:
                metrics.update(logits, target)
                metrics.latest()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    assert sum(reading.values["count"] for reading in got.readings) == 80


def test_a_progress_bar() -> None:
    class Bar:
        postfix: dict[str, Any]

        def set_postfix(self, values: dict[str, Any]) -> None:
            self.postfix = values

    metrics, bar = pig.MetricAccumulator(topk=1), Bar()
    with metrics.log_every(1000, pig.tqdm_postfix(bar, "loss", "accuracy@1", "norm")):
        add(metrics, 1)
    assert bar.postfix == {"loss": 2, "accuracy@1": 1, "norm": "?"}
    with metrics.log_every(1000, pig.tqdm_postfix(bar)):
        add(metrics, 1)
    assert bar.postfix == {"loss": 2}
    with pytest.raises(TypeError, match="bar must be a progress bar of tqdm, got list"):
        pig.tqdm_postfix([])
    with pytest.raises(TypeError, match="keys must be names"):
        pig.tqdm_postfix(bar, 1)  # type: ignore[arg-type]


def test_tqdm_itself() -> None:
    import io

    tqdm = pytest.importorskip("tqdm")
    metrics, shown = pig.MetricAccumulator(topk=1), io.StringIO()
    drawn = threading.Event()
    with tqdm.tqdm(range(1), file=shown) as bar:
        show = pig.tqdm_postfix(bar)

        def callback(reading: pig.Reading) -> None:
            show(reading)
            drawn.set()

        with metrics.log_every(1, callback):
            for _ in bar:
                add(metrics, 1)
                assert drawn.wait(WAIT_S)
    assert "loss=2" in shown.getvalue()
