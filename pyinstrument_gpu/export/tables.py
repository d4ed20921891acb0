# SPDX-License-Identifier: Apache-2.0
"""Which of a run's tables an export has: a file has one."""

from __future__ import annotations

from collections.abc import Mapping

from pyinstrument_gpu.errors import ExportError
from pyinstrument_gpu.export.readings import metrics
from pyinstrument_gpu.export.spans import modules, spans
from pyinstrument_gpu.export.steps import steps
from pyinstrument_gpu.export.table import Table
from pyinstrument_gpu.export.waits import syncs

SPANS = "spans"
SUMMARY = "summary"

TABLES: Mapping[str, Table] = {
    SPANS: spans,
    "steps": steps,
    "metrics": metrics,
    "syncs": syncs,
    "modules": modules,
}
"""All but `SUMMARY`, which has few rows."""


def chosen_table(**asked: bool) -> str:
    """The name of the table that is asked for, a key of `TABLES` or `SUMMARY`.

    Raises:
        ExportError: more than one is asked for.
    """
    names = [name for name, is_asked in asked.items() if is_asked]
    if len(names) > 1:
        raise ExportError(f"{' and '.join(names)} are separate tables: export them one at a time")
    return names[0] if names else SPANS
