# SPDX-License-Identifier: Apache-2.0
"""Asks the kernel for the context switches at the beginning of a recording, and as it is read."""

from __future__ import annotations

import resource

from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher


class SwitchesWatch(Watcher):
    """What is learnt of context switches during one recording."""

    name = "switches"

    def begin(self, recording: ActiveRecording) -> None:
        self._before = resource.getrusage(resource.RUSAGE_SELF)
        super().begin(recording)

    def document(self) -> dict[str, int]:
        before, now = self._before, resource.getrusage(resource.RUSAGE_SELF)
        return {
            "voluntary": now.ru_nvcsw - before.ru_nvcsw,
            "involuntary": now.ru_nivcsw - before.ru_nivcsw,
        }


def watcher(options: object) -> Watcher:
    return SwitchesWatch()
