# SPDX-License-Identifier: Apache-2.0
"""What the ranks of one job show together: pure functions of a `JobData`.

`of(job)` gives the results, each computed once.
"""

from pyinstrument_gpu.analysis.job.analysis import JobAnalysis, of

__all__ = ["JobAnalysis", "of"]
