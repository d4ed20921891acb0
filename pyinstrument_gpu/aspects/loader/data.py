# SPDX-License-Identifier: Apache-2.0
"""The data of DataLoaders' workers in a run file and a `Run`: one declaration for both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.loader import (
    MOST_BATCHES,
    MOST_LINES,
    MOST_LOADERS,
    MOST_LONG,
    MOST_NODES,
    MOST_TEXT,
    MOST_WORKERS,
)
from pyinstrument_gpu.core.clocks import began_ns
from pyinstrument_gpu.core.file.device_clocks import TIME_LIMIT_NS
from pyinstrument_gpu.core.file.json_document import Count

BATCH_DTYPE = np.dtype(
    [(name, "<i8") for name in ("number", "worker", "host_begin_ns", "host_end_ns")]
)
"""A `MadeBatch` whose times are those of the run."""

_Text = Annotated[str, Meta(max_length=MOST_TEXT)]
_Time = Annotated[int, Meta(ge=0, lt=TIME_LIMIT_NS)]
_Worker = Annotated[int, Meta(ge=0, lt=1 << 16)]


class WorkerTimes(Struct, frozen=True, kw_only=True):
    """The times of the workers with one number, those of all epochs together.

    Attributes:
        worker: its number.
        processes: how many there were.
        batches: that they have made.
        making_ns: for how long they made them.
        longest_ns: how long the longest took.
        waiting_ns: for how long they waited to be asked for one.
        starting_ns: from their first line to the first wait.
        cpu_ns: of the thread that makes batches.
        other_cpu_ns: of all other threads, of which one hands batches over.
        queued_ns: for how long that thread was ready, and waited for a processor; None unknown.
        read_bytes: that they read from files and pipes; None unknown.
        minor_faults, major_faults: page faults of that thread.
        grown_bytes: the memory that one of them, if forked, had written and shared with no other
            process at last, at most; None unknown, as where it had few page faults.
    """

    worker: _Worker
    processes: Count
    batches: Count
    making_ns: Count
    longest_ns: Count
    waiting_ns: Count
    starting_ns: Count
    cpu_ns: Count
    other_cpu_ns: Count
    queued_ns: Count | None = None
    read_bytes: Count | None = None
    minor_faults: Count = 0
    major_faults: Count = 0
    grown_bytes: Count | None = None


class MadeBatch(Struct, frozen=True, array_like=True):
    """A batch of one epoch.

    Attributes:
        number: in the order in which the loop gets them.
        begin_ns, end_ns: when a worker made it, by the monotonic clock of the machine.
    """

    number: Count
    worker: _Worker
    begin_ns: _Time
    end_ns: _Time


class LineTime(Struct, frozen=True, array_like=True):
    """A line in which samples found a worker, as a node of a tree.

    Attributes:
        parent: the number of the node that called it, which is smaller than its own; -1: there is
            none.
        place: the line, as an index into `Loader.places`.
        time_ns: that its samples stand for, without those in calls that it makes.
    """

    parent: Annotated[int, Meta(ge=-1)]
    place: Count
    time_ns: Count


class HungBatch(Struct, frozen=True):
    """A batch that a worker had not made when this was written, after much longer than any other.

    Attributes:
        worker: its number.
        process: that of the worker.
        number: in the order in which the loop gets them.
        for_ns: for how long.
    """

    worker: _Worker
    process: Count
    number: Count
    for_ns: Count


class LongBatch(Struct, frozen=True, array_like=True):
    """A batch that took at least twice as long as the worker's others, of any epoch.

    Attributes:
        begin_ns, end_ns: when a worker made it, by the monotonic clock of the machine.
        times: in which lines samples found the worker meanwhile: nodes of `Loader.nodes`, and the
            time in ns. Up to a quarter of it may be that of the batches just before.
    """

    worker: _Worker
    begin_ns: _Time
    end_ns: _Time
    times: Annotated[tuple[tuple[Count, Count], ...], Meta(max_length=MOST_LINES)]


class LargestField(Struct, frozen=True):
    """The attribute of a dataset that holds the largest objects of Python in all.

    Attributes:
        dataset: the class.
        kind: "list", "tuple", "dict" or "set".
        items: how many.
        bytes: how large these are, by some of them.
        file, line: where it is set; line 0 where that was not found.
    """

    dataset: _Text
    name: _Text
    kind: _Text
    items: Count
    bytes: Count
    file: _Text
    line: Count


class Loader(Struct, frozen=True, kw_only=True):
    """The workers of DataLoaders over one dataset, where they are forked; else over datasets of one
    class.

    Attributes:
        dataset: the class.
        workers: how many a loader has at once.
        iterators: how many loops over a loader, such as epochs, had the workers that are known.
        rows: the workers by their numbers.
        batches: the newest of the last epoch, by their numbers.
        functions: file and name of each.
        places: the function, as an index, and the line.
        nodes: of the tree of what the workers did where they didn't wait, each behind the one
            around it.
        hung: those that hang.
        long: the newest batches that took long, by their ends, as far as samples found them.
        samples: how many these are.
        unknown_ns: the time of samples whose stack is not known.
        largest: of the dataset, where the memory of a worker grows.
    """

    dataset: _Text
    workers: _Worker
    iterators: Count
    rows: Annotated[tuple[WorkerTimes, ...], Meta(min_length=1, max_length=MOST_WORKERS)]
    batches: Annotated[tuple[MadeBatch, ...], Meta(max_length=MOST_BATCHES)] = ()
    functions: Annotated[tuple[tuple[_Text, _Text], ...], Meta(max_length=MOST_NODES)] = ()
    places: Annotated[tuple[tuple[Count, Count], ...], Meta(max_length=MOST_NODES)] = ()
    nodes: Annotated[tuple[LineTime, ...], Meta(max_length=MOST_NODES)] = ()
    hung: Annotated[tuple[HungBatch, ...], Meta(max_length=MOST_WORKERS)] = ()
    long: Annotated[tuple[LongBatch, ...], Meta(max_length=MOST_LONG)] = ()
    samples: Count = 0
    unknown_ns: Count = 0
    largest: LargestField | None = None

    @property
    def making_ns(self) -> int:
        """The time for which its workers have made batches together; at least 1."""
        return max(1, sum(row.making_ns for row in self.rows))

    @property
    def batch_count(self) -> int:
        """How many batches its workers have made together."""
        return sum(row.batches for row in self.rows)

    @property
    def needed_ns(self) -> float:
        """The time that a worker needs for a batch where it does not have to wait for a
        processor."""
        needed_ns = sum(max(0, row.making_ns - (row.queued_ns or 0)) for row in self.rows)
        return needed_ns / max(1, self.batch_count)

    @property
    def cpu_share(self) -> float:
        """The part of that in which they ran on a processor."""
        return min(1.0, sum(row.cpu_ns for row in self.rows) / self.making_ns)

    @property
    def queued_share(self) -> float | None:
        """The part in which they waited for one; None unknown."""
        queued_ns = [row.queued_ns for row in self.rows]
        if None in queued_ns:
            return None
        return min(1.0 - self.cpu_share, sum(filter(None, queued_ns)) / self.making_ns)

    def __post_init__(self) -> None:
        if any(function >= len(self.functions) for function, _ in self.places):
            raise ValueError("a line is in a function that is not there")
        for number, node in enumerate(self.nodes):
            if node.place >= len(self.places):
                raise ValueError("a sample is in a line that is not there")
            if node.parent >= number:
                raise ValueError("a node stands before the one around it")
        if any(node >= len(self.nodes) for batch in self.long for node, _ in batch.times):
            raise ValueError("a batch was made in a line that is not there")


class Loaders(Struct, frozen=True):
    """The loaders whose workers were watched."""

    loaders: Annotated[tuple[Loader, ...], Meta(max_length=MOST_LOADERS)] = ()


def on_timeline(known: Loaders | None, anchor: Mapping[str, int]) -> NDArray[np.void]:
    """The batches of the first loader (`BATCH_DTYPE`); none where it is not known when the run
    began. `anchor` is a reading of the clocks, as in `Run.anchor`."""
    since_ns = began_ns(anchor, "monotonic_ns")
    if since_ns is None or known is None or not known.loaders:
        return np.zeros(0, BATCH_DTYPE)
    made = known.loaders[0].batches
    rows = np.zeros(len(made), BATCH_DTYPE)
    for row, one in zip(rows, made, strict=True):
        row["number"], row["worker"] = one.number, one.worker
        row["host_begin_ns"] = one.begin_ns - since_ns
        row["host_end_ns"] = one.end_ns - since_ns
    return rows
