# SPDX-License-Identifier: Apache-2.0
"""The rule by which the text of a report gets its points; it reads what a newcomer reads first.

The headline is the verdict with what is under "Worth trying". Names of files are taken out of it
before words are looked for.

* 2: the headline names the cause, and a line of it or its function where it has any.
* 1: the headline names the right area, or the largest row of the table of phases is it, or else the
  cause is named elsewhere in the report.
* 0: none of this.
* -2: the headline has harmful advice, or its first topic is that of another cause.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TOPICS = {
    "workers": r"more (?:loader )?workers|(?:raise|use|add|set) num_workers|prefetch",
    "garbage": r"garbage collect",
    "checkpoint": r"checkpoint",
    "sync": r"\.item\(\)|\.tolist\(\)|read each value|waits? for the (?:GPU|device)",
    "compile": r"recompil|compilation|compiles? again",
    "faults": r"page fault|fresh memory|MALLOC_",
    "threads": r"set_num_threads|OMP_NUM_THREADS|(?:fewer|too many) threads",
    "evaluation": r"evaluat|validat",
    "logging": r"\blog(?:s|ging)?\b|\bprint",
    "optimizer": r"\bfused\b|\bforeach\b",
    "batch size": r"batch size|larger batch",
    "precision": r"\bAMP\b|\bTF32\b|\bbf16\b|autocast|double precision|float64",
    "padding": r"\bpadd?(?:s|ed|ing)?\b",
    "graph": r"\bgraphs?\b",
    "memory": r"memory (?:grows|of)|\bleak",
    "lock": r"\block\b",
    "GIL": r"\bGIL\b",
    "disk": r"fsync|\bdisk\b",
    "pinning": r"\bpin\w* memory|non_blocking",
}
"""What reports advise, and the words by which it is known. A cause names those that are its own."""

_DENIED = re.compile(
    r"[^.;:,]*\b(?:would not|wouldn't|not help|no help|saves? nothing|is worth an edit)\b[^.;:,]*"
)
_PLACE = re.compile(r"[\w./-]*\.py:(\d+)(?:-(\d+))?|\b[A-Za-z_][\w.]*:(\d+)\b")
_GENERIC = {"main", "train", "forward", "step", "__getitem__", "__init__", "__iter__", "hook"}
_MARK = re.compile(r"# cause\b")


@dataclass(frozen=True)
class Truth:
    """A cause as reports are judged by.

    Attributes:
        words: a regular expression of words of which one has to be there to name the cause; "" if
            its line says it.
        area: a regular expression of its phase or area.
        topics: those that are its own, or true beside it.
        harmful: a regular expression of advice that makes it worse.
        lines, functions: where it is; none for what has no place in the program.
    """

    words: str
    area: str
    topics: Sequence[str] = ()
    harmful: str = ""
    lines: frozenset[int] = frozenset()
    functions: frozenset[str] = frozenset()


def places(program: Path) -> tuple[frozenset[int], frozenset[str]]:
    """Return the lines that a program marks with "# cause", and the functions that they are in."""
    text = program.read_text()
    lines = frozenset(
        number for number, line in enumerate(text.splitlines(), 1) if _MARK.search(line)
    )
    statements = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt) and not hasattr(node, "body")
    ]
    # A statement over several lines is one place: of which of them a report speaks is the
    # interpreter's.
    lines |= {
        line
        for one in statements
        for number in lines
        if one.lineno <= number <= (one.end_lineno or 0)
        for line in range(one.lineno, (one.end_lineno or 0) + 1)
    }
    functions = set()
    for number in lines:
        around = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef) and node.lineno <= number <= (node.end_lineno or 0)
        ]
        functions |= {node.name for node in around[-1:]}
    return lines, frozenset(functions - _GENERIC)


def unmarked(program: Path) -> str:
    """Return the text of a program without its marks, which reports might quote."""
    return re.sub(rf"[ ]*{_MARK.pattern}.*", "", program.read_text())


def headline(report: str) -> str:
    """Return the verdict and what is worth trying, on one line."""
    lines = report.splitlines()
    start = next(
        (number for number, line in enumerate(lines) if re.match(r"\S+\.py, ", line)), None
    )
    if start is None:
        return ""
    blocks: list[list[str]] = [[]]
    for line in lines[start:]:
        if line.strip():
            blocks[-1].append(line.strip())
        elif blocks[-1]:
            blocks.append([])
    first = " ".join(blocks[0])
    # The title ends with what the run ran on, and the verdict begins with a sentence.
    title = re.match(
        r"\S+\.py, .*?(?:no GPU|GPUs?\b[^.]*?)(?:, \d+ loader workers?)?(?= [A-Z\d!]|$)", first
    )
    verdict = first[title.end() :].strip() if title else first
    worth = [block for block in blocks if block and block[0].startswith("Worth trying")]
    return " ".join([verdict, *(" ".join(block) for block in worth)])


def first_advice(report: str) -> str:
    """Return what a headline says first without its numbers: the first advice, or where there is
    none, the phase that it names."""
    text = headline(report)
    worth = re.search(r"Worth trying 1\. (.*?)(?:: | \()", text)
    phase = re.search(r"of which (?:the host spends )?\S+ (?:in )?(\w+(?: \w+ phases)?)", text)
    return worth[1] if worth else phase[1] if phase else text.partition(":")[0]


def largest_phase(report: str) -> str:
    """Return the name of the largest row of the table of phases, "" without one."""
    rows: list[tuple[float, str]] = []
    is_table = False
    for line in report.splitlines():
        if re.match(r"(?:ns|us|ms|s) per step\b", line):
            is_table = True
        elif is_table and not line.strip():
            break
        elif is_table and (row := re.match(r"\s*(?!step )(\S.*?)\s{2,}([\d.,]+)", line)):
            rows.append((float(row[2].replace(",", "")), row[1]))
    return max(rows, default=(0.0, ""))[1]


def is_named(truth: Truth, text: str) -> bool:
    """Return whether the text names the cause and, if it has a place, its place."""
    return _where_named(truth, text) is not None


def _where_named(truth: Truth, text: str) -> int | None:
    plain = _without_places(text)
    words = re.search(truth.words, plain, re.IGNORECASE)
    if words is None:
        return None
    if not truth.lines and not truth.functions:
        return words.start()
    found = []
    for place in _PLACE.finditer(text):
        low = int(place[1] or place[3])
        high = int(place[2] or low)
        if any(low <= line <= high for line in truth.lines):
            found.append(place.start())
    for function in truth.functions:
        found += [place.start() for place in re.finditer(rf"\b{function}\b", text)]
    if not found:
        return None
    return min(*found, words.start()) if truth.words else min(found)


def _without_places(text: str) -> str:
    """The text with names of files and functions, and what is denied, blanked out."""
    for pattern in (_PLACE, _DENIED):
        text = pattern.sub(lambda match: " " * len(match[0]), text)
    return text


def points(truth: Truth, report: str) -> int:
    text = headline(report)
    plain = _without_places(text)
    if truth.harmful and re.search(truth.harmful, plain, re.IGNORECASE):
        return -2
    named = _where_named(truth, text)
    for topic, pattern in TOPICS.items():
        other = None if topic in truth.topics else re.search(pattern, plain)
        if other is not None and (named is None or other.start() < named):
            return -2
    if named is not None:
        return 2
    area = re.compile(truth.area, re.IGNORECASE)
    has_area = area.search(plain) or area.search(largest_phase(report))
    return 1 if has_area or is_named(truth, report) else 0
