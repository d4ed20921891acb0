# SPDX-License-Identifier: Apache-2.0
"""What follows from a run: functions of its data, which measure nothing themselves.

`of(run)` gives the results, each computed once.
"""

from pyinstrument_gpu.analysis.analysis import Analysis, of

__all__ = ["Analysis", "of"]
