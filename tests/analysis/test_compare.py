# SPDX-License-Identifier: Apache-2.0
"""Comparing runs: verdicts on made-up runs whose truth is known."""

import copy
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from numpy.typing import ArrayLike
from scipy import stats

import pyinstrument_gpu
from pyinstrument_gpu.analysis.compare import POWER, Comparison, Verdict, compare
from pyinstrument_gpu.analysis.contention import waited_for_processor
from pyinstrument_gpu.analysis.differences import Difference
from pyinstrument_gpu.analysis.inference import paired, t_quantile, welch
from pyinstrument_gpu.analysis.run_sample import (
    OUTSIDE_PHASES,
    final_values,
    run_samples,
    warmup_steps,
)
from pyinstrument_gpu.aspects.cpu_contention.data import CpuContention
from pyinstrument_gpu.cli import main
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE
from pyinstrument_gpu.core.sync_kind import SyncKind
from pyinstrument_gpu.core.syncs import SYNC_DTYPE, Syncs, SyncSite
from pyinstrument_gpu.report.comparison import comparison_facts, comparison_report
from tests.helpers.made_script import Script
from tests.helpers.run_writer import save
from tests.helpers.timed_runs import MS, made_run, runs_of, with_tokens, with_waits

TOLD_APART = (Verdict.FASTER, Verdict.SLOWER)

# Verdicts


def test_faster_slower_same_ambiguous() -> None:
    before = runs_of(100.0, 100.2, 99.8)
    for change, verdict in (
        (0.90, Verdict.FASTER),
        (1.10, Verdict.SLOWER),
        (1.001, Verdict.SAME),
        (1.010, Verdict.SLOWER),
    ):
        after = runs_of(*(change * mean for mean in (100.1, 99.9, 100.0)))
        comparison = compare(before, after)
        assert comparison.verdict is verdict, change
        assert comparison.elapsed.change == pytest.approx(change - 1, abs=1e-5)
        low, high = comparison.elapsed.interval or (0, 0)
        assert low < change - 1 < high
    assert compare(before, runs_of(98.0, 102.0, 103.0)).verdict is Verdict.AMBIGUOUS


def test_interval_is_that_of_welch() -> None:
    comparison = compare(runs_of(100, 104, 101, 90), runs_of(97, 99, 95, 90))
    # Of the logarithm of the ratio of means, by 5.192... degrees of freedom, with 40 digits.
    expected = -0.121685937672021447230862442128, 0.0592681739895569706716279874548
    assert comparison.elapsed.interval == pytest.approx(expected)


def test_no_change_is_below_minus_100_percent() -> None:
    """And to be twice as slow is as much as to be twice as fast."""
    wild = [5.0, 400.0, 90.0, 60.0], [20.0, 700.0, 3.0, 110.0]
    there, back = (
        compare(runs_of(*wild[0]), runs_of(*wild[1])),
        compare(runs_of(*wild[1]), runs_of(*wild[0])),
    )
    for low, high in filter(None, (there.elapsed.interval, back.elapsed.interval)):
        assert -1 < low < 0 < high
    assert there.elapsed.interval is not None and back.elapsed.interval is not None
    factors = [1 + end for end in there.elapsed.interval]
    assert [1 + end for end in back.elapsed.interval] == pytest.approx(
        [1 / end for end in reversed(factors)]
    )
    in_pairs = compare(runs_of(*wild[0]), runs_of(*wild[1]), in_pairs=True).elapsed
    assert in_pairs.interval is not None and -1 < in_pairs.interval[0] < in_pairs.change


def test_the_verdict_says_where_machine_or_program_is_another() -> None:
    def side(mean: float, **facts: Any) -> list[Run]:
        runs = [*runs_of(mean, 1.001 * mean, 0.999 * mean)]
        for run in runs:
            run.environment = {**run.environment, "host": "box", "arguments": ["a.py"], **facts}
        return runs

    for facts, words in (
        ({"host": "bay"}, "SLOWER, on another machine (box, then bay): "),
        ({"arguments": ["/x/b.py"]}, "SLOWER, of another program (a.py, then b.py): "),
        (
            {"host": "bay", "arguments": ["b.py"]},
            "SLOWER, on another machine (box, then bay), of another program (a.py, then b.py): ",
        ),
        ({"arguments": ["/x/a.py", "--lr", "1"]}, "SLOWER: "),
    ):
        text = comparison_report(compare(side(100), side(110, **facts)), width=400)
        assert f"\n{words}" in text


def test_few_runs_show_nothing_without_a_floor_of_noise() -> None:
    for counts in ((1, 1), (2, 3), (1, 5)):
        sides = runs_of(*[100] * counts[0]), runs_of(*[80] * counts[1])
        comparison = compare(*sides)
        assert comparison.verdict is Verdict.AMBIGUOUS
        assert comparison.elapsed.interval is None
        assert comparison.elapsed.smallest_effect is None
        assert comparison.significant_phases == ()
        text = " ".join(comparison_report(comparison).split())
        assert "they cannot separate the change from noise" in text
        assert "So few runs can't tell which phases changed" in text
        assert "more than the noise" not in text
        told = "one run per side" if counts == (1, 1) else f"{counts[0]} run"
        assert text.startswith(f"AMBIGUOUS: can't tell from {told}")
    before, after = runs_of(100), runs_of(80)
    assert compare(before, after, noise_percent=2).verdict is Verdict.FASTER
    assert compare(before, after, noise_percent=20).verdict is Verdict.AMBIGUOUS


