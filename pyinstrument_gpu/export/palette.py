# SPDX-License-Identifier: Apache-2.0
"""The colour of a phase: the same in every process, and the same as that of its live NVTX range.

Table and hash are those of `csrc/hot/nvtx_range.cpp`. Any two of the colours can also be told apart
by eyes that see no red, no green or no blue.
"""

from __future__ import annotations

from pyinstrument_gpu.aspects.modules.data import ModulePass

COLORS = (
    *(0xFF4E79A7, 0xFFF28E2B, 0xFF918DEB, 0xFF5EEBC0, 0xFFAFCC7A, 0xFF8D2FEB),
    *(0xFF803361, 0xFF806B4C, 0xFFA65D21, 0xFF4742A6, 0xFF42A697, 0xFFA0CBE8),
)

STEP_COLOR = 0xFF8C8C8C
"""A grey: steps stand back behind their phases."""

SYNC_COLOR = 0xFFCC3311
"""A red that no phase has: here the host waited."""

METRIC_COLOR = 0xFF009988
"""Of the values of metrics."""

MODULE_COLORS = {
    ModulePass.FORWARD: 0xFF7EA6E0,
    ModulePass.BACKWARD: 0xFFD5A056,
    ModulePass.RECOMPUTE: 0xFFC98BB9,
}
"""Modules have a colour by the kind of pass, so that one sees which way a model is gone through."""


def color_of(name: str) -> int:
    """The colour of a phase as 0xAARRGGBB, chosen by FNV-1a over its name in UTF-8."""
    value = 2166136261
    for byte in name.encode("utf-8", "surrogatepass"):
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return COLORS[value % len(COLORS)]
