# SPDX-License-Identifier: Apache-2.0
"""A folder of partitions that ranks on many hosts have written, as other tools read it."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import ExportError
from pyinstrument_gpu.export import export
from tests.helpers.made_runs import ANCHOR, run_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "exporters" / "data.md"
RANKS_PAGE = ROOT / "docs" / "jobs.md"
MS = 1_000_000
STEPS = 4


def _query(page: Path = PAGE) -> str:
    (query,) = re.findall(r"```sql\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert isinstance(query, str)
    return query


def _run(rank: int, *, with_own: bool = False) -> Run:
    """Each step has 10 ms in `data`, of which rank 2 takes 30, and 5 ms in `forward`. One rank may
    be in a phase of its own."""
    spans, now_ns = [], 0
    names = ("data", "forward", "checkpoint") if with_own else ("data", "forward")
    lasts_ns = [(30 if rank == 2 else 10) * MS, 5 * MS, 1 * MS]
    for step in range(STEPS):
        for path in range(len(names)):
            end_ns = now_ns + lasts_ns[path]
            spans.append((path, path, step, 0, 0, -1, -1, now_ns, end_ns, -1, -1, -1, 1))
            now_ns = end_ns
    environment = {"rank": rank, "world_size": 4, "host": f"host{rank // 2}", "anchor": ANCHOR}
    return run_of(spans, names, path_parents=[-1] * len(names), environment=environment)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As four ranks of two hosts write it, one by one."""
    for rank in (3, 0, 2, 1):
        export([_run(rank, with_own=rank == 3)], f"{tmp_path}/spans/")
    export([_run(0)], f"{tmp_path}/spans/")  # once more
    return tmp_path / "spans"


def _check(rows: list[dict[str, Any]]) -> None:
    data, forward = rows
    assert (data["path"], data["slowest"], data["ranks"]) == ("data", 2, 4)
    assert data["slower_by_ms"] == pytest.approx(20)
    assert (forward["path"], forward["ranks"]) == ("forward", 4)
    assert forward["slower_by_ms"] == pytest.approx(0)


def test_duckdb_finds_the_slowest_rank(folder: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    with duckdb.connect() as connection:
        files = f"read_parquet('{folder}/*/*.parquet', hive_partitioning = true)"
        connection.sql(f"CREATE VIEW spans AS FROM {files}")
        found = connection.sql(_query())
        _check([dict(zip(found.columns, row, strict=True)) for row in found.fetchall()])
        # Rank 2 comes last in each step but the first.
        (last,) = connection.sql(_query(RANKS_PAGE)).fetchall()
        # Of four, the median lies between two of which one has a phase of its own.
        assert last == (2, STEPS - 1, 19.5)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java, which is not installed")
@pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="pyspark is not installed")
def test_spark_finds_the_slowest_rank(folder: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "tests.helpers.spark_query", str(folder)],
        input=_query(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert found.returncode == 0, found.stderr
    _check(json.loads(found.stdout.splitlines()[-1]))


def _without_rank(host: str, started: str, run_id: str) -> Run:
    environment = {"host": host, "started": started, "run_id": run_id, "anchor": ANCHOR}
    return run_of([], environment=environment, duration_ns=60_000_000_000)


@pytest.mark.parametrize(
    ("host", "started", "is_beside"),
    [
        ("b", "2026-11-23T12:30:00.000+00:00", True),
        ("a", "2026-11-23T12:00:59.000+00:00", True),
        ("a", "2026-11-23T11:59:01.000+00:00", True),
        ("a", "2026-11-23T12:01:01.000+00:00", False),  # the next training
    ],
)
def test_a_run_without_a_rank_replaces_none_that_ran_beside_it(
    tmp_path: Path, host: str, started: str, is_beside: bool
) -> None:
    first = _without_rank("a", "2026-11-23T12:00:00.000+00:00", "0" * 15 + "1")
    for _ in range(2):  # the same run may come again
        export([first], f"{tmp_path}/spans/")
    file = tmp_path / "spans" / "rank=0" / "part-0.parquet"
    before = file.read_bytes()
    other = _without_rank(host, started, "0" * 15 + "2")
    if is_beside:
        with pytest.raises(ExportError, match="does not know its rank: export the runs together"):
            export([other], f"{tmp_path}/spans/")
    else:
        export([other], f"{tmp_path}/spans/")
    assert (file.read_bytes() == before) == is_beside