def test_floor_of_noise_widens_an_interval_that_is_narrower() -> None:
    before, after = runs_of(100.0, 100.01, 100.0), runs_of(98.0, 98.01, 98.0)
    narrow = compare(before, after)
    wide = compare(before, after, noise_percent=5)
    assert narrow.verdict is Verdict.FASTER and wide.verdict is Verdict.AMBIGUOUS
    wild = runs_of(80, 120, 100), runs_of(70, 130, 100)
    assert compare(*wild, noise_percent=0.01) == compare(*wild)


def test_margin_is_what_counts_as_the_same() -> None:
    before, after = runs_of(100.0, 100.01, 100.0), runs_of(103.0, 103.01, 103.0)
    assert compare(before, after).verdict is Verdict.SLOWER
    assert compare(before, after, margin_percent=5).verdict is Verdict.SAME


def test_samples_count_where_they_are_known() -> None:
    before = runs_of(100.0, 100.1, 99.9, samples=32)
    after = runs_of(150.0, 150.1, 149.9, samples=64)
    comparison = compare(before, after)
    assert (comparison.unit, comparison.verdict) == ("sample", Verdict.FASTER)
    assert comparison.elapsed.change == pytest.approx(0.75 - 1)
    assert comparison.before_rate == pytest.approx(320, rel=1e-4)
    assert any("samples per step differ: 32.0 and 64.0" in text for text in comparison.warnings)
    half_known = compare(before, runs_of(150.0, 150.1, 149.9))
    assert (half_known.unit, half_known.verdict) == ("step", Verdict.SLOWER)


def test_tokens_count_where_they_are_known_without_padding_if_all_know_that() -> None:
    """Batches are packed: half the padding, in steps that take as long."""
    before = [with_tokens(run, 1000, 500) for run in runs_of(100, 100.1, 99.9, samples=8)]
    after = [with_tokens(run, 1000, 750) for run in runs_of(100, 100.1, 99.9, samples=8)]
    comparison = compare(before, after, price_per_hour=36)
    assert (comparison.unit, comparison.verdict) == ("token", Verdict.FASTER)
    assert comparison.elapsed.change == pytest.approx(500 / 750 - 1)
    assert comparison.before_tokens_rate == pytest.approx(5_000, rel=1e-4)
    assert comparison.costs == pytest.approx((2, 2 * 500 / 750), rel=1e-4)
    text = comparison_report(comparison, width=200)
    assert "5,000 -> 7,500 tokens/s without padding, 80 -> 80 samples/s, over 20 steps" in text
    assert "Cost: 2 -> 1.333 per million tokens" in text
    assert comparison_facts(comparison)["costs"] == comparison.costs
    # With padding, of which all know it, nothing has changed.
    after = [with_tokens(run, 1000) for run in runs_of(100, 100.1, 99.9, samples=8)]
    comparison = compare(before, after)
    assert (comparison.unit, comparison.verdict) == ("token", Verdict.SAME)
    assert comparison.costs is None
    assert "10,000 -> 10,000 tokens/s, 80" in comparison_report(comparison, width=200)


@pytest.mark.parametrize(("samples", "cost"), [(10, "2.778"), (math.nan, "27.78")])
def test_without_tokens_samples_or_steps_cost(samples: float, cost: str) -> None:
    runs = [*runs_of(100, 100, samples=samples)]
    text = comparison_report(compare(runs[:1], runs[1:], price_per_hour=1))
    assert f"Cost: {cost} -> {cost} per million {'steps' if samples != 10 else 'samples'}" in text


def test_runs_that_cannot_be_compared() -> None:
    empty = Run()
    with pytest.raises(ValueError, match="run 2 of 2 has no complete step"):
        compare(runs_of(100), [empty])
    with pytest.raises(ValueError, match="at least one run on each side"):
        compare([], runs_of(100))


# Warm-up and drift


def test_warmup_is_left_out() -> None:
    steady = [10.0 * MS + 1000 * (i % 7) for i in range(100)]
    assert warmup_steps(np.array(steady, np.int64)) <= 20
    slow = [100.0 * MS] * 12 + steady
    assert warmup_steps(np.array(slow, np.int64)) == 15
    before = [made_run(steady, {"forward": 0.5}) for _ in range(2)]
    after = [made_run(slow, {"forward": 0.5}) for _ in range(2)]
    assert abs(compare(before, after).elapsed.change) < 0.001


