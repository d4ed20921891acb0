# SPDX-License-Identifier: Apache-2.0
"""What each renderer shows of the programs, jobs and endings that tests know."""

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from html.parser import HTMLParser
from typing import Any

from rich.console import Console

from pyinstrument_gpu.analysis.compare import Comparison, compare
from pyinstrument_gpu.core.condition import Condition
from pyinstrument_gpu.core.file.state import DeviceTimingSummary, State
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.export import FORMATS
from pyinstrument_gpu.job.ending_report import JobEnding, ending_report
from pyinstrument_gpu.job.report import job_report
from pyinstrument_gpu.page.page import comparison_page, html_page
from pyinstrument_gpu.parts.choice import Choice
from pyinstrument_gpu.report.comparison import comparison_facts, comparison_report
from pyinstrument_gpu.report.document import document_of
from pyinstrument_gpu.report.json_text import json_text
from pyinstrument_gpu.report.one_step import step_document
from pyinstrument_gpu.version import __version__
from pyinstrument_gpu.watch.heartbeat import Heartbeat
from pyinstrument_gpu.watch.live_run import LiveRun, json_of, live_run
from pyinstrument_gpu.watch.views import VIEWS, heading
from tests.helpers.watched import running
from tests.job.endings import ENDINGS
from tests.job.jobs import JOBS, MadeJob, one_late
from tests.page.runs import STEP_NS, training
from tests.report.programs import RUNS, with_everything, with_lost_loss, without_memory

_TABLES = ("spans", "summary", "steps", "metrics", "syncs", "modules")
_LINE_LENGTH = 160
_CELLS = ("td", "th")
_INSIDE_LINES = ("a", "b", "code", "em", "i", "span", "strong", "text", "title", "tspan")


def _with_everything(steps: int, layers: int) -> Run:
    run = with_everything(training([STEP_NS] * steps), layers)
    run.environment |= {"version": "1.2.3"}
    run.environment["overhead"] = {"phase_ns": 50.0, "step_ns": 200.0}
    run.device_timing = DeviceTimingSummary(1, 200, 300_000)
    return run


_RUNS: Mapping[str, Callable[[], Run]] = {
    **{name: RUNS[name] for name in ("nothing", "off", "no steps")},
    "common": cache(lambda: training([STEP_NS] * 30, environment={"host": "box"})),
    "all": cache(lambda: _with_everything(50, 12)),
    "few steps": cache(lambda: _with_everything(3, 1)),
    "out of memory": cache(lambda: without_memory(training([STEP_NS] * 8))),
    "diverged": cache(lambda: with_lost_loss(training())),
}
"""Made by hand, because what is recorded differs by some nanoseconds each time."""


def pretty(value: Any, indent: str = "") -> str:
    """JSON in lines that a comparison can show: what fits a line stands in one."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + len(indent) <= _LINE_LENGTH or not isinstance(value, (dict, list)):
        return line
    deeper = f"{indent} "
    if isinstance(value, dict):
        inner = [f"{json.dumps(key)}: {pretty(of, deeper)}" for key, of in value.items()]
    else:
        inner = [pretty(of, deeper) for of in value]
    opened, closed = "{}" if isinstance(value, dict) else "[]"
    return f"{opened}\n{deeper}" + f",\n{deeper}".join(inner) + f"\n{indent}{closed}"


def document_json(document: Any) -> str:
    return pretty(json.loads(json_text(document, most_rows=None)))


class _Page(HTMLParser):
    """The text that a page shows, a line for each block, and the data for its script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._hidden = self._cell = ""
        self._text: list[str] = []
        self.scripts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style"):
            self._hidden = tag
        if tag in _CELLS:
            self._cell = tag
        self._text.append(" | " if tag in _CELLS else self._between(tag))
        self._text += [f"[{of}]" for name, of in attrs if name == "title" and of]

    def handle_endtag(self, tag: str) -> None:
        if tag in (self._hidden, self._cell):
            self._hidden = self._cell = ""
        else:
            self._text.append(self._between(tag))

    def _between(self, tag: str) -> str:
        if tag in _INSIDE_LINES:
            return ""
        return " " if self._cell else "\n"

    def handle_data(self, data: str) -> None:
        if self._hidden == "script":
            self.scripts.append(data)
        elif not self._hidden:
            self._text.append(re.sub(r"\s+", " ", data))

    @property
    def text(self) -> str:
        lines = (re.sub(r" +", " ", line).strip() for line in "".join(self._text).split("\n"))
        return "\n".join(filter(None, lines))


def page_text(page: str) -> str:
    text = _Page(page).text
    return text.replace(f"pyinstrument_gpu {__version__}", "pyinstrument_gpu VERSION")


def page_data(page: str) -> str:
    return pretty(json.loads(_Page(page).scripts[0]))


