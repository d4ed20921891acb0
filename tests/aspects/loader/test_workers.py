# SPDX-License-Identifier: Apache-2.0
"""Workers of real DataLoaders, and the memory that they share with the recording."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torch.utils.data._utils import worker as torch_worker

import pyinstrument_gpu as pig
from pyinstrument_gpu import analysis
from pyinstrument_gpu.aspects.loader import watch, worker, worker_memory
from pyinstrument_gpu.aspects.loader.aspect import ASPECT
from pyinstrument_gpu.aspects.loader.data import Loader
from pyinstrument_gpu.aspects.loader.worker import WorkerLoop
from pyinstrument_gpu.aspects.loader.worker_table import TEXT_BYTES, WorkerTable
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.native import native

FORK = multiprocessing.get_context("fork")


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1,), float(index))


class Computed(Numbers):
    """Items that take until the worker's stack was sampled."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return decode(index)


def decode(index: int) -> torch.Tensor:
    while sum(node[2] for node in native.stacks()["nodes"]) < 5 * (1 + index // 4):
        pass
    return torch.full((1,), float(index))


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(12):
            yield torch.full((1,), float(index))


def recorded(dataset: Dataset[torch.Tensor], epochs: int = 1, **options: Any) -> Run:
    with pig.record() as recording:
        loader = DataLoader(dataset, batch_size=4, **{"num_workers": 2, **options})
        for _ in range(epochs):
            for _ in pig.gpu_steps(loader):
                pass
    return recording.run


def the_loader(run: Run) -> Loader:
    assert run.loader is not None
    (loader,) = run.loader.loaders
    return loader


def test_workers_tell_what_they_made_and_when() -> None:
    original = torch_worker._worker_loop
    run = recorded(Numbers(), epochs=2)
    assert torch_worker._worker_loop is original

    loader = the_loader(run)
    assert (loader.dataset, loader.workers, loader.iterators) == ("Numbers", 2, 2)
    assert [(row.worker, row.processes, row.batches) for row in loader.rows] == [
        (0, 2, 6),
        (1, 2, 6),
    ]
    # Of the last epoch, in the order of the loop, which the workers make in turns.
    assert [(batch.number, batch.worker) for batch in loader.batches] == [
        (number, number % 2) for number in range(6)
    ]
    for row in loader.rows:
        assert 0 < row.longest_ns <= row.making_ns
        own = [batch for batch in loader.batches if batch.worker == row.worker]
        assert all(one.begin_ns <= one.end_ns for one in own)
        assert all(one.end_ns <= later.begin_ns for one, later in pairwise(own))
    (work,) = ASPECT.section(run)
    assert work.batches == 12
    assert work.batch_ns == sum(row.making_ns for row in loader.rows) / 12
    on_timeline = run.loader_batches
    assert on_timeline["number"].tolist() == [*range(6)]
    assert on_timeline["host_begin_ns"].min() >= 0
    assert on_timeline["host_end_ns"].max() <= run.duration_ns


class Names(Numbers):
    def __init__(self) -> None:
        self.names = ["x" * 1000 + str(number) for number in range(12_000)]

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1,), float(len(self.names[index])))


