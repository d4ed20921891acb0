# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu history`: what has changed over the runs of weeks, and since when."""

from __future__ import annotations

import atexit
import gc
from datetime import datetime, timezone
from pathlib import Path

import click

from pyinstrument_gpu.core.file.run_files import below
from pyinstrument_gpu.history.history import history as history_of
from pyinstrument_gpu.history.report import history_parts
from pyinstrument_gpu.history.store import add_runs
from pyinstrument_gpu.report.console import for_terminal
from pyinstrument_gpu.report.json_text import json_text

STORE = "history"


@click.command()
@click.argument("paths", metavar="FOLDER|RUN...", nargs=-1)
@click.option(
    "--store",
    metavar="DIR|URL",
    help="The folder with the rows of runs, as Parquet files. An address such as "
    f"s3://bucket/{STORE} is only read.  [default: {STORE} in the first folder given, or in "
    "that of the first run]",
)
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="YYYY-MM-DD",
    help="Only look at runs from that day on (UTC).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON, not text.")
@click.option(
    "--html",
    metavar="FILE",
    help="Write one HTML file with the series, which opens without a network.",
)
def history(
    paths: tuple[str, ...],
    store: str | None,
    since: datetime | None,
    as_json: bool,
    html: str | None,
) -> None:
    """Show what has become slower or faster over the runs of weeks, and since when.

    FOLDER has run files, and RUN is one. Rows of those that are not in the store yet are added to
    it, so run files may be deleted afterwards. Then all runs in the store are looked at: time per
    step, phases, waits, memory and tokens per second, each run as one observation. A change is
    named with its date, the first commit that has it, its size with an interval, and what else
    changed at the same point: torch, host, GPU, driver or command.
    """
    if as_json and html is not None:
        raise click.UsageError("give one of --json and --html")
    if store is None:
        if not paths:
            raise click.UsageError("give run files, a folder of them, or --store")
        first = Path(paths[0])
        store = str((first if first.is_dir() else first.parent) / STORE)
    if paths and "://" in store:
        raise click.UsageError(
            f"{store} is only read: add runs to a folder, and copy its new files there"
        )
    notes: list[str] = []
    if paths:
        files: dict[Path, None] = {}
        for path in map(Path, paths):
            files |= dict.fromkeys(sorted(below(path)) if path.is_dir() else [path])
        _, notes = add_runs(Path(store), list(files))
    # DuckDB complains at the end of a process in which its objects were not collected.
    atexit.unregister(gc.freeze)
    begin = None if since is None else since.replace(tzinfo=timezone.utc)
    document, programs = history_of(store, begin, notes)
    if html is not None:
        # Not above: the text needs none of it.
        from pyinstrument_gpu.page.page import history_page, write_page

        write_page(history_page(document, programs), html)
        print(f"Page: {click.format_filename(html)}")
    elif as_json:
        print(json_text(document, most_rows=None))
    else:
        print(for_terminal(history_parts(document)))
