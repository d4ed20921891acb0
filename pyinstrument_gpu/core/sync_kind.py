# SPDX-License-Identifier: Apache-2.0
"""Kinds of waits of the host for a device. The numbers stand in run files."""

from __future__ import annotations

import enum

ALLOWED = 1 << 31
"""Added to the kind of a site inside `allow_sync`."""


class SyncKind(enum.IntEnum):
    """The kind of call that made the host wait."""

    ITEM = 0
    FLOAT = 1
    INT = 2
    BOOL = 3
    COMPLEX = 4
    TOLIST = 5
    NUMPY = 6
    CPU = 7
    TO_CPU = 8
    PRINT = 9
    FORMAT = 10
    H2D_PAGEABLE = 11
    """A copy to a device from memory that is not pinned, `non_blocking` or not."""
    H2D_PINNED = 12
    """A copy to a device from pinned memory without `non_blocking`."""
    DATA_DEPENDENT_SHAPE = 13
    """`nonzero`, `unique`, `masked_select`, ...: the host must know how much there is."""
    BOOLEAN_INDEX = 14
    COMPARE = 15
    """`torch.equal`, `allclose`, `in`: the answer is a bool of the host."""
    SYNCHRONIZE = 16
    STREAM_SYNCHRONIZE = 17
    EVENT_SYNCHRONIZE = 18
    RAISES = 19
    """Of a preview: `.numpy()` of a tensor on a device, which is an error unless the program copies
    it to the host first, where there is a device."""
    CHECK = 20
    """Of a preview: an operator that reads what it was given, to check it."""
    UNPLACED = 21
    """Of a preview, and no wait: tensors of the host meet such of the device, or are trained beside
    them, so some are elsewhere."""
    PRESUMED = 22
    """Of a preview, and no wait: nothing had been moved to a device, so a tensor was taken to lie
    there because it comes from a parameter."""
    UNFOLLOWED = 23
    """Of a preview, and no wait: a tensor whose class is not followed. The site names that class as
    its function."""
    OTHER = 24
    """Of a newer version."""

    @property
    def label(self) -> str:
        """The name of the kind: as it is written in a program, where that is one thing."""
        return _LABELS.get(self, self.name.lower().replace("_", " "))


COPY_KINDS = (SyncKind.H2D_PAGEABLE, SyncKind.H2D_PINNED)
"""Copies to a device that make the host wait."""

_LABELS = {
    SyncKind.ITEM: ".item()",
    SyncKind.FLOAT: "float()",
    SyncKind.INT: "int()",
    SyncKind.BOOL: "bool()",
    SyncKind.COMPLEX: "complex()",
    SyncKind.TOLIST: ".tolist()",
    SyncKind.NUMPY: ".numpy()",
    SyncKind.CPU: ".cpu()",
    SyncKind.RAISES: ".numpy() may raise",
    SyncKind.CHECK: "check of values",
    SyncKind.TO_CPU: '.to("cpu")',
    SyncKind.H2D_PAGEABLE: "copy from pageable memory",
    SyncKind.H2D_PINNED: "copy without non_blocking",
    SyncKind.SYNCHRONIZE: "synchronize()",
    SyncKind.STREAM_SYNCHRONIZE: "stream.synchronize()",
    SyncKind.EVENT_SYNCHRONIZE: "event.synchronize()",
}
