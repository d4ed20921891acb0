# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu report`: print runs, or the ranks of a job, or write them as a page."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyinstrument_gpu.cli.run_paths import (
    are_of_a_job,
    found_runs,
    say_what_is_left_out,
    with_newest,
)
from pyinstrument_gpu.core.file.run_files import left_out
from pyinstrument_gpu.core.job_membership import same_run_twice
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import RunFileError
from pyinstrument_gpu.report.document import document_of
from pyinstrument_gpu.report.json_text import MOST_ROWS, json_text
from pyinstrument_gpu.report.one_step import step_document

if TYPE_CHECKING:
    from pyinstrument_gpu.job.job import Job
    from pyinstrument_gpu.job.report import JobDocument
    from pyinstrument_gpu.page.redaction import Redaction


@click.command()
@click.argument("given", metavar="[RUN...]", nargs=-1)
@click.option("--step", type=int, metavar="N", help="Show only the step with index N.")
@click.option(
    "-v", "--verbose", is_flag=True, help="Show everything that is known, in full tables."
)
@click.option(
    "--rank", type=int, metavar="N", help="Of the ranks of a job, show only the run of rank N."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one line of JSON per RUN, or for the job, not tables.",
)
@click.option(
    "--all-rows",
    is_flag=True,
    help=f"With --json: keep lists whole.  [default: their first {MOST_ROWS} rows]",
)
@click.option(
    "--section",
    "sections",
    multiple=True,
    metavar="NAME",
    help="With --json: print only this member, such as steps, phases, savings or startup, in at "
    "most 4 KiB. May be repeated.",
)
@click.option(
    "--phase",
    metavar="PATH",
    help="With --json: print only what is known of this phase and those inside it, likewise.",
)
@click.option(
    "--html",
    "as_html",
    is_flag=True,
    help="Write one HTML file with all RUNs, which opens without a network.",
)
@click.option(
    "--public",
    "is_public",
    is_flag=True,
    help="With --html: leave out hosts, users, and paths above the project.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="The file that --html writes.  [default: the first RUN with the suffix .html]",
)
def report(
    given: tuple[str, ...],
    step: int | None,
    verbose: bool,
    rank: int | None,
    as_json: bool,
    all_rows: bool,
    sections: tuple[str, ...],
    phase: str | None,
    as_html: bool,
    is_public: bool,
    output: str | None,
) -> None:
    """Show where the time of each step went.

    A RUN may also be a folder, which stands for the run files in it, or a program, which stands for
    its newest run in the working directory. Without any, it is the newest run there. Of several
    ranks of one job, the report is that of the job: which rank the others wait for, and in which
    phase.
    """
    given = with_newest(given)
    if all_rows and not as_json:
        raise click.UsageError("--all-rows is for --json; tables say what they leave out")
    if (sections or phase is not None) and not as_json:
        raise click.UsageError("--section and --phase are for --json")
    if output is not None and not as_html:
        raise click.UsageError("--output is for --html")
    if is_public and not as_html:
        raise click.UsageError("--public is for --html")
    if as_html and (as_json or step is not None):
        raise click.UsageError("--html can't be combined with --json or --step")
    paths, earlier = found_runs(given)
    line_of = partial(
        json_text, most_rows=None if all_rows else MOST_ROWS, sections=sections, phase=phase
    )
    if rank is not None:
        paths = [_path_of_rank(given, rank)]
    elif step is None and are_of_a_job(given, paths):
        write = partial(_write_page, first=paths[0], output=output)
        _report_job(given, line_of if as_json else None, write if as_html else None, is_public)
        return
    say_what_is_left_out(earlier)
    names: list[str] = []
    runs: list[Run] = []
    unreadable: dict[str, str] = {}
    for path in paths:
        name = click.format_filename(path)
        try:
            run = Run.load(path)
        except RunFileError as error:
            unreadable[path] = str(error)
            continue
        if not (run.complete or run.duration_ns or run.phases):
            unreadable[path] = f"{path}: cut off or damaged: nothing that was recorded can be read"
            continue
        runs.append(run)
        names.append(name)
        twice = same_run_twice(runs, names)
        if twice is not None:
            raise click.ClickException(twice)
        if as_html:
            continue
        try:
            if as_json:
                found = document_of(run, name) if step is None else step_document(run, step, name)
                text = line_of(found)
            else:
                text = run.report(step=step, verbose=verbose, file=name)
        except KeyError as error:
            raise click.ClickException(f"{name}: {error.args[0]}") from error
        if len(paths) > 1 and not as_json:
            print(f"=== {name}" if len(runs) == 1 else f"\n=== {name}")
        print(text)
    if as_html and runs:
        redaction = _redaction([run.environment for run in runs]) if is_public else None
        _write_page(runs, names, None, redaction, first=paths[0], output=output)
    _say_left_out(unreadable, is_error=not runs or not unreadable.keys().isdisjoint(given))


