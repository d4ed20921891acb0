# SPDX-License-Identifier: Apache-2.0
"""Statistics of all ranks together: the record that they exchange, and real ranks over gloo."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyinstrument_gpu as pig
from pyinstrument_gpu.core.statistics import PhaseStatistics, Statistic
from pyinstrument_gpu.errors import RecordingError
from pyinstrument_gpu.recording.job_statistics import MAX_PHASES, RECORD_BYTES, packed, unpacked
from tests.helpers.clock import fake_clock
from tests.helpers.script import run_script


def _statistics(*durations_ns: int) -> Statistic:
    return Statistic.of(np.array(durations_ns, np.int64))


def _phase(*durations_ns: int) -> PhaseStatistics:
    return PhaseStatistics(
        _statistics(*durations_ns), _statistics(*(ns // 2 for ns in durations_ns))
    )


NO_STEPS = _statistics()
_TIMES = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=5)
_PHASES = st.dictionaries(st.text(max_size=60), _TIMES, max_size=6)


@settings(max_examples=30)
@given(st.lists(_PHASES, min_size=1, max_size=4), _TIMES)
def test_what_is_packed_is_what_is_read(
    ranks: list[dict[str, list[int]]], steps: list[int]
) -> None:
    records = [
        packed(({path: _phase(*times) for path, times in one.items()}, _statistics(*steps)))
        for one in ranks
    ]
    assert {len(record) for record in records} == {RECORD_BYTES}
    own = [path for one in ranks for path in one]
    found = unpacked(records, range(len(ranks)), own)

    assert set(found.phases) == set(own)
    for path, phase in found.phases.items():
        for rank, one in enumerate(ranks):
            if path not in one:
                assert phase.count[rank] == phase.host_ns[rank] == phase.min_ns[rank] == -1
                assert math.isnan(phase.mean_ns[rank]) and math.isnan(phase.std_ns[rank])
                continue
            host = _statistics(*one[path])
            assert (phase.count[rank], phase.host_ns[rank]) == (host.count, host.total_ns)
            assert phase.self_ns[rank] == sum(ns // 2 for ns in one[path])
            assert (phase.min_ns[rank], phase.max_ns[rank]) == (min(one[path]), max(one[path]))
            assert phase.std_ns[rank] == host.std_ns
            assert phase.mean_ns[rank] == host.mean_ns
    assert found.steps.tolist() == [len(steps)] * len(ranks)
    assert found.step_ns.tolist() == [sum(steps)] * len(ranks)


def test_the_slowest_rank_and_how_far_it_is_from_the_others() -> None:
    times = [(100,), (110,), (400,), (90,)]
    records = [packed(({"data": _phase(*ns)}, NO_STEPS)) for ns in times]
    data = unpacked([*records, packed(({}, NO_STEPS))], (0, 1, 2, 3, 7)).phases["data"]

    assert data.slowest_rank == 2
    assert data.distance_ns == 300
    assert data.median_ns == 105


def test_one_rank_or_two_alike_are_not_slow() -> None:
    alike = [packed(({"a": _phase(5), "b": _phase(*own)}, NO_STEPS)) for own in ((3,), (3,))]
    found = unpacked([*alike, packed(({"a": _phase(4)}, NO_STEPS))], (0, 1, 2))
    for phase in found.phases.values():
        assert phase.slowest_rank is None and math.isnan(phase.distance_ns)
    alone = unpacked([packed(({"a": _phase(5)}, NO_STEPS))], (3,)).phases["a"]
    assert alone.slowest_rank is None and alone.median_ns == 5


def test_a_rank_that_records_nothing_is_missing_and_not_zero() -> None:
    found = unpacked([packed(({"a": _phase(5)}, _statistics(9))), packed(None)], (0, 1))
    assert found.missing == (1,)
    assert found.steps.tolist() == [1, -1] and found.step_ns.tolist() == [9, -1]
    assert found.step_mean_ns.tolist()[0] == 9 and math.isnan(found.step_mean_ns[1])
    assert found.phases["a"].count.tolist() == [1, -1]


def test_phases_that_do_not_fit_are_counted() -> None:
    phases = {f"phase {number}": _phase(number + 1) for number in range(MAX_PHASES + 3)}
    found = unpacked([packed((phases, NO_STEPS)), packed(({}, NO_STEPS))], (0, 1))
    assert found.left_out.tolist() == [3, 0]
    # Those with the least time.
    assert set(phases) - set(found.phases) == {"phase 0", "phase 1", "phase 2"}


def test_long_names_are_told_apart_and_whole_where_they_are_known() -> None:
    long = ["é" * 80 + "/a", "é" * 80 + "/b"]
    record = packed(({name: _phase(3 - place) for place, name in enumerate(long)}, NO_STEPS))
    assert list(unpacked([record], (0,), long).phases) == long
    cut = list(unpacked([record], (0,)).phases)
    assert cut == ["é" * 46 + "…", "é" * 46 + "……"]


def test_a_rank_with_another_version_is_named() -> None:
    other = packed(({}, NO_STEPS))
    other[:24] = np.frombuffer(b"pig-job-statistics-2".ljust(24, b"\0"), np.uint8)
    with pytest.raises(RecordingError, match="rank 5 has another version"):
        unpacked([packed(({}, NO_STEPS)), other], (0, 5))


# --- one process ---


def test_of_one_process_each_call_has_what_came_since_the_last() -> None:
    forward_ns = (5, 10, 40, 25, 20, 100, 300, 200)
    with fake_clock() as advance_ns, pig.record() as recording:
        for number, ns in enumerate(forward_ns):
            with pig.gpu_step(), pig.gpu_phase("forward"):
                if number < 5:
                    with pig.gpu_phase("attention"):
                        advance_ns(1)
                advance_ns(ns)
            if number == 4:
                first = recording.job_statistics()
        with pig.gpu_phase("validation"):
            pass
        second = recording.job_statistics()
        third = recording.job_statistics()

    def counts(found: pig.JobStatistics) -> dict[str, list[int]]:
        return {path: phase.count.tolist() for path, phase in found.phases.items()}

    assert first.ranks == (0,) and first.missing == ()
    assert counts(first) == {"forward": [5], "forward/attention": [5]}
    assert counts(second) == {"forward": [3], "validation": [1]}
    assert counts(third) == {}
    assert [found.steps.tolist() for found in (first, second, third)] == [[5], [3], [0]]
    assert (first.step_ns[0], second.step_ns[0]) == (105, 600)
    forward = first.phases["forward"]
    assert (forward.host_ns[0], forward.self_ns[0]) == (105, 100)
    forward = second.phases["forward"]
    assert (forward.host_ns[0], forward.self_ns[0]) == (600, 600)
    # Of what came since the last call these are known to within a bucket.
    assert forward.min_ns[0] == pytest.approx(100, rel=1 / 32)
    assert forward.max_ns[0] == pytest.approx(300, rel=1 / 32)
    assert forward.std_ns[0] == pytest.approx(math.sqrt(20_000 / 3), rel=1e-9)


def test_more_spans_than_the_tap_keeps_are_counted_once() -> None:
    spans = 250_000
    with pig.record(history_spans=1000) as recording:
        recording.job_statistics()
        phase = pig.gpu_phase("many")
        for _ in range(spans):
            with phase:
                pass
        found = recording.job_statistics().phases
        assert found["many"].count.tolist() == [spans]
        assert "many" not in recording.job_statistics().phases


def test_a_recording_that_is_not_active_is_refused(tmp_path: Path) -> None:
    recording = pig.record(tmp_path / "a.gpurun")
    with pytest.raises(RecordingError, match="never started"):
        recording.job_statistics()
    with recording:
        pass
    with pytest.raises(RecordingError, match="has stopped"):
        recording.job_statistics()


def test_a_group_without_torch_distributed_is_refused() -> None:
    with (
        fake_clock(),
        pig.record() as recording,
        pytest.raises(ValueError, match="not initialised"),
    ):
        recording.job_statistics(group=object())


@pytest.mark.parametrize("timeout_s", [0, -1, math.nan, math.inf])
def test_an_impossible_timeout_is_refused(timeout_s: float) -> None:
    with pig.record() as recording, pytest.raises(ValueError, match="timeout_s"):
        recording.job_statistics(timeout_s=timeout_s)


# --- ranks ---


def _ranks(ranks: int, tmp_path: Path, *arguments: str) -> list[Any]:
    """What each rank of a job has written."""
    pytest.importorskip("torch")
    source = "import torch\nfrom tests.helpers.job_statistics_rank import main\nmain()"
    # Not by the interface of the host's name, which need not be known.
    run_script(source, tmp_path, ranks, *arguments, environment={"GLOO_SOCKET_IFNAME": "lo"})
    return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]


def test_ranks_see_all_ranks(tmp_path: Path) -> None:
    results = _ranks(3, tmp_path)
    for rank, result in enumerate(results):
        # All see the same, which is what each has recorded.
        assert result["first"] == {
            "ranks": [0, 1, 2],
            "missing": [],
            "steps": [4] * 3,
            "counts": {"forward": [4] * 3, "of the last": [-1, -1, 4]},
            "slowest": {"forward": 0, "of the last": None},
            "distance_ns": {"forward": 50_000_000 - 1_000},
        }
        assert result["second"]["steps"] == [2] * 3
        assert result["second"]["counts"] == {"forward": [2] * 3}
        # The last one has stopped its recording before the third call, which fails on it alone.
        assert result["third"] == (
            "the recording has stopped: ask while it is active" if rank == 2 else [2]
        )
        assert result["of a group"] == ("not in" if rank == 2 else [0, 1])


def test_a_rank_that_never_calls_is_an_error_after_the_timeout(tmp_path: Path) -> None:
    first, second = _ranks(2, tmp_path, "absent")
    assert first["error"].startswith("the ranks could not exchange their statistics: ")
    assert "Every rank has to call job_statistics" in first["error"]
    # It does not wait once more.
    assert first["again"].startswith("a former exchange of statistics failed")
    assert second == {}
