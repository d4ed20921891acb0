# SPDX-License-Identifier: Apache-2.0
"""Statistics of all ranks of a job together, while they train.

One all-gather of a record of fixed size: what each rank has added to its statistics since it last
asked. It is a collective that the caller asks for; the recorder never starts one.
"""

from __future__ import annotations

import hashlib
import math
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.arrays import ArrayFields
from pyinstrument_gpu.core.file.live_log import LiveLog, Tap
from pyinstrument_gpu.core.file.statistics import decode_statistics
from pyinstrument_gpu.core.statistics import (
    PhaseStatistics,
    Statistic,
    as_if_not_profiled,
    over_scopes,
)
from pyinstrument_gpu.errors import RecordingError
from pyinstrument_gpu.native import native

MAX_PHASES = 128
"""So many phases fit into a rank's record: those with the most host time."""
_NAME_BYTES = 96
_VERSION = b"pig-job-statistics-1"
_HEAD = np.dtype(
    [
        ("version", "S24"),
        ("has_numbers", "<i8"),
        ("phases", "<i8"),
        ("left_out", "<i8"),
        ("steps", "<i8"),
        ("step_ns", "<i8"),
        ("step_std_ns", "<f8"),
    ]
)
_PHASE = np.dtype(
    [
        ("hash", "<u8"),
        ("name", f"S{_NAME_BYTES}"),
        ("count", "<i8"),
        ("host_ns", "<i8"),
        ("self_ns", "<i8"),
        ("std_ns", "<f8"),
        ("min_ns", "<i8"),
        ("max_ns", "<i8"),
    ]
)
_RECORD = np.dtype([("head", _HEAD), ("phases", _PHASE, (MAX_PHASES,))])
RECORD_BYTES = _RECORD.itemsize
_NO_TIMES = Statistic.of(np.empty(0, np.int64))


@dataclass(frozen=True, eq=False)
class PhaseOfRanks(ArrayFields):
    """One phase on all ranks. Arrays are in the order of `JobStatistics.ranks`.

    On a rank that was not in the phase, or of which it is not known (`JobStatistics.left_out`),
    integers are -1 and floats NaN: missing, not zero.

    Attributes:
        ranks: the numbers of the ranks.
        count: how often it was executed.
        host_ns: the sum of its times on the host.
        self_ns: the same without nested phases.
        std_ns: the population standard deviation of one execution.
        min_ns, max_ns: the shortest and the longest, to within 3 %.
    """

    ranks: tuple[int, ...]
    count: NDArray[np.int64]
    host_ns: NDArray[np.int64]
    self_ns: NDArray[np.int64]
    std_ns: NDArray[np.float64]
    min_ns: NDArray[np.int64]
    max_ns: NDArray[np.int64]

    @property
    def mean_ns(self) -> NDArray[np.float64]:
        """The mean of one execution on each rank."""
        return _means(self.host_ns, self.count)

    @property
    def median_ns(self) -> float:
        """The median over the ranks of their means."""
        known = self.mean_ns[self.count > 0]
        return float(np.median(known)) if len(known) else math.nan

    @property
    def slowest_rank(self) -> int | None:
        """The rank with the longest mean; None where fewer than two ranks were in the phase, or
        two have the longest. That it is slow is not said: see `distance_ns` and `std_ns`, and that
        in a phase with collectives, the rank that others wait for has the shortest time."""
        means = self.mean_ns
        known = means[self.count > 0]
        if len(known) < 2 or np.count_nonzero(known == known.max()) > 1:
            return None
        return self.ranks[int(np.nanargmax(means))]

    @property
    def distance_ns(self) -> float:
        """By how much the slowest rank's mean is above the median of the others' means; NaN where
        there is no slowest rank."""
        if self.slowest_rank is None:
            return math.nan
        known = np.sort(self.mean_ns[self.count > 0])
        return float(known[-1] - np.median(known[:-1]))


@dataclass(frozen=True, eq=False)
class JobStatistics(ArrayFields):
    """What all ranks of a job have done since each last called `Recording.job_statistics`; at the
    first call, since its recording began.

    Attributes:
        ranks: the numbers of the ranks, in the order of all arrays.
        missing: those that have no numbers, as nothing is recorded there.
        phases: by path, the one with the longest median self time first.
        steps: of each rank how many steps have closed; -1 where that is missing.
        step_ns: the sum of their durations; -1 where that is missing.
        step_std_ns: their population standard deviation; NaN where there is none.
        left_out: of each rank how many phases did not fit into its record.
    """

    ranks: tuple[int, ...]
    missing: tuple[int, ...]
    phases: Mapping[str, PhaseOfRanks]
    steps: NDArray[np.int64]
    step_ns: NDArray[np.int64]
    step_std_ns: NDArray[np.float64]
    left_out: NDArray[np.int64]

    @property
    def step_mean_ns(self) -> NDArray[np.float64]:
        """The mean duration of a step on each rank; NaN where none closed."""
        return _means(self.step_ns, self.steps)