def test_drift_that_all_share_cancels() -> None:
    def drifting(steps: int) -> Run:
        return made_run([(100 + i) * MS for i in range(steps)])

    comparison = compare([drifting(50)] * 3, [drifting(80)] * 3)
    assert comparison.elapsed.change == 0
    assert comparison.verdict is Verdict.SAME
    assert "numbers of steps differ: 50 and 80" in comparison.warnings


# Outside steps


def train(script: Script, step_ms: float, evaluation_ms: float, every: int) -> None:
    """Steps of one length, of which each so many are followed by an evaluation."""
    for number in range(1, 121):
        with script.step():
            script.leaf("forward", round(step_ms / 2 * MS))
            script.work(round(step_ms / 2 * MS))
        if number % every == 0:
            script.leaf("eval", round(evaluation_ms * MS))


def made_loop(step_ms: float, evaluation_ms: float, every: int) -> Run:
    script = Script()
    train(script, step_ms, evaluation_ms, every)
    return script.run(environment={})


def loops(step_ms: float, evaluation_ms: float, every: int = 30) -> list[Run]:
    return [made_loop(step_ms * f, evaluation_ms * f, every) for f in (1.0, 1.001, 0.999)]


def test_wait_that_moves_behind_the_steps_is_not_saved() -> None:
    # The host runs ahead once `.item()` has gone, and evaluation waits for the device instead.
    comparison = compare(loops(100, 300), loops(6, 300 + 30 * 93.4))
    assert comparison.inside.verdict is Verdict.FASTER
    assert comparison.inside.change == pytest.approx(-0.94, abs=0.001)
    assert comparison.verdict is not Verdict.FASTER
    assert comparison.elapsed.change == pytest.approx(-0.0055, abs=0.001)
    assert comparison.is_moved_out
    outside = {phase.path: phase for phase in comparison.phases if phase.is_outside}
    assert outside["eval"].change_ns == pytest.approx(93.4 * MS, rel=0.01)
    text = " ".join(comparison_report(comparison).split())
    assert "Moved, not saved: inside steps -94.00 %" in text
    assert "arrived in eval outside steps" in text


def test_saving_inside_steps_counts_by_its_share_of_the_elapsed_time() -> None:
    comparison = compare(loops(100, 3000), loops(90, 3000))
    assert comparison.verdict is comparison.inside.verdict is Verdict.FASTER
    assert comparison.elapsed.change == pytest.approx(-0.05, abs=0.001)
    assert comparison.inside.change == pytest.approx(-0.1, abs=0.001)
    assert not comparison.is_moved_out
    assert comparison.uneven == () and comparison.without_uneven is None


def test_evaluation_that_one_side_does_more_often_is_named() -> None:
    comparison = compare(loops(100, 600, every=30), loops(100, 600, every=60))
    assert comparison.verdict is Verdict.FASTER
    (uneven,) = comparison.uneven
    assert uneven.path == "eval"
    assert uneven.before_calls == pytest.approx(1 / 30, rel=0.2)  # ends within an interval
    assert uneven.after_calls == pytest.approx(1 / 60, rel=0.2)
    assert comparison.without_uneven is not None
    assert comparison.without_uneven.verdict is Verdict.SAME
    text = " ".join(comparison_report(comparison).split())
    assert "in calls per 1,000 steps before and after: eval 3" in text
    assert "Without these: SAME" in text


def test_last_work_on_a_device_ends_the_elapsed_time() -> None:
    def run(device_end_ms: int) -> Run:
        made = made_run([10 * MS] * 20)
        made.spans["device_begin_ns"][-1] = 100 * MS
        made.spans["device_end_ns"][-1] = device_end_ms * MS
        return made

    comparison = compare([run(200)] * 3, [run(400)] * 3)
    assert comparison.inside.change == 0
    assert comparison.elapsed.after_mean_ns == pytest.approx(2 * comparison.elapsed.before_mean_ns)


def test_work_of_the_warm_up_that_the_device_still_does_is_not_in_the_elapsed_time() -> None:
    run = made_run([5 * MS] * 5 + [1 * MS] * 35)
    run.spans["device_begin_ns"] = np.arange(40) * 10 * MS
    run.spans["device_end_ns"] = np.arange(1, 41) * 10 * MS
    comparison = compare([run] * 3, [run] * 3)
    assert comparison.steps == 35
    assert comparison.elapsed.before_mean_ns == 10 * MS


def test_last_wait_for_a_device_ends_the_elapsed_time() -> None:
    # No phase is around it, and the device was not timed.
    def run(*steps_ms: int, wait_ms: int, thread: int = 0) -> Run:
        made = made_run([step_ms * MS for step_ms in steps_ms])
        wait = (made.duration_ns, wait_ms * MS, 4, 0, -1, -1, thread)
        site = SyncSite("train.py", 9, "train", SyncKind.ITEM, False)
        made.syncs = Syncs((site,), np.array([wait], SYNC_DTYPE))
        return made

    waits_inside = run(*[10] * 20, wait_ms=0)
    waits_behind = run(*[1] * 20, wait_ms=180)
    comparison = compare([waits_inside] * 3, [waits_behind] * 3)
    assert comparison.inside.change == pytest.approx(-0.9)
    assert comparison.elapsed.change == pytest.approx(0)
    assert comparison.is_moved_out
    of_another = run(*[10] * 20, wait_ms=180, thread=1)
    assert compare([waits_inside] * 3, [of_another] * 3).elapsed.change == 0


