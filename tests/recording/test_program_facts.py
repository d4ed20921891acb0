# SPDX-License-Identifier: Apache-2.0
"""What a recording learns of its program beside phases: loaders, streams, ranks."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader, TensorDataset

import pyinstrument_gpu as pig
from pyinstrument_gpu.core.file.environment import ProgramFacts
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching import tensor_device
from pyinstrument_gpu.report.document import document_of
from tests.helpers.clock import fake_clock
from tests.helpers.script import run_script
from tests.helpers.training import Model

# Of torch: without an accelerator it pins nothing.
pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")

LOADERS: dict[str, tuple[dict[str, Any], ProgramFacts]] = {
    "alone": (
        {"num_workers": 0},
        ProgramFacts(
            loader_workers=0, loader_pins=False, loader_prefetch=0, loader_persistent=False
        ),
    ),
    "workers": (
        {"num_workers": 2},
        ProgramFacts(
            loader_workers=2, loader_pins=False, loader_prefetch=2, loader_persistent=False
        ),
    ),
    "all": (
        {
            "num_workers": 1,
            "pin_memory": True,
            "prefetch_factor": 5,
            "persistent_workers": True,
        },
        ProgramFacts(loader_workers=1, loader_pins=True, loader_prefetch=5, loader_persistent=True),
    ),
}


def loader_of(items: int = 4, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.ones(items, 4)), batch_size=2, **options)


def facts_of_loader(run: pig.Run) -> ProgramFacts:
    found = run.program_facts
    return ProgramFacts(
        loader_workers=found.loader_workers,
        loader_pins=found.loader_pins,
        loader_prefetch=found.loader_prefetch,
        loader_persistent=found.loader_persistent,
    )


class Trainer:
    def __init__(self) -> None:
        self.model = Model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, batch: list[torch.Tensor]) -> None:
        self.model(batch[0]).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def automatic(loader: Iterable[Any]) -> None:
    trainer = Trainer()
    with pig.auto_phases():
        for batch in loader:
            trainer.step(batch)


def with_own_steps(loader: Iterable[Any]) -> None:
    trainer = Trainer()
    with pig.auto_phases():
        for batch in loader:
            with pig.gpu_step():
                trainer.step(batch)


def with_gpu_steps(loader: Iterable[Any]) -> None:
    for _ in pig.gpu_steps(loader):
        pass


def with_both(loader: Iterable[Any]) -> None:
    with pig.auto_phases():
        with_gpu_steps(loader)


WAYS: list[Callable[[Iterable[Any]], None]] = [
    automatic,
    with_own_steps,
    with_gpu_steps,
    with_both,
]


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("way", WAYS)
def test_the_loader_of_the_steps(way: Callable[[Iterable[Any]], None], kind: str) -> None:
    options, expected = LOADERS[kind]
    with pig.record() as recording:
        way(loader_of(**options))
    assert len(recording.run.steps) >= 2
    assert facts_of_loader(recording.run) == expected


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_said_of_other_iterables(way: Callable[[Iterable[Any]], None]) -> None:
    with pig.record() as recording:
        way([[torch.ones(2, 4)], [torch.ones(2, 4)]])
    assert len(recording.run.steps) >= 2
    assert facts_of_loader(recording.run) == ProgramFacts()


def test_without_hooks_and_steps_nothing_is_known_of_loaders() -> None:
    with pig.record() as recording:
        for _ in loader_of():
            with pig.gpu_step():
                pass
    assert facts_of_loader(recording.run) == ProgramFacts()


def test_a_loader_behind_another_iterable_is_not_known() -> None:
    # It may have had more workers than the one that is known.
    with pig.record() as recording:
        with_gpu_steps(loader_of(items=8))
        with_gpu_steps(iter(loader_of(items=4)))
    assert recording.run.program_facts.loader_workers is None
    assert recording.run.program_facts.loader_pins is False


@pytest.mark.parametrize("way", [automatic, with_gpu_steps])
def test_of_several_loaders_the_most_workers_and_what_most_batches_had(
    way: Callable[[Iterable[Any]], None],
) -> None:
    with pig.record() as recording:
        way(loader_of(items=4, num_workers=1, prefetch_factor=7, pin_memory=True))
        way(loader_of(items=12))
    assert facts_of_loader(recording.run) == ProgramFacts(
        loader_workers=1, loader_pins=False, loader_prefetch=0, loader_persistent=False
    )


def test_a_loader_for_validation_feeds_no_step() -> None:
    with pig.record() as recording:
        trainer = Trainer()
        with pig.auto_phases():
            for batch in loader_of():
                trainer.step(batch)
            trainer.model.eval()
            with torch.no_grad():
                for batch in loader_of(items=12, num_workers=1):
                    trainer.model(batch[0])
    assert recording.run.program_facts.loader_workers == 0


def test_which_loader_fed_steps_of_the_programs_own_may_be_unknown() -> None:
    with pig.record() as recording:
        with_own_steps(loader_of())
        with_own_steps(loader_of(num_workers=1))
    assert facts_of_loader(recording.run) == ProgramFacts()


def test_each_recording_knows_its_own_loaders() -> None:
    with pig.auto_phases(), pig.record():
        automatic(loader_of())
    with pig.record() as recording:
        pass
    assert facts_of_loader(recording.run) == ProgramFacts()


class Odd(DataLoader[Any]):
    @property
    def prefetch_factor(self) -> Any:
        raise RuntimeError("a program's own")

    @prefetch_factor.setter
    def prefetch_factor(self, value: Any) -> None:
        pass


@pytest.mark.parametrize("way", WAYS)
def test_options_that_cannot_be_read_are_unknown(way: Callable[[Iterable[Any]], None]) -> None:
    with pig.record() as recording:
        way(Odd(TensorDataset(torch.ones(4, 4)), batch_size=2))
    assert len(recording.run.steps) >= 2
    assert facts_of_loader(recording.run) == ProgramFacts()


# Ranks


def test_without_a_group_there_is_one_rank() -> None:
    with pig.record() as recording:
        pass
    assert recording.run.program_facts.ranks == 1


def test_the_launcher_says_how_many_ranks_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pig.record() as recording:
        pass
    assert recording.run.program_facts.ranks == 4


def test_other_ways_to_train_together_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod", object())
    with pig.record() as recording:
        pass
    assert recording.run.program_facts.ranks is None


def test_two_ranks(tmp_path: Path) -> None:
    source = """
