# SPDX-License-Identifier: Apache-2.0
"""What a run file and a `Run` hold of context switches: one declaration for both."""

from __future__ import annotations

import msgspec

from pyinstrument_gpu.core.file.json_document import Count

NAME = "switches"
"""Of the document in the run file, and of the attribute of a `Run`."""


class Switches(msgspec.Struct, frozen=True):
    """How often the kernel gave the processors of the program's threads to others meanwhile.

    Attributes:
        voluntary: because the thread had to wait for something.
        involuntary: although it had more to do.
    """

    voluntary: Count
    involuntary: Count