class OwnStatistics:
    """What an active recording of this process adds to its statistics, without reading its run."""

    def __init__(self, recording: object) -> None:
        self._tap = Tap(recording)
        self._log = LiveLog()
        self._phases: dict[str, PhaseStatistics] = {}
        self._steps = _NO_TIMES

    def close(self) -> None:
        self._tap.close()

    def since_last(self) -> tuple[dict[str, PhaseStatistics], Statistic]:
        """Host times by path, all scopes together, and the durations of the steps that closed,
        since the last call; at the first call those of the whole recording."""
        native.harvest_statistics()
        self._log.take(self._tap.take())
        phases, steps = self._so_far()
        nothing = PhaseStatistics()
        new = {
            path: _since(phase, self._phases.get(path, nothing)) for path, phase in phases.items()
        }
        new_steps = steps.without(self._steps) or _NO_TIMES
        self._phases, self._steps = phases, steps
        return {path: phase for path, phase in new.items() if phase.count}, new_steps

    def _so_far(self) -> tuple[dict[str, PhaseStatistics], Statistic]:
        if self._log.statistics is None:  # there was no memory for any
            return {}, _NO_TIMES
        document, tables = decode_statistics(self._log.statistics), self._log.tables
        # Steps that were profiled count like others: both sums and counts have them.
        totals = over_scopes(as_if_not_profiled(document.phases))
        # A path that is newer than the tables comes with the next call.
        phases = {
            tables.paths[path]: phase
            for path, phase in totals.items()
            if path < len(tables.paths) and tables.is_phase[path]
        }
        durations = document.step_totals.duration, document.profiled_totals.duration
        return phases, Statistic.merge(durations)


def _since(now: PhaseStatistics, before: PhaseStatistics) -> PhaseStatistics:
    def less(whole: Statistic | None, part: Statistic | None) -> Statistic | None:
        return whole if whole is None or part is None else whole.without(part)

    return PhaseStatistics(less(now.host, before.host), less(now.self_host, before.self_host))


def packed(numbers: tuple[Mapping[str, PhaseStatistics], Statistic] | None) -> NDArray[np.uint8]:
    """A rank's record: its phases by path and its steps, or None where it has none."""
    record = np.zeros((), _RECORD)
    record["head"]["version"] = _VERSION
    if numbers is not None:
        phases, steps = numbers
        rows = [
            (path, one.host, one.self_host or one.host)
            for path, one in phases.items()
            if one.host is not None and one.host.count
        ]
        rows.sort(key=lambda row: (-row[1].total_ns, row[0]))
        record["phases"][: len(rows)] = [
            (
                *(_hash(path), _cut(path), host.count, host.total_ns, own.total_ns),
                *(host.std_ns, host.min_ns, host.max_ns),
            )
            for path, host, own in rows[:MAX_PHASES]
        ]
        left_out = max(0, len(rows) - MAX_PHASES)
        durations = steps.count, steps.total_ns, steps.std_ns
        record["head"] = (_VERSION, 1, len(rows) - left_out, left_out, *durations)
    data: NDArray[np.uint8] = np.frombuffer(record.tobytes(), np.uint8).copy()
    return data


def unpacked(
    records: Sequence[NDArray[np.uint8]], ranks: Sequence[int], own_paths: Sequence[str] = ()
) -> JobStatistics:
    """The statistics in the records of these ranks. Long names are those of `own_paths`, or cut.

    Raises:
        RecordingError: a rank's record is one of another version.
    """
    table = np.stack(records).view(_RECORD)[:, 0]
    head = table["head"]
    for rank, version in zip(ranks, head["version"], strict=True):
        if version != _VERSION:
            raise RecordingError(
                f"rank {rank} has another version of pyinstrument_gpu, whose statistics can't be "
                "read here: install the same one on all ranks"
            )
    has_numbers = head["has_numbers"] != 0
    names = {_hash(path): path for path in own_paths}
    places: dict[int, list[tuple[int, int]]] = {}
    for position in np.flatnonzero(has_numbers):
        for place in range(int(head["phases"][position])):
            key = int(table["phases"]["hash"][position, place])
            places.setdefault(key, []).append((int(position), place))
    phases: dict[str, PhaseOfRanks] = {}
    for key, at in places.items():
        name = names.get(key) or _text(bytes(table["phases"]["name"][at[0]]))
        while name in phases:  # cut, and alike
            name += "…"
        phases[name] = _phase(table["phases"], at, tuple(ranks))
    order = sorted(phases, key=lambda name: (-_median_self_ns(phases[name]), name))
    return JobStatistics(
        ranks=tuple(ranks),
        missing=tuple(
            rank for rank, is_here in zip(ranks, has_numbers, strict=True) if not is_here
        ),
        phases={name: phases[name] for name in order},
        steps=np.where(has_numbers, head["steps"], -1),
        step_ns=np.where(has_numbers, head["step_ns"], -1),
        step_std_ns=np.where(has_numbers, head["step_std_ns"], np.nan),
        left_out=head["left_out"].copy(),
    )