import os, sys
import torch.distributed as dist
import pyinstrument_gpu as pig
child = os.fork()
rank = 0 if child else 1
with pig.record() as recording:
    store = dist.FileStore(sys.argv[1], 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    known = recording.snapshot().program_facts
    dist.new_group([0, 1])
    dist.barrier()
    dist.destroy_process_group()
facts = recording.run.program_facts
assert facts.ranks == 2
assert 0 < facts.rendezvous_ns == known.rendezvous_ns <= recording.run.duration_ns
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    run_script(source, tmp_path / "store", environment={"GLOO_SOCKET_IFNAME": "lo"})


@contextmanager
def group_of(ranks: int) -> Iterator[None]:
    """A group in this process alone, whose collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def test_a_group_that_is_gone_at_the_end_was_seen() -> None:
    with pig.record() as recording:
        with group_of(1):
            assert recording.snapshot().program_facts.ranks == 1
        with group_of(4):
            dist.new_group([0, 1])
    assert recording.run.program_facts.ranks == 4
    assert recording.run.program_facts.rendezvous_ns is None  # this backend waits for nobody
    with pig.record() as recording:
        pass
    assert recording.run.program_facts.ranks == 1


def test_a_group_that_was_there_before_counts() -> None:
    with group_of(8), pig.record() as recording:
        pass
    assert recording.run.program_facts.ranks == 8


def test_a_group_that_says_nothing_of_itself_makes_ranks_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups: Any = dist.distributed_c10d._world.pg_map
    with pig.record() as recording:
        assert recording.snapshot().program_facts.ranks == 1
        monkeypatch.setitem(groups, object(), ("other", None))
        with_gpu_steps(loader_of())
    assert recording.run.program_facts.ranks is None
    assert recording.run.program_facts.loader_workers == 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_group_may_have_streams_of_its_own(ranks: int, with_accelerator: None) -> None:
    with pig.record() as recording, group_of(ranks):
        pass
    assert recording.run.program_facts.other_streams is True


# Streams


@pytest.fixture
def with_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a build of torch for CUDA."""
    monkeypatch.setattr(tensor_device, "accelerator_type", lambda: "cuda")


def stream(number: int) -> Any:
    """A stream that torch need not make. On a CPU it can become the current one."""
    return torch.Stream(stream_id=number, device_index=0, device_type=0)


def enter_stream() -> None:
    with stream(3):
        pass


def wait_for_event() -> None:
    torch.Event(device="cpu").wait(stream(0))


def let_a_stream_wait_for_an_event() -> None:
    stream(0).wait_event(torch.Event(device="cpu"))


def let_a_stream_wait() -> None:
    with pytest.raises(RuntimeError):
        stream(0).wait_stream(stream(3))


def set_stream() -> None:
    with pytest.raises(RuntimeError):
        torch.accelerator.set_stream(stream(3))


def make_stream() -> None:
    with pytest.raises(RuntimeError):
        torch.cuda.Stream()


def make_external_stream() -> None:
    with pytest.raises(RuntimeError):
        torch.cuda.Stream(stream_ptr=12345)


USES = [
    *(enter_stream, wait_for_event, let_a_stream_wait_for_an_event, let_a_stream_wait),
    *(set_stream, make_stream, make_external_stream),
]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the calls of a CPU build; see tests/gpu")
@pytest.mark.parametrize("use", USES)
def test_a_stream_is_seen(use: Callable[[], None], with_accelerator: None) -> None:
    with pig.record() as recording:
        assert recording.snapshot().program_facts.other_streams is False
        use()
        assert recording.snapshot().program_facts.other_streams is True
        use()
    assert recording.run.program_facts.other_streams is True
    with pig.record() as recording:
        pass
    assert recording.run.program_facts.other_streams is False


def test_the_default_stream_is_no_other(with_accelerator: None) -> None:
    with pig.record() as recording, stream(0):
        pass
    assert recording.run.program_facts.other_streams is False


@pytest.mark.parametrize("library", ["cupy", "nvidia.dali", "torchcodec"])
def test_what_other_libraries_do_is_not_known(
    library: str, with_accelerator: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, object())
    with pig.record() as recording:
        pass
    assert recording.run.program_facts.other_streams is None


def test_another_kind_of_device_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_device, "accelerator_type", lambda: "xpu")
    with pig.record() as recording:
        pass
    assert recording.run.program_facts.other_streams is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="about a build without any accelerator")
