# SPDX-License-Identifier: Apache-2.0
"""Runs as rows of Parquet files in a folder, for years of them.

Each run has a row of its own, whose `phase` is null, and one for each of its phases. It is written
once, as a file named by the run's id. As thousands of files take long to open, a thousand of them
are made one, and removed only when that is there. Files appear whole or not at all, so writers need
no lock: two that add one run write the same file, and what is in two files after two of them have
made one of many, or one was killed, is read once. Whatever reads Parquet can read the folder; here
DuckDB does, also from object storage.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence, Sized
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from pyinstrument_gpu.analysis.differences import facts_of
from pyinstrument_gpu.analysis.run_sample import RunSample, run_samples
from pyinstrument_gpu.atomic_file import atomic_write
from pyinstrument_gpu.core.file.attempts import identity, named
from pyinstrument_gpu.core.file.run_files import left_out
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.errors import JobError, RunFileError, needed_for
from pyinstrument_gpu.parts.words import counted

_OF_RUN = {
    "run_id": "string",
    "began": "timestamp[us, tz=UTC]",
    "program": "string",
    "host": "string",
    "gpus": "string",
    "torch": "string",
    "ranks": "int32",
    "revision": "string",
    "complete": "bool",
    "steps": "int64",
    "elapsed_ns": "double",
    "step_ns": "double",
    "samples_per_step": "double",
    "tokens_per_step": "double",
    "processor_wait_ns": "double",
    "sync_wait_ns": "double",
    "peak_bytes": "int64",
    "facts": "string",
}
_OF_PHASE = {"phase": "string", "is_outside": "bool", "self_ns": "double", "device_ns": "double"}
_MOST_FILES = 1_000
"""Of single runs, of which one file is made then."""
_JOINED = "runs-*.parquet"
_OF_ONE_RUN = "[0-9a-f]" * 16 + ".parquet"
_TRIES = 3
"""To read while another process makes one file of many."""
_MOST_PHASES = 200
"""Of a run, those that take most."""
_GOES_ON_S = 60.0
"""A recorder writes ten times a second: a file that it has not written to for so long is done."""


def add_runs(store: Path, files: Sequence[Path]) -> tuple[int, list[str]]:
    """Add what is not yet in the store, and return how many runs that were, and notes on the files
    that were left out. Runs that go on are left for the next time, and of a job there is rank 0:
    the other ranks wait for it in each step.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        OSError: the store can't be written.
    """
    with needed_for("a history", "pyarrow"):
        import pyarrow as pa
        import pyarrow.parquet
    schema = pa.schema([(name, _type(pa, kind)) for name, kind in (_OF_RUN | _OF_PHASE).items()])
    store.mkdir(parents=True, exist_ok=True)
    known = _known(store)
    added, reasons = 0, {}
    going_on: list[Path] = []
    for file in files:
        about = identity(file)
        if about is not None and about.environment.get("rank", 0) > 0:
            continue
        run_id = None if about is None else about.environment.get("run_id")
        if run_id in known:
            continue
        try:
            if about is not None and not about.complete and _goes_on(file):
                going_on.append(file)
                continue
            run = Run.load(file)
            if run_id is None or run.began_realtime_ns is None:
                raise RunFileError("it does not say which run it is, and when it began")
        except (OSError, RunFileError) as error:
            reasons[str(file)] = str(error)
            continue
        with atomic_write(store / f"{run_id}.parquet", follow_links=False) as sink:
            pa.parquet.write_table(pa.Table.from_pylist([*rows_of(run)], schema), sink)
        known.add(run_id)
        added += 1
    singles = sorted(store.glob(_OF_ONE_RUN))
    if len(singles) >= _MOST_FILES:
        _join(pa, store, singles)
    notes = left_out(reasons)
    if reasons:
        notes.append(f"to hear of {_them(reasons)} no more, remove {_them(reasons)}")
    if going_on:
        count = counted(len(going_on), "run")
        notes.append(
            f"left for the next time: {count} that may go on, as the file was written less than a "
            f"minute ago: {named(going_on)}"
        )
    return added, notes


def _known(store: Path) -> set[str]:
    """The ids of the runs in a store."""
    single = {file.stem for file in store.glob(_OF_ONE_RUN)}
    if not any(store.glob(_JOINED)):
        return single
    ids = _selected(f"{glob.escape(os.fspath(store))}/{_JOINED}", "run_id", "phase IS NULL")
    return single.union(ids["run_id"].tolist())


def _join(pa: Any, store: Path, singles: Sequence[Path]) -> None:
    """Make one file of many, by a name that says of which."""
    names = "".join(file.stem for file in singles)
    name = _JOINED.replace("*", hashlib.sha256(names.encode()).hexdigest()[:16])
    with contextlib.suppress(FileNotFoundError):  # another process does the same
        tables = [pa.parquet.ParquetFile(file).read() for file in singles]
        with atomic_write(store / name, follow_links=False) as sink:
            pa.parquet.write_table(pa.concat_tables(tables, promote_options="default"), sink)
        for file in singles:
            file.unlink(missing_ok=True)


def _type(pa: Any, kind: str) -> Any:
    return pa.timestamp("us", tz="UTC") if kind.startswith("timestamp") else pa.type_for_alias(kind)


def _them(files: Sized) -> str:
    return "the file" if len(files) == 1 else "these files"


def _goes_on(file: Path) -> bool:
    # Nothing has been written at a time that is still to come: such a file was copied or cut.
    return abs(time.time() - os.stat(file).st_mtime) < _GOES_ON_S


def rows_of(run: Run) -> Iterator[dict[str, Any]]:
    """The row of a run, and those of its phases. Where it has no complete step, only what is known
    without: it need not be read again."""
    facts = facts_of(run.environment)
    waits = run.syncs.total.blocked_ns if run.syncs.are_priced and run.steps_ended else None
    memory = run.memory
    row: dict[str, Any] = {
        "run_id": run.environment["run_id"],
        "began": datetime.fromtimestamp((run.began_realtime_ns or 0) / 1e9, timezone.utc),
        "program": _program(run.environment),
        "host": facts["host"],
        "gpus": facts["GPUs"],
        "torch": facts["torch version"],
        "ranks": facts["number of ranks"] or 1,
        "revision": facts["code revision"],
        "complete": run.complete,
        "sync_wait_ns": None if waits is None else waits / run.steps_ended,
        "peak_bytes": None if memory is None else memory.peak_bytes,
        "facts": json.dumps(facts),
    }
    try:
        (sample,) = run_samples([run])
    except ValueError:
        yield row | {"steps": 0}
        return
    row |= {
        "steps": sample.steps,
        # Until the device is done; where that is not known, there is no such time.
        "elapsed_ns": sample.elapsed_ns if sample.is_end_known else None,
        "step_ns": sample.step_ns,
        "samples_per_step": sample.samples_per_step,
        "tokens_per_step": sample.tokens_per_step,
        "processor_wait_ns": sample.wait_ns,
    }
    yield row
    yield from (row | {"facts": None} | phase for phase in _phases(run, sample))


def _phases(run: Run, sample: RunSample) -> Iterator[dict[str, Any]]:
    on_device = {path: phase.device for path, phase in run.phases_in(Scope.STEP).items()}
    found: list[dict[str, Any]] = [
        {"phase": path, "is_outside": is_outside, "self_ns": time_ns}
        for is_outside, times_ns in ((False, sample.phase_ns), (True, sample.outside_ns))
        for path, time_ns in times_ns.items()
        if time_ns > 0
    ]
    for row in sorted(found, key=lambda row: -row["self_ns"])[:_MOST_PHASES]:
        device = None if row["is_outside"] else on_device.get(row["phase"])
        yield row | {"device_ns": None if device is None or not device.count else device.mean_ns}


def _program(environment: Mapping[str, Any]) -> str:
    words = environment.get("arguments") or environment.get("command") or [""]
    return os.path.basename(words[0]) or "a program"


def read_runs(store: str, since: datetime | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rows of runs in order of time, and those of their phases, as columns. A phase has the
    place of its run among the rows of runs.

    Args:
        store: a folder, or the address of one that DuckDB can read, as "s3://bucket/history".
        since: the earliest begin.

    Raises:
        JobError: there is no run in the store, or it can't be read.
        MissingDependencyError: duckdb is not installed.
    """
    found = _selected(
        f"{store if '://' in store else glob.escape(store)}/*.parquet",
        f"{', '.join(_OF_RUN | _OF_PHASE)}, epoch_us(began) AS began_us,"
        " dense_rank() OVER (ORDER BY began, run_id) - 1 AS place",
        f"began >= make_timestamptz({0 if since is None else int(since.timestamp()) * 10**6})"
        " QUALIFY row_number() OVER (PARTITION BY run_id, phase, is_outside) = 1"
        " ORDER BY place",
    )
    is_run = np.ma.getmaskarray(found["phase"])
    return (
        {name: found[name][is_run] for name in (*_OF_RUN, "began_us")},
        {name: found[name][~is_run] for name in (*_OF_PHASE, "place")},
    )


def _selected(files: str, columns: str, condition: str) -> dict[str, Any]:
    """Columns of rows of the files, as numpy has them; errors as of `read_runs`."""
    with needed_for("a history", "duckdb"):
        import duckdb
    for left in reversed(range(_TRIES)):
        with duckdb.connect() as database:
            try:
                database.execute(
                    f"SELECT {columns} FROM read_parquet(?) WHERE {condition}", [files]
                )
                found: dict[str, Any] = database.fetchnumpy()
                return found
            except duckdb.Error as error:
                if not left or not isinstance(error, duckdb.IOException):
                    raise JobError(
                        f"no history can be read from {files}: {error}\nA file that was cut short "
                        "can be removed: its runs are read again from their run files"
                    ) from error
    raise AssertionError
