# SPDX-License-Identifier: Apache-2.0
"""The colours of phases: one table in all places, told apart by all eyes."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pyinstrument_gpu.export.labels import COLORS

# From linear RGB to what eyes see that lack one kind of cones: G. M. Machado and others, A
# Physiologically-based Model for Simulation of Color Vision Deficiency, 2009, severity 1.
EYES = {
    "all cones": np.eye(3),
    "no red": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no blue": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def lab(color: int, eyes: str) -> NDArray[np.float64]:
    """The colour in CIE L*a*b* as these eyes see it."""
    parts = np.array([color >> shift & 0xFF for shift in (16, 8, 0)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(EYES[eyes]) @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = (to_xyz @ seen) / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    found: NDArray[np.float64] = np.array(
        [116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])]
    )
    return found


@pytest.mark.parametrize("eyes", EYES)
def test_any_two_colours_can_be_told_apart(eyes: str) -> None:
    # A difference of 2.3 can just be seen.
    for one, other in combinations(COLORS, 2):
        assert np.linalg.norm(lab(one, eyes) - lab(other, eyes)) > 15


def test_live_ranges_have_the_same_colours() -> None:
    source = (Path(__file__).parents[2] / "csrc/hot/nvtx_range.cpp").read_text("utf-8")
    table = re.search(r"kColors = \{(.*?)\};", source, re.DOTALL)
    assert table is not None
    assert tuple(int(color, 16) for color in table[1].split(",")) == COLORS
