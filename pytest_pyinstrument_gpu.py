# SPDX-License-Identifier: Apache-2.0
"""The pytest fixture `training_benchmark`: a test that training did not become slower.

pytest loads this module in every run, whether or not a test uses the fixture. So it lies beside the
package and imports nothing of it before a test does.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyinstrument_gpu.gate.gate import GateResult
    from pyinstrument_gpu.gate.sides import Side

_PROPERTY = "training_benchmark"
_FEWEST_RUNS = 3
_COLUMNS = ("result", "change", "interval", "runs", "can show")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("training_benchmark", "training benchmarks of pyinstrument_gpu")
    group.addoption(
        "--training-benchmark-runs",
        type=_number_of_runs,
        metavar="N",
        help="run each side N times before the first look (default: 5, or what the test says)",
    )
    group.addoption(
        "--training-benchmark-max-runs",
        type=_number_of_runs,
        metavar="N",
        help="run each side up to N times while the result is unclear (default: 3 times the runs)",
    )
    group.addoption(
        "--training-benchmark-strict",
        action="store_true",
        help="fail tests whose result is unclear",
    )
    group.addoption(
        "--training-benchmark-skip",
        action="store_true",
        help="skip tests that use training_benchmark",
    )


def _number_of_runs(text: str) -> int:
    if not text.isdecimal() or int(text) < _FEWEST_RUNS:
        raise argparse.ArgumentTypeError(f"must be {_FEWEST_RUNS} or more, got {text!r}")
    return int(text)


@pytest.fixture
def training_benchmark(request: pytest.FixtureRequest, tmp_path: Path) -> TrainingBenchmark:
    """Fails the test if training is slower than a baseline, which runs in turn with it:
    `training_benchmark(train, baseline=old_train)`."""
    if request.config.getoption("--training-benchmark-skip"):
        pytest.skip("--training-benchmark-skip")
    return TrainingBenchmark(request, tmp_path)


class TrainingBenchmark:
    """What the fixture `training_benchmark` is."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._request = request
        self._folder = folder
        self._count = 0

    def __call__(
        self,
        candidate: Callable[[], object] | str | Sequence[str],
        *,
        baseline: Callable[[], object] | str | Sequence[str] | os.PathLike[str],
        steps: int | None = None,
        runs: int | None = None,
        max_runs: int | None = None,
        fail_if_slower: float = 0.0,
        margin: float | None = None,
        strict: bool = False,
    ) -> GateResult:
        """Run both in turn, and fail the test if the candidate is slower.

        Args:
            candidate: a function that trains, each call of which is a run in this process, or a
                command as of `pyinstrument-gpu gate`, each run of which is a process.
            baseline: a function or command to compare with; for a command also a directory in which
                it runs the old code.
            steps: None if the functions have a loop, whose steps are found. A number if a function
                is one step: it is called as often for each run.
            runs: of each side, before the first look. The option of pytest takes precedence, also
                over a `max_runs` that is less.
            max_runs: of each side at most, while it is unclear. The same holds.
            fail_if_slower: by how many percent the candidate may be slower.
            margin: being slower by so many percent passes, however certain it is.
            strict: whether the test also fails if the result is unclear.

        Returns:
            what was found: `slowdown`, `comparison`, `warnings` and more.

        Raises:
            GateError: a command failed, or the sides can't be compared.
        """
        from pyinstrument_gpu.gate import summary
        from pyinstrument_gpu.gate.gate import DEFAULT_RUNS, Gate, Plan
        from pyinstrument_gpu.native import DISABLED

        if DISABLED:
            pytest.skip("PYINSTRUMENT_GPU in the environment turns recording off")
        option = self._request.config.getoption
        runs = runs or DEFAULT_RUNS
        asked, most = option("--training-benchmark-runs"), option("--training-benchmark-max-runs")
        if asked is not None:
            runs, max_runs = asked, max_runs and max(max_runs, asked)
        elif most is not None:
            runs = min(runs, most)
        plan = Plan(runs, most or max_runs, fail_if_slower)
        if margin is not None:
            plan = dataclasses.replace(plan, margin_percent=margin)
        sides = _sides(candidate, baseline, steps)
        self._count += 1
        folder = self._folder / f"training_benchmark-{self._count}"
        folder.mkdir()
        result = Gate(sides, plan, folder).result()
        row = _row(result)
        self._request.node.user_properties.append((_PROPERTY, row))
        is_unclear = result.slowdown.value == "UNCLEAR"
        if result.is_slower or (is_unclear and (strict or option("--training-benchmark-strict"))):
            pytest.fail(summary.markdown(result), pytrace=False)
        return result


def _sides(candidate: Any, baseline: Any, steps: int | None) -> tuple[Side, Side]:
    from pyinstrument_gpu.gate.sides import CallSide, command_sides

    if callable(candidate) and callable(baseline):
        for function in (baseline, candidate):
            function()  # what only a first call does is no part of the comparison
        return CallSide(baseline, steps), CallSide(candidate, steps)
    if callable(candidate) or callable(baseline):
        raise TypeError(
            "training_benchmark compares two functions, or two commands, and not one of each"
        )
    if steps is not None:
        raise TypeError("`steps` is for functions: the steps of a command are found")
    return command_sides(baseline, candidate)


def _row(result: GateResult) -> dict[str, Any]:
    """What the table at the end shows; plain values, as pytest-xdist has to send them."""
    from pyinstrument_gpu.gate.summary import interval_text
    from pyinstrument_gpu.parts.words import confidence_percent, rounded_percent

    elapsed = result.comparison.elapsed
    effect, interval = elapsed.smallest_effect, "-"
    if elapsed.interval is not None:
        confidence = confidence_percent(result.comparison.confidence)
        interval = f"{interval_text(elapsed)} ({confidence})"
    return {
        "result": result.slowdown.value,
        "change": f"{100 * elapsed.change:+.2f} %",
        "interval": interval,
        "runs": f"2 x {len(elapsed.before_ns)}",
        "can show": "-" if effect is None else rounded_percent(effect),
        "warnings": list(result.warnings),
    }


def pytest_terminal_summary(terminalreporter: Any) -> None:
    rows = list(_rows(terminalreporter))
    if not rows:
        return
    terminalreporter.section("training benchmarks: candidate against baseline, per step", sep="-")
    texts = [("test", *_COLUMNS)]
    texts += [(test, *(row[column] for column in _COLUMNS)) for test, row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for line in texts:
        cells = [text.ljust(width) for text, width in zip(line, widths, strict=True)]
        terminalreporter.write_line("  ".join(cells).rstrip())
    for test, row in rows:
        for warning in row["warnings"]:
            terminalreporter.write_line(f"! {test}: {warning}")


def _rows(terminalreporter: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            if getattr(report, "when", None) == "call":
                for name, value in report.user_properties:
                    if name == _PROPERTY:
                        yield report.nodeid, value
