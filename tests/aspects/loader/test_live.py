# SPDX-License-Identifier: Apache-2.0
"""What `watch` says of a loader."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pyinstrument_gpu.aspects.loader.data import (
    HungBatch,
    LineTime,
    Loader,
    Loaders,
    WorkerTimes,
)
from pyinstrument_gpu.aspects.loader.live import LiveLoader
from pyinstrument_gpu.core.live import LiveWindow
from pyinstrument_gpu.watch.views import heading
from tests.helpers.watched import MS, S, live, running

NAMES = ["load", "data", "backward", "allreduce"]
"""Of phases: the loop waits 30 ms for data in each step of 100 ms, and 60 in the last of five."""
FETCH = "/usr/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py"


def worker(number: int, making_ns: int) -> WorkerTimes:
    times = dict.fromkeys(WorkerTimes.__struct_fields__, 0)
    return WorkerTimes(**times | {"worker": number, "batches": 10, "making_ns": making_ns})


LOADER = Loader(
    dataset="Images",
    workers=2,
    iterators=1,
    rows=(worker(0, 400 * MS), worker(1, 500 * MS)),
    functions=((FETCH, "_MapDatasetFetcher.fetch"), ("/w/train.py", "decode"), ("/w/t.py", "crop")),
    places=((0, 52), (1, 10), (2, 20)),
    nodes=(LineTime(-1, 0, 0), LineTime(0, 1, 60), LineTime(0, 2, 40)),
)


def line(loader: Loader | None, **changes: Any) -> str:
    run = running(loader=None if loader is None else Loaders((loader,)), **changes)
    view = LiveLoader()
    return view.line(view.look(run, LiveWindow.of(run, is_whole=True)))


def test_the_share_of_waits_and_what_the_loop_waits_for() -> None:
    assert line(LOADER, names=NAMES) == (
        "waits for batches 36% of the time, 60% of one is decode, worker 1 is the slowest: 50.0 ms"
    )
    assert line(None, names=NAMES) == "waits for batches 36% of the time"


def test_a_loop_that_does_not_wait_has_no_line() -> None:
    assert line(LOADER) == ""


def test_a_worker_that_hangs_is_below_the_heading(tmp_path: Path) -> None:
    hung = HungBatch(worker=1, process=42, number=7, for_ns=63 * S)
    loaders = Loaders((replace(LOADER, hung=(hung,)),))
    made = running(names=NAMES, loader=loaders, duration_ns=64 * S)
    run = live(running(), tmp_path / "train.gpurun")
    assert len(heading(run, 200).plain.splitlines()) == 4
    run.aspects["loader"] = LiveLoader().look(made, LiveWindow.of(made, is_whole=True))
    lines = heading(run, 200).plain.splitlines()
    assert lines[4:] == ["worker 1 of the loader hangs for 63 s"]


def test_while_steps_end_no_worker_hangs() -> None:
    hung = HungBatch(worker=1, process=42, number=7, for_ns=63 * S)
    found = line(replace(LOADER, hung=(hung,)), names=NAMES)
    assert found.startswith("waits for batches 36% of the time")
