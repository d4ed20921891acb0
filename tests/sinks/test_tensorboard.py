# SPDX-License-Identifier: Apache-2.0
"""TensorBoard, live and after the run. Event files are read back with TensorBoard's own reader."""

import math
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from click.testing import CliRunner

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step, gpu_steps
from pyinstrument_gpu.cli import main
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.export import export, ranges
from pyinstrument_gpu.export.tensorboard import write
from pyinstrument_gpu.sinks import scalars
from tests.helpers.clock import fake_clock
from tests.helpers.device_program import Program, assert_exact, attached_cuda
from tests.helpers.made_runs import ANCHOR, run_of
from tests.helpers.sink_training import CURVES, STEP_ENDS_NS, train
from tests.helpers.threads import on_thread

Point = tuple[int, float, float]

pytest.importorskip("tensorboard", reason="tensorboard is not installed")


class KeepingWriter:
    """Stands for a SummaryWriter."""

    def __init__(self) -> None:
        self.curves: dict[str, list[Point]] = {}
        self.flushed = 0

    def add_scalar(self, tag: str, value: float, step: int, walltime: float) -> None:
        self.curves.setdefault(tag, []).append((step, value, walltime))

    def flush(self) -> None:
        self.flushed += 1


def curves_in(folder: Path) -> dict[str, list[Point]]:
    """All scalars of a log directory."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    found: dict[str, list[Point]] = {}
    for tag in accumulator.Tags()["scalars"]:
        found[tag] = [(e.step, e.value, e.wall_time) for e in accumulator.Scalars(tag)]
    return found


def as_stored(curves: dict[str, list[Point]]) -> dict[str, list[Point]]:
    """With values as 32-bit floats."""
    return {
        tag: [(step, float(np.float32(value)), walltime) for step, value, walltime in points]
        for tag, points in curves.items()
    }


def expected(run: Run) -> dict[str, list[Point]]:
    """What `train` has to give beside its metrics."""
    began_ns = run.environment["anchor"]["realtime_ns"]
    return {
        tag: [(step, value, (began_ns + STEP_ENDS_NS[step]) / 1e9) for step, value in of.items()]
        for tag, of in CURVES.items()
    }


def without_metrics(curves: dict[str, list[Point]]) -> dict[str, list[Point]]:
    return {tag: points for tag, points in curves.items() if not tag.startswith("metrics/")}


# --- live ---


def test_scalars_of_a_recording() -> None:
    writer = KeepingWriter()
    with fake_clock() as tick, pig.record() as recording:
        recording.add_sink(pig.TensorBoardSink(writer), interval_s=0.001)
        _accumulator = train(tick)

    assert without_metrics(writer.curves) == expected(recording.run)
    assert writer.flushed == 1


def test_with_the_writer_of_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path))
    with fake_clock() as tick, pig.record() as recording:
        recording.add_sink(pig.TensorBoardSink(writer))
        _accumulator = train(tick)
    writer.close()

    assert without_metrics(curves_in(tmp_path)) == as_stored(expected(recording.run))


def test_of_many_steps_at_once_evenly_spaced_ones_are_written() -> None:
    writer = KeepingWriter()
    with pig.record() as recording:
        recording.add_sink(pig.TensorBoardSink(writer), interval_s=3600)
        for _ in range(250):
            with gpu_step():
                pass

    assert [step for step, _, _ in writer.curves["step/time_ms"]] == list(range(0, 250, 3))


def test_more_paths_than_welcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path named "other" is in good company."""
    writer = KeepingWriter()
    monkeypatch.setattr(scalars, "MAX_PATHS", 2)
    with fake_clock() as tick, pig.record() as recording:
        recording.add_sink(pig.TensorBoardSink(writer))
        with gpu_step():
            for name in ("other", "a", "b", "c"):
                with gpu_phase(name):
                    tick(1_000_000)

    values = {tag: [value for _, value, _ in points] for tag, points in writer.curves.items()}
    assert values == {"step/time_ms": [4.0], "phase/other": [3.0], "phase/a": [1.0]}


def test_other_threads() -> None:
    writer = KeepingWriter()

    def load() -> None:
        with gpu_phase("load"):
            tick(2_000_000)

    with fake_clock() as tick, pig.record() as recording:
        recording.add_sink(pig.TensorBoardSink(writer))
        with gpu_step():
            on_thread(load)

    assert [value for _, value, _ in writer.curves["other_threads/load"]] == [2.0]


