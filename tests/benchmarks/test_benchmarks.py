# SPDX-License-Identifier: Apache-2.0
"""The benchmarks' own parts: how they reckon, what they publish, and that README quotes it."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import titles
from benchmarks.bench_step import step_rows
from benchmarks.board import Board, duration
from benchmarks.contender import Contender
from benchmarks.goals import GOALS
from benchmarks.install_peers import install, wanted
from benchmarks.lineup import Lineup
from benchmarks.page import markdown
from benchmarks.peers import NULLCONTEXT, OURS, PEERS, RECORD_FUNCTION
from benchmarks.publish import ROOT, main, read
from benchmarks.quote import quotation, quoted, results_of
from benchmarks.race import race
from benchmarks.row import Fact, MemoryRow, Row, StepRow, verdict
from benchmarks.way import empty

# --- how they reckon ---


class FakeBenchmark:
    """Drives rounds as pytest-benchmark does."""

    def pedantic(
        self, target: Callable[[], object], setup: Callable[[], object], rounds: int, **options: int
    ) -> None:
        for _ in range(options["warmup_rounds"] + rounds):
            setup()
            target()


def times(*values_ns: int) -> Callable[[], int]:
    """A round to warm up, which must not count, then these."""
    left = [10**9, *values_ns]
    return lambda: left.pop(0)


def test_a_race() -> None:
    loop = Contender("loop", times(10, 20, 30), uses=10)
    ours = Contender("ours", times(60, 70, 110), uses=10, baseline=loop)
    peer = Contender("theirs", times(500, 400, 600), uses=20)
    benchmark = cast(BenchmarkFixture, FakeBenchmark())
    assert race(benchmark, ours, [peer], 3, {"theirs": 0.21}) == [
        Row("ours", best_ns=5.0, median_ns=5.0),
        Row("theirs", 20.0, 25.0, best_ratio=0.25, median_ratio=0.2, goal=0.21),
    ]


def test_there_is_no_ratio_to_nothing() -> None:
    loop = Contender("loop", times(30, 30, 30))
    ours = Contender("ours", times(60, 70, 80), baseline=loop)
    peer = Contender("theirs", times(30, 20, 40), baseline=loop)
    benchmark = cast(BenchmarkFixture, FakeBenchmark())
    _, row = race(benchmark, ours, [peer], 3, {"theirs": 0.5})
    assert row == Row("theirs", -10.0, 0.0, None, None, goal=0.5)
    assert row.verdict == ""


@pytest.mark.parametrize(
    ("best", "median", "goal", "said"),
    [
        (0.5, 0.6, 0.6, "met"),
        (0.7, 0.8, 0.6, "not met"),
        (0.5, 0.8, 0.6, "met by the best round only"),
        (0.7, 0.6, 0.6, "met by the median only"),
        (0.5, 0.5, None, ""),
        (None, None, 0.6, ""),
    ],
)
def test_verdicts(best: float | None, median: float | None, goal: float | None, said: str) -> None:
    assert verdict(best, median, goal) == said


def test_steps_stand_beside_the_untimed_and_the_missing() -> None:
    results = {
        titles.UNTIMED: np.array([2000.0, 4000.0]),
        titles.UNTIMED_AGAIN: np.array([2000.0, 4000.0]),
        OURS.name: np.array([2200.0, 4400.0]),
    }
    line = Lineup({OURS: empty()}, {RECORD_FUNCTION: "torch is not installed"})
    untimed, again, ours, missing = step_rows(line, results, steps=2, marks=4)
    assert untimed == StepRow(titles.UNTIMED, 1500.0)
    assert (again.difference, again.low, again.high, again.marks) == (0, 0, 0, 0)
    assert ours.difference == pytest.approx(0.1)
    assert (ours.step_ns, ours.marks, ours.note) == (1650.0, 4, OURS.differs)
    assert (missing.step_ns, missing.missing) == (None, "torch is not installed")


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (56.25, "56.2 ns"),
        (999, "999.0 ns"),
        (5_308, "5.3 us"),
        (15_300, "15.3 us"),
        (2_500_000, "2.5 ms"),
    ],
)
def test_durations(ns: float, text: str) -> None:
    assert duration(ns) == text


# --- what they publish ---


def board() -> Board:
    """Made up, with every peer in each table: the last is missing."""

    def rows(factor: float) -> list[Row]:
        there = [
            Row(peer.name, factor * (10 + i), factor * (11 + i), 0.5, 0.7, note=peer.differs)
            for i, peer in enumerate(PEERS[:-1])
        ]
        last = PEERS[-1]
        return [*there, Row(last.name, None, None, note=last.differs, missing="no GPU")]

    phase = [replace(row, goal=0.6) if row.label == NULLCONTEXT.name else row for row in rows(1)]
    made = Board({"date": "2026-01-02", "commit": "abc", "cpu": "CPU", "cores": 2})
    made.machine |= {"python": "3.11.7", "torch": "2.13.0", "nvtx": None}
    made.races = {
        titles.PHASE: phase,
        titles.WITH_HARVESTER: rows(2)[:1],
        titles.COLD: rows(100),
    }
    made.steps = {
        "step: a GPT block": [
            StepRow(titles.UNTIMED, 1e6),
            StepRow(titles.UNTIMED_AGAIN, 1e6, 0.001, -0.002, 0.003),
            StepRow(OURS.name, 1e6, 0.0005, -0.001, 0.002, 4, OURS.differs),
            StepRow(PEERS[-1].name, None, note="n", missing="no GPU"),
        ]
    }
    made.memory = [MemoryRow("a", 100, 4000, "everything"), MemoryRow("b", 5, None, "", "no GPU")]
    made.facts = [Fact("Run file", 41.5, "bytes per span", 64)]
    made.seconds = 200.0
    return made


def test_results_survive_being_written() -> None:
    made = board()
    assert Board.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_the_page_has_every_peer_and_says_what_is_missing() -> None:
    page = markdown(board(), "plot.png")
    for peer in PEERS[:-1]:
        assert page.count(f"| {peer.name} |") >= 2
        assert peer.differs in page
    assert page.count(f"{PEERS[-1].name} (missing: no GPU)") == 3
    assert "* nvtx: not installed" in page
    assert "![What a phase and a training step cost, beside the peers](plot.png)" in page
    assert "| a | 100 | 0.0 MB | 40.0 B | everything |" in page
    # 4 phases x 11 ns of 1 ms.
    assert "+0.05 % | -0.10 to +0.20 % | 0.0044 % |" in page
    assert "* What a boundary costs the device" in page


def test_the_page_has_every_goal_in_plain_words() -> None:
    page = markdown(board(), None)
    assert "![" not in page
    for goal in GOALS:
        assert goal.what in page
    lines = page.splitlines()
    verdicts = {line.split(" | ")[1]: line for line in lines if line.endswith("** |")}
    assert len([line for line in lines if line.endswith("** |")]) == len(GOALS)
    assert "**met by the best round only**" in verdicts["<= 0.6 x a reused nullcontext"]
    assert "0.5 by the best round, 0.7 by the median" in verdicts["<= 0.6 x a reused nullcontext"]
    assert "**met**" in verdicts["<= 64 bytes"]
    assert "waits for a GPU" in verdicts["<= 1.05 x a bare timing event"]
    assert "not measured in this run" in verdicts["<= 1.9 x reading the bytes"]


def test_goals_in_words_are_those_that_are_reckoned_with() -> None:
    _, _, found = committed()

    def at(share: float, limit: float) -> Board:
        figure = share * limit
        races = {
            title: [replace(row, best_ratio=figure, median_ratio=figure) for row in rows]
            for title, rows in found.races.items()
        }
        facts = [replace(fact, value=figure) for fact in found.facts]
        return replace(found, races=races, facts=facts)

    checked = 0
    for goal in GOALS:
        number = re.match(r"<= (1/)?([\d.]+)", goal.target)
        if number is None or "met" not in goal.outcome(found).verdict.split():
            continue
        limit = 1 / float(number[2]) if number[1] else float(number[2])
        assert goal.outcome(at(0.999, limit)).verdict == "met", goal
        assert goal.outcome(at(1.001, limit)).verdict == "not met", goal
        checked += 1
    assert checked >= 14


def test_goals_held_by_tests_name_tests_that_are_there() -> None:
    named = [goal.outcome(board()).verdict for goal in GOALS]
    tests = [verdict.split("`")[1] for verdict in named if "a test holds it" in verdict]
    assert tests
    for test in tests:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text()


def test_the_quotation() -> None:
    text = " ".join(quotation(board(), "benchmarks/results/x.json").split())
    assert '| `with gpu_phase("x"): pass`, recorded | 10 | 11 | 0.62 |' in text
    assert "[every peer, every group, and the goals](benchmarks/results/x.md)" in text
    assert "on the same core a recorded phase costs 20.0 ns" in text
    assert (
        "* A training step of a GPT block (1.0 ms) with 4 phases: +0.05 % (-0.10 to +0.20 %, "
        "95 % interval); of two blocks without any: +0.10 % (-0.20 to +0.30 %, 95 % interval)."
    ) in text


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    before = "# Title\n<!-- cost: old.json -->\nby hand\n<!-- /cost -->\nmore"
    assert results_of(before) == "old.json"
    after = quoted(before, board(), "new.json")
    assert after.startswith("# Title\n<!-- cost: new.json -->\n| one use")
    assert after.endswith("<!-- /cost -->\nmore")
    assert "by hand" not in after
    with pytest.raises(ValueError, match="there is no `<!-- cost: RESULTS -->`"):
        quoted("# Title", board(), "new.json")


def test_publishing_writes_page_picture_and_quotation(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    readme, results = tmp_path / "README.md", tmp_path / "results" / "x.json"
    readme.write_text("<!-- cost: old.json -->\n<!-- /cost -->\n")
    results.parent.mkdir()
    results.write_text(json.dumps(board().to_json()))
    assert main([str(results), "--readme", str(readme)]) == 0
    assert results.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert results.with_suffix(".md").read_text() == markdown(board(), "x.png")
    assert readme.read_text() == quoted(readme.read_text(), board(), "results/x.json")


def test_without_matplotlib_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, module, None)
    results = tmp_path / "x.json"
    results.write_text(json.dumps(board().to_json()))
    assert main([str(results), "--readme", str(tmp_path / "README.md")]) == 1
    assert "pip install matplotlib" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [results]


# --- what is committed ---


def committed() -> tuple[str, str, Board]:
    readme = (ROOT / "README.md").read_text()
    results = results_of(readme)
    return readme, results, read(ROOT / results)


def test_readme_quotes_the_committed_results() -> None:
    readme, results, found = committed()
    assert quoted(readme, found, results) == readme


def test_the_committed_page_is_that_of_the_committed_results() -> None:
    _, results, found = committed()
    path = ROOT / results
    assert path.with_suffix(".png").exists()
    assert path.with_suffix(".md").read_text() == markdown(found, path.with_suffix(".png").name)


def test_the_committed_results_have_every_peer() -> None:
    _, _, found = committed()
    assert {row.label for row in found.races[titles.PHASE]} == {peer.name for peer in PEERS}
    for rows in found.steps.values():
        assert {row.label for row in rows} >= {peer.name for peer in PEERS if peer.in_steps}
    assert {row.label for row in found.memory} == {
        peer.name for peer in PEERS if peer.history is not None
    }


# --- installing peers ---

REQUIRES = [
    "numpy>=1.24",
    'torch>=2.10; extra == "torch"',
    'pyinstrument-gpu[test]; extra == "bench"',
    'nvtx==0.2.17; extra == "bench"',
    "nvidia-resiliency-ext==0.4.1; extra == 'bench'",
    'ruff>=0.9; extra == "dev"',
]


def test_what_is_installed_for_the_benchmarks() -> None:
    assert wanted(REQUIRES) == ["nvtx==0.2.17", "nvidia-resiliency-ext==0.4.1"]


def test_a_peer_that_cannot_be_had_keeps_no_other_away() -> None:
    commands: list[list[str]] = []

    def run(command: list[str]) -> int:
        commands.append(command[3:])
        return 1 if "nvtx==0.2.17" in command else 0

    assert install(wanted(REQUIRES), run) == ["nvtx==0.2.17"]
    assert commands == [
        ["install", "--quiet", "nvtx==0.2.17"],
        ["install", "--quiet", "--no-deps", "nvidia-resiliency-ext==0.4.1"],
    ]