def _say_left_out(unreadable: Mapping[str, str], is_error: bool) -> None:
    """Say which run files can't be read. That is an error if one was named, or there is no other.
    In a folder there may be files of long ago."""
    sentences = left_out(unreadable)
    if is_error and sentences:
        raise click.ClickException("\n".join(sentences).removeprefix("left out: "))
    for sentence in sentences:
        print(sentence, file=sys.stderr)


# What jobs need is imported where it is used: the report of a single run should not wait for it.


def _path_of_rank(given: Sequence[str], rank: int) -> str:
    from pyinstrument_gpu.job.job import Job

    return _file_of_rank(Job.load(given), rank)


def _report_job(
    given: Sequence[str],
    line_of: Callable[[JobDocument], str] | None,
    write: Callable[[Sequence[Run], Sequence[str], JobDocument, Redaction | None], None] | None,
    is_public: bool,
) -> None:
    from pyinstrument_gpu.job.job import Job
    from pyinstrument_gpu.job.report import job_document_of, job_report

    job = Job.load(given)
    redaction = None
    if is_public:
        redaction = _redaction([rank.environment for rank in job.ranks])
        changed = [
            replace(rank, environment=redaction.facts(rank.environment)) for rank in job.ranks
        ]
        job = replace(job, ranks=tuple(changed))
    document = job_document_of(job)
    if write is not None:
        from pyinstrument_gpu.page.job_view import ranks_on_page

        ranks = ranks_on_page(document)  # of many ranks, the few that matter
        files = [click.format_filename(_file_of_rank(job, rank)) for rank in ranks]
        write([job.run(rank) for rank in ranks], files, document, redaction)
        return
    try:
        print(job_report(document) if line_of is None else line_of(document))
    except KeyError as error:
        raise click.ClickException(error.args[0]) from error


def _file_of_rank(job: Job, rank: int) -> str:
    file = next((found.file for found in job.ranks if found.rank == rank), None)
    if file is None:
        reason = job.missing.get(rank, f"the job has {job.world_size} ranks")
        raise click.ClickException(f"there is no run of rank {rank}: {reason}")
    return file


def _write_page(
    runs: Sequence[Run],
    files: Sequence[str],
    document: JobDocument | None = None,
    redaction: Redaction | None = None,
    *,
    first: str,
    output: str | None,
) -> None:
    """Write the page of runs, beside the first run file without `output`."""
    from pyinstrument_gpu.page.page import html_page, page_beside, write_page

    beside = Path(first)
    if redaction is not None:
        runs = list(map(redaction.run, runs))
        files = list(map(os.path.basename, files))
        beside = beside.with_suffix(".public.gpurun")
    page = page_beside(beside) if output is None else Path(output)
    write_page(html_page(runs, files, document, redaction), page)
    print(f"Page: {click.format_filename(page)}")


def _redaction(environments: Iterable[Mapping[str, Any]]) -> Redaction:
    from pyinstrument_gpu.page.redaction import Redaction

    return Redaction(environments)