def test_device_times(tmp_path: Path) -> None:
    """The same live and from the run: device times, to the nanosecond."""
    writer = KeepingWriter()
    with attached_cuda() as cuda:
        program = Program(cuda)
        with program.recording() as recording:
            recording.add_sink(pig.TensorBoardSink(writer), interval_s=0.001)
            for work_ns in (2_000_000, 3_000_000):
                with gpu_step(), program.phase("forward"):
                    program.work(work_ns)
                    for _ in range(2):
                        with program.phase("attention"):
                            program.work(1_000_000)
                cuda.run_dry()
        run = recording.run
        assert_exact(run, program)
    run.export(tmp_path, "tensorboard")

    first, second, forward, *others = run.span_device_ns.tolist()
    values = {tag: [value for _, value, _ in points] for tag, points in writer.curves.items()}
    assert values["phase_device/forward"] == [forward / 1e6, others[2] / 1e6]
    assert values["phase_device/forward/attention"] == [
        (first + second) / 1e6,
        (others[0] + others[1]) / 1e6,
    ]
    assert curves_in(tmp_path) == as_stored(writer.curves)


def test_metrics(tmp_path: Path) -> None:
    """At the step of the reading; those of no step at the last that had ended."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    writer = KeepingWriter()
    train, validation = pig.MetricAccumulator(topk=1), pig.MetricAccumulator(topk=1, name="val")
    logits, target = torch.eye(4), torch.tensor([0, 1, 2, 0])
    with fake_clock() as tick, pig.record() as recording:
        recording.add_sink(pig.TensorBoardSink(writer), interval_s=0.001)
        for number in gpu_steps(range(3)):
            train.update(logits, target, torch.tensor(2.0**number))
            tick(100_000_000)
        tick(1)
        validation.update(logits, target, torch.tensor(math.nan))
    run = recording.run
    run.export(tmp_path, "tensorboard")
    began_ns = run.environment["anchor"]["realtime_ns"]

    def points(*values: float) -> list[Point]:
        return [
            (step, value, (began_ns + step * 100_000_000) / 1e9)
            for step, value in enumerate(values)
        ]

    assert writer.curves["metrics/loss"] == points(1, 1.5, 7 / 3)
    assert writer.curves["metrics/loss_last"] == points(1, 2, 4)
    assert writer.curves["metrics/accuracy@1"] == points(0.75, 0.75, 0.75)
    assert writer.curves["metrics/val/nonfinite"] == [(2, 1, (began_ns + 300_000_001) / 1e9)]
    assert {tag for tag in writer.curves if tag.startswith("metrics/")} == {
        f"metrics/{name}" for name in run.metric_names
    }
    np.testing.assert_equal(curves_in(tmp_path), as_stored(writer.curves))


# --- after the run ---


def test_export_equals_what_was_written_live(tmp_path: Path) -> None:
    with fake_clock() as tick, pig.record(tmp_path / "a.gpurun") as recording:
        _accumulator = train(tick)

    arguments = ["export", str(tmp_path / "a.gpurun"), str(tmp_path / "logs")]
    result = CliRunner().invoke(main, [*arguments, "--format", "tensorboard"])

    assert result.exit_code == 0, result.output
    assert without_metrics(curves_in(tmp_path / "logs")) == as_stored(expected(recording.run))


def test_export_again_replaces_its_own_file_only(tmp_path: Path) -> None:
    tmp_path.joinpath("events.out.tfevents.1.theirs").write_bytes(b"")
    with pig.record() as recording, gpu_step():
        pass

    for _ in range(2):
        recording.run.export(tmp_path, "tensorboard")
    assert len(curves_in(tmp_path)["step/time_ms"]) == 1
    assert len(list(tmp_path.iterdir())) == 2


SPAN = (0, 0, 0, 0, 0, -1, -1, 1_000_000, 3_000_000, -1, -1, -1, 1)
STEP = (0, 0, 4_000_000, math.nan, 1, True, 0)
STEP_TO_5 = (0, 0, 5, math.nan, 1, True, 0)


def made(*spans: Any, steps: Any = (STEP,), **parts: Any) -> Run:
    environment = {"anchor": ANCHOR, "run_id": "1"}
    array = np.array(list(steps), Run().steps.array.dtype)
    return run_of(spans, environment=environment, steps=Steps(array), **parts)


def written(run: Run, folder: Path) -> dict[str, list[float]]:
    done: list[int] = []
    write([run], folder, advance=done.append)
    assert sum(done) == len(run.spans)
    return {tag: [value for _, value, _ in points] for tag, points in curves_in(folder).items()}


def test_device_times_are_written_where_all_are_known(tmp_path: Path) -> None:
    timed = (0, 0, 0, 0, 0, 0, 0, 0, 0, 5_000_000, 7_500_000, -1, 1)
    one = made(timed, timed, (1, 1, *timed[2:]), (1, 1, *SPAN[2:]))

    assert written(one, tmp_path) == {
        "step/time_ms": [4.0],
        "phase/forward": [0.0],
        "phase_device/forward": [5.0],
        "phase/forward/attention": [2.0],
    }


def test_metrics_before_the_first_step_have_no_place(tmp_path: Path) -> None:
    row = np.array([(1, -1, 5, 0, 2.5)], METRIC_DTYPE)
    written(made(metrics=row, metric_names=["loss"], steps=()), tmp_path / "none")
    late = written(made(metrics=row, metric_names=["loss\udc80"], steps=[STEP_TO_5]), tmp_path)

    assert curves_in(tmp_path / "none") == {}
    assert late["metrics/loss\ufffd"] == [2.5]


def test_ranks_are_runs_of_their_own(tmp_path: Path) -> None:
    runs = [made(SPAN), made(SPAN, SPAN)]
    for number, run in enumerate(runs):
        run.environment |= {"rank": number, "run_id": f"{number:016x}"}
    export(runs, tmp_path, "tensorboard")

    assert curves_in(tmp_path / "rank0")["phase/forward"][0][1] == 2.0
    assert curves_in(tmp_path / "rank1")["phase/forward"][0][1] == 4.0


def test_steps_of_which_spans_were_dropped(tmp_path: Path) -> None:
    """For their age: the early steps have no phases. For another reason: none has."""
    steps = [(index, index * 10, index * 10 + 9, math.nan, 1, True, 0) for index in range(3)]
    spans = [(0, 0, index, 0, 0, -1, -1, 1, index * 10 + 5, -1, -1, -1, 1) for index in range(1, 3)]
    by_age = made(*spans, steps=steps, phases_recorded=3, dropped={"span_history": 1})
    by_chance = made(*spans, steps=steps, phases_recorded=3, dropped={"ring_full": 1})

    write([by_age], tmp_path / "age", advance=lambda _: None)
    write([by_chance], tmp_path / "chance", advance=lambda _: None)

    age = curves_in(tmp_path / "age")
    assert [step for step, _, _ in age["step/time_ms"]] == [0, 1, 2]
    assert [step for step, _, _ in age["phase/forward"]] == [2]
    assert set(curves_in(tmp_path / "chance")) == {"step/time_ms"}


def test_run_of_many_steps(tmp_path: Path) -> None:
    """More than are read at once; spans in no order of steps."""
    count = 4_000
    steps = [(index, index, index + 1, 2.0, 1, True, 0) for index in range(count)]
    order = np.random.default_rng(0).permutation(count).tolist()
    spans = [(0, 0, index, 0, 0, -1, -1, 0, index * 1000, -1, -1, -1, 1) for index in order]

    write([made(*spans, steps=steps)], tmp_path, advance=lambda _: None)

    points = curves_in(tmp_path)["phase/forward"]
    assert [(step, value) for step, value, _ in points] == [
        (index, float(np.float32(index / 1000))) for index in range(count)
    ]


def test_progress_is_told_as_the_export_goes_on(tmp_path: Path) -> None:
    steps = [(index, index, index + 1, 2.0, 1, True, 0) for index in range(20)]
    spans = [(0, 0, index, 0, 0, *[-1] * 2, 0, 9, *[-1] * 3, 1) for index in range(-1, 19)]
    done: list[int] = []
    with mock.patch.object(ranges, "WINDOW_ROWS", 4):
        write([made(*spans, steps=steps)], tmp_path, advance=done.append)

    assert sum(done) == len(spans)
    assert len(done) > 3
    assert max(done) < 10


def test_names_that_utf_8_can_not_hold(tmp_path: Path) -> None:
    assert "phase/\ufffd<b>" in written(made(SPAN, names=["\ud800<b>"]), tmp_path)


def test_folder_that_is_a_file(tmp_path: Path) -> None:
    target = tmp_path / "logs"
    target.write_text("mine")

    with pytest.raises(pig.ExportError, match="cannot write"):
        made(SPAN).export(target, "tensorboard")
    assert target.read_text() == "mine"


def test_the_export_says_what_it_needs(tmp_path: Path) -> None:
    with (
        mock.patch.dict("sys.modules", {"tensorboard.compat.proto.event_pb2": None}),
        pytest.raises(pig.MissingDependencyError, match="pip install tensorboard"),
    ):
        made(SPAN).export(tmp_path / "logs", "tensorboard")
    assert not (tmp_path / "logs").exists()
