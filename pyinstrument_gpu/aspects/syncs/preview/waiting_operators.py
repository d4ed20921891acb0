# SPDX-License-Identifier: Apache-2.0
"""The operators of PyTorch that make the host wait for a device, by what lies there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pyinstrument_gpu.aspects.syncs.preview.placement import Placement
from pyinstrument_gpu.core.sync_kind import SyncKind

_aten = torch.ops.aten
_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


def _kinds(names: Sequence[str], kind: SyncKind) -> dict[Any, SyncKind]:
    found = {}
    for name in names:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(_aten, packet, None), overload or "default", None)
        if operator is not None:  # versions of torch differ
            found[operator] = kind
    return found


_READING = {
    **_kinds(
        (
            *("nonzero", "_unique", "_unique2", "unique_dim", "unique_consecutive"),
            *("unique_dim_consecutive", "masked_select", "bincount", "repeat_interleave.Tensor"),
            *("argwhere", "nonzero_numpy", "where", "_to_sparse"),
        ),
        SyncKind.DATA_DEPENDENT_SHAPE,
    ),
    **_kinds(("equal", "allclose"), SyncKind.COMPARE),
    # They read a result of their own on the host, to check what they were given
    # (ATen/native/BatchLinearAlgebra.cpp).
    **_kinds(("_linalg_check_errors", "nanmedian"), SyncKind.CHECK),
}
if _VERSION < (2, 13):  # which checks on the device (ATen/native/Distributions.cpp)
    _READING.update(_kinds(("multinomial",), SyncKind.CHECK))
_INDEX = _kinds(("index.Tensor", "_unsafe_index.Tensor"), SyncKind.BOOLEAN_INDEX)
_INDEX_PUT = _kinds(
    ("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"), SyncKind.BOOLEAN_INDEX
)
_READ_ARGUMENTS = {
    operator: positions
    for positions, names in {
        (1,): ("normal.float_Tensor", "normal.Tensor_Tensor"),
        (2,): ("masked_fill.Tensor", "masked_fill_.Tensor"),
        (2, 3): ("_ctc_loss.Tensor",),
    }.items()
    for operator in _kinds(names, SyncKind.CHECK)
}
"""Operators that read some of their tensors on the host: a standard deviation, to check that it is
not negative (ATen/native/DistributionTemplates.h), a value to fill in, and lengths."""
COPY = _aten.copy_.default
# In inference mode PyTorch doesn't take such operators apart: they come as they were called.
READ = {_aten._local_scalar_dense.default, *_kinds(("item", "is_nonzero"), SyncKind.ITEM)}
MAY_MIX = {COPY, *_INDEX, *_INDEX_PUT}
"""Operators that take tensors of the host beside those of a device."""


def kind_of_wait(
    operator: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    placement: Placement,
) -> SyncKind | None:
    """Return what an operator waits for; None where it doesn't. At least one of its tensors is on
    the device."""
    there = placement.is_on_device
    if operator in _READING:
        is_sized = kwargs.get("output_size") is not None
        return None if is_sized else _READING[operator]
    if operator in READ:
        return SyncKind.ITEM
    if operator is COPY:
        target, source = args[0], args[1]
        non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        if there(target) and not there(source):
            return placement.copy_kind(source, non_blocking)
        return SyncKind.CPU if there(source) and not there(target) and not non_blocking else None
    if operator in _READ_ARGUMENTS:
        is_read = any(there(args[position]) for position in _READ_ARGUMENTS[operator])
        return SyncKind.CHECK if is_read else None
    if operator in _INDEX or operator in _INDEX_PUT:
        return _kind_of_index(operator, args, there)
    return None


def _kind_of_index(
    operator: Any, args: tuple[Any, ...], there: Callable[[Any], bool]
) -> SyncKind | None:
    indices = [index for index in args[1] if index is not None]
    masks = [index for index in indices if index.dtype in (torch.bool, torch.uint8)]
    if any(map(there, masks)):
        # It fills by the mask, without counting what it selects, if the value is one number of the
        # host (`canDispatchToMaskedFill` in ATen/native/TensorAdvancedIndexingUtils.h).
        is_filled = (
            operator in _INDEX_PUT
            and len(indices) == 1
            and args[2].numel() == 1
            and not there(args[2])
        )
        return None if is_filled else SyncKind.BOOLEAN_INDEX
    # What a mask of the host selects is copied from pinned memory, without a wait (`expandTensors`
    # in ATen/native/IndexingUtils.h).
    numbers = [index for index in indices if index.dtype not in (torch.bool, torch.uint8)]
    is_copied = there(args[0]) and not all(map(there, numbers))
    return SyncKind.H2D_PAGEABLE if is_copied else None
