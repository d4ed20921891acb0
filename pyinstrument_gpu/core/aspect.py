# SPDX-License-Identifier: Apache-2.0
"""The interface of an aspect: something that is recorded besides phases and steps, such as memory.

The reader, the writer, `Run`, the report, its JSON, the page and `watch` go over `aspects()` and
name none of them. An aspect is a folder of `pyinstrument_gpu/aspects` and a row of its table.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, cast

from pyinstrument_gpu import plugins
from pyinstrument_gpu.core.file.json_document import decode_object

if TYPE_CHECKING:  # what only reads runs needs no pictures
    from pyinstrument_gpu.core.cause import Cause
    from pyinstrument_gpu.core.file.blocks import BlockType
    from pyinstrument_gpu.core.file.found import Found
    from pyinstrument_gpu.core.live import LiveView
    from pyinstrument_gpu.core.record import SourceLine
    from pyinstrument_gpu.core.statistics import Scope
    from pyinstrument_gpu.parts.parts import Curves, Flame, Part


RunT = TypeVar("RunT")
"""A `Run`, which this file can't import, as runs are made of aspects."""
SectionData = TypeVar("SectionData")


class ReportedRun(Protocol):
    """The document of a whole report, as far as the text of a section depends on it."""

    @property
    def step_count(self) -> int: ...

    @property
    def duration_ns(self) -> int: ...


class Aspect(Generic[RunT, SectionData]):
    """A thing that is recorded: what a run holds of it, how that is read, and what is said of it.

    An aspect overrides what it has something to say to. Its objects hold no state. It names the
    types of runs and of its section: `class Memory(Aspect[Run, MemoryUse])`.

    Attributes:
        name: of its section, as JSON and the page have it.
        heading: of its section on the page; its name if empty.
        section_type: what `section` makes, as the JSON Schema describes it.
        about: what its section is about, for the schema.
        live: what `watch` shows of it; None if that is nothing.
        comes_first: whether the short report has it before other lines, as somebody asked for it.
        in_preview: whether its section is shown of a preview, whose times are not the program's.
        most_rows: so many rows of each list of its section stand in JSON at most, unless all are
            asked for; None for as many as of other lists.
    """

    name: ClassVar[str]
    section_type: ClassVar[Any] = None
    heading: ClassVar[str] = ""
    about: ClassVar[str] = ""
    live: ClassVar[LiveView[Any, Any] | None] = None
    comes_first: ClassVar[bool] = False
    in_preview: ClassVar[bool] = True
    most_rows: ClassVar[int | None] = None

    def attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return this aspect's entries of a `Run`, by the names of its attributes.

        Args:
            given: the arguments of a `Run`. What is not among them was not recorded.
        """
        return {}

    def profiled_steps(self, given: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
        """Steps that it has slowed, as pairs of the first and the last index."""
        return ()

    def read(self, found: Found) -> dict[str, Any]:
        """The arguments of a `Run` that it has in a run file."""
        return {}

    def take_out(self, run: dict[str, Any], found: Found) -> None:
        """Remove this aspect's entries from the phases in the arguments of a `Run`."""

    def join_history(self, run: RunT, earlier: RunT) -> None:
        """Give a run what only an earlier copy of it still holds; see `Run.with_history_of`."""

    def section(self, run: RunT) -> SectionData | None:
        """Return the aspect's section of a report as plain data; None or empty for nothing."""
        return None

    def parts(self, section: SectionData, document: ReportedRun) -> Iterable[Part]:
        """The section in sentences and tables.

        Args:
            section: as `section` made it; neither None nor empty.
            document: of the whole run.
        """
        return ()

    def summary(self, section: SectionData, document: ReportedRun) -> Iterable[Part]:
        """The section in a line or two, for the report that a run prints by itself; nothing where
        there is nothing that most readers would want to know. Arguments are as in `parts`."""
        return ()

    def share_of_run(self, section: SectionData, document: ReportedRun) -> float:
        """Return the share of the elapsed time that `summary` is about, if it is about one."""
        return 0.0

    def first_parts(self, section: SectionData) -> Iterable[Part]:
        """Return what matters so much that it stands before everything else."""
        return ()

    def failures(self, run: RunT) -> Iterable[Any]:
        """Yield what went wrong, as findings of the analysis, which a report has before others, and
        doubts and guides of the aspect's own."""
        return ()

    def warnings(self, run: RunT) -> Iterable[str]:
        """Yield what changes how all other times of the run are to be read, in sentences."""
        return ()

    def verdict(self, section: SectionData) -> str | None:
        """Return the run's verdict in a sentence, if this aspect decides it."""
        return None

    def in_steps(self, section: SectionData) -> str | None:
        """Return what steps do besides the program's own work, with its share of their time, if so
        much that their mean says little without it."""
        return None

    def where(self, run: RunT, scope: Scope, phase: str | None) -> str | None:
        """Return where in the program the time of a phase goes, in a clause for the verdict, such
        as "92% of it in hook (train.py:10)".

        Args:
            scope: `Scope.STEP` or `Scope.OUTSIDE`.
            phase: its path; None for what lies outside phases.
        """
        return None

    def lines(self, run: RunT) -> Iterable[tuple[str, SourceLine]]:
        """Lines of the program that it is about, each with a title."""
        return ()

    def curves(self, run: RunT) -> Iterable[Curves]:
        """Return curves of values over the steps of a run, for pictures."""
        return ()

    def flames(self, run: RunT) -> Iterable[Flame]:
        """Flame graphs of it, one below the other."""
        return ()

    def causes(self, run: RunT) -> Iterable[Cause]:
        """Return the causes that may have made steps slow, and when. A cause of which nothing was
        recorded is not among them; one that was looked for and not found is, without entries."""
        return ()

    def unknown(self, run: RunT) -> Iterable[str]:
        """Yield what was not recorded, in sentences that say how it would be."""
        return ()