def test_phase_around_the_steps_is_no_part_of_what_is_outside() -> None:
    script = Script()
    with script.phase("epoch"):
        train(script, 100, 300, 30)
    run = script.run(environment={})
    comparison = compare([run] * 3, [run] * 3)
    outside = {phase.path: phase.before_ns for phase in comparison.phases if phase.is_outside}
    assert outside.keys() == {"epoch/eval", OUTSIDE_PHASES}
    assert outside["epoch/eval"] == pytest.approx(10 * MS)
    assert outside[OUTSIDE_PHASES] == pytest.approx(0, abs=1)


# The order of the runs


def started(times_ms: ArrayLike, starts_s: ArrayLike, steps: int = 20) -> list[Run]:
    return [
        made_run([ms * MS] * steps, anchor={"run_ns": 0, "realtime_ns": int(s * 1e9)})
        for ms, s in zip(np.asarray(times_ms), np.asarray(starts_s), strict=True)
    ]


@pytest.mark.usefixtures("verdicts_alone")
def test_drift_between_runs_that_did_not_take_turns_is_no_change() -> None:
    random = np.random.default_rng(11)
    pairs, places, starts = 20, np.arange(10), 60.0 * np.arange(10)
    for is_in_turn, second in ((False, places >= 5), (True, places % 2 > 0)):
        found = 0
        for _ in range(pairs):
            times = 100 * (1 + 0.004 * places + random.normal(0, 0.001, 10))
            sides = [started(times[chosen], starts[chosen]) for chosen in (~second, second)]
            comparison = compare(*sides, margin_percent=0.1)
            found += comparison.verdict in TOLD_APART
            warned = any("take turns" in warning for warning in comparison.warnings)
            assert warned is not is_in_turn
        assert found / pairs <= 0.05


def test_what_alternates_is_not_told_from_what_happens_in_every_second_run() -> None:
    places, starts = np.arange(8), 60.0 * np.arange(8)
    for order, alternates in ((places % 2, True), (np.array([0, 1, 1, 0, 0, 1, 0, 1]), False)):
        sides = [started(100 + 5 * (places % 2)[order == n], starts[order == n]) for n in (0, 1)]
        comparison = compare(*sides)
        warned = any("every second run" in warning for warning in comparison.warnings)
        assert warned is alternates
        # A verdict that only the order explains, and none where the order changes.
        assert (comparison.verdict in TOLD_APART) is alternates


def test_one_run_per_side_has_no_order() -> None:
    before, after = started([100], [0]), started([80], [60])
    assert compare(before, after).warnings == ()
    assert compare(before, after, noise_percent=2).verdict is Verdict.FASTER


def test_three_runs_not_in_turn_do_not_ask_for_the_noise_that_was_given() -> None:
    sides = started([100, 101], [0, 60]), started([80], [120])
    text = comparison_report(compare(*sides, noise_percent=2))
    assert text.startswith("AMBIGUOUS: can't tell from 2 runs before, 1 run after")
    assert "pass --noise" not in text


def test_warnings_that_decide_on_the_verdict_come_first() -> None:
    before = started([100, 100.2, 99.9], [0, 60, 120])
    after = started([105, 105.1, 104.9], [180, 240, 300], steps=30)
    comparison = compare(before, after)
    assert comparison.warnings[0].startswith("the sides did not take turns")
    assert comparison.warnings[1].startswith("numbers of steps differ")
    text = comparison_report(comparison, 1_000)
    assert text.index("! the sides did not take turns") < text.index("ms per step")


def test_change_that_no_drift_explains_is_found_in_runs_that_did_not_take_turns() -> None:
    times = [100.0, 100.1, 99.9, 100.0, 100.1]
    before = started(times, [0, 60, 120, 180, 240])
    after = started([0.9 * ms for ms in times], [300, 360, 420, 480, 540])
    assert compare(before, after).verdict is Verdict.FASTER


@pytest.mark.usefixtures("verdicts_alone")
@pytest.mark.parametrize("counts", [(2, 4), (3, 3), (4, 4)])
def test_program_of_two_modes_is_rarely_told_from_itself(counts: tuple[int, int]) -> None:
    told_apart = 0
    for slow in itertools.product(*(range(count + 1) for count in counts)):
        sides = [
            runs_of(*(100 + 5 * (number < of_these) + 0.01 * number for number in range(count)))
            for count, of_these in zip(counts, slow, strict=True)
        ]
        ways = math.prod(map(math.comb, counts, slow))
        told_apart += ways * (compare(*sides).verdict in TOLD_APART)
    assert 0 < told_apart / 2 ** sum(counts) <= 0.05


# Phases


