# SPDX-License-Identifier: Apache-2.0
"""The report of a whole run: where its steps went, what else ran, and what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Part, Sentence
from pyinstrument_gpu.report.console import for_terminal, terminal_width
from pyinstrument_gpu.report.device_times import device_parts
from pyinstrument_gpu.report.document import Document, document_of
from pyinstrument_gpu.report.findings import guides_parts
from pyinstrument_gpu.report.notes import notes_parts
from pyinstrument_gpu.report.one_step import one_step, step_document
from pyinstrument_gpu.report.phases import other_threads_parts, per_call_parts
from pyinstrument_gpu.report.recorder import recorder_parts
from pyinstrument_gpu.report.run_info import heading
from pyinstrument_gpu.report.savings import savings_parts
from pyinstrument_gpu.report.slow_steps import slow_parts
from pyinstrument_gpu.report.steps import outside_parts, steps_parts
from pyinstrument_gpu.report.summary import summary
from pyinstrument_gpu.report.time_budget import time_budget_parts


def _always(of: Document) -> bool:
    return True


def _has_times(of: Document) -> bool:
    """Return whether there are times: those of a preview are not the program's."""
    return not of.run.is_preview


def _has_steps(of: Document) -> bool:
    return _has_times(of) and of.steps is not None


class Section(NamedTuple):
    """A part of the report that is not of an aspect.

    Attributes:
        name: what it is about.
        parts: its sentences and tables, none if there is nothing to say.
        when: of which documents it is.
    """

    name: str
    parts: Callable[[Document], Iterable[Part]]
    when: Callable[[Document], bool] = _always

    def parts_of(self, document: Document) -> list[Part]:
        return list(self.parts(document)) if self.when(document) else []


def _phases(of: Document) -> Iterator[Part]:
    phases = of.phases_without_steps
    if of.steps is not None:
        yield from steps_parts(of.steps, of.phases)
    elif phases:
        yield Sentence()
        yield Sentence("No step ended. Times per call, over the whole run", "title")
        yield from per_call_parts(phases)
    else:
        yield from (Sentence(), Sentence("No phase ended."))


SECTIONS = (
    Section("heading", lambda of: heading(of.run, of.step_words, of.verdict)),
    Section("phases", _phases, _has_times),
    Section("device", device_parts, _has_times),
    Section("time_budget", lambda of: time_budget_parts(of.time_budget, of.steps), _has_steps),
    Section("slow steps", lambda of: slow_parts(of.slow_steps), _has_steps),
    Section("savings", lambda of: savings_parts(of.savings, of.findings), _has_steps),
    Section("guides", lambda of: guides_parts(of.guides, of.findings), _has_steps),
    Section(
        "other threads", lambda of: other_threads_parts(of.phases_on_other_threads), _has_steps
    ),
    Section(
        "outside",
        lambda of: outside_parts(of.steps, of.phases_outside, of.run.duration_ns),
        _has_steps,
    ),
)
"""Those before the sections of aspects."""
LAST_SECTIONS = (
    Section("notes", lambda of: notes_parts(of.notes)),
    Section("recorder", lambda of: recorder_parts(of.recorder)),
)


def report(
    run: Run,
    *,
    step: int | None = None,
    verbose: bool = False,
    file: str | None = None,
    width: int | None = None,
    color: bool | None = None,
) -> str:
    """The report of a run, or of one of its steps.

    Args:
        run: the run.
        step: index of the one step to show; None shows the whole run.
        verbose: whether to show all sections in full, rather than what fits on a screen.
        file: the run's file, for the commands that it names.
        width, color: as in `for_terminal`.

    Raises:
        KeyError: there is no such step, or its spans are no longer kept.
    """
    if step is not None:
        return for_terminal(one_step(step_document(run, step)), width, color)
    document, width = document_of(run, file), terminal_width(width)
    parts = overview(document) if verbose else summary(document, width)
    return for_terminal(parts, width, color)


def overview(document: Document) -> list[Part]:
    """The parts of the report of a whole run."""
    return [part for parts in sections(document).values() for part in parts]


def sections(document: Document) -> dict[str, list[Part]]:
    """The parts of the report by what they are about, in order."""
    recorded = {one: document.sections.get(one.name) for one in aspects()}
    recorded = {aspect: section for aspect, section in recorded.items() if section}
    first = [part for aspect, section in recorded.items() for part in aspect.first_parts(section)]
    of_aspects = {
        aspect.name: list(aspect.parts(section, document))
        for aspect, section in recorded.items()
        if aspect.in_preview or not document.run.is_preview
    }
    return {
        "first": first,
        **{one.name: one.parts_of(document) for one in SECTIONS},
        **of_aspects,
        **{one.name: one.parts_of(document) for one in LAST_SECTIONS},
    }