def _phase(
    rows: NDArray[np.void], at: Sequence[tuple[int, int]], ranks: tuple[int, ...]
) -> PhaseOfRanks:
    columns = {
        name: np.full(len(ranks), np.nan if name == "std_ns" else -1, rows[name].dtype)
        for name in ("count", "host_ns", "self_ns", "std_ns", "min_ns", "max_ns")
    }
    for position, place in at:
        for name, column in columns.items():
            column[position] = rows[name][position, place]
    return PhaseOfRanks(ranks, **columns)


def _median_self_ns(phase: PhaseOfRanks) -> float:
    return float(np.median(phase.self_ns[phase.count > 0]))


def _hash(path: str) -> int:
    digest = hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _cut(path: str) -> bytes:
    """The begin of a name, with a sign that there is more."""
    data = path.encode("utf-8", "replace")
    if len(data) <= _NAME_BYTES:
        return data
    return data[: _NAME_BYTES - 3].decode("utf-8", "ignore").encode() + "…".encode()


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode("utf-8", "replace")


class RankExchange:
    """How the ranks of this process's job exchange their records.

    The group of our own is made once for each default group of the program, and kept: to make one
    is a collective of all ranks.
    """

    def __init__(self) -> None:
        self._made_for: weakref.ref[Any] | None = None
        self._own: Any = None
        self._failure: str | None = None

    def gathered(
        self, own: NDArray[np.uint8], group: Any, timeout_s: float, rank: int
    ) -> tuple[list[NDArray[np.uint8]], tuple[int, ...]]:
        """The records of all ranks, and the ranks' numbers. Alone (`rank`), without a collective,
        where no process group is initialised.

        Raises:
            RecordingError: a collective failed or took too long, now or at a former call.
            ValueError: this process is not in `group`, or `group` has no backend for the CPU.
        """
        dist: Any = _distributed()
        if dist is None:
            if group is not None:
                raise ValueError("torch.distributed is not initialised, and so there is no group")
            return [own], (rank,)
        import torch

        if group is not None:
            _check(dist, group)
        try:
            if group is None:
                group = self._group(dist, timeout_s)
            # The program may have another default device.
            records = [
                torch.empty(len(own), dtype=torch.uint8, device="cpu") for _ in range(group.size())
            ]
            dist.all_gather(records, torch.from_numpy(own), group=group)
            ranks = tuple(dist.get_process_group_ranks(group))
        except RecordingError:
            raise
        except Exception as error:
            if group is None or group is self._own:
                self._failure = str(error) or type(error).__name__
            raise RecordingError(
                f"the ranks could not exchange their statistics: {error}. Every rank has to call "
                "job_statistics, as often as the others"
            ) from error
        return [record.numpy() for record in records], ranks

    def _group(self, dist: Any, timeout_s: float) -> Any:
        default = dist.group.WORLD
        made_for = None if self._made_for is None else self._made_for()
        if made_for is not default:
            self._own = self._failure = None
            self._made_for = weakref.ref(default)
        if self._failure is not None:
            raise RecordingError(
                "a former exchange of statistics failed, after which ranks may have called "
                f"job_statistics differently often: {self._failure}"
            )
        if self._own is None:
            self._own = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        return self._own


EXCHANGE = RankExchange()


def _distributed() -> Any:
    """torch.distributed, if the program has initialised it."""
    dist: Any = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def _check(dist: Any, group: Any) -> None:
    if dist.get_rank(group) < 0:
        raise ValueError("this process is not in the group")
    kinds = [pair.partition(":")[0] for pair in dist.get_backend_config(group).split(",")]
    if "cpu" not in kinds:
        raise ValueError(
            "the group has no backend for tensors on the CPU: give one of gloo, or none, for one "
            "of our own"
        )


def _means(sums: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mean of each rank; NaN where nothing was counted."""
    means = np.full(len(sums), np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means