def test_a_forked_worker_tells_of_memory_that_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if little of it were much, and to ask for it cost nothing."""
    assert the_loader(recorded(Names())).largest is None
    for module in (worker, worker_memory):
        monkeypatch.setattr(module, "MUCH_BYTES", 1 << 20)
    monkeypatch.setattr(worker, "_PAGE_BYTES", 1 << 20)
    monkeypatch.setattr(worker, "_NS_PER_GIB", 0)
    loader = the_loader(recorded(Names()))
    assert all(row.grown_bytes is None or row.grown_bytes > 0 for row in loader.rows)
    if worker_memory.private_bytes() is None:
        assert loader.largest is None  # the kernel does not tell
    else:
        assert loader.largest is not None
        assert (loader.largest.name, loader.largest.items) == ("names", 12_000)


def test_stages_are_what_the_samples_found() -> None:
    run = recorded(Computed(), num_workers=1)

    (work,) = ASPECT.section(run)
    assert work.stages[0].name == "decode"
    assert work.stages[0].line is not None
    assert Path(work.stages[0].line.split(":")[0]).name == Path(__file__).name
    assert sum(stage.share for stage in work.stages) <= 1 + 1e-9


class OneIsLong(Numbers):
    """Of which the thirteenth item takes longer than all before it, and is sampled meanwhile."""

    began_ns: int | None = None

    def __getitem__(self, index: int) -> torch.Tensor:
        now_ns = time.perf_counter_ns()
        self.began_ns = self.began_ns or now_ns
        if index == 12:
            worker: Any = native.owner()  # which has looked at its samples last then
            read_slowly(3 * (now_ns - min(self.began_ns, worker._seen_ns)) + 150_000_000)
        return super().__getitem__(index)


def read_slowly(least_ns: int) -> None:
    def sampled() -> tuple[int, int]:
        nodes = native.stacks()["nodes"]
        return sum(node[2] for node in nodes), sum(node[3] for node in nodes)

    samples, time_ns = sampled()
    while sampled()[0] < samples + 8 or sampled()[1] < time_ns + least_ns:
        pass


def test_a_late_batch_has_its_worker_and_its_stage() -> None:
    run = recorded(OneIsLong(), num_workers=2)

    (long,) = [one for one in the_loader(run).long if one.worker == 1]
    assert long.end_ns - long.begin_ns >= 150_000_000
    (cause,) = ASPECT.causes(run)
    late = cause.intervals[cause.intervals["note"] >= 2]
    longest = late[np.argmax(durations_ns_of(late))]
    assert cause.notes[longest["note"]].startswith("worker 1, read_slowly at ")


def test_the_end_of_an_iterable_dataset_is_no_batch() -> None:
    loader = the_loader(recorded(Stream(), num_workers=1))
    assert sum(row.batches for row in loader.rows) == 3


class Killed(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 12:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Broken(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 12:
            raise LookupError("no such picture")
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("dataset", "error", "words"),
    [
        (Killed(), RuntimeError, "exited unexpectedly|killed by signal"),
        (Broken(), LookupError, "no such picture"),
    ],
)
def test_a_worker_that_dies_does_so_as_ever_and_leaves_what_it_has_written(
    dataset: Numbers, error: type[Exception], words: str
) -> None:
    recording = pig.record()
    with pytest.raises(error, match=words), recording:
        # A tensor is fetched from the worker, and torch passes the error of that on.
        for _ in pig.gpu_steps(DataLoader(dataset, batch_size=4, num_workers=1, collate_fn=len)):
            pass
    # torch's handler of SIGCHLD may have raised its error in the end of the recording.
    (row,) = the_loader(recording.stop()).rows
    assert 1 <= row.batches <= 5  # without the third, and after it those that were asked for


def test_persistent_workers_number_the_batches_of_each_epoch_anew() -> None:
    with pig.record() as recording:
        torch_loader = DataLoader(Numbers(), batch_size=4, num_workers=2, persistent_workers=True)
        for _ in range(3):
            for _ in pig.gpu_steps(torch_loader):
                pass
        del torch_loader  # its workers end
    loader = the_loader(recording.run)
    assert [(row.processes, row.batches) for row in loader.rows] == [(1, 9), (1, 9)]
    assert loader.iterators == 3
    assert [batch.number for batch in loader.batches] == [*range(6)]


def test_two_data_sets_of_one_class_have_loaders_of_their_own() -> None:
    class Few(Numbers):
        def __len__(self) -> int:
            return 8

    training, validation = Few(), Few()
    with pig.record() as recording:
        for dataset in (training, validation, training):
            for _ in pig.gpu_steps(DataLoader(dataset, batch_size=4, num_workers=1)):
                pass
    assert recording.run.loader is not None
    made = [(one.iterators, one.rows[0].batches) for one in recording.run.loader.loaders]
    assert made == [(2, 4), (1, 2)]


class Recording(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        with pig.record() as recording, pig.gpu_phase("inside"):
            pass
        return torch.full((1,), float(recording.run.phases_recorded))


def test_a_worker_may_record_itself() -> None:
    with pig.record() as recording:
        loader = DataLoader(Recording(), batch_size=4, num_workers=1)
        found = [batch.tolist() for batch in pig.gpu_steps(loader)]
    assert found == [[[1.0]] * 4] * 6
    assert sum(row.batches for row in the_loader(recording.run).rows) == 6


def test_a_loader_without_workers_is_told_by_its_waits() -> None:
    run = recorded(Numbers(), epochs=8, num_workers=0)
    assert run.loader is None or not run.loader.loaders
    (work,) = ASPECT.section(run)
    assert (work.workers, work.batches, work.stages) == (0, 48, ())
    assert "Loader without workers" in run.report(verbose=True)


def test_workers_that_nobody_watched_are_unknown() -> None:
    recording = pig.record()
    del recording.watchers["loader"]
    with recording:
        for _ in pig.gpu_steps(DataLoader(Numbers(), batch_size=4, num_workers=1)):
            pass
    assert not ASPECT.section(recording.run)
    assert any("Workers of the loader" in one for one in ASPECT.unknown(recording.run))


class Hanging(Numbers):
    """Whose first item takes until the other process says so."""

    def __init__(self, begun: Any, go_on: Any) -> None:
        self.begun, self.go_on = begun, go_on

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 4:
            self.begun.set()
            self.go_on.wait()
        return super().__getitem__(index)


def test_a_batch_that_a_worker_hangs_in_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_HUNG_NS", 0)
    monkeypatch.setattr(watch, "_HUNG", 0)
    begun, go_on = FORK.Event(), FORK.Event()
    with pig.record() as recording:
        loader = DataLoader(Hanging(begun, go_on), batch_size=4, num_workers=1)
        batches = iter(pig.gpu_steps(loader))
        next(batches)
        begun.wait()
        run = recording.snapshot()
        facts, words = recording.watchers["loader"].stall_facts()
        go_on.set()
        assert len([*batches]) == 5
    (hung,) = the_loader(run).hung
    assert (hung.worker, hung.number) == (0, 1)
    assert hung.for_ns > 0
    assert facts == {}
    assert words.startswith(f"; worker 0 of the loader of Hanging (process {hung.process}) was ")
    assert f"Worker 0 (process {hung.process}) was asked for batch 1" in run.report(verbose=True)
    assert the_loader(recording.run).hung == ()


def test_what_it_takes_to_hand_a_batch_over_is_said() -> None:
    run = recorded(Numbers())

    (work,) = ASPECT.section(run)
    model = analysis.of(run).loader_model
    assert model is not None
    assert work.handing_ns == np.median(model.handing_ns)
    assert "then handing it over" in run.report(verbose=True)


@pytest.mark.parametrize("history_spans", [100_000, 1000])
def test_batches_are_not_taken_for_others_where_the_history_has_lost_the_first(
    history_spans: int,
) -> None:
    with pig.record(history_spans=history_spans) as recording:
        for _ in pig.gpu_steps(DataLoader(Numbers(), batch_size=1, num_workers=1)):
            for _ in range(100):
                with pig.gpu_phase("one of many"):
                    pass
    run = recording.run
    assert (analysis.of(run).loader_model is None) is (history_spans == 1000)


class Uneven(IterableDataset[torch.Tensor]):
    """Whose first worker comes to its end before the second one."""

    def __init__(self, made: Any) -> None:
        self.made = made  # by the second one

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        assert info is not None
        for _ in range((8, 80)[info.id]):
            yield torch.full((1,), info.id)
            if info.id:
                self.made.value += 1


def test_nothing_is_predicted_where_a_worker_has_ended_before_the_others() -> None:
    made = FORK.Value("i", 0)
    got = 0
    with pig.record() as recording:
        loader = DataLoader(Uneven(made), batch_size=None, num_workers=2, prefetch_factor=2)
        for batch in pig.gpu_steps(loader):
            got += int(batch)
            while made.value < min(79, got + 1):  # it has begun with what it was asked for
                pass
    assert (len(recording.run.steps), got) == (88, 80)
    assert analysis.of(recording.run).loader_model is None


def test_a_loop_that_makes_its_batches_itself_has_stages() -> None:
    def samples() -> int:
        return sum(node[2] for node in native.stacks()["nodes"])

    class Slow(Numbers):
        def __getitem__(self, index: int) -> torch.Tensor:
            return decode_here()

    def decode_here() -> torch.Tensor:
        before = samples()
        while samples() < before + 1:
            pass
        return torch.zeros(1)

    with pig.record() as recording:
        for _ in pig.gpu_steps(DataLoader(Slow(), batch_size=4)):
            pass
    (work,) = ASPECT.section(recording.run)
    assert work.workers == 0
    assert work.samples >= 20
    assert work.stages[0].name.endswith("decode_here")


# --- the shared memory ---


def in_a_fork(function: Any, *args: Any) -> int | None:
    process = FORK.Process(target=function, args=args)
    process.start()
    process.join()
    return process.exitcode


def workers_in(table: WorkerTable) -> list[Any]:
    return [one["worker"] for one in table.read()]


def claim_and_write(table: WorkerTable, value: dict[str, Any], now_ns: int) -> None:
    slot = table.claim()
    assert slot is not None
    assert slot.write(value, now_ns)


def test_each_process_has_a_slot_of_its_own_while_it_lives() -> None:
    table = WorkerTable(slots=2)
    own = table.claim()
    assert own is not None
    assert own.write({"worker": "own"}, 1)
    for place in range(3):
        assert in_a_fork(claim_and_write, table, {"worker": place}, 2 + place) == 0
    # The others have ended, so the newest has taken over from the one before.
    assert workers_in(table) == ["own", 2]
    table.close()


def kill_in_the_middle(table: WorkerTable) -> None:
    slot = table.claim()
    assert slot is not None
    slot.write({"worker": 1}, 1)
    slot.write({"worker": 2}, 2)
    begin = slot._text_begin(3)
    slot._memory[begin : begin + 4] = b"half"
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_process_had_written_is_read() -> None:
    table = WorkerTable(slots=1)
    assert in_a_fork(kill_in_the_middle, table) == -signal.SIGKILL
    assert workers_in(table) == [2]
    table.close()


def test_a_text_without_room_leaves_the_one_before() -> None:
    table = WorkerTable(slots=1)
    slot = table.claim()
    assert slot is not None
    assert slot.write({"worker": 1}, 1)
    assert not slot.write({"worker": "x" * TEXT_BYTES}, 2)
    assert workers_in(table) == [1]
    table.close()


def test_a_descriptor_that_the_program_has_closed_is_not_used() -> None:
    table = WorkerTable(slots=1)
    os.close(table._descriptor)
    assert table.claim() is None
    table.close()


def test_a_process_that_is_not_forked_is_given_the_memory() -> None:
    table = WorkerTable(slots=1)
    loop = ForkingPickler.loads(ForkingPickler.dumps(WorkerLoop(table, recorder=1)))
    slot = loop._table.claim()
    assert slot.write({"worker": 3}, 1)
    assert workers_in(table) == [3]
    assert (loop.original, loop._recorder) == (None, None)
    loop._table.close()
    table.close()
