# SPDX-License-Identifier: Apache-2.0
"""The HTML file: its words, its data, its script and its style in one text.

Names come from run files, which strangers may have made. They are escaped where they are written:
by the templates, and in the data for the script, which holds no "<". The page allows itself no
connection and no script but its own, which it names by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyinstrument_gpu.analysis.compare import Comparison
from pyinstrument_gpu.atomic_file import atomic_write
from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.core.file.run_files import check_replaceable
from pyinstrument_gpu.core.job_membership import is_of_a_job
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import ExportError, JobError
from pyinstrument_gpu.export.labels import color_of, colors_of
from pyinstrument_gpu.goodput.report import GoodputDocument, goodput_parts, words_of
from pyinstrument_gpu.history.history import HistoryDocument, ProgramRuns
from pyinstrument_gpu.history.report import error_rate
from pyinstrument_gpu.job.gather import job_of, rank_data
from pyinstrument_gpu.job.report import JobDocument, job_document_of
from pyinstrument_gpu.page.bars import css_color
from pyinstrument_gpu.page.comparison_view import comparison_view
from pyinstrument_gpu.page.history_view import history_view
from pyinstrument_gpu.page.job_view import job_view
from pyinstrument_gpu.page.redaction import Redaction
from pyinstrument_gpu.page.rendering import asset, template
from pyinstrument_gpu.page.run_view import run_view
from pyinstrument_gpu.page.step_bar import Piece
from pyinstrument_gpu.page.step_series import MAX_STEPS, step_series
from pyinstrument_gpu.page.timeline import MAX_BARS, timeline
from pyinstrument_gpu.parts.parts import without_blanks
from pyinstrument_gpu.parts.words import duration
from pyinstrument_gpu.version import __version__

_SCRIPTS = ("uPlot.iife.min.js", "timeline.js", "page.js")
_STYLES = ("uPlot.min.css", "bars.css", "page.css")
_LEAST_STEPS = 200
_MARK = '<meta name="generator" content="pyinstrument_gpu'
_HEAD_BYTES = 1_000
"""Of a page, in which the mark stands."""


def html_page(
    runs: Sequence[Run],
    files: Sequence[str],
    job: JobDocument | None = None,
    redaction: Redaction | None = None,
) -> str:
    """The page of one run or more: ranks of a job, or any others side by side.

    It costs the analysis of each run, and looks at each span some twenty times.

    Args:
        files: what the files of the runs are called; empty for a run in memory.
        job: of a job of which these are some ranks; None makes it of the runs, if they can be of
            one job.
        redaction: what all texts of the page pass through.

    Raises:
        MissingDependencyError: jinja2 is not installed.
    """
    sheet = template("report.html.jinja", redaction)  # without jinja2 all else would be in vain
    names = _names(runs, files)
    series = [step_series(run, max(_LEAST_STEPS, MAX_STEPS // len(runs))) for run in runs]
    views = [
        run_view(run, file, name, number, of)
        for number, (run, file, name, of) in enumerate(zip(runs, files, names, series, strict=True))
    ]
    if job is None:
        job = _job_of(runs, files)
    is_together = job is not None and any(run.step_totals.count for run in runs)
    everything = list(range(len(runs)))
    timelines = []
    for numbers in [everything] if is_together else [[number] for number in everything]:
        found = timeline(
            [runs[number] for number in numbers],
            [series[number] for number in numbers],
            MAX_BARS * len(numbers) // len(runs),
        )
        plain = found.plain(numbers, [names[number] for number in numbers])
        timelines.append((found, plain))
    return _written(
        sheet,
        {
            "runs": [data for _, data in views],
            "timelines": [plain for _, plain in timelines],
            "overlaid": [],
        },
        redaction,
        colors=colors_of(*runs),
        title=_title(names, job),
        runs=[view for view, _ in views],
        job=None if job is None else job_view(job, _ranks(runs)),
        is_together=is_together,
        timelines=[found for found, _ in timelines],
    )


def _job_of(runs: Sequence[Run], files: Sequence[str]) -> JobDocument | None:
    """The document of the job of which all runs are ranks; None if they are of none, or of two."""
    if len(runs) < 2 or not all(map(is_of_a_job, runs)):
        return None
    try:
        job = job_of([rank_data(run, file) for run, file in zip(runs, files, strict=True)])
    except JobError:
        return None
    return job_document_of(job)


def _ranks(runs: Sequence[Run]) -> list[int]:
    return [run.environment["rank"] for run in runs if "rank" in run.environment]


def _title(names: Sequence[str], job: JobDocument | None) -> str:
    if job is not None:
        return f"Job of {job.job.world_size:,} ranks"
    return names[0] if len(names) == 1 else f"{len(names)} runs"


def comparison_page(
    comparison: Comparison,
    before: Sequence[Run],
    after: Sequence[Run],
    files: Sequence[str],
) -> str:
    """The page of two sides of runs.

    Args:
        before, after: the runs that were compared, of jobs those of all ranks.
        files: what the files of `before` and then of `after` are called.

    Raises:
        MissingDependencyError: jinja2 is not installed.
    """
    sheet = template("comparison.html.jinja")
    view = comparison_view(comparison, before, after, files)
    return _written(
        sheet,
        {"runs": [], "timelines": [], "overlaid": view["overlaid"]},
        title=(
            f"{comparison.verdict.value}: {len(comparison.elapsed.before_ns)} before, "
            f"{len(comparison.elapsed.after_ns)} after"
        ),
        colors=colors_of(*before, *after),
        view=view,
    )


def life_page(document: GoodputDocument) -> str:
    """The page of a job's life: a band of what its time was spent on, and the report.

    Raises:
        MissingDependencyError: jinja2 is not installed.
    """
    sheet = template("life.html.jinja")
    whole_ns = max(1, document.wall_ns)

    def piece(bucket: str, time_ns: int, text: str) -> Piece:
        color = "var(--panel)" if bucket == "dead" else css_color(color_of(bucket))
        return Piece(words_of(bucket), time_ns / whole_ns, text, color)

    return _written(
        sheet,
        {"runs": [], "timelines": [], "overlaid": []},
        colors={},
        title=f"A job of {len(document.attempts)} attempts",
        document=document,
        parts_of_report=without_blanks(goodput_parts(document)),
        band=[
            piece(
                one.bucket,
                one.duration_ns,
                f"{words_of(one.bucket)}: {duration(one.duration_ns)}, "
                f"from {duration(one.begin_ns)} on",
            )
            for one in document.pieces
        ],
        sums=[
            piece(
                one.bucket,
                one.time_ns,
                f"{words_of(one.bucket)}: {duration(one.time_ns)}, {one.percent:.1f} %",
            )
            for one in document.buckets
            if one.time_ns is not None
        ],
    )


def history_page(document: HistoryDocument, programs: Sequence[ProgramRuns]) -> str:
    """The page of the runs of weeks: what has changed, and the series.

    Args:
        programs: the runs of the document's programs.

    Raises:
        MissingDependencyError: jinja2 is not installed.
    """
    sheet = template("history.html.jinja")
    views = [history_view(*one) for one in zip(document.programs, programs, strict=True)]
    return _written(
        sheet,
        {"runs": [data for _, data in views], "timelines": [], "overlaid": []},
        colors={},
        title=f"{sum(one.runs for one in document.programs):,} runs",
        error_rate=error_rate(document),
        notes=document.notes,
        programs=[view for view, _ in views],
    )


def write_page(text: str, path: str | os.PathLike[str]) -> None:
    """Write a page; what is there is replaced once the new one is whole, but a run file never is.

    Raises:
        ExportError: the path is that of a run file.
    """
    check_replaceable(path)
    with atomic_write(path) as sink:
        sink.write(text.encode("utf-8", "replace"))


def page_beside(run_file: Path) -> Path:
    """Return the default path of a run's page; raises what `check_page` does."""
    return check_page(run_file.with_suffix(".html"))


