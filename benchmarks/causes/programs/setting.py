# SPDX-License-Identifier: Apache-2.0
"""Common to all programs: whether this is the healthy twin, and how long it trains."""

import os
import sys

FIXED = "--fixed" in sys.argv


def times(count):
    """Return how often something is done in a run of about one second, for the run asked for."""
    return max(1, round(count * float(os.environ.get("CAUSES_SCALE", "1"))))
