# SPDX-License-Identifier: Apache-2.0
"""What slow steps took too long, divided among causes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyinstrument_gpu.analysis.excess import Excess, divided
from pyinstrument_gpu.analysis.step_kinds import StepKinds, step_kinds
from pyinstrument_gpu.core.cause import AMOUNT_DTYPE, INTERVAL_DTYPE, Cause, Precedence
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import STEP_DTYPE
from pyinstrument_gpu.core.steps import Steps


def run_of(
    durations_ns: Sequence[int], gaps_ns: Sequence[int] = (), samples: Sequence[float] = ()
) -> Run:
    """A run of steps of these times on thread 0, one after the other."""
    steps = np.zeros(len(durations_ns), STEP_DTYPE)
    steps["index"] = np.arange(len(steps))
    ends_ns = np.cumsum(durations_ns) + np.cumsum([*gaps_ns, *[0] * len(steps)][: len(steps)])
    steps["begin_ns"], steps["end_ns"] = ends_ns - durations_ns, ends_ns
    steps["samples"] = samples or math.nan
    steps["complete"] = True
    return Run(steps=Steps(steps), duration_ns=int(ends_ns[-1]) if len(steps) else 0)


def cause(
    name: str,
    intervals: Sequence[tuple[int, int, int]] = (),
    amounts: Sequence[tuple[int, int]] = (),
    *,
    precedence: Precedence = Precedence.PAUSE,
    known: Sequence[int] | None = None,
    is_idle: bool = False,
    is_essential: bool = False,
) -> Cause:
    return Cause(
        name,
        name,
        "",
        precedence,
        np.array([(*one, -1) for one in intervals], INTERVAL_DTYPE),
        np.array(list(amounts), AMOUNT_DTYPE),
        None if known is None else np.array(known),
        is_idle=is_idle,
        is_essential=is_essential,
    )


def found(run: Run, *causes: Cause) -> Excess:
    return divided(step_kinds(run), causes)


def parts(of: Excess) -> dict[str, list[int]]:
    return {one.name: row for one, row in zip(of.causes, of.parts_ns.tolist(), strict=True)}


QUIET = [100] * 20


def test_a_moment_counts_once_and_goes_to_the_first_that_claims_it() -> None:
    run = run_of([*QUIET, 300])
    # The slow step lasts from 2000 to 2300.
    of = found(
        run,
        cause("late batch", [(2010, 2200, 0)], precedence=Precedence.WAIT),
        cause("evaluation", [(2050, 2250, 0)], precedence=Precedence.ACT),
        cause("collection", [(2040, 2060, -1)]),
        cause("pause inside", [(2045, 2055, 0), (2050, 2052, 1)]),
    )
    assert of.steps["index"].tolist() == [20]
    assert of.typical_ns.tolist() == [100]
    # In the collection the other pause began last. The evaluation has what follows on both, and the
    # late batch, of what it has left from 2010 on, as much as remains of the excess.
    assert parts(of) == {
        "collection": [10],
        "pause inside": [10],
        "evaluation": [180],
        "late batch": [0],
    }
    assert of.unexplained_ns.tolist() == [0]
    late = [one.name for one in of.causes].index("late batch")
    assert of.most_ns[late].tolist() == [190]
    assert of.least_ns[late].tolist() == [0]


def test_what_usual_steps_have_as_well_explains_nothing() -> None:
    run = run_of([*QUIET, 160])
    waits = [(100 * step, 100 * step + 30, 0) for step in range(20)]
    of = found(run, cause("late batch", [*waits, (2000, 2050, 0)]))
    assert parts(of) == {"late batch": [20]}
    assert of.unexplained_ns.tolist() == [40]
    assert of.main_cause.tolist() == [-1]


def test_amounts_explain_at_most_what_is_left() -> None:
    run = run_of([*QUIET, 160])
    of = found(
        run,
        cause("faults", amounts=[(20, 20), (20, 15), (7, 900)], precedence=Precedence.HINDRANCE),
        cause("waits", amounts=[(20, 40)]),
    )
    assert parts(of) == {"waits": [40], "faults": [20]}
    assert of.main_cause.tolist() == [0]


def test_what_was_waited_in_an_act_is_a_part_of_it() -> None:
    run = run_of([*QUIET, 400])
    late = cause("late batch", [(2000, 2390, 0)], precedence=Precedence.WAIT)
    waits = cause("waits", amounts=[(20, 190)])
    of = found(run, waits, late, cause("evaluation", [(2050, 2300, 0)], precedence=Precedence.ACT))
    assert parts(of) == {"evaluation": [250], "waits": [50], "late batch": [0]}
    assert parts(found(run, waits, late)) == {"waits": [190], "late batch": [110]}


def test_a_step_that_was_not_read_is_unknown_and_no_zero() -> None:
    run = run_of([*QUIET, 200, 200])
    # It is usual where it was read, in every second step.
    read = list(range(0, 22, 2))
    of = found(run, cause("waits", amounts=[(step, 30) for step in read] + [(20, 60)], known=read))
    assert parts(of) == {"waits": [60, 0]}
    assert of.is_known.tolist() == [[True, False]]
    assert of.unexplained_ns.tolist() == [40, 100]


def test_what_is_left_of_a_step_in_which_nobody_looked_is_not_unexplained() -> None:
    run = run_of([*QUIET, 200, 200])
    of = found(
        run,
        cause("waits", amounts=[(20, 60)], known=[20], is_essential=True),
        cause("steal", known=[]),
        cause("collection", [(2230, 2270, -1)]),
    )
    assert parts(of) == {
        "collection": [0, 40],
        "waits": [60, 0],
        "steal": [0, 0],
        "not_looked_at": [0, 60],
    }
    assert of.unexplained_ns.tolist() == [40, 0]
    assert [of.causes[row].name for row in of.main_cause] == ["waits", "not_looked_at"]
    # It takes nothing from what others explain for certain.
    assert of.least_ns[:, 1].tolist() == [40, 0, 0, 60]


def test_a_rest_with_moments_has_all_that_others_leave() -> None:
    retried = cause("retry", [(2000, 3000, 0)], precedence=Precedence.REST, known=[20])
    act = cause("evaluation", [(2100, 2600, 0)], precedence=Precedence.ACT)
    assert parts(found(run_of([*QUIET, 1000]), retried, act)) == {
        "evaluation": [500],
        "retry": [400],
    }


def test_an_interval_of_several_steps_counts_in_each_and_not_between_them() -> None:
    run = run_of([*QUIET, 200, 300], gaps_ns=[*[0] * 21, 50])
    of = found(run, cause("collection", [(2110, 2330, -1), (1990, 2000, -1)]))
    assert parts(of) == {"collection": [90, 80]}


def test_intervals_of_many_steps_need_no_room_for_each_of_them() -> None:
    run = run_of([*QUIET, 300])
    of = found(run, cause("collection", [(begin, 2250, 0) for begin in range(2000)]))
    assert of.most_ns.tolist() == [[150]]
    assert of.parts_ns.tolist() == [[150]]


@pytest.mark.parametrize("noise", ["normal", "skewed", "long tail"])
def test_in_quiet_runs_hardly_any_step_has_a_cause(noise: str) -> None:
    random = np.random.default_rng(7)
    count = 4000
    factors = {
        "normal": random.normal(1, 0.05, count),
        "skewed": random.lognormal(0, 0.2, count),
        "long tail": 1 + random.exponential(0.1, count),
    }
    times_ns = np.maximum(factors[noise] * 1e7, 1).astype(int)
    # Each cause takes 2 % of a step on average, however long the step is.
    amounts = [random.exponential(2e5, count).astype(int) for _ in range(5)]
    of = found(
        run_of(times_ns.tolist()),
        *(cause(f"{n}", amounts=list(enumerate(ns.tolist()))) for n, ns in enumerate(amounts)),
    )
    assert len(of.steps) < 0.05 * count
    assert np.count_nonzero(of.main_cause >= 0) < 0.01 * count


def test_what_a_thread_ran_for_longer_is_what_no_cause_that_runs_explains() -> None:
    # It ran for 250 longer, of which a collection took 200; for 30 it had no processor.
    ran = cause(
        "computing",
        amounts=[*((step, 100) for step in range(20)), (20, 350)],
        precedence=Precedence.REST,
    )
    collection = cause("collection", [(2000, 2200, -1)])
    of = found(
        run_of([*QUIET, 400]), ran, collection, cause("steal", amounts=[(20, 30)], is_idle=True)
    )
    assert parts(of) == {"collection": [200], "steal": [30], "computing": [50]}
    assert of.unexplained_ns.tolist() == [20]  # it slept
    # It takes nothing from what others may explain.
    row = [one.name for one in of.causes].index("collection")
    assert of.least_ns[row].tolist() == [200]


def test_small_batches_are_another_kind_and_rare_ones_are_compared_by_their_size() -> None:
    times_ns = [100] * 10 + [400] * 10 + [130, 300, 801]
    run = run_of(times_ns, samples=[8] * 10 + [32] * 10 + [12, 14, 64])
    kinds = step_kinds(run)
    # 12 and 14 are 1.5 and 1.75 times as large as 8; 64 is twice as large as 32.
    assert kinds.typical_ns[20:].tolist() == [150, 175, 800]
    assert kinds.steps["index"][kinds.is_slow].tolist() == [21]
    far = step_kinds(run_of([*QUIET, 900], samples=[8] * 20 + [64]))
    assert far.typical_ns[20] == -1
    assert not far.is_slow.any()


def test_sizes_that_never_repeat_are_put_together() -> None:
    sizes = [1000 + step for step in range(40)]
    run = run_of([*sizes[:-1], 1500], samples=sizes)
    assert step_kinds(run).is_slow.nonzero()[0].tolist() == [39]


def test_noise_is_told_by_the_faster_half() -> None:
    noise_ns = [90, 95, 100, 105, 110] * 8
    # A quarter of the steps is slow, and still they are slow.
    assert step_kinds(run_of([*noise_ns, *[200] * 13])).is_slow.sum() == 13
    assert not step_kinds(run_of([*noise_ns, 130])).is_slow.any()
    assert not step_kinds(run_of([*QUIET, 119])).is_slow.any()
    assert not step_kinds(run_of([1, 9, 1, 9, 1, 9, 90])).is_slow.any()


def test_without_steps_or_causes_there_is_nothing() -> None:
    assert not len(found(run_of([])).steps)
    of = found(run_of([*QUIET, 150]))
    assert of.unexplained_ns.tolist() == [50]
    assert of.main_cause.tolist() == [-1]


TIME = st.integers(0, 400)
CAUSES = st.lists(
    st.tuples(
        st.sampled_from(Precedence),
        st.lists(st.tuples(TIME, st.integers(1, 60), st.sampled_from([-1, 0, 1])), max_size=6),
        st.lists(st.tuples(st.integers(0, 12), st.integers(0, 40)), max_size=3),
        st.booleans(),
    ),
    max_size=4,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=9, max_size=12), CAUSES)
def test_the_parts_add_up_and_each_moment_has_one_owner(
    durations_ns: list[int],
    given_causes: list[tuple[Precedence, list[tuple[int, int, int]], list[tuple[int, int]], bool]],
) -> None:
    run = run_of(durations_ns)
    causes = [
        cause(
            str(number),
            [(begin, begin + length, thread) for begin, length, thread in intervals],
            amounts,
            precedence=precedence,
            is_idle=is_idle,
        )
        for number, (precedence, intervals, amounts, is_idle) in enumerate(given_causes)
    ]
    steps = run.steps.array
    all_slow = StepKinds(
        steps,
        np.zeros(len(steps), np.int64),
        np.zeros(len(steps), np.int64),
        np.ones(len(steps), bool),
    )
    of = divided(all_slow, causes)
    assert (of.parts_ns >= 0).all()
    assert (of.unexplained_ns >= 0).all()
    assert (of.parts_ns.sum(axis=0) + of.unexplained_ns == durations_ns).all()
    assert (of.least_ns <= of.parts_ns).all()
    assert (of.parts_ns <= of.most_ns).all()

    own = {one.name: [0] * len(steps) for one in of.causes}
    for place, (begin_ns, end_ns) in enumerate(
        zip(steps["begin_ns"], steps["end_ns"], strict=True)
    ):
        for moment in range(begin_ns, end_ns):
            claims = [
                (one.precedence, -begin, number)
                for number, one in enumerate(of.causes)
                for begin, end, thread, _ in one.intervals.tolist()
                if max(begin, begin_ns) <= moment < end and thread <= 0
                for begin in [max(begin, begin_ns)]
            ]
            if claims:
                own[of.causes[min(claims)[2]].name][place] += 1
    left, busy = list(durations_ns), [0] * len(steps)
    for one in of.causes:
        for step, time_ns in one.amounts.tolist():
            if step < len(steps):
                own[one.name][step] += time_ns
        is_sum = one.precedence == Precedence.REST and not len(one.intervals)
        spent = busy if is_sum else [0] * len(steps)
        expected = [
            min(max(ns - used, 0), some)
            for ns, used, some in zip(own[one.name], spent, left, strict=True)
        ]
        left = [some - ns for some, ns in zip(left, expected, strict=True)]
        if not one.is_idle:
            busy = [used + ns for used, ns in zip(busy, expected, strict=True)]
        assert parts(of)[one.name] == expected