def check_page(page: Path) -> Path:
    """The path, if nothing is there but a page that was made before.

    Raises:
        ExportError: there is a file that is no such page, and would be replaced.
    """
    if page.is_file():
        with page.open("rb") as file:
            if _MARK.encode() not in file.read(_HEAD_BYTES):
                raise ExportError(
                    f"{str(page)!r} is there and is no page of a run: choose another with --output"
                )
    return page


def _names(runs: Sequence[Run], files: Sequence[str]) -> list[str]:
    """Return names for the runs: their ranks where these are known and differ."""
    ranks = [run.environment.get("rank") for run in runs]
    if len(runs) > 1 and None not in ranks and len(set(ranks)) == len(runs):
        return [f"rank {rank}" for rank in ranks]
    return [file or "Run" for file in files]


def _written(
    sheet: Any, data: dict[str, Any], redaction: Redaction | None = None, **values: Any
) -> str:
    script = "\n".join(asset(name) for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text: str = sheet.render(
        **values,
        aspects=aspects(),
        version=__version__,
        style="\n".join(asset(name) for name in _STYLES),
        script=script,
        script_hash=f"sha256-{digest}",
        licence=asset("uPlot.LICENSE"),
        data=_json(data if redaction is None else redaction.values(data)),
    )
    return text


def _json(value: Any) -> str:
    """JSON that can stand in a script element, where "</script>" or "<!--" would end it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")