def exported(run: Run, format: str, table: str = "spans") -> str:
    options = {} if table == "spans" else {table: True}
    sink = io.BytesIO()
    FORMATS[format].write([run], sink, advance=lambda spans: None, **options)
    return sink.getvalue().decode().replace("\r\n", "\n")


def _compared() -> tuple[Comparison, Sequence[Run], Sequence[Run], list[str]]:
    before, after = (
        [training([step_ns + noise] * 4) for noise in (0, 1_000, 2_000)]
        for step_ns in (STEP_NS, STEP_NS // 2)
    )
    return compare(before, after), before, after, [f"{side}.gpurun" for side in "abcdef"]


def _job_page() -> str:
    document = one_late().document()
    runs = [training([STEP_NS] * 2, environment={"rank": rank, "world_size": 4}) for rank in (0, 3)]
    return html_page(runs, ["job.rank0.gpurun", "job.rank3.gpurun"], document)


def _of_runs() -> Iterator[tuple[str, Callable[[], str]]]:
    for name, made in _RUNS.items():

        def page(made: Callable[[], Run] = made) -> str:
            return page_text(html_page([made()], ["train.gpurun"]))

        def document(made: Callable[[], Run] = made) -> str:
            return document_json(document_of(made(), "train.gpurun"))

        def report(made: Callable[[], Run] = made) -> str:
            return made().report(verbose=True, width=80, color=False)

        yield f"{name}/page.txt", page
        yield f"{name}/report.json", document

        def summary(made: Callable[[], Run] = made) -> str:
            return made().report(file="train.gpurun", width=80, color=False)

        yield f"{name}/report.txt", report
        yield f"{name}/summary.txt", summary


def _of_few_steps() -> Iterator[tuple[str, Callable[[], str]]]:
    run = _RUNS["few steps"]
    yield "few steps/step.txt", lambda: run().report(step=1, width=80, color=False)
    yield "few steps/step.json", lambda: document_json(step_document(run(), 1))
    yield "few steps/page.json", lambda: page_data(html_page([run()], ["train.gpurun"]))
    yield "few steps/perfetto.json", lambda: pretty(json.loads(exported(run(), "perfetto")))
    for table in _TABLES:
        yield f"few steps/{table}.csv", partial(lambda name: exported(run(), "csv", name), table)


def _of_jobs() -> Iterator[tuple[str, Callable[[], str]]]:
    for name, made in JOBS.items():

        def report(made: Callable[[], MadeJob] = made) -> str:
            return job_report(made().document(), width=80, color=False)

        def document(made: Callable[[], MadeJob] = made) -> str:
            return pretty(json.loads(json_text(made().document())))

        yield f"job {name}/report.txt", report
        yield f"job {name}/report.json", document
    yield "job one late/page.txt", lambda: page_text(_job_page())
    yield "job one late/page.json", lambda: page_data(_job_page())


def _of_endings() -> Iterator[tuple[str, Callable[[], str]]]:
    for name, made in ENDINGS.items():

        def report(made: Callable[[], JobEnding] = made) -> str:
            return ending_report(made(), width=80, color=False)

        def document(made: Callable[[], JobEnding] = made) -> str:
            return document_json(made())

        yield f"ending {name}/report.txt", report
        yield f"ending {name}/report.json", document


def _of_comparison() -> Iterator[tuple[str, Callable[[], str]]]:
    yield "comparison/report.txt", lambda: comparison_report(_compared()[0])
    yield "comparison/report.json", lambda: pretty(comparison_facts(_compared()[0]))
    yield "comparison/page.txt", lambda: page_text(comparison_page(*_compared()))
    yield "comparison/page.json", lambda: page_data(comparison_page(*_compared()))


def _of_watch() -> Iterator[tuple[str, Callable[[], str]]]:
    for name, made in (("steps", running), ("everything", _RUNS["all"])):

        def look(made: Callable[[], Run] = made) -> LiveRun:
            sign = Heartbeat(Condition.RUNNING, "running in step 5", 0, False)
            return live_run("train.gpurun", made(), State(), sign)

        def document(look: Callable[[], LiveRun] = look) -> str:
            return pretty(json.loads(json.dumps(json_of(look()))))

        def screen(look: Callable[[], LiveRun] = look) -> str:
            run, console = look(), Console(file=io.StringIO(), width=80)
            with console.capture() as capture:
                console.print(heading(run, 80))
                for view in VIEWS:
                    console.print(f"\n{view.name}")
                    console.print(view.render(run, [run], Choice(view.sorts[0]), 78))
            return "\n".join(line.rstrip() for line in capture.get().splitlines())

        yield f"watch {name}/look.json", document
        yield f"watch {name}/screen.txt", screen


SHOWN: Mapping[str, Callable[[], str]] = {
    name.replace(" ", "-"): show
    for part in (_of_runs, _of_few_steps, _of_jobs, _of_endings, _of_comparison, _of_watch)
    for name, show in part()
}
"""What is shown, by the file in which it is kept."""
