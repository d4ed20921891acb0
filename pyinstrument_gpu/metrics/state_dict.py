# SPDX-License-Identifier: Apache-2.0
"""A state as a checkpoint has it: strings, numbers, lists and tensors, which `torch.load` reads
with `weights_only=True`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pyinstrument_gpu.metrics.options import MetricOptions, differences
from pyinstrument_gpu.metrics.state import (
    FIELDS,
    MAX_SCALARS,
    STATE_DTYPE,
    MetricState,
    StateSnapshot,
    word,
)
from pyinstrument_gpu.metrics.values import clash_of

_VERSION = 1


def state_dict_of(
    options: MetricOptions,
    state: Tensor,
    names: Sequence[str],
    lost_updates: Tensor,
    reference_updates: int,
) -> dict[str, Any]:
    """Return the state dict. The tensors belong to it."""
    return {
        "version": _VERSION,
        "options": options.described(),
        "fields": FIELDS,
        "state": state,
        "running_values": list(names),
        "lost_updates": lost_updates,
        "reference_updates": reference_updates,
    }


def loaded(
    options: MetricOptions, state_dict: Mapping[str, Any], names: Sequence[str], resets: int
) -> tuple[NDArray[np.uint8], StateSnapshot]:
    """The state of a checkpoint, for an accumulator with these options, as bytes and as a snapshot
    of them. Waits for its tensors.

    Args:
        names: the running values that keep their slots: graphs may have been captured that add to
            them.
        resets: how many there were, with this one.

    Raises:
        ValueError: it is none, or of an accumulator that differs.
    """
    known = state_dict_of(options, Tensor(), (), Tensor(), 0)
    missing = [name for name in known if name not in state_dict]
    if missing:
        raise ValueError(
            f"this is no state_dict() of an accumulator of metrics: {missing[0]!r} is missing"
        )
    if (state_dict["version"], state_dict["fields"]) != (_VERSION, FIELDS):
        raise ValueError(
            "the state was saved by another version of pyinstrument_gpu, which keeps other values: "
            "load it with that version"
        )
    if different := differences(state_dict["options"], known["options"]):
        raise ValueError(
            f"the state was saved by an accumulator that was made with {different}: make this one "
            "with the same arguments"
        )
    data = state_dict["state"].detach().cpu().numpy().copy()
    if data.dtype != np.uint8 or data.shape != (options.state_bytes,):
        raise ValueError(
            f"the saved state must be {options.state_bytes} bytes, got a tensor of "
            f"{state_dict['state'].dtype} with shape {tuple(state_dict['state'].shape)}"
        )
    all_names = list(dict.fromkeys([*names, *state_dict["running_values"]]))
    if len(all_names) > MAX_SCALARS:
        raise ValueError(
            f"the accumulator and the saved state have {len(all_names)} running values together, "
            f"but there is room for {MAX_SCALARS}: load the state into a new accumulator"
        )
    for name in all_names:
        if clash_of(name, all_names):
            raise ValueError(
                f"the running value {name!r} and another one, of the accumulator or the saved "
                "state, have keys in common: load the state into a new accumulator"
            )
    _move_scalars(data, state_dict["running_values"], all_names)
    data.view(np.uint64)[word("resets")] = resets
    state = MetricState.of(data.data, options.confusion_classes, len(all_names))
    return data, StateSnapshot(state, tuple(all_names), int(state_dict["lost_updates"]))


def _move_scalars(data: NDArray[np.uint8], before: Sequence[str], now: Sequence[str]) -> None:
    head = data[: STATE_DTYPE.itemsize].view(STATE_DTYPE)
    scalars = head["scalars"][0]
    moved = np.zeros_like(scalars)
    for slot, name in enumerate(before):
        moved[now.index(name)] = scalars[slot]
    scalars[:] = moved
