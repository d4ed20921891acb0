# SPDX-License-Identifier: Apache-2.0
"""Which of a run's tables an export has: a file has one."""

from __future__ import annotations

from pyinstrument_gpu.errors import ExportError


def chosen_table(**asked: bool) -> str | None:
    """The name of the table that is asked for, None for that of the spans.

    Raises:
        ExportError: more than one is asked for.
    """
    names = [name for name, is_asked in asked.items() if is_asked]
    if len(names) > 1:
        raise ExportError(f"{' and '.join(names)} are separate tables: export them one at a time")
    return names[0] if names else None
