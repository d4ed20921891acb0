# SPDX-License-Identifier: Apache-2.0
"""The states of all ranks of a job, gathered and merged into one."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from pyinstrument_gpu.metrics.options import MAX_NAME_BYTES, MetricOptions
from pyinstrument_gpu.metrics.state import MAX_SCALARS, STATE_DTYPE, State

_SIGNATURE = [
    ("options", "<u4"),
    ("lost_updates", "<u4"),
    ("names", f"S{MAX_NAME_BYTES}", MAX_SCALARS),
]

# How a field of all ranks, in the state or in a running value, becomes one where it is not the sum;
# and the fields that say which ranks have a value: one of them is not 0 there.
_REDUCTIONS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "updates": (np.max, ()),
    "first_nonfinite_update": (np.min, ("first_nonfinite_update",)),
    "loss_min": (np.min, ("finite_losses",)),
    "loss_max": (np.max, ("finite_losses",)),
    "loss_last": (np.mean, ("losses",)),
    "min": (np.min, ("count",)),
    "max": (np.max, ("count",)),
    "last": (np.mean, ("count", "nonfinite")),
}


def has_other_ranks() -> bool:
    return dist.is_available() and dist.is_initialized()


def merged_across_ranks(
    data: bytes,
    names: Sequence[str],
    lost_updates: int,
    options: MetricOptions,
    device: torch.device | None,
) -> tuple[State, tuple[str, ...], int]:
    """Gather the states of all ranks and merge them.

    Args:
        names: the running values of this rank, in the order of their slots.
        device: where its state is, None when it has none yet.

    Returns:
        The merged state, the names of its running values, and how many updates were lost.
    """
    matrix_size = options.confusion_classes**2
    dtype = np.dtype([*_SIGNATURE, ("state", STATE_DTYPE), ("matrix", "<f8", (matrix_size,))])
    own = np.zeros(1, dtype)
    own["options"] = zlib.crc32(repr(options).encode())
    own["lost_updates"] = min(lost_updates, 2**32 - 1)
    own["names"][0, : len(names)] = [name.encode() for name in names]
    own["state"] = np.frombuffer(data, STATE_DTYPE, count=1)
    own["matrix"] = np.frombuffer(data, np.float64, offset=STATE_DTYPE.itemsize)
    payload = torch.from_numpy(own.view(np.uint8)).to(_device_of_group(device))
    gathered = [torch.empty_like(payload) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, payload)
    ranks = np.concatenate([part.cpu().numpy() for part in gathered]).view(dtype)
    different = np.flatnonzero(ranks["options"] != ranks["options"][0])
    if len(different):
        raise ValueError(
            f"the MetricAccumulator of rank {different[0]} was made with different arguments "
            "than that of rank 0"
        )
    state = _merged(ranks["state"])
    all_names = list(dict.fromkeys(ranks["names"][ranks["names"] != b""].tolist()))[:MAX_SCALARS]
    for slot, name in enumerate(all_names):
        scalars = ranks["state"]["scalars"][ranks["names"] == name]
        state["scalars"][slot] = _merged(scalars)
    merged = state.tobytes() + ranks["matrix"].sum(axis=0).tobytes()
    return (
        State.of(merged, options.confusion_classes, len(all_names)),
        tuple(name.decode() for name in all_names),
        int(ranks["lost_updates"].sum()),
    )


def _device_of_group(device: torch.device | None) -> torch.device:
    """Where the process group takes tensors from: gloo from the host, NCCL from its GPU."""
    if "gloo" in dist.get_backend():
        return torch.device("cpu")
    if device is not None and device.type != "cpu":
        return device
    return torch.device("cuda", torch.cuda.current_device())


def _merged(parts: NDArray[np.void]) -> NDArray[np.void]:
    merged = np.zeros((), parts.dtype)
    with np.errstate(all="ignore"):  # a last value need not be finite
        for field in set(parts.dtype.names or ()) - {"resets", "scalars"}:
            reduce, given_by = _REDUCTIONS.get(field, (np.sum, ()))
            values = parts[field]
            if given_by:
                values = values[np.any([parts[each] != 0 for each in given_by], axis=0)]
            if len(values):
                merged[field] = reduce(values, axis=0)
    return merged
