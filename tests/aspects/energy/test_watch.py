# SPDX-License-Identifier: Apache-2.0
"""A GPU's energy counter, with a simulated NVML."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_step
from pyinstrument_gpu.aspects.energy.data import decode_energy
from pyinstrument_gpu.aspects.energy.watch import MOST_SAMPLES, EnergyWatch
from pyinstrument_gpu.core.nvml import EnergyCounter, NvmlError
from pyinstrument_gpu.errors import RunFileDamagedError
from tests.helpers.nvml import ENERGY, NOT_SUPPORTED, SimulatedNvml

NEVER_S = 1e6


def recording_of(
    find: Callable[[], tuple[int, EnergyCounter] | None],
) -> tuple[pig.Recording, EnergyWatch]:
    recording = pig.record(energy=True)
    recording.watchers["energy"] = watch = EnergyWatch(find, interval_s=NEVER_S)
    return recording, watch


def test_it_is_read_at_the_first_step_and_at_the_end() -> None:
    library = SimulatedNvml()
    recording, watch = recording_of(lambda: (3, EnergyCounter("GPU-1", library)))
    with recording:
        with gpu_step():
            library.numbers[ENERGY] = 1500
        watch.read()
        library.numbers[ENERGY] = 4000
    (gpu,) = recording.run.energy

    assert (gpu.device, gpu.uuid) == (3, "GPU-1")
    assert gpu.samples["energy_mj"].tolist() == [0, 1500, 4000]
    assert gpu.joules == 4
    begin_ns, *_, end_ns = gpu.samples["time_ns"].tolist()
    assert begin_ns <= recording.run.steps[0].begin_ns
    assert recording.run.steps[0].end_ns <= end_ns <= recording.run.duration_ns
    assert library.users == 0
    assert "4 J in " in recording.run.report(verbose=True, width=200)


def test_a_gpu_that_comes_later_is_waited_for() -> None:
    library = SimulatedNvml()
    answers: list[Any] = [None, (0, EnergyCounter("GPU-1", library))]
    recording, _ = recording_of(lambda: answers.pop(0))
    with recording:
        for _ in range(22):
            with gpu_step():
                pass
    assert not answers
    assert len(recording.run.energy) == 1


def find_nothing() -> tuple[int, EnergyCounter]:
    raise NvmlError("no such library")


@pytest.mark.parametrize("find", [find_nothing, lambda: None])
def test_without_nvml_it_is_absent_and_not_zero(
    find: Callable[[], tuple[int, EnergyCounter] | None],
) -> None:
    recording, _ = recording_of(find)
    with recording, gpu_step():
        pass
    assert recording.run.energy == ()
    assert "Energy" not in recording.run.report(verbose=True, width=100)


def test_it_has_to_be_asked_for() -> None:
    assert "energy" not in pig.record().watchers


def test_a_counter_that_fails_ends_the_series() -> None:
    library = SimulatedNvml()
    recording, watch = recording_of(lambda: (0, EnergyCounter("GPU-1", library)))
    with recording:
        with gpu_step():
            pass
        library.status = NOT_SUPPORTED
        assert not watch.read()
    (gpu,) = recording.run.energy
    assert len(gpu.samples) == 1
    assert gpu.joules is None


def test_the_thread_reads_by_itself() -> None:
    library = SimulatedNvml()
    recording = pig.record(energy=True)
    watch = EnergyWatch(lambda: (0, EnergyCounter("GPU-1", library)), 0)
    recording.watchers["energy"] = watch
    with recording:
        with gpu_step():
            pass
        assert watch._thread is not None
        library.status = NOT_SUPPORTED
        watch._thread.join()  # it ends with the first reading that fails


@pytest.mark.parametrize("uuid, status", [("GPU-2", 0), ("GPU-1", NOT_SUPPORTED)])
def test_a_gpu_without_a_counter_is_refused(uuid: str, status: int) -> None:
    library = SimulatedNvml(status=status)
    with pytest.raises(NvmlError):
        EnergyCounter(uuid, library)
    assert library.users == 0


def test_an_older_library_is_refused() -> None:
    with pytest.raises(NvmlError, match="no nvmlInit_v2"):
        EnergyCounter("GPU-1", object())


def test_a_series_is_bounded() -> None:
    library = SimulatedNvml()
    recording, watch = recording_of(lambda: (0, EnergyCounter("GPU-1", library)))
    with recording:
        with gpu_step():
            pass
        for library.numbers[ENERGY] in range(5 * MOST_SAMPLES):
            watch.read()
    (gpu,) = recording.run.energy
    energy_mj = gpu.samples["energy_mj"].tolist()
    assert MOST_SAMPLES / 2 <= len(energy_mj) <= MOST_SAMPLES + 1
    assert energy_mj[-1] == 5 * MOST_SAMPLES - 1
    assert len(set(np.diff(energy_mj)[1:-1])) == 1  # evenly


@pytest.mark.parametrize(
    "gpu",
    [
        3,
        {"device": -1, "uuid": "a", "samples": []},
        {"device": 0, "uuid": "a b", "samples": []},
        {"device": 0, "uuid": "a", "samples": 1},
        {"device": 0, "uuid": "a", "samples": [[1]]},
        {"device": 0, "uuid": "a", "samples": [[1, -1]]},
        {"device": 0, "uuid": "a", "samples": [[1, 5], [2, 4]]},
        {"device": 0, "uuid": "a", "samples": [[2, 5], [2, 6]]},
    ],
)
def test_what_makes_no_sense_is_refused(gpu: Any) -> None:
    good = {"device": 1, "uuid": "GPU-b", "samples": [[10, 1], [20, 3]]}
    anchor = {"monotonic_ns": 5, "run_ns": 100}
    (found,) = decode_energy(json.dumps({"gpus": [good]}).encode(), anchor)
    assert found.samples.tolist() == [(105, 1), (115, 3)]
    with pytest.raises(RunFileDamagedError, match="ENERGY"):
        decode_energy(json.dumps({"gpus": [gpu, good]}).encode(), anchor)
