# SPDX-License-Identifier: Apache-2.0
"""SQLite in the schema of `nsys export`; docs/exporters/viewers.md describes it."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np

from pyinstrument_gpu.core.paths import without_surrogates
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import ExportError
from pyinstrument_gpu.export.labels import RangeKind
from pyinstrument_gpu.export.nsight_process import NsightProcess, RowPart, processes_of
from pyinstrument_gpu.version import __version__

_STATEMENT_RANGES = 64

_EVENT_TYPES = {
    33: "NvtxCategory",
    34: "NvtxMark",
    59: "NvtxPushPopRange",
    75: "NvtxDomainCreate",
}
_CATEGORY, _MARK, _RANGE, _DOMAIN = _EVENT_TYPES

_DOMAINS = {1: "pyinstrument_gpu", 2: "pyinstrument_gpu.gpu"}
_HOST, _DEVICE = _DOMAINS

_CATEGORIES = {
    RangeKind.PHASE: (1, "phase"),
    RangeKind.OPEN_PHASE: (1, "phase"),
    RangeKind.STEP: (2, "step"),
    RangeKind.MODULE: (3, "module"),
    RangeKind.WAIT: (4, "sync"),
    RangeKind.METRIC: (5, "metric"),
    RangeKind.COMPILATION: (6, "compilation"),
    RangeKind.GRAPH_PHASE: (1, "phase"),
    RangeKind.BATCH: (7, "batch"),
}

# What `nsys stats` and other readers look for, with the columns of Nsight Systems 2022.4 to 2024.6.
_SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE ENUM_NSYS_EVENT_TYPE (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE ANALYSIS_DETAILS (
    globalVid INTEGER NOT NULL, duration INTEGER NOT NULL,
    startTime INTEGER NOT NULL, stopTime INTEGER NOT NULL
);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
CREATE TABLE ThreadNames (nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER);
CREATE TABLE NVTX_EVENTS (
    start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER,
    textId INTEGER, domainId INTEGER, uint64Value INTEGER, int64Value INTEGER, doubleValue REAL,
    uint32Value INTEGER, int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT
);
"""

# What the ranges of a process are called, and how they look; not a part of the file.
_LABELS = "CREATE TEMP TABLE labels (number INTEGER PRIMARY KEY, category, color, text);"

_MACHINE = 1 << 48  # hardware 0, virtual machine 1: what `nsys profile` writes


def write(runs: Sequence[Run], sink: BinaryIO, *, advance: Callable[[int], None]) -> None:
    """Raises ExportError if there is no room for the temporary file that it is made in."""
    processes = processes_of(runs, advance)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "export.sqlite")
        try:
            # The file is copied when it is whole: nothing in it has to survive a crash.
            with closing(sqlite3.connect(path, isolation_level=None)) as database:
                database.execute("PRAGMA journal_mode = OFF")
                database.execute("PRAGMA synchronous = OFF")
                database.execute("PRAGMA temp_store = MEMORY")
                database.executescript("BEGIN;" + _SCHEMA + _LABELS)
                _write_session(processes, database)
                for process in processes:
                    _write_process(process, database)
                database.execute("COMMIT")
        except sqlite3.Error as error:
            raise ExportError(f"cannot make a database in {folder!r}: {error}") from error
        with path.open("rb") as source:
            shutil.copyfileobj(source, sink, 1 << 20)


def _write_session(processes: Sequence[NsightProcess], database: sqlite3.Connection) -> None:
    facts = [("EXPORT_PRODUCT_NAME", "pyinstrument_gpu"), ("EXPORT_PRODUCT_VERSION", __version__)]
    database.executemany("INSERT INTO META_DATA_EXPORT VALUES (?, ?)", facts)
    types = [(number, name, name) for number, name in _EVENT_TYPES.items()]
    database.executemany("INSERT INTO ENUM_NSYS_EVENT_TYPE VALUES (?, ?, ?)", types)
    timelines = [process.timeline for process in processes]
    duration_ns = max(each.start_ns + each.run.duration_ns for each in timelines)
    session = (_MACHINE, duration_ns, 0, duration_ns)
    database.execute("INSERT INTO ANALYSIS_DETAILS VALUES (?, ?, ?, ?)", session)
    began_ns = timelines[0].run.began_realtime_ns
    if began_ns is not None:
        utc_ns = began_ns - timelines[0].start_ns
        utc = datetime.fromtimestamp(utc_ns // 10**9, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
        times = (utc_ns, utc, None)
        database.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, ?, ?)", times)


