# SPDX-License-Identifier: Apache-2.0
"""What a gate says of its progress."""

import io

from pyinstrument_gpu.gate.gate import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def make_runs(progress: Progress, clock: Clock, took_s: float) -> None:
    for side in ("baseline", "candidate"):
        progress.begin(side, 6, 18)
        clock.now_s += took_s
        progress.end()
    progress.begin("candidate", 6, 6)


def test_log_has_a_line_for_each_run() -> None:
    stream = io.StringIO()
    clock = Clock()
    progress = Progress(stream, clock=clock)
    make_runs(progress, clock, 75)
    progress.close()
    assert stream.getvalue().splitlines() == [
        "gate: run 1 of 6 (baseline), 0:00; up to 18 runs if it stays unclear",
        "gate: run 2 of 6 (candidate), 1:15, about 6:15 left; up to 18 runs if it stays unclear",
        "gate: run 3 of 6 (candidate), 2:30, about 5:00 left",
    ]


def test_terminal_has_one_line_that_goes_at_the_end() -> None:
    stream = Terminal()
    clock = Clock()
    progress = Progress(stream, clock=clock)
    make_runs(progress, clock, 3600)
    texts = stream.getvalue().split("\r")
    assert "\n" not in stream.getvalue()
    assert texts[-1].startswith("gate: run 3 of 6 (candidate), 2:00:00, about 4:00:00 left  ")
    assert len(texts[-1]) >= len(texts[-2])  # nothing of the line before is left
    progress.close()
    assert stream.getvalue().endswith("\r")
    progress.close()
    assert stream.getvalue().count("\r") == 5


def test_terminal_that_others_write_to_has_lines() -> None:
    stream = Terminal()
    clock = Clock()
    make_runs(Progress(stream, in_one_line=False, clock=clock), clock, 1)
    assert stream.getvalue().count("\n") == 3
