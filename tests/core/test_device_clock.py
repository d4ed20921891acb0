# SPDX-License-Identifier: Apache-2.0

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyinstrument_gpu.core.clocks import ASSUMED_DRIFT, DeviceClock


def clock(*points: tuple[int, int, int]) -> DeviceClock:
    columns = np.array(points, np.int64).T
    return DeviceClock(0, columns[0], columns[1], columns[2])


def on_run_axis(clock: DeviceClock, *device_ns: int) -> list[int]:
    run_ns: list[int] = clock.on_run_axis(np.array(device_ns, np.int64)).tolist()
    return run_ns


def uncertainty_at(clock: DeviceClock, *device_ns: int) -> list[float]:
    uncertainties_ns: list[float] = clock.uncertainty_at_ns(np.array(device_ns, np.int64)).tolist()
    return uncertainties_ns


BENT = clock((1000, 100, 4), (2000, 1100, 8), (3000, 2300, 2))


def test_times_are_interpolated_between_neighbours_and_go_on_beyond_the_ends() -> None:
    assert on_run_axis(BENT, 950, 1000, 1500, 2000, 2500, 3000, 4000) == [
        *(50, 100, 600, 1100, 1700, 2300, 3500)
    ]
    assert on_run_axis(BENT, 899) == [-1]  # before the run began


def test_one_point_alone_has_slope_one() -> None:
    alone = clock((10**15, 7, 50))

    assert on_run_axis(alone, 10**15 - 7, 10**15 + 10**12) == [0, 10**12 + 7]
    assert alone.drift_ppm is None
    assert uncertainty_at(alone, 10**15, 10**15 - 10**9) == [50, 50 + ASSUMED_DRIFT * 10**9]


def test_uncertainty_is_that_of_the_neighbours_and_grows_beyond_the_ends() -> None:
    assert uncertainty_at(BENT, 1000, 1250, 2000, 3000) == [4, 5, 8, 2]
    assert uncertainty_at(BENT, 4000) == [2 + (8 + 2)]
    assert uncertainty_at(BENT, 500) == [4 + (4 + 8) / 2]
    assert BENT.uncertainty_ns == 8


def test_drift_is_that_from_the_first_point_to_the_last() -> None:
    assert clock((0, 5, 1), (10**9, 10**9 + 5 + 40_000, 1)).drift_ppm == 40.0


def test_far_beyond_what_can_be_is_no_time() -> None:
    steep = clock((0, 0, 0), (1, 10**6, 0))
    assert on_run_axis(steep, 2**60) == [-1]


ASCENDING = st.lists(st.integers(1, 10**12), min_size=1, max_size=6)


@given(st.data())
def test_mapping_is_exact_and_keeps_order(data: st.DataObject) -> None:
    gaps = data.draw(ASCENDING)
    drifts = data.draw(st.lists(st.integers(-200, 200), min_size=len(gaps), max_size=len(gaps)))
    device, run = [10**14], [10**13]
    for gap, ppm in zip(gaps, drifts, strict=True):
        device.append(device[-1] + gap)
        run.append(run[-1] + max(1, gap + gap * ppm // 10**6))
    made = clock(*((d, r, 0) for d, r in zip(device, run, strict=True)))
    assert on_run_axis(made, *device) == run

    times = sorted(data.draw(st.lists(st.integers(10**14, 10**14 + sum(gaps)), min_size=1)))
    mapped = on_run_axis(made, *times)
    assert mapped == sorted(mapped)
    for time, got in zip(times, mapped, strict=True):
        at = max(i for i in range(len(gaps)) if device[i] <= time)
        slope = Fraction(run[at + 1] - run[at], device[at + 1] - device[at])
        assert abs(got - (run[at] + (time - device[at]) * slope)) <= Fraction(51, 100)


@given(
    st.integers(-100, 100),
    st.lists(st.integers(0, 1000), min_size=2, max_size=2),
    st.lists(st.floats(-1, 1), min_size=2, max_size=2),
    st.integers(-(10**10), 2 * 10**10),
)
def test_steady_clock_is_within_its_stated_uncertainty(
    ppm: int, uncertainties_ns: list[int], errors: list[float], device_ns: int
) -> None:
    """Two points, each off by no more than it says: so is every time, also beyond them."""

    def truth(device_ns: int) -> Fraction:
        return 10**12 + device_ns * (1 + Fraction(ppm, 10**6))

    points = [
        (at_ns, round(truth(at_ns) + Fraction(error) * uncertainty_ns), uncertainty_ns)
        for at_ns, uncertainty_ns, error in zip((0, 10**10), uncertainties_ns, errors, strict=True)
    ]
    made = clock(*points)
    (got,), (uncertainty_ns,) = on_run_axis(made, device_ns), uncertainty_at(made, device_ns)
    # Points are whole nanoseconds, as is what they give.
    rounding_ns = 0.5 * (1 + max(1, abs(1 - device_ns / 10**10) + abs(device_ns / 10**10)))
    assert abs(got - truth(device_ns)) <= uncertainty_ns + rounding_ns + 1e-6


def test_clocks_compare_by_their_points() -> None:
    assert clock((0, 0, 0), (1, 1, 0)) == DeviceClock.same_as_run(0)
    assert hash(clock((0, 0, 0), (1, 1, 0))) == hash(DeviceClock.same_as_run(0))
    assert DeviceClock.same_as_run(0) != DeviceClock.same_as_run(1)
    assert clock((0, 0, 1)) != clock((0, 0, 2))
    assert clock((0, 0, 1)) != "clock"


@pytest.mark.parametrize("device_ns", [0, 1, 2**53 + 1, 2**60 + 3])
def test_hand_made_clock_is_exact(device_ns: int) -> None:
    assert on_run_axis(DeviceClock.same_as_run(0), device_ns) == [device_ns]
    assert uncertainty_at(DeviceClock.same_as_run(0), device_ns) == [0.0]
