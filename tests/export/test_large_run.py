# SPDX-License-Identifier: Apache-2.0
"""Every format, with a run that has all there is: device times of two streams, metrics, waits.

The run is made on a simulated driver; nothing in it is a measurement.
"""

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_step
from pyinstrument_gpu.core.run import Run
from tests.helpers.device_program import Program, assert_exact, attached_cuda
from tests.helpers.nsight import read_nvtxt
from tests.helpers.trace_events import Trace

torch = pytest.importorskip("torch", reason="torch is not installed")

STEPS = 4
SPANS = 3 * STEPS
METRICS = ("count", "loss", "loss_last", "accuracy@1", "nonfinite")
DEVICE = torch.device(*["cpu"])
NSIGHT_WAITS = {"MainThread waits": STEPS}
STREAMS = {"GPU 0 default stream": 2 * STEPS, "GPU 0 stream 1": STEPS}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("everything") / "run.gpurun"
    metrics = pig.MetricAccumulator(topk=1)
    with attached_cuda() as cuda:
        program = Program(cuda)
        side = cuda.devices[0].create_stream()
        program.streams.add(side.handle)
        with program.recording(path=path) as recording, pig.watch_syncs(as_if_cuda=True):
            scale = torch.ones((), device=DEVICE)  # as the preview sees it
            for number in range(STEPS):
                with gpu_step():
                    with program.phase("forward"):
                        program.work(2_000_000)
                        with program.phase("attention"):
                            program.work(1_000_000)
                    with side.as_current(), program.phase("copy"):
                        cuda.advance(5_000)
                        side.launch(1_000_000)
                    loss = torch.tensor(float(number)) * scale
                    metrics.update(torch.eye(4), torch.arange(4), loss)
                    loss.item()
                cuda.run_dry()
                cuda.advance(200_000_000)
                recording.flush(0)  # the harvester's ticks are those of a clock that goes on
        assert_exact(recording.run, program)
    yield path


@pytest.fixture
def run(path: Path) -> Run:
    run = Run.load(path)
    assert len(run.spans) == np.count_nonzero(run.span_device_ns >= 0) == SPANS
    assert run.metric_names == METRICS
    assert len(run.metrics) == STEPS * len(METRICS)
    assert len(run.syncs.events) == STEPS
    return run


def test_perfetto(run: Run, tmp_path: Path) -> None:
    run.export(tmp_path / "trace.json")
    trace = Trace((tmp_path / "trace.json").read_bytes())

    kinds = Counter(event["cat"] for track in trace.tracks.values() for event, _ in track)
    assert kinds == {"phase": SPANS, "gpu": SPANS, "step": STEPS, "sync": STEPS}
    assert Counter(each.track for each in trace.slices("gpu")) == STREAMS
    events = trace.events
    counters = Counter(event["name"] for event in events if event["ph"] == "C")
    assert run.memory is not None
    assert counters == {
        **{f"{stream} queue time": count for stream, count in STREAMS.items()},
        **{f"metrics/{name}": STEPS for name in METRICS},
        "memory/resident_bytes": len(run.memory.points),
    }
    losses = [e["args"]["value"] for e in events if e["name"] == "metrics/loss_last"]
    assert losses == [0, 1, 2, 3]


def test_csv(run: Run, tmp_path: Path) -> None:
    run.export(tmp_path / "spans.csv")
    run.export(tmp_path / "summary.csv", summary=True)
    run.export(tmp_path / "metrics.csv", metrics=True)
    run.export(tmp_path / "syncs.csv", syncs=True)
    spans, summary, metrics, syncs = (
        list(csv.DictReader((tmp_path / name).read_text().splitlines()))
        for name in ("spans.csv", "summary.csv", "metrics.csv", "syncs.csv")
    )

    assert [int(row["device_ns"]) for row in spans] == run.span_device_ns.tolist()
    assert Counter(f"GPU {row['device']} {row['stream_name']}" for row in spans) == STREAMS
    assert {row["path"]: row["device_count"] for row in summary} == dict.fromkeys(
        ("forward", "forward/attention", "copy"), str(STEPS)
    )
    assert [(row["metric"], float(row["value"])) for row in metrics] == [
        (METRICS[name], value) for name, value in run.metrics[["name", "value"]].tolist()
    ]
    assert [(row["kind"], row["step"], row["blocked_ns"]) for row in syncs] == [
        ("item", str(step), "") for step in range(STEPS)
    ]


def test_parquet(run: Run, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    run.export(tmp_path / "spans.parquet")
    run.export(tmp_path / "folder", "parquet-folder")

    for name in ("spans.parquet", "folder"):
        columns = parquet.read_table(tmp_path / name).to_pydict()
        assert columns["device_ns"] == run.span_device_ns.tolist()
        assert columns["device_begin_ns"] == run.spans["device_begin_ns"].tolist()
        assert Counter(columns["stream_name"]) == {"default stream": 2 * STEPS, "stream 1": STEPS}


def test_nvtxt(run: Run, tmp_path: Path) -> None:
    run.export(tmp_path / "trace.nvtxt")
    found = read_nvtxt((tmp_path / "trace.nvtxt").read_bytes())

    rows = Counter(found.rows[each.process, each.row] for each in found.ranges)
    readings = {f"metrics/{name}": STEPS for name in METRICS}
    assert rows == {"MainThread": SPANS + STEPS, **NSIGHT_WAITS, **STREAMS, **readings}


def test_tensorboard(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run.export(tmp_path, "tensorboard")
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    points = {tag: len(accumulator.Scalars(tag)) for tag in accumulator.Tags()["scalars"]}

    phases = ("forward", "forward/attention", "copy")
    assert points == dict.fromkeys(
        [
            "step/time_ms",
            *(f"{group}/{path}" for group in ("phase", "phase_device") for path in phases),
            *(f"metrics/{name}" for name in METRICS),
        ],
        STEPS,
    )
