# SPDX-License-Identifier: Apache-2.0
"""The calls that set training up, for what is said elsewhere. They have no section of their own."""

from __future__ import annotations

from pyinstrument_gpu.aspects.setup_calls.data import SetupCalls
from pyinstrument_gpu.core.aspect import DocumentAspect
from pyinstrument_gpu.core.run import Run


class SetupCallsAspect(DocumentAspect[Run, None]):
    """The lines that make loaders and optimizers, and set modes of torch."""

    name = "setup_calls"
    document = SetupCalls
    noted = "calls that set training up"
    missing = SetupCalls()


ASPECT = SetupCallsAspect()
