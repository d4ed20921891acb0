# SPDX-License-Identifier: Apache-2.0
"""The waits of a run for its devices as a table: for each thread in the order of their ends."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.export.table import Column, Part, on_axis, slices


def syncs(run: Run, offset_ns: int) -> Iterator[Part]:
    sites = run.syncs.sites
    libraries = [site.library for site in sites]
    allowed = np.array([site.is_allowed for site in sites], np.uint8)
    lines = np.array([site.line for site in sites], np.int64)
    library_lines = np.array([-1 if each is None else each.line for each in libraries], np.int64)
    texts = {
        "file": [site.file for site in sites],
        "function": [site.function for site in sites],
        "kind": [site.kind.name.lower() for site in sites],
        "library_file": ["" if each is None else each.file for each in libraries],
        "library_function": ["" if each is None else each.function for each in libraries],
        "thread_name": [thread.name for thread in run.threads],
    }
    for rows in slices(len(run.syncs.events)):
        some = run.syncs.events[rows]
        site = some["site"].astype(np.int64)
        library = np.where(library_lines[site] < 0, -1, site)
        yield {
            "file": Column(site, texts["file"]),
            "line": Column(lines[site]),
            "function": Column(site, texts["function"]),
            "kind": Column(site, texts["kind"]),
            "allowed": Column(allowed[site]),
            "library_file": Column(library, texts["library_file"]),
            "library_line": Column(library_lines[site]),
            "library_function": Column(library, texts["library_function"]),
            "path": Column(some["path"], run.paths),
            "step": Column(some["step"]),
            "thread": Column(some["thread"]),
            "thread_name": Column(some["thread"], texts["thread_name"]),
            "begin_ns": Column(on_axis(some["begin_ns"], offset_ns)),
            "blocked_ns": Column(some["duration_ns"]),
            "bytes": Column(some["bytes"]),
        }
