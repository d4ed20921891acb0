# SPDX-License-Identifier: Apache-2.0
"""The colour of a phase: the same in every process, and the same as that of its live NVTX range.

Table and hash are those of `csrc/hot/nvtx_range.cpp`.
"""

from __future__ import annotations

from pyinstrument_gpu.model.modules import ModulePass

_COLORS = (
    *(0xFF4E79A7, 0xFFF28E2B, 0xFFE15759, 0xFF76B7B2, 0xFF59A14F, 0xFFEDC948),
    *(0xFFB07AA1, 0xFFFF9DA7, 0xFF9C755F, 0xFF86BCB6, 0xFFD37295, 0xFFA0CBE8),
)

STEP_COLOR = 0xFF8C8C8C
"""A grey: steps stand back behind their phases."""

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
    return _COLORS[value % len(_COLORS)]