def test_moved_time_is_called_moved() -> None:
    before = runs_of(100.0, 100.2, 99.8, phases={"metrics": 0.59, "forward": 0.2})
    after = runs_of(90.0, 90.2, 89.8, phases={"metrics": 0.0, "forward": 0.69 / 0.9})
    comparison = compare(before, after)
    by_path = {phase.path: phase.change_ns for phase in comparison.phases}
    assert by_path["metrics"] == pytest.approx(-59 * MS, rel=0.01)
    assert by_path["forward"] == pytest.approx(49 * MS, rel=0.01)
    assert by_path[OUTSIDE_PHASES] == pytest.approx(0, abs=0.1 * MS)
    assert comparison.moved_ns == pytest.approx(49 * MS, rel=0.01)
    text = " ".join(comparison_report(comparison).split())
    assert (
        "59.000 ms left metrics, 49.000 ms arrived in forward: elapsed time per step -10.0 %"
        in text
    )
    assert "49.000 ms only moved" in text


@pytest.mark.usefixtures("verdicts_alone")
def test_saving_is_not_said_to_have_moved_by_noise() -> None:
    random = np.random.default_rng(13)

    def run(forward: float) -> Run:
        """Every phase varies by 2 % from run to run."""
        shares = {"forward": forward, "backward": 0.3, "optimizer": 0.1, "data": 0.1}
        noisy = {name: share * random.normal(1, 0.02) for name, share in shares.items()}
        whole = sum(noisy.values()) + 0.05
        return made_run([100 * whole * MS] * 20, {n: share / whole for n, share in noisy.items()})

    moved = 0
    for _ in range(20):
        comparison = compare(*([run(forward) for _ in range(5)] for forward in (0.4, 0.3)))
        assert comparison.left_ns == pytest.approx(10 * MS, rel=0.2)
        moved += comparison.moved_ns > 0
    assert moved <= 1


def test_changes_add_up_to_that_of_the_step() -> None:
    random = np.random.default_rng(1)
    phases = ("data", "forward", "backward")
    sides = [
        [
            made_run(random.uniform(50, 60, 30) * MS, dict(zip(phases, shares, strict=True)))
            for shares in random.dirichlet([1] * 4, 3)[:, :3].tolist()
        ]
        for _ in range(2)
    ]
    comparison = compare(*sides)
    step_ns = comparison.elapsed.after_mean_ns - comparison.elapsed.before_mean_ns
    assert sum(phase.change_ns for phase in comparison.phases) == pytest.approx(step_ns)


def test_differences_of_the_environment_are_named() -> None:
    same = {"host": "box", "torch": "2.13", "gpus": ["H200"]}
    before = runs_of(100, **same, revision="a" * 40)
    assert compare(before, runs_of(100, **same, revision="a" * 40)).warnings == ()
    other = {**same, "torch": "2.14", "revision": "b" * 40}
    comparison = compare(before, runs_of(100, **other))
    assert comparison.warnings == ()
    assert comparison.differences.found == (
        Difference("code revision", ("a" * 40,), ("b" * 40,)),
        Difference("torch version", ("2.13",), ("2.14",)),
    )
    assert {"host", "GPUs"} == {*comparison.differences.same}
    assert {"packages", "uncommitted changes"} < {*comparison.differences.unknown}


def test_what_else_differs_comes_first() -> None:
    """Of packages, variables and uncommitted changes those that differ, each by its name."""

    def runs(**environment: Any) -> list[Run]:
        return runs_of(100, cuda=None, **environment)

    dirty = {"hash": "0123456789abcdef", "files": [f"{name}.py" for name in "abcdef"]}
    before = runs(
        packages={"numpy": "2.0", "scipy": "1.16", "torch": "2.13"},
        variables={"OMP_NUM_THREADS": "4"},
        uncommitted={"hash": None, "files": []},
        arguments=["train.py", "--lr", "1"],
        program_facts={"loader_workers": 0},
    )
    after = runs(
        packages={"numpy": "2.1", "scipy": "1.16", "torch": "2.14"},
        variables={"CUDA_LAUNCH_BLOCKING": "1"},
        uncommitted=dirty,
        arguments=["train.py", "--lr", "2"],
        program_facts={"loader_workers": 2},
    )
    text = comparison_report(compare(before, after), 120)
    assert text.startswith("""\
What else differs
Command line: train.py --lr 1 and train.py --lr 2
Uncommitted changes: none and 0123456789ab in a.py, b.py, c.py, d.py, e.py, ...
Loader workers: 0 and 2
Package numpy: 2.0 and 2.1
Environment variable CUDA_LAUNCH_BLOCKING: none and 1
Environment variable OMP_NUM_THREADS: 4 and none
Not known for all runs: host, GPUs""")
    text = comparison_report(compare(before, runs()))
    assert text.endswith("platform, pyinstrument_gpu version")
    assert "\n\nNothing else that the runs record differs\nNot known for all runs: host, " in text


# Final values of metrics


_WITHOUT_METRICS = made_run([100 * MS] * 20)


