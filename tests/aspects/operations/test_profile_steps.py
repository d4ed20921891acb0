# SPDX-License-Identifier: Apache-2.0
"""Windows of torch's real profiler, on the CPU."""

import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import pyinstrument_gpu as pig
from pyinstrument_gpu import analysis
from pyinstrument_gpu.aspects.operations.data import Operations
from pyinstrument_gpu.aspects.operations.torch_profiler import TorchProfiler
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.native import native
from tests.helpers.forged_file import without
from tests.helpers.threads import on_thread


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    assert not torch.autograd.profiler._is_profiler_enabled


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + cast(torch.Tensor, self.fc(x)).relu()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return cast(torch.Tensor, self.head(x))


def train(
    steps: int = 6, before: Callable[[int], object] = lambda step: None, **options: Any
) -> Run:
    """Train a small network; `before` is called in each step, with its number."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pig.record(**options) as recording:
        for step in range(steps):
            with pig.gpu_step():
                before(step)
                with pig.gpu_phase("forward"):
                    loss = model(torch.ones(4, 8)).sum()
                optimizer.zero_grad()
                with pig.gpu_phase("backward"):
                    loss.backward()
                with pig.gpu_phase("optimizer"):
                    optimizer.step()
    return recording.run


def at(step: int, function: Callable[[], object]) -> Callable[[int], object]:
    """Calls a function in one step, so that what it asks for begins with the next."""
    return lambda now: function() if now == step else None


def seen(run: Run) -> Operations:
    assert run.operations is not None
    return run.operations


def test_sums_are_those_of_torch_and_every_operation_has_its_phase(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profiles: list[Any] = []
    stop = TorchProfiler.stop

    def stop_and_keep(self: TorchProfiler) -> None:
        stop(self)
        profiles.append(self._profile)

    monkeypatch.setattr(TorchProfiler, "stop", stop_and_keep)
    run = train(before=at(1, lambda: pig.profile_steps(3)))
    found = seen(run)
    assert run.notes == ()
    assert (found.profiled, found.first_step, found.last_step) == (((2, 4),), 2, 4)
    assert found.steps == 3
    assert found.device is None

    of_torch: dict[Any, Any] = {
        row.key: (
            pytest.approx(row.count / 3),
            pytest.approx(row.self_cpu_time_total * 1_000 / 3, abs=1),
        )
        for row in profiles[0].key_averages()
    }
    ours: dict[str | None, list[float]] = defaultdict(lambda: [0, 0])
    for one in found.operations:
        ours[one.name][0] += one.calls
        ours[one.name][1] += one.host_ns
    assert {name: tuple(of) for name, of in ours.items()} == {
        name: of for name, of in of_torch.items() if not name.startswith("Optimizer.")
    }

    paths = {(one.name, one.path) for one in found.operations}
    assert {path for _, path in paths} == {"forward", "backward", "optimizer"}
    assert {path for name, path in paths if name == "aten::addmm"} == {"forward"}
    assert {path for name, path in paths if name == "aten::mm"} == {"backward"}
    assert ("aten::add_", "optimizer") in paths


def test_the_same_when_read_from_a_file_and_during_the_run(tmp_path: Path) -> None:
    during: list[Run] = []

    def look(step: int) -> None:
        if step == 0:
            pig.profile_steps(2)
        if step == 4:
            recording = native.owner()
            during.append(recording.snapshot())

    run = train(before=look, path=tmp_path / "a.gpurun")
    assert during[0].operations == run.operations == Run.load(tmp_path / "a.gpurun").operations
    assert seen(run).profiled == ((1, 2),)


def test_quantiles_leave_the_profiled_steps_out() -> None:
    run = train(steps=8, before=at(2, lambda: pig.profile_steps(3)))
    times_ns = durations_ns_of(run.steps.array).tolist()
    others = sorted(times_ns[step] for step in (0, 1, 2, 6, 7))
    report = run.report(verbose=True, width=120)
    assert "All times leave out 3 profiled steps, which took " in report
    assert "Operations (profiled steps 3-5)" in report
    quantiles = analysis.of(run).step_quantiles
    assert quantiles.steps == 5
    assert quantiles.duration_ns == (others[2], others[4])


@pytest.mark.parametrize("history_spans", [None, 0])
def test_statistics_leave_the_profiled_steps_out(history_spans: int | None, tmp_path: Path) -> None:
    during: list[tuple[Run, Run]] = []

    def look(step: int) -> None:
        if step == 2:
            pig.profile_steps(3)
        recording = native.owner()
        if step == 4:  # as if the process were killed here
            recording.flush()
            during.append((recording.snapshot(), Run.load(tmp_path / "a.gpurun")))

    run = train(steps=8, before=look, path=tmp_path / "a.gpurun", history_spans=history_spans)
    for each in (run, Run.load(tmp_path / "a.gpurun")):
        assert (each.step_totals.count, each.profiled_totals.count) == (5, 3)
        assert each.step_totals.items == 5
        assert {path: phase.count for path, phase in each.phases.items()} == {
            "forward": 5,
            "backward": 5,
            "optimizer": 5,
        }
        assert [
            (each.paths[path], phase.count)
            for (path, scope), phase in each.statistics.items()
            if scope is Scope.PROFILED_STEP
        ] == [("forward", 3), ("backward", 3), ("optimizer", 3)]
        assert each.phases_recorded == 24
    if history_spans is None:
        data = (tmp_path / "a.gpurun").read_bytes()
        cut = Run.from_bytes(without(data, BlockType.OPERATIONS, BlockType.STATISTICS))
        assert seen(cut).profiled == ((3, 5),)
        assert cut.profiled_totals == run.profiled_totals
        assert cut.phases["forward"].count == 5
        times_ns = durations_ns_of(run.steps.array).tolist()
        assert run.step_totals.duration.total_ns == sum(times_ns[i] for i in (0, 1, 2, 6, 7))
        assert run.profiled_totals.duration.total_ns == sum(times_ns[i] for i in (3, 4, 5))
    for each in during[0]:
        assert seen(each).profiled == ((3, 5),)
        assert (each.step_totals.count, each.profiled_totals.count) == (3, 1)
        assert each.phases["forward"].count == 3


def test_two_windows_one_after_the_other() -> None:
    def ask(step: int) -> None:
        if step in (0, 3):
            pig.profile_steps(1)

    found = seen(train(before=ask))
    assert found.profiled == ((1, 1), (4, 4))
    assert (found.first_step, found.last_step) == (4, 4)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_the_trace_is_kept_if_asked_for(tmp_path: Path, name: str) -> None:
    path = tmp_path / name

    def ask() -> None:
        pig.profile_steps(2, keep_trace=path, with_stack=True, record_shapes=True)

    found = seen(train(before=at(0, ask)))
    assert found.trace == str(path)
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    events = [event for event in json.loads(data)["traceEvents"] if event["ph"] == "X"]
    # Other tools know iterations by the names that torch's own scheduler gives them.
    steps = [event for event in events if event["name"].startswith("ProfilerStep#")]
    assert [step["name"] for step in steps] == ["ProfilerStep#1", "ProfilerStep#2"]
    for step in steps:
        inside = [
            event["name"]
            for event in events
            if event["tid"] == step["tid"] and event["pid"] == step["pid"]
            if step["ts"] <= event["ts"] <= event["ts"] + event["dur"] <= step["ts"] + step["dur"]
        ]
        assert inside.count("aten::addmm") == 3  # of three linear layers
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_trace_that_cannot_be_kept_costs_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()

    def ask() -> None:
        pig.profile_steps(1, keep_trace=folder / "trace.json")
        folder.rmdir()

    run = train(before=at(0, ask))
    assert seen(run).trace is None
    assert seen(run).steps == 1
    assert [note.partition(":")[0] for note in run.notes] == ["the trace was not kept"]


def test_an_active_profiler_is_left_alone() -> None:
    with torch.profiler.profile() as profile:
        run = train(before=at(0, lambda: pig.profile_steps(2)))
    assert any(row.key == "aten::addmm" for row in profile.key_averages())
    assert run.notes == ("no steps were profiled: a profiler is active already",)
    assert seen(run).operations == ()
    assert "Operations" not in run.report(verbose=True)


def test_the_program_may_start_a_profiler_of_its_own_meanwhile() -> None:
    profiles: list[Any] = []

    def profile_one_step(step: int) -> None:
        if step == 0:
            pig.profile_steps(4)
        if step == 2:
            profiles.append(torch.profiler.profile())
            profiles[0].start()
        if step == 3:
            profiles[0].stop()

    run = train(before=profile_one_step)
    assert sum(row.count for row in profiles[0].key_averages() if row.key == "aten::addmm") == 3
    assert run.notes == (
        "the profiled steps ended early: the program started a profiler of its own",
    )
    found = seen(run)
    assert (found.profiled, found.steps) == (((1, 2),), 1)
    assert sum(one.calls for one in found.operations if one.name == "aten::addmm") == 3


def test_a_tool_that_holds_cupti_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/nsight/libToolsInjection64.so")
    run = train(before=at(0, lambda: pig.profile_steps(2)))
    assert run.notes == (
        "no steps were profiled: another tool holds CUPTI, as CUDA_INJECTION64_PATH in the "
        "environment says",
    )


def test_a_torch_without_a_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.autograd, "kineto_available", lambda: False)
    run = train(before=at(0, lambda: pig.profile_steps(2)))
    assert run.notes == ("no steps were profiled: this build of torch has no profiler",)


def test_what_fails_in_the_profiler_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(TorchProfiler, "events", fail)
    run = train(before=at(0, lambda: pig.profile_steps(2)))
    assert run.notes == ("what was profiled was lost: RuntimeError('no memory')",)
    assert len(run.steps) == 6


def test_ctrl_c_at_the_end_of_a_window_reaches_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = TorchProfiler.stop
    interrupts = [KeyboardInterrupt()]

    def stop_interrupted(self: TorchProfiler) -> None:
        if interrupts:
            raise interrupts.pop()
        stop(self)

    monkeypatch.setattr(TorchProfiler, "stop", stop_interrupted)
    with pytest.raises(KeyboardInterrupt), pig.record():
        for step in range(4):
            with pig.gpu_step():
                if step == 0:
                    pig.profile_steps(1)
                torch.ones(1)


def test_the_end_of_the_recording_ends_the_window() -> None:
    run = train(steps=3, before=at(0, lambda: pig.profile_steps(5)))
    assert run.notes == ("the profiled steps ended early: the recording ended",)
    assert seen(run).profiled == ((1, 2),)


def test_an_error_of_the_program_ends_the_window() -> None:
    recording = pig.start()

    def fail(step: int) -> None:
        if step == 0:
            pig.profile_steps(2)
        if step == 1:
            torch.ones(1)
            raise ValueError("of the program")

    with pytest.raises(ValueError, match="of the program"):
        for step in range(3):
            with pig.gpu_step():
                fail(step)
    run = recording.stop()
    assert seen(run).profiled == ((1, 1),)
    assert run.notes == ("the profiled steps ended early: the recording ended",)


def test_another_thread_may_end_the_window() -> None:
    def ask(step: int) -> None:
        if step == 0:
            pig.profile_steps(9)
        if step == 2:
            window = native.owner().watchers["operations"]._window
            on_thread(window.end_early, "it took too long")

    run = train(before=ask)
    assert run.notes == ("the profiled steps ended early: it took too long",)
    assert (seen(run).profiled, seen(run).steps) == (((1, 2),), 1)


def test_live_sinks_lose_nothing_to_a_window() -> None:
    class Counting(pig.Sink):
        def __init__(self) -> None:
            self.steps: list[int] = []

        def write(self, update: pig.RunUpdate) -> None:
            self.steps += update.steps["index"].tolist()

    sink = Counting()

    def ask(step: int) -> None:
        if step == 0:
            pig.profile_steps(2)
        if step == 2:
            native.owner().add_sink(sink)  # while steps are profiled

    run = train(steps=8, before=ask)
    assert run.notes == ()
    assert seen(run).profiled == ((1, 2),)
    assert sink.steps[-6:] == [2, 3, 4, 5, 6, 7]


def test_other_steps_asked_for_meanwhile_are_not_profiled() -> None:
    def ask(step: int) -> None:
        if step == 0:
            pig.profile_steps(3)
        if step in (0, 2):
            with pytest.warns(RuntimeWarning, match="other steps are still to be profiled"):
                pig.profile_steps(1)

    assert seen(train(before=ask)).profiled == ((1, 3),)


LINEAR = 2 * 8 * 8
"""FLOP of a row in `one_layer`: its pass forward, and as many for its weights backward."""


def one_layer(
    batches: Iterable[torch.Tensor], epochs: int = 1, tested_after: tuple[int, ...] = ()
) -> Run:
    """Train one layer, whose steps are found; evaluate three times after some of them."""
    with pig.record(flops=True) as recording, pig.auto_phases():
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(epochs):
            for number, batch in enumerate(batches):
                model(batch).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                if number in tested_after:
                    model.eval()
                    with torch.no_grad():
                        for test in of_one_size(3):
                            model(test)
                    model.train()
    return recording.run


def growing(count: int) -> list[torch.Tensor]:
    """Batches, of which the one of step k has k + 1 rows."""
    return [torch.ones(step + 1, 8) for step in range(count)]


def of_one_size(count: int) -> DataLoader[Any]:
    return DataLoader(torch.ones(11 * count, 8), batch_size=11)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "loop",
    [
        lambda: one_layer(growing(20)),
        lambda: one_layer(DataLoader(growing(20), batch_size=None)),  # type: ignore[arg-type]
        lambda: one_layer(growing(11)),  # the recording ends with that step
        lambda: one_layer(growing(20), tested_after=(9,)),
        lambda: one_layer(growing(20), tested_after=(10,)),
        lambda: one_layer(growing(11), tested_after=(10,)),
        lambda: one_layer(of_one_size(20), tested_after=(9, 10)),
        # Epochs end before that step, or where another one would have been.
        lambda: one_layer(of_one_size(4), epochs=4),
        lambda: one_layer(of_one_size(5), epochs=4, tested_after=(4,)),
        lambda: one_layer(of_one_size(10), epochs=2, tested_after=(9,)),
        lambda: one_layer(of_one_size(11), epochs=2),
    ],
)
def test_operations_are_those_of_the_step_that_times_leave_out(loop: Callable[[], Run]) -> None:
    run = loop()
    found = seen(run)
    assert (found.profiled, found.first_step, found.last_step) == (((10, 10),), 10, 10)
    assert (found.steps, run.notes) == (1, ())
    assert found.flops is not None
    flops = {one.path: one.flops for one in found.flops.counts}
    assert flops == {"forward": 11 * LINEAR, "backward": 11 * LINEAR}
    assert not {one.path for one in found.operations} & {"eval", "data start"}


def test_several_steps_with_something_between_them() -> None:
    def ask(step: int) -> None:
        if step == 0:
            pig.profile_steps(3)

    ones = torch.ones(2, 2)
    with pig.record() as recording:
        for step in range(6):
            ones.exp()
            with pig.gpu_step():
                ask(step)
                ones.log()
    found = seen(recording.run)
    assert (found.profiled, found.steps) == (((1, 3),), 3)
    assert {one.name: one.calls for one in found.operations} == {"aten::log": 1}


def test_wrong_arguments_raise_at_the_call(tmp_path: Path) -> None:
    with pytest.raises(pig.RecordingError, match="needs an active recording"):
        pig.profile_steps(1)
    for wrong, error in (("3", TypeError), (True, TypeError), (0, ValueError)):
        with pytest.raises(error, match="n must be"):
            pig.profile_steps(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="with_stack"):
        pig.profile_steps(1, with_stack=1)  # type: ignore[arg-type]
    with pytest.raises(pig.RunPathError, match="is not a directory"):
        pig.profile_steps(1, keep_trace=tmp_path / "none" / "trace.json")