def _write_process(process: NsightProcess, database: sqlite3.Connection) -> None:
    global_pid = _MACHINE | process.id << 24
    names = (global_pid, process.id, _text(process.name))
    database.execute("INSERT INTO PROCESSES VALUES (?, ?, ?)", names)
    used = {RangeKind.PHASE, *(label.kind for label in process.labels)}
    categories = [(_CATEGORY, *each) for each in sorted({_CATEGORIES[kind] for kind in used})]
    for domain, name in _DOMAINS.items():
        for event_type, category, text in [(_DOMAIN, None, name), *categories]:
            database.execute(
                "INSERT INTO NVTX_EVENTS (start, eventType, category, text, globalTid, domainId)"
                " VALUES (0, ?, ?, ?, ?, ?)",
                (event_type, category, text, global_pid, domain),
            )
    looks = [
        (number, _CATEGORIES[each.kind][0], each.color, _text(each.name + each.suffix))
        for number, each in enumerate(process.labels)
    ]
    database.execute("DELETE FROM temp.labels")
    database.executemany("INSERT INTO temp.labels VALUES (?, ?, ?, ?)", looks)
    named: set[int] = set()
    for row in chain.from_iterable(process.tracks()):
        global_tid = global_pid | row.id
        if row.id not in named:
            named.add(row.id)
            insert_name = "INSERT INTO StringIds (value) VALUES (?)"
            name_id = database.execute(insert_name, (_text(row.name),)).lastrowid
            database.execute("INSERT INTO ThreadNames VALUES (?, NULL, ?)", (name_id, global_tid))
        domain = _DEVICE if row.on_device else _HOST
        if process.timeline.places(row.ranges.number)[0][0] == RangeKind.METRIC:
            _write_metrics(process, row, database, global_tid)
            continue
        marks = process.timeline.marks(row.ranges.number)
        columns = [row.ranges.begin_ns, row.ranges.end_ns, marks["label"], marks["step"]]
        events = np.stack(columns, axis=1)
        whole = len(events) - len(events) % _STATEMENT_RANGES
        for some, count in ((events[:whole], _STATEMENT_RANGES), (events[whole:], 1)):
            values = some.reshape(-1, count * len(columns)).tolist()
            database.executemany(_insert(count, global_tid, domain), values)


def _write_metrics(
    process: NsightProcess, row: RowPart, database: sqlite3.Connection, global_tid: int
) -> None:
    """Write marks with the values as payload, as they are under `nsys profile`."""
    marks = process.timeline.marks(row.ranges.number)
    _, places = process.timeline.places(row.ranges.number)
    values = process.timeline.run.metrics["value"][places]
    database.executemany(
        "INSERT INTO NVTX_EVENTS (start, doubleValue, category, color, text, eventType, globalTid,"
        f" domainId) SELECT ?, ?, category, color, text, {_MARK}, {global_tid}, {_HOST}"
        " FROM temp.labels WHERE number = ?",
        zip(row.ranges.begin_ns.tolist(), values.tolist(), marks["label"].tolist(), strict=True),
    )


def _insert(count: int, global_tid: int, domain: int) -> str:
    """The statement that inserts so many ranges, of each of which it is given begin, end, label and
    step. What they have alike is part of it: to bind a number takes as long as to insert it."""
    ranges = ", ".join(["(?, ?, ?, ?)"] * count)
    return (
        "INSERT INTO NVTX_EVENTS (start, end, category, color, text, int64Value, eventType,"
        " globalTid, domainId) SELECT column1, column2, category, color, text,"
        f" nullif(column4, -1), {_RANGE}, {global_tid}, {domain}"
        f" FROM (VALUES {ranges}) CROSS JOIN temp.labels ON number = column3"
    )


def _text(text: str) -> str:
    return without_surrogates(text).replace("\0", "\ufffd")