def test_without_an_accelerator_there_are_no_streams() -> None:
    with pig.record() as recording:
        pass
    assert recording.run.program_facts.other_streams is False


def test_without_torch_nothing_is_known() -> None:
    source = """
import sys, pyinstrument_gpu as pig
with pig.record() as recording:
    pass
assert "torch" not in sys.modules
assert recording.run.program_facts == type(recording.run.program_facts)()
"""
    run_script(source, is_fresh=True)


# How they get into the file


def test_a_killed_run_has_what_was_known(tmp_path: Path) -> None:
    source = """
import os, signal, sys, torch
import pyinstrument_gpu as pig
from pyinstrument_gpu.native import native
from torch.testing._internal.distributed.fake_pg import FakeStore
pig.start(sys.argv[1])
torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
native.harvest()  # what the recorder's thread does every 20 ms
os.kill(os.getpid(), signal.SIGKILL)
"""
    run_script(source, tmp_path / "run.gpurun", exit_code=-9)
    run = pig.Run.load(tmp_path / "run.gpurun")
    assert not run.complete
    assert run.program_facts.ranks == 4


def test_it_is_looked_again_as_time_goes_by() -> None:
    with fake_clock() as advance_ns, pig.record() as recording:
        with_gpu_steps(loader_of())
        assert "loader_workers" not in recording._environment["program_facts"]
        advance_ns(1_000_000_000)
        native.harvest()
        with pig.gpu_step():  # by what is due is done
            pass
        assert recording._environment["program_facts"]["loader_workers"] == 0
    assert recording.run.program_facts.loader_workers == 0


def test_a_forked_child_leaves_the_run_alone() -> None:
    with pig.record() as recording:
        child = os.fork()
        if child == 0:
            with group_of(4):
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert recording.run.program_facts.ranks == 1


def test_they_are_in_the_report() -> None:
    with pig.record() as recording:
        with_gpu_steps(loader_of(num_workers=1))
    assert "1 loader worker" in recording.run.report(verbose=True)
    assert document_of(recording.run).run.loader_workers == 1