class DocumentAspect(Aspect[RunT, SectionData]):
    """An aspect of which a run file has a document, and a `Run` what that says, by its name.

    Attributes:
        document: its declaration, a struct of msgspec: the types of its fields, and their ranges.
        noted: what it tells of, for the note of a run whose document is damaged.
        block: of the file, if it has one of its own.
        written_as: the name of its document, if the file has it by another name.
        missing: what a `Run` has where there is no document.
    """

    document: ClassVar[Any]
    noted: ClassVar[str]
    block: ClassVar[BlockType | None] = None
    written_as: ClassVar[str] = ""
    missing: ClassVar[Any] = None

    def attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        known = given.get(self.name)
        return {self.name: self.missing if known is None else known}

    def read(self, found: Found) -> dict[str, Any]:
        where = (self.written_as or self.name) if self.block is None else self.block
        what = f"what was noted of {self.noted}"
        return {self.name: found.document(where, what, lambda data: self.decode(data, found))}

    def decode(self, data: bytes, found: Found) -> Any:
        """Decode the aspect's part of a `Run`.

        Raises:
            RunFileDamagedError: the document does not fit.
        """
        return decode_object(data, self.name, self.document)


@cache
def aspects() -> tuple[Aspect[Any, Any], ...]:
    """Return the aspects in the order in which a report shows them, those of plug-ins last.

    Their table is found by its name, as what it lists builds on this package.
    """
    rows = importlib.import_module("pyinstrument_gpu.aspects.table").ASPECTS
    own = [importlib.import_module(f"{row.package}.aspect").ASPECT for row in rows]
    names = {one.name for one in own}
    added = plugins.load_all("aspects", _is_aspect, "aspect:ASPECT")
    guarded = [
        plugins.Guarded(name, one, _LeftOut(one.name))
        for name, one in added
        if one.name not in names
    ]
    return (*own, *cast("list[Aspect[Any, Any]]", guarded))


def where_in_program(run: Any, scope: Scope, phase: str | None) -> str:
    """Return where the time of a phase goes, in parentheses behind a space; "" where no aspect
    knows. See `Aspect.where`."""
    found = (one.where(run, scope, phase) for one in aspects())
    return next((f" ({where})" for where in found if where), "")


class _LeftOut(Aspect[Any, Any]):
    """Stands for the aspect of a plug-in that is broken: what a run holds of it is not shown."""

    def __init__(self, name: str) -> None:
        self._name = name

    def attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {self._name: given.get(self._name)}


def _is_aspect(found: object) -> bool:
    return isinstance(found, Aspect)


def live_views() -> list[LiveView[Any, Any]]:
    """Return the views of aspects that `watch` shows, in its order."""
    views = [aspect.live for aspect in aspects() if aspect.live is not None]
    return sorted(views, key=lambda view: view.place)


def profiled_ranges(given: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """The steps of a run with these arguments that an aspect has slowed; see `profiled_steps`."""
    return tuple(steps for aspect in aspects() for steps in aspect.profiled_steps(given))
