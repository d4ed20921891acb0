# SPDX-License-Identifier: Apache-2.0
"""The states of all ranks of a job, gathered and merged into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from pyinstrument_gpu.metrics.options import MAX_NAME_BYTES, MetricOptions
from pyinstrument_gpu.metrics.state import (
    MAX_SCALARS,
    MAX_TOPK,
    SCALAR_DTYPE,
    STATE_DTYPE,
    Scalar,
    State,
)
from pyinstrument_gpu.metrics.values import clash_of

# What ranks have to have in common, of one size whatever they were made with: with parts of
# different sizes, a gathering would end the process or never end.
_SIGNATURE = np.dtype(
    [
        ("payload_bytes", "<i8"),
        ("topk", "<i8", (MAX_TOPK,)),
        ("num_classes", "<i8"),
        ("confusion", "<i8"),
        ("ignore_index", "<i8"),
        ("class_dim", "<i8"),
    ]
)

_OWN = [("lost_updates", "<u4"), ("names", f"S{MAX_NAME_BYTES}", MAX_SCALARS)]

# How a field of all ranks, in the state or in a running value, becomes one where it is not the sum;
# and the fields that say which ranks have a value: one of them is not 0 there.
_REDUCTIONS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "updates": (np.max, ()),
    "first_nonfinite_update": (np.min, ("first_nonfinite_update",)),
    "loss_min": (np.min, ("finite_losses",)),
    "loss_max": (np.max, ("finite_losses",)),
    "loss_last": (np.mean, ("losses",)),
    "loss_ema": (np.mean, ("finite_losses",)),
    "min": (np.min, ("count",)),
    "max": (np.max, ("count",)),
    "last": (np.mean, ("count", "nonfinite")),
}


def has_other_ranks() -> bool:
    return dist.is_available() and dist.is_initialized()


def merged_across_ranks(
    data: memoryview,
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
    dtype = np.dtype([*_OWN, ("state", STATE_DTYPE), ("matrix", "<f8", (matrix_size,))])
    group_device = _device_of_group(device)
    _check_signatures(_gathered(_signature(options, dtype.itemsize), group_device))
    own = np.zeros(1, dtype)
    own["lost_updates"] = min(lost_updates, 2**32 - 1)
    own["names"][0, : len(names)] = [name.encode() for name in names]
    own["state"] = np.frombuffer(data, STATE_DTYPE, count=1)
    own["matrix"] = np.frombuffer(data, np.float64, offset=STATE_DTYPE.itemsize)
    ranks = _gathered(own, group_device)
    state = State.of(_merged(ranks["state"]).tobytes(), classes=0, scalars=0)
    if classes := options.confusion_classes:
        state.confusion = ranks["matrix"].sum(axis=0).reshape(classes, classes)
    # The ranks may have more of them together than there is room for in one state.
    all_names = list(dict.fromkeys(ranks["names"][ranks["names"] != b""].tolist()))
    decoded = [name.decode() for name in all_names]
    for name in decoded:
        if clash_of(name, decoded):
            raise ValueError(
                f"the running value {name!r} of one rank and those of the others have keys in "
                "common: choose another name"
            )
    of_ranks, fields = ranks["state"]["scalars"], SCALAR_DTYPE.names or ()
    state.scalars = tuple(
        Scalar(**dict(zip(fields, _merged(of_ranks[ranks["names"] == name]).item(), strict=True)))
        for name in all_names
    )
    return state, tuple(decoded), int(ranks["lost_updates"].sum())


def _signature(options: MetricOptions, payload_bytes: int) -> NDArray[np.void]:
    signature = np.zeros(1, _SIGNATURE)
    given = asdict(options)
    signature["topk"][0, : len(options.topk)] = given.pop("topk")
    for name, value in given.items():
        signature[name] = -1 if value is None else value
    signature["payload_bytes"] = payload_bytes
    return signature


def _check_signatures(ranks: NDArray[np.void]) -> None:
    different = np.flatnonzero(ranks != ranks[0])
    if not len(different):
        return
    other, first = _described(ranks[different[0]]), _described(ranks[0])
    fields = [name for name in first if first[name] != other[name]]
    if not fields:
        raise ValueError(
            f"rank {different[0]} and rank 0 use different versions of pyinstrument_gpu: their "
            "metrics can't be merged"
        )
    raise ValueError(
        f"the MetricAccumulator of rank {different[0]} was made with different arguments than "
        "that of rank 0: "
        + ", ".join(f"{name}={other[name]} instead of {first[name]}" for name in fields)
    )


def _described(signature: np.void) -> dict[str, Any]:
    num_classes = int(signature["num_classes"])
    return {
        "topk": tuple(k for k in signature["topk"].tolist() if k),
        "num_classes": None if num_classes < 0 else num_classes,
        "confusion": bool(signature["confusion"]),
        "ignore_index": int(signature["ignore_index"]),
        "class_dim": int(signature["class_dim"]),
    }


def _gathered(own: NDArray[np.void], device: torch.device) -> NDArray[np.void]:
    payload = torch.from_numpy(own.view(np.uint8)).to(device)
    parts = [torch.empty_like(payload) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, payload)
    return np.concatenate([part.cpu().numpy() for part in parts]).view(own.dtype)


def _device_of_group(device: torch.device | None) -> torch.device:
    """Where the process group takes tensors from: the host, where it has a backend for it."""
    # As in "cpu:gloo,cuda:nccl", which is known also where no backend was named.
    pairs = dist.get_backend_config().split(",")
    kinds = [pair.partition(":")[0] for pair in pairs]
    if "cpu" in kinds:
        return torch.device("cpu")
    if device is not None and device.type in kinds:
        return device
    return torch.device(kinds[0], torch.get_device_module(kinds[0]).current_device())


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
