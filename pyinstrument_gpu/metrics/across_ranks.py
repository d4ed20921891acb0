# SPDX-License-Identifier: Apache-2.0
"""The states of all ranks of a process group, gathered and merged into one.

One all_gather brings what has the same size in all ranks: what their accumulators were made with,
and the state without its confusion matrix. With parts of different sizes, a gathering would end the
process or never end. The matrices are summed by an all_reduce, once it is known that all ranks have
the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from pyinstrument_gpu.metrics.options import (
    MAX_NAME_BYTES,
    MetricOptions,
    differences,
)
from pyinstrument_gpu.metrics.state import (
    FIELDS,
    MAX_SCALARS,
    SCALAR_DTYPE,
    SCALAR_MERGES,
    STATE_DTYPE,
    STATE_MERGES,
    Merge,
    MetricState,
    RunningValue,
    StateSnapshot,
)
from pyinstrument_gpu.metrics.values import clash_of, values_of
from pyinstrument_gpu.patching import device_memory
from pyinstrument_gpu.patching.device_memory import outside_modes

_SIGNATURE = np.dtype([("version", "S64"), ("options", "S1024")])
_RANK = np.dtype(
    [
        ("signature", _SIGNATURE),
        ("lost_updates", "<i8"),
        ("names", f"S{MAX_NAME_BYTES}", MAX_SCALARS),
        ("state", STATE_DTYPE),
    ]
)
_RANK_BYTES = 16384
"""Of all versions of this package, which differ in what a state is: `version` tells them apart."""
assert _RANK.itemsize <= _RANK_BYTES

_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "most": np.max,
    "least": np.min,
    "mean": np.mean,
}


class PendingValues:
    """The values of a moment, once the states of all ranks of a group are here: what
    `compute_async()` returns.

    The gathering begins at once and waits for nothing, unless it has to bring a state on a device
    to the host, because the group takes no others.

    Args:
        options: what the accumulator was made with.
        names: the running values of this rank, in the order of their slots.
        state: a copy of the state, which then belongs to this.
        lost_updates: one int64, on the same device or the host.
        has_device: whether the state is where the accumulator's tensors are.
        group: a process group, or a device mesh of one dimension; None for the default group. Where
            there is none, this process is alone.

    Raises:
        ValueError: this process is not in the group, or the mesh has several dimensions.
    """

    def __init__(
        self,
        options: MetricOptions,
        names: Sequence[str],
        state: Tensor,
        lost_updates: Tensor,
        has_device: bool,
        group: Any,
    ) -> None:
        self._values: dict[str, Any] | None = None
        self._options = options
        self._names = names
        self._state = state
        self._lost_updates = lost_updates
        self._group: Any = None
        self._work: Any = None
        self._ranks: list[Tensor] = []
        self._copied = device_memory.event_behind(state)
        if group is None and not (dist.is_available() and dist.is_initialized()):
            return
        self._group = _process_group(group)
        self._device = _device_of(self._group, state, has_device)
        record = self._record(self._device)
        self._ranks = [torch.empty_like(record) for _ in range(dist.get_world_size(self._group))]
        self._work = dist.all_gather(self._ranks, record, group=self._group, async_op=True)

    def _record(self, device: torch.device) -> Tensor:
        """Return the record that ranks exchange first, on a device."""
        own = np.zeros(_RANK_BYTES, np.uint8)
        head = own[: _RANK.itemsize].view(_RANK)
        head["signature"]["version"] = hashlib.sha256(FIELDS.encode()).hexdigest().encode()
        head["signature"]["options"] = json.dumps(self._options.described()).encode()
        head["names"][0, : len(self._names)] = [name.encode() for name in self._names]
        is_counted_by_host = self._lost_updates.device.type == "cpu"
        if is_counted_by_host:
            head["lost_updates"] = int(self._lost_updates)
        record = torch.from_numpy(own)
        if device.type == "cuda":
            record = record.pin_memory()  # a copy from other memory would be waited for
        record = record.to(device, non_blocking=True)
        if not is_counted_by_host:
            _part(record, "lost_updates").view(torch.int64).copy_(self._lost_updates)
        _part(record, "state").copy_(self._state[: STATE_DTYPE.itemsize])
        return record

    def done(self) -> bool:
        """Return whether the states of all ranks have arrived. Never waits."""
        if self._values is not None:
            return True
        if self._work is not None:
            return bool(self._work.is_completed())
        return self._copied is None or bool(self._copied.query())

    def result(self) -> dict[str, Any]:
        """Return the values, as `compute(across_ranks=True)` does. Waits for them.

        All ranks have to call it if the accumulator keeps a confusion matrix, which is summed only
        then, by a collective call on the current stream.

        Raises:
            ValueError: the accumulators of the ranks were made with different arguments.
        """
        if self._values is None:
            with outside_modes():
                merged = self._merged_ranks()
            self._values = values_of(self._options, merged)
            del self._state, self._ranks  # they may be large
        return self._values

    def _merged_ranks(self) -> StateSnapshot:
        """Return the merged state of all ranks."""
        if self._work is not None:
            self._work.wait()
        records = self._ranks or [self._record(torch.device("cpu"))]
        content = np.stack([each.cpu().numpy()[: _RANK.itemsize] for each in records])
        ranks = content.view(_RANK)[:, 0]
        self._check(ranks["signature"])
        matrix = self._state[STATE_DTYPE.itemsize :]
        if len(matrix) and self._work is not None:
            matrix = matrix.view(torch.float64).to(self._device)
            dist.all_reduce(matrix, group=self._group)
        data = self._merged(ranks["state"], STATE_MERGES).tobytes() + matrix.cpu().numpy().tobytes()
        # The ranks may have more of them together than there is room for in one state.
        names = list(dict.fromkeys(ranks["names"][ranks["names"] != b""].tolist()))
        decoded = tuple(name.decode() for name in names)
        for name in decoded:
            if clash_of(name, decoded):
                raise ValueError(
                    f"the running value {name!r} of one rank and those of the others have keys in "
                    "common: choose another name"
                )
        state = MetricState.of(data, self._options.confusion_classes, 0)
        of_ranks, fields = ranks["state"]["scalars"], SCALAR_DTYPE.names or ()
        for name in names:
            merged = self._merged(of_ranks[ranks["names"] == name], SCALAR_MERGES)
            state.scalars += (RunningValue(**dict(zip(fields, merged.item(), strict=True))),)
        return StateSnapshot(state, decoded, int(ranks["lost_updates"].sum()))

    def _check(self, signatures: NDArray[np.void]) -> None:
        different = np.flatnonzero(signatures != signatures[0])
        if not len(different):
            return
        first, other = (dist.get_global_rank(self._group, int(rank)) for rank in (0, different[0]))
        if signatures["version"][different[0]] != signatures["version"][0]:
            raise ValueError(
                f"rank {other} and rank {first} use different versions of pyinstrument_gpu: their "
                "metrics can't be merged"
            )
        of_first, of_other = (json.loads(signatures["options"][rank]) for rank in (0, different[0]))
        raise ValueError(
            f"the accumulator of rank {other} was made with different arguments than that of rank "
            f"{first}: {differences(of_other, of_first)}"
        )

    def _merged(self, parts: NDArray[np.void], merges: Mapping[str, Merge]) -> NDArray[np.void]:
        if len(parts) == 1:
            return np.asarray(parts[0])
        merged = np.zeros((), parts.dtype)
        with np.errstate(all="ignore"):  # a last value need not be finite
            for field, (rule, known_by) in merges.items():
                known = parts
                if known_by:
                    known = parts[np.any([parts[each] != 0 for each in known_by], axis=0)]
                if rule == "average":
                    merged[field] = self._merged_average(known[field], known[known_by[0]])
                elif rule == "squares":
                    merged[field] = _merged_squares(parts)
                elif rule in _REDUCTIONS and len(known):
                    merged[field] = _REDUCTIONS[rule](known[field], axis=0)
        return merged

    def _merged_average(self, averages: NDArray[Any], numbers: NDArray[Any]) -> float:
        """The mean of the ranks' averages, biased as one of all their values, whose numbers are
        given."""
        if self._options.ema is None or not len(averages):
            return 0
        unbiased = averages / (1 - self._options.ema ** numbers.astype(float))
        return float(unbiased.mean() * (1 - self._options.ema ** float(numbers.sum())))


def _merged_squares(parts: NDArray[np.void]) -> float:
    """Merge sums of squares of the distances from each rank's mean into one of those from the mean
    of all (Chan, Golub and LeVeque, 1979)."""
    given = parts[parts["weight"] != 0]
    weights, sums = given["weight"], given["sum"]
    means = sums / weights
    return float(parts["m2"].sum() + (weights * (means - sums.sum() / weights.sum()) ** 2).sum())


def _part(record: Tensor, field: str) -> Tensor:
    known = _RANK.fields
    assert known is not None
    dtype, offset = known[field][:2]
    return record[offset : offset + dtype.itemsize]


def _process_group(group: Any) -> Any:
    if hasattr(group, "get_group"):
        if group.ndim != 1:
            raise ValueError(
                f"group must be a process group or a device mesh of one dimension, got {group}: "
                "take a part of it, such as mesh['dp'], or flatten it"
            )
        group = group.get_group()
    if dist.get_rank(group) < 0:
        raise ValueError(
            "this process is not in the group: only those that are in it merge their metrics"
        )
    return dist.group.WORLD if group is None else group


def _device_of(group: Any, state: Tensor, has_device: bool) -> torch.device:
    """Return the device from which a process group takes tensors: the host, if it has a backend for
    it. It is the same for all ranks, also for those that have no tensors yet."""
    # As in "cpu:gloo,cuda:nccl", which is known also where no backend was named.
    pairs = dist.get_backend_config(group).split(",")
    kinds = [pair.partition(":")[0] for pair in pairs]
    if "cpu" in kinds:
        return torch.device("cpu")
    if has_device and state.device.type in kinds:
        return state.device
    return torch.device(kinds[0], torch.get_device_module(kinds[0]).current_device())