def run_with_metrics(**finals: float) -> Run:
    """A run whose metrics read 9 first and these values last."""
    run = copy.copy(_WITHOUT_METRICS)
    run.metric_names = tuple(finals)
    run.metrics = np.zeros(2 * len(finals), METRIC_DTYPE)
    run.metrics["name"] = np.tile(np.arange(len(finals)), 2)
    run.metrics["value"] = [*[9.0] * len(finals), *finals.values()]
    return run


def with_losses(*losses: float) -> list[Run]:
    return [run_with_metrics(loss=loss) for loss in losses]


def test_final_loss_that_differs_beyond_noise_is_warned_of() -> None:
    before = with_losses(0.50, 0.52, 0.51, 0.49)
    comparison = compare(before, with_losses(0.60, 0.62, 0.61, 0.59))
    (final,) = comparison.finals
    assert final.differs is True
    assert final.before == (0.50, 0.52, 0.51, 0.49)
    assert comparison.warnings == (
        "final loss differs beyond the noise between runs: 0.505 and 0.605",
    )
    assert f"! {comparison.warnings[0]}" in comparison_report(comparison, 120)
    within = compare(before, with_losses(0.51, 0.50, 0.53, 0.49))
    assert within.finals[0].differs is False
    assert within.warnings == ()


def test_numbers_of_the_last_step_are_no_results() -> None:
    runs = [[run_with_metrics(loss=1, **{"step/tokens": n})] * 4 for n in (64, 8)]
    assert [final.name for final in compare(*runs).finals] == ["loss"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        # 3.924... degrees of freedom, computed with 40 digits.
        (("loss",), (-0.00184894113022382538582718149605, 0.148515607796890492052493848163)),
        (
            ("loss", "val/accuracy@1", "grad_norm", "f1_macro"),
            (-0.0440548458299893388760537327367, 0.190721512496656005542720399403),
        ),
    ],
)
def test_interval_of_final_values_is_that_of_welch_shared_among_the_metrics(
    names: tuple[str, ...], expected: tuple[float, float]
) -> None:
    sides = [
        [run_with_metrics(**dict.fromkeys(names, value), count=8.0) for value in side]
        for side in ((0.50, 0.54, 0.47), (0.55, 0.57, 0.61))
    ]
    finals = compare(*sides).finals
    assert tuple(final.name for final in finals) == names
    for final in finals:
        assert final.interval == pytest.approx(expected)


def test_final_values_of_single_runs_are_stated_without_a_verdict() -> None:
    comparison = compare(with_losses(0.5), with_losses(0.9, 0.8))
    (final,) = comparison.finals
    assert (final.differs, final.interval, comparison.warnings) == (None, None, ())
    text = " ".join(comparison_report(comparison).split())
    assert "loss 0.5 0.85 +0.35 - A difference without an interval cannot" in text
    assert comparison_facts(comparison)["finals"] == (
        {"name": "loss", "before": [0.5], "after": [0.9, 0.8], "interval": None, "differs": None},
    )


def test_final_values_that_are_not_finite() -> None:
    fine, wild = with_losses(0.5, 0.5), with_losses(0.5, math.inf)
    assert compare(fine, wild).finals[0].differs is True
    assert compare(wild, fine).finals[0].differs is True
    assert compare(wild, wild).finals[0].differs is None
    facts = json.loads(json.dumps(comparison_facts(compare(fine, wild)), allow_nan=False))
    assert facts["finals"][0]["after"] == [0.5, None]


def test_runs_that_always_end_the_same_differ_by_any_change() -> None:
    same = with_losses(0.5, 0.5)
    assert compare(same, with_losses(0.5, 0.5)).finals[0].differs is False
    assert compare(same, with_losses(0.5, 0.6)).finals[0].differs is False
    assert compare(same, with_losses(0.51, 0.51)).finals[0].differs is True


def test_metrics_that_not_all_runs_have_are_left_out() -> None:
    both = [run_with_metrics(loss=0.5, accuracy=1.0)]
    assert [final.name for final in compare(both, with_losses(0.5)).finals] == ["loss"]
    assert compare(both, runs_of(100)).finals == ()


def test_final_values_are_rarely_said_to_differ_where_they_do_not() -> None:
    random = np.random.default_rng(6)
    pairs, warned = 200, 0
    for _ in range(pairs):
        counts = random.integers(2, 9, 2)
        sides = [
            [run_with_metrics(loss=random.normal(), accuracy=random.normal()) for _ in range(count)]
            for count in counts
        ]
        warned += any(final.differs for final in final_values(*sides))
    assert warned / pairs <= 0.05


# Calibration


def synthetic_pair(random: np.random.Generator, effect: float) -> Comparison:
    """Two sides of 2 to 8 runs that differ by themselves by 0.3 to 5 %, with a warm-up and steps
    that depend on their neighbours; the second side takes `1 + effect` of the time."""
    run_sd = math.exp(random.uniform(math.log(0.003), math.log(0.05)))
    sides: list[list[Run]] = []
    for factor in (1.0, 1 + effect):
        runs = []
        for _ in range(random.integers(2, 9)):
            noise = random.normal(0, 0.03, 41)
            steps = 1 + noise[1:] + 0.5 * noise[:-1]
            steps[:3] *= 3
            mean_ns = 20 * MS * factor * math.exp(random.normal(0, run_sd))
            runs.append(made_run(np.maximum(steps, 0.5) * mean_ns))
        sides.append(runs)
    return compare(*sides, margin_percent=0.5)


