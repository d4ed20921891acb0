# SPDX-License-Identifier: Apache-2.0
"""What the project set out to reach, beside what a run of the benchmarks found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks import peers, titles
from benchmarks.board import Board
from benchmarks.peer import Peer

NOT_MEASURED = "not measured in this run"


@dataclass(frozen=True)
class Outcome:
    """What became of a goal: the figure, and whether it is met, in words."""

    measured: str
    verdict: str


@dataclass(frozen=True)
class Goal:
    """One aim.

    Attributes:
        what: the thing that is to be cheap, fast or small.
        target: what it should be.
        outcome: finds out in the results.
    """

    what: str
    target: str
    outcome: Callable[[Board], Outcome]


def _ratio(title: str, label: str, board: Board) -> Outcome:
    rows = {row.label: row for row in board.races.get(title, [])}
    row = rows.get(label)
    if row is None:
        return Outcome("", NOT_MEASURED)
    if row.missing is not None:
        return Outcome("", f"{NOT_MEASURED}: {row.missing}")
    if row.best_ratio is None or row.median_ratio is None:
        return Outcome("", f"{NOT_MEASURED}: no time is left to compare with")
    return Outcome(
        f"{row.best_ratio:.3g} by the best round, {row.median_ratio:.3g} by the median",
        row.verdict,
    )


def _fact(label: str, board: Board) -> Outcome:
    facts = {fact.label: fact for fact in board.facts}
    fact = facts.get(label)
    if fact is None:
        return Outcome("", NOT_MEASURED)
    return Outcome(f"{fact.value:.3g} {fact.unit}", fact.verdict)


def _on_a_gpu(board: Board) -> Outcome:
    return Outcome("", "waits for a GPU: `make gpu`")


def _by_test(test: str, board: Board) -> Outcome:
    return Outcome("", f"no figure; a test holds it: `{test}`")


def _phase(what: str, target: str, peer: Peer) -> Goal:
    return Goal(what, target, partial(_ratio, titles.PHASE, peer.name))


_BY_NAME = '`with gpu_phase("x"): pass`, device timing off'
_OWN_PART = "Our own part of a phase in C"

GOALS = (
    _phase(_BY_NAME, "<= 0.6 x a reused nullcontext", peers.NULLCONTEXT),
    _phase(_BY_NAME, "<= 2.2 x the C loop of the hot path", peers.C_LOOP),
    _phase(_BY_NAME, "<= 2.2 x the C loop with statistics", peers.C_LOOP_STATISTICS),
    Goal(
        "the same, not recording",
        "<= 0.35 x a reused nullcontext",
        partial(_ratio, titles.NOT_RECORDING, peers.NULLCONTEXT.name),
    ),
    _phase(_BY_NAME, "<= 1/80 (0.0125) of record_function", peers.RECORD_FUNCTION),
    _phase(_BY_NAME, "<= 1/80 (0.0125) of TraceML's timed_region", peers.TRACEML),
    _phase(_BY_NAME, "<= 1/30 (0.0333) of nvidia-resiliency-ext's section", peers.RESILIENCY),
    Goal(
        "three phases deep, each",
        "no dearer than flat (5 % count as no dearer)",
        partial(_ratio, titles.NESTED_AND_FLAT, f"{peers.OURS.name}, flat"),
    ),
    *(
        Goal(
            f"our own part of a phase with device timing, in C, {how}",
            "<= 60 ns, with a driver whose calls cost nothing",
            partial(_fact, f"{_OWN_PART}, {how}"),
        )
        for how in ("two records", "boundaries shared")
    ),
    Goal(
        "host cost with device timing, less the driver's own",
        "<= 5 % of the record calls made",
        _on_a_gpu,
    ),
    Goal(
        "events for P adjacent or nested phases",
        "<= P + 1",
        partial(
            _by_test,
            "tests/recording/test_device_timing.py::test_adjacent_and_nested_phases_share_their_boundaries",
        ),
    ),
    Goal("device time of one boundary", "<= 1.05 x a bare timing event", _on_a_gpu),
    Goal(
        "8 phases in a step of 50 ms, every step timed",
        "<= 0.1 % of the step, counted; the A/B difference beside the floor",
        _on_a_gpu,
    ),
    Goal(
        "two streams, also with CUDA_DEVICE_MAX_CONNECTIONS=1",
        "no overlap lost with the defaults",
        _on_a_gpu,
    ),
    Goal(
        "steady state",
        "no blocking call, at most one answer not ready per stream and tick",
        partial(
            _by_test,
            "tests/recording/test_device_timing.py::test_at_most_one_answer_not_ready_per_stream_and_harvest",
        ),
    ),
    Goal(
        "error of a duration",
        "<= 1 tick of the device, no growth over hours of drift",
        partial(
            _by_test,
            "tests/recording/test_device_timing.py::test_no_error_grows_over_hours_of_drift",
        ),
    ),
    Goal(
        "an update of metrics on a GPU",
        "1 kernel, no sync, <= 1.25 x the copy of 262 MB, <= 1.5 x a null kernel at 1 MB",
        _on_a_gpu,
    ),
    Goal(
        "an update of metrics, 1 MB float32",
        "<= 1/15 (0.0667) of torchmetrics",
        partial(_ratio, titles.METRICS_SMALL, titles.TORCHMETRICS),
    ),
    Goal(
        "an update of metrics, 262 MB bfloat16",
        "<= 1/40 (0.025) of torchmetrics",
        partial(_ratio, titles.METRICS_LARGE, titles.TORCHMETRICS),
    ),
    Goal(
        "an update of metrics, 1 MB in cache",
        "<= 1.9 x reading the bytes",
        partial(_ratio, titles.METRICS_SMALL, titles.READ_FLOOR),
    ),
    Goal(
        "an update of metrics, 262 MB",
        "<= 1.6 x reading the bytes",
        partial(_ratio, titles.METRICS_LARGE, titles.READ_FLOOR),
    ),
    Goal(
        "10^8 spans",
        "memory flat, statistics count every one",
        partial(
            _by_test,
            "tests/recording/test_endurance.py::test_no_span_is_lost_and_memory_stays_flat",
        ),
    ),
    Goal("a span in a run file", "<= 64 bytes", partial(_fact, "Run file")),
    Goal(
        "loading a million spans",
        "<= the time of numpy.fromfile of the bytes + 0.3 s",
        partial(_ratio, titles.LOAD, "numpy.fromfile of the same bytes, and 0.3 s"),
    ),
)
