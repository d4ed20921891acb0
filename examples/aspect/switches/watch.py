# SPDX-License-Identifier: Apache-2.0
"""Asks the kernel for the context switches at the beginning of a recording, and as it is read."""

from __future__ import annotations

import json
import resource

from examples.aspect.switches.data import NAME
from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher
from pyinstrument_gpu.native import native


class SwitchesWatch(Watcher):
    """What is learnt of context switches during one recording."""

    def __init__(self) -> None:
        self._before: resource.struct_rusage | None = None

    def begin(self, recording: ActiveRecording) -> None:
        super().begin(recording)
        self._before = resource.getrusage(resource.RUSAGE_SELF)

    def write(self) -> None:
        before, now = self._before, resource.getrusage(resource.RUSAGE_SELF)
        if before is None:  # an interrupt has kept it from beginning
            return
        document = {
            "voluntary": now.ru_nvcsw - before.ru_nvcsw,
            "involuntary": now.ru_nivcsw - before.ru_nivcsw,
        }
        native.set_document(self._recording, NAME, json.dumps(document).encode())


def watcher(options: object) -> Watcher:
    return SwitchesWatch()
