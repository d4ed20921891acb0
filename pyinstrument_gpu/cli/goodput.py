# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu goodput`: what the time of a job went into, over all of its attempts."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from pyinstrument_gpu.core.condition import ProcessState
from pyinstrument_gpu.core.file.run_files import files_in
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.goodput.life import job_life
from pyinstrument_gpu.goodput.report import goodput_document, goodput_parts, prometheus_text
from pyinstrument_gpu.job.condition import ProcessObservation
from pyinstrument_gpu.report.console import for_terminal
from pyinstrument_gpu.report.json_text import json_text
from pyinstrument_gpu.watch.process import MachineClocks, observation_of

_WAIT_S = 1.0
"""Ten times as long as a recorder needs to write again."""


@click.command()
@click.argument("paths", metavar="FOLDER|RUN...", nargs=-1, required=True)
@click.option(
    "--price-per-hour",
    type=click.FloatRange(min=0, min_open=True),
    metavar="PRICE",
    help="Cost of all machines of the job per hour, in any currency: also say what each "
    "part of the time has cost.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON, not text.")
@click.option(
    "--prometheus",
    "as_prometheus",
    is_flag=True,
    help="Print gauges for Prometheus, as node_exporter's textfile collector reads them.",
)
@click.option(
    "--html",
    metavar="FILE",
    help="Write one HTML file with the job's life as a band, which opens without a network.",
)
def goodput(
    paths: tuple[str, ...],
    price_per_hour: float | None,
    as_json: bool,
    as_prometheus: bool,
    html: str | None,
) -> None:
    """Show what the time of a job went into, over all of its attempts.

    FOLDER has the run files of all attempts, and RUN is one of them. Attempts are joined by the
    launcher's job id, or else by their command, folder and time. The time from the begin of the
    first one to now, or to the last heartbeat of a job that has ended, is divided into productive
    steps, steps computed again after a restart, start-up, checkpoints, evaluation, waiting for
    stragglers, hangs, and nothing between attempts, which add up to all of it.
    """
    if as_json + as_prometheus + (html is not None) > 1:
        raise click.UsageError("give one of --json, --prometheus and --html")
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        found |= dict.fromkeys(files_in(path) if path.is_dir() else [path])
    began_s, before = time.monotonic(), {path: _written(path) for path in found}

    def look(run: Run, path: Path) -> ProcessObservation:
        if run.complete:
            return ProcessObservation(ProcessState.GONE)
        clocks = MachineClocks.now()
        seen = observation_of(run.environment, run.anchor, run.duration_ns, clocks)
        if seen.silent_ns is None:  # of another machine: its file may change
            time.sleep(max(0.0, began_s + _WAIT_S - time.monotonic()))
            return ProcessObservation(is_writing=before[path] != _written(path))
        return seen

    document = goodput_document(job_life(list(found), look), price_per_hour)
    if html is not None:
        # Not above: the text needs none of it.
        from pyinstrument_gpu.page.page import life_page, write_page

        write_page(life_page(document), html)
        print(f"Page: {click.format_filename(html)}")
    elif as_json:
        print(json_text(document, most_rows=None))
    elif as_prometheus:
        print(prometheus_text(document), end="")
    else:
        print(for_terminal(goodput_parts(document)))


def _written(path: Path) -> tuple[int, int] | None:
    """Return when a file was last written, and its size."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