def share_interval(count: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share, by Wilson."""
    z, share = 1.959964, count / total
    middle = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    whole = 1 + z * z / total
    return (middle - spread) / whole, (middle + spread) / whole


def false_verdicts(pairs: int) -> int:
    random = np.random.default_rng(20)
    return sum(synthetic_pair(random, 0.0).verdict in TOLD_APART for _ in range(pairs))


@pytest.mark.usefixtures("verdicts_alone")
def test_false_verdicts_are_rare() -> None:
    assert share_interval(false_verdicts(300), 300)[0] <= 0.05


@pytest.mark.slow
def test_false_verdicts_are_at_most_five_percent() -> None:
    count = false_verdicts(10_000)
    highest = share_interval(count, 10_000)[1]
    print(f"false verdicts: {count} of 10000, 95 % interval up to {highest:.4f}")
    assert highest <= 0.05


@pytest.mark.parametrize("counts", [(2, 3), (2, 8), (20, 2), (2, 200), (3, 50), (5, 20)])
def test_sides_of_unequal_size_are_rarely_told_apart(counts: tuple[int, int]) -> None:
    random = np.random.default_rng(8)
    draws, apart = 1000, 0
    for sides in zip(*(random.normal(size=(draws, count)) for count in counts), strict=True):
        error, freedom = welch(*sides)
        assert error is not None
        change = sides[1].mean() - sides[0].mean()
        apart += abs(change) > t_quantile(0.975, freedom) * error
    assert apart / draws <= 0.05


@pytest.mark.usefixtures("verdicts_alone")
def test_smallest_effect_is_found_in_most_cases() -> None:
    pairs = 100
    random = np.random.default_rng(4)
    found = 0
    for _ in range(pairs):
        before_ms, after_ms = 100 * np.exp(random.normal(0, 0.02, (2, 6)))
        before = runs_of(*before_ms)
        smallest = compare(before, runs_of(*after_ms)).elapsed.smallest_effect
        assert smallest is not None
        found += compare(before, runs_of(*(1 + smallest) * after_ms)).verdict is Verdict.SLOWER
    low, high = share_interval(found, pairs)
    assert low <= POWER <= high


# The command


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("sides")
    sides = {"slow": (110.0, 110.2, 109.8), "fast": (100.0, 100.2, 99.8)}
    paths: dict[str, list[str]] = {}
    for (side, means), number in itertools.product(sides.items(), range(3)):
        path = folder / f"{side}{number}.gpurun"
        save(runs_of(means[number], samples=8)[0], path)
        paths.setdefault(side, []).append(str(path))
    return paths


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["compare", *arguments], prog_name="pyinstrument-gpu")


def test_command(files: dict[str, list[str]]) -> None:
    result = invoke("--before", *files["slow"], "--after", *files["fast"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("FASTER: -9.09 % elapsed time per sample (95 % interval -9.")
    assert "72.73 -> 80 samples/s, over 20 steps of each run\n" in result.stdout
    assert "3 runs before, 3 runs after: they can show a change of " in result.stdout


def test_command_as_json(files: dict[str, list[str]]) -> None:
    result = invoke("--json", "--after", *files["fast"], "--before", *files["slow"])
    facts = json.loads(result.stdout)
    assert facts["verdict"] == "FASTER"
    assert facts["elapsed"]["change"] == pytest.approx(-1 / 11)
    assert {phase["path"] for phase in facts["phases"]} == {"forward", OUTSIDE_PHASES}


@pytest.mark.parametrize(("percent", "exit_code"), [("5", 4), ("15", 0)])
def test_fail_if_slower(files: dict[str, list[str]], percent: str, exit_code: int) -> None:
    sides = ["--before", *files["fast"], "--after", *files["slow"]]
    assert invoke(*sides, "--fail-if-slower", percent).exit_code == exit_code
    sides = ["--before", *files["slow"], "--after", *files["fast"]]
    assert invoke(*sides, "--fail-if-slower", percent).exit_code == 0


def test_command_with_single_runs(files: dict[str, list[str]]) -> None:
    sides = ["--before", files["fast"][0], "--after", files["slow"][0]]
    assert invoke(*sides).stdout.startswith("AMBIGUOUS: can't tell from one run per side: +10.00 %")
    assert invoke(*sides, "--noise", "1").stdout.startswith("SLOWER: +10.00 %")
    assert invoke(*sides, "--noise", "1", "--fail-if-slower", "5").exit_code == 4


def test_command_used_wrongly(files: dict[str, list[str]], tmp_path: Path) -> None:
    assert invoke("--before", *files["fast"]).exit_code == 2
    assert invoke("--before", files["fast"][0], "--after", files["fast"][1], "x.gpurun").exit_code
    save(Run(), tmp_path / "empty.gpurun")
    result = invoke("--before", files["fast"][0], "--after", str(tmp_path / "empty.gpurun"))
    assert result.exit_code == 1
    assert "has no complete step" in result.stderr


def test_package_without_scipy_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "scipy", None)
    with pytest.raises(pyinstrument_gpu.MissingDependencyError, match=r"pip install scipy"):
        compare(runs_of(100, 101, 102), runs_of(100, 101, 102))


BUSY = CpuContention(10**10, 2, busy_ns=2 * 10**10, own_ns=10**9)
ALONE = CpuContention(10**10, 2, busy_ns=10**9, own_ns=10**9)


@pytest.mark.parametrize("count", [3, 9, 10, 20])
def test_pairs_have_trimmed_means_from_ten_on(count: int) -> None:
    random = np.random.default_rng(count)
    before, after = random.normal(10, 5, count), random.normal(11, 5, count)
    after[0] += 1000
    changes = after - before
    mean, error, freedom = paired(before, after)
    assert mean == pytest.approx(stats.trim_mean(changes, 0.1))
    cut = count // 10
    if cut:
        assert mean < 10
        assert error == pytest.approx(stats.mstats.trimmed_stde(changes, (0.1, 0.1)))
    else:
        assert error == pytest.approx(stats.sem(changes))
    assert freedom == count - 1 - 3 * cut


def test_undisturbed_times_are_those_of_the_fastest() -> None:
    # Two of ten steps are undisturbed, and of those backward is 2 ms longer on one side.
    random = np.random.default_rng(1)

    def runs(backward_ms: float) -> list[Run]:
        made = []
        for _ in range(3):
            disturbed = np.where(np.arange(40) % 5, random.uniform(1.5, 9, 40), 1)
            phases = {"forward": 5 / (8 + backward_ms), "backward": backward_ms / (8 + backward_ms)}
            made.append(made_run((8 + backward_ms) * MS * disturbed, phases))
        return made

    before, after = runs(2), runs(4)
    assert compare(before, after, in_pairs=True).verdict is Verdict.AMBIGUOUS
    found = compare(before, after, in_pairs=True, undisturbed=True)
    assert found.elapsed.change == pytest.approx(0.2, abs=1e-4)
    assert [(one.path, round(one.change_ns / MS, 2)) for one in found.significant_phases] == [
        ("backward", 2.0)
    ]
    assert [round(one.before_ns / MS, 2) for one in found.phases] == [2.0, 5.0, 3.0]


@pytest.mark.parametrize(("calls", "forward_ns"), [(20, 5e6), (10, 2.5e6), (9, 0)])
def test_what_is_called_too_seldom_is_not_undisturbed(calls: int, forward_ns: float) -> None:
    run = made_run([10 * MS] * 20)
    seldom = np.flatnonzero(run.spans["step"] >= calls)
    run.spans["thread"][seldom] = 1  # of another thread
    run.span_self_ns[seldom] = -1
    sample = run_samples([run], undisturbed=True)[0]
    assert sample.phase_ns.get("forward") == pytest.approx(forward_ns)
    assert sample.elapsed_ns == pytest.approx(sum(sample.phase_ns.values()))


@pytest.mark.parametrize(
    ("processor", "shares", "verdict"),
    [
        # 12 ms of which 2 ms are waits are no slower than 10 ms without.
        pytest.param(BUSY, (0.0, 1 / 6), Verdict.AMBIGUOUS, id="waits that explain the change"),
        pytest.param(BUSY, (0.1, 0.1), Verdict.SLOWER, id="the same on both sides"),
        # What the program does to itself is a change.
        pytest.param(ALONE, (0.0, 1 / 6), Verdict.SLOWER, id="waits without other processes"),
        pytest.param(None, (0.0, 1 / 6), Verdict.SLOWER, id="nothing known of others"),
    ],
)
def test_waits_for_other_processes_are_no_change(
    processor: CpuContention | None, shares: tuple[float, float], verdict: Verdict
) -> None:
    sides = [
        [with_waits(run, share, processor) for run in runs_of(mean, mean * 1.001, mean * 1.002)]
        for mean, share in zip((10, 12), shares, strict=True)
    ]
    found = compare(*sides)
    assert found.verdict is verdict
    assert (found.before_wait, found.after_wait) == pytest.approx(shares)
    used = "CPU contention: other processes used up to 1.9 of 2 processors"
    warned = [text for text in found.warnings if used in text]
    assert len(warned) == (processor is BUSY)
    if warned:
        assert found.warnings[0] == warned[0]
        assert f"{waited_for_processor(*shares)}: the interval is" in warned[0]


def test_where_waits_are_unknown_other_processes_are_only_named() -> None:
    sides = [runs_of(mean, mean * 1.001, mean * 1.002) for mean in (10, 12)]
    for run in sides[0]:
        run.cpu_contention = BUSY
    found = compare(*sides)
    assert found.verdict is Verdict.SLOWER
    assert found.other_processors == pytest.approx(1.9)
    assert found.warnings[0].endswith("the smaller the changes that can be shown")
