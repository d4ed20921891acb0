# SPDX-License-Identifier: Apache-2.0
"""Which steps the page draws."""

from dataclasses import replace

import numpy as np

from pyinstrument_gpu import analysis
from pyinstrument_gpu.core.cause import Cause, Precedence
from pyinstrument_gpu.export.labels import COLORS
from pyinstrument_gpu.page.step_series import MAX_SLOW, cause_colors, step_series
from tests.page.runs import MS, STEP_NS, training


def test_of_a_short_run_all_steps_are_drawn() -> None:
    run = training([STEP_NS] * 9 + [5 * STEP_NS])
    series = step_series(run)

    assert series.steps.tobytes() == run.steps.array.tobytes()
    assert series.total == 10
    assert (series.slow_steps, series.slow.tolist()) == (1, [-1] * 9 + [0])
    assert [run.paths[path] for path in series.paths] == [
        "backward",
        "forward",
        "forward/attention",
    ]
    assert series.self_ns[0].tolist() == [5 * MS] * 9 + [25 * MS]
    assert not series.other_ns.any()


def test_of_a_long_run_the_envelope_and_all_slow_steps_are_drawn() -> None:
    durations = np.random.default_rng(1).normal(STEP_NS, STEP_NS / 50, 5_000).astype(int)
    far = list(range(100, 4_900, 60))
    durations[far] *= 3
    series = step_series(training(durations.tolist(), on_device=False), 200)

    drawn = series.steps["index"]
    assert set(far) <= set(drawn.tolist())
    assert set(far) == set(drawn[series.slow >= 0].tolist())
    assert series.slow_steps == len(far)
    assert len(drawn) <= 200 + len(far)
    assert {0, 4_999, int(durations.argmin()), int(durations.argmax())} <= set(drawn.tolist())
    assert (np.diff(drawn) > 0).all()


def test_of_very_many_slow_steps_the_worst_are_drawn_and_all_are_counted() -> None:
    durations = np.full(20_000, STEP_NS)
    far = np.arange(0, 20_000, 10)
    durations[far] += STEP_NS + np.arange(len(far)) * 1_000
    series = step_series(training(durations.tolist(), on_device=False), 200)

    assert series.slow_steps == len(far)
    assert set(far[-MAX_SLOW:].tolist()) <= set(series.steps["index"].tolist())


def test_of_few_steps_none_is_slow() -> None:
    assert not step_series(training([STEP_NS, STEP_NS, 9 * STEP_NS])).slow_steps


def test_causes_that_explain_most_have_a_colour_each() -> None:
    """Of as many as there are colours and two more, where the first and the last explain least."""
    count = len(COLORS) + 2
    causes = tuple(Cause(str(i), str(i), "", Precedence.ACT) for i in range(count))
    parts_ns = np.full((count, 1), 9)
    parts_ns[[0, -1]] = 1
    found = replace(analysis.of(training()).excess, causes=causes, parts_ns=parts_ns)

    *colors, unexplained = cause_colors(found)
    assert len({*colors[1:-1]}) == len(COLORS)
    assert colors[0] == colors[-1] not in colors[1:-1]
    assert unexplained == "var(--alarm)"


def test_nothing_is_known_of_a_step_whose_spans_are_gone() -> None:
    whole = training()
    run = training(
        spans=whole.spans[6:],
        span_self_ns=whole.span_self_ns[6:],
        dropped={"span_history": 6},
        phases_recorded=len(whole.spans),
    )
    series = step_series(run)

    # The third step began before the first span that was kept had ended.
    assert (series.self_ns[:, :3] == -1).all()
    assert (series.self_ns[0, 3:] == 5 * MS).all()


def test_a_run_without_steps_has_no_series() -> None:
    assert not len(step_series(training([])).steps)
