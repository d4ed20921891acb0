# SPDX-License-Identifier: Apache-2.0
"""The states of all ranks of a job, gathered and merged into one."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from pyinstrument_gpu.metrics.options import MAX_NAME_BYTES, MetricOptions
from pyinstrument_gpu.metrics.state import MAX_SCALARS, STATE_DTYPE, State

_SIGNATURE = np.dtype(
    [("options", "<u4"), ("lost_updates", "<u4"), ("names", f"S{MAX_NAME_BYTES}", MAX_SCALARS)]
)

_SUMS = (
    "count",
    "ignored",
    "invalid",
    "nonfinite_rows",
    "nonfinite_losses",
    "weight",
    "loss_sum",
    "loss_weight",
    "correct",
)


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
    signature = np.zeros((), _SIGNATURE)
    signature["options"] = zlib.crc32(repr(options).encode())
    signature["lost_updates"] = min(lost_updates, 2**32 - 1)
    signature["names"][: len(names)] = [name.encode() for name in names]
    payload = torch.frombuffer(bytearray(signature.tobytes() + data), dtype=torch.uint8)
    payload = payload.to(_device_of_group(device))
    gathered = [torch.empty_like(payload) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, payload)
    parts = [part.cpu().numpy() for part in gathered]
    signatures = [np.frombuffer(part, _SIGNATURE, count=1)[0] for part in parts]
    different = [
        rank
        for rank, other in enumerate(signatures)
        if other["options"] != signatures[0]["options"]
    ]
    if different:
        raise ValueError(
            f"the MetricAccumulator of rank {different[0]} was made with different arguments "
            "than that of rank 0"
        )
    heads = [
        np.frombuffer(part, STATE_DTYPE, count=1, offset=_SIGNATURE.itemsize)[0] for part in parts
    ]
    head, all_names = _merged(heads, [_names_of(each) for each in signatures])
    matrices = [
        np.frombuffer(part, np.float64, offset=_SIGNATURE.itemsize + STATE_DTYPE.itemsize)
        for part in parts
    ]
    merged = head.tobytes() + np.sum(matrices, axis=0).tobytes()
    lost = sum(int(each["lost_updates"]) for each in signatures)
    return State.of(merged, options.confusion_classes, len(all_names)), all_names, lost


def _device_of_group(device: torch.device | None) -> torch.device:
    """Where the process group takes tensors from: gloo from the host, NCCL from its GPU."""
    if "gloo" in dist.get_backend():
        return torch.device("cpu")
    if device is not None and device.type != "cpu":
        return device
    return torch.device("cuda", torch.cuda.current_device())


def _names_of(signature: np.void) -> list[str]:
    return [name.decode() for name in signature["names"] if name]


def _merged(
    heads: list[np.void], names: list[list[str]]
) -> tuple[NDArray[np.void], tuple[str, ...]]:
    head = np.zeros((), STATE_DTYPE)
    for field in _SUMS:
        head[field] = np.sum([each[field] for each in heads], axis=0)
    head["updates"] = max(each["updates"] for each in heads)
    first = [each["first_nonfinite_update"] for each in heads if each["first_nonfinite_update"]]
    head["first_nonfinite_update"] = min(first, default=0)

    head["losses"] = sum(int(each["losses"]) for each in heads)
    head["finite_losses"] = sum(int(each["finite_losses"]) for each in heads)
    finite = [each for each in heads if each["finite_losses"]]
    if finite:
        head["loss_min"] = min(each["loss_min"] for each in finite)
        head["loss_max"] = max(each["loss_max"] for each in finite)
    given = [float(each["loss_last"]) for each in heads if each["losses"]]
    head["loss_last"] = sum(given) / len(given) if given else 0

    all_names = tuple(dict.fromkeys(name for of_rank in names for name in of_rank))[:MAX_SCALARS]
    for slot, name in enumerate(all_names):
        parts = [
            each["scalars"][of_rank.index(name)]
            for each, of_rank in zip(heads, names, strict=True)
            if name in of_rank
        ]
        head["scalars"][slot] = _merged_scalar(parts)
    return head, all_names


def _merged_scalar(parts: list[np.void]) -> tuple[float, ...]:
    finite = [each for each in parts if each["count"]]
    seen = [float(each["last"]) for each in parts if each["count"] or each["nonfinite"]]
    return (
        sum(int(each["count"]) for each in parts),
        sum(int(each["nonfinite"]) for each in parts),
        sum(float(each["sum"]) for each in finite),
        min((float(each["min"]) for each in finite), default=0.0),
        max((float(each["max"]) for each in finite), default=0.0),
        sum(seen) / len(seen) if seen else 0.0,
    )
