# SPDX-License-Identifier: Apache-2.0
"""How a GPU is used, with a simulated NVML."""

import contextlib
import csv
import ctypes
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.analysis.run_sample import final_values
from pyinstrument_gpu.aspects.gpu_use import watch as watch_module
from pyinstrument_gpu.aspects.gpu_use.aspect import ASPECT, GpuUse
from pyinstrument_gpu.aspects.gpu_use.watch import UseWatch
from pyinstrument_gpu.core import gpu_polling, nvml
from pyinstrument_gpu.core.file.state import DeviceTimingSummary
from pyinstrument_gpu.core.gpu_readings import BY_HEAT, BY_POWER, SM_CLOCK, name_of
from pyinstrument_gpu.core.nvml import NvmlError, UseReader
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE
from pyinstrument_gpu.patching import import_hook
from pyinstrument_gpu.report.document import document_of
from pyinstrument_gpu.report.json_text import json_text
from tests.helpers.clock import fake_clock
from tests.helpers.nvml import (
    ACTIVITY,
    GPU_IS_LOST,
    MEMORY_CLOCK,
    NO_PERMISSION,
    NOT_SUPPORTED,
    POWER,
    POWER_LIMIT,
    REASONS,
    SM,
    SM_CLOCK_MAX,
    TEMPERATURE,
    SimulatedNvml,
)
from tests.helpers.nvml import SM_CLOCK as SM_CLOCK_NUMBER

S = 1_000_000_000
NEVER_S = 1e6
POWER_CAP, HEAT, IDLE = 0x4, 0x20, 0x1


class Program:
    """A program on a simulated GPU. Tests say when its steps and readings are."""

    def __init__(self, advance: Callable[[int], None], library: SimulatedNvml) -> None:
        self.library = library
        self.watch = UseWatch(lambda: (3, self.reader()), NEVER_S)
        self.recording = pig.record()
        self.recording.watchers["gpu_use"] = self.watch
        self._advance = advance

    def reader(self) -> UseReader:
        return UseReader("GPU-1", self.library, lambda: self.library.time_s)

    def passes(self, seconds: float, sm: float, tensor: float, dram: float) -> None:
        self._advance(round(seconds * S))
        self.library.passes(seconds, sm, tensor, dram)

    def step(self, seconds: float, sm: float = 0, tensor: float = 0, dram: float = 0) -> None:
        """A step, at whose end the GPU is read."""
        with gpu_step(), gpu_phase("forward"):
            self.passes(seconds, sm, tensor, dram)
            self.watch.read()

    @property
    def run(self) -> Run:
        return self.recording.run


@pytest.fixture
def program() -> Iterator[Program]:
    library = SimulatedNvml()
    library.numbers |= {SM_CLOCK_NUMBER: 1980, SM_CLOCK_MAX: 1980, MEMORY_CLOCK: 2619}
    library.numbers |= {POWER: 300_000, POWER_LIMIT: 700_000, TEMPERATURE: 50}
    with fake_clock() as advance:
        yield Program(advance, library)
    assert library.users == 0


def use_of(run: Run) -> GpuUse:
    [use] = ASPECT.section(run)
    return use


def values(run: Run, quantity: str) -> list[float]:
    readings = run.metrics[run.metrics["name"] == run.metric_names.index(name_of(3, quantity))]
    found: list[float] = readings["value"].tolist()
    return found


def test_means_are_over_the_time_of_steps(program: Program) -> None:
    numbers = program.library.numbers
    with program.recording:
        program.step(1, sm=80, tensor=40, dram=20)
        program.passes(5, sm=0, tensor=0, dram=0)  # no step runs
        program.watch.read()
        numbers |= {SM_CLOCK_NUMBER: 1410, POWER: 700_000, TEMPERATURE: 90, REASONS: POWER_CAP}
        program.step(3, sm=40, tensor=20, dram=10)
    use = use_of(program.run)
    assert (use.device, use.readings, use.seconds) == (3, 4, 4)
    assert (use.sm_active, use.tensor_active, use.dram_active) == (0.5, 0.25, 0.125)
    assert use.sm_clock_mhz == (1980 + 3 * 1410) / 4
    assert (use.sm_clock_max_mhz, use.memory_clock_mhz) == (1980, 2619)
    assert (use.power_w, use.power_limit_w) == (600, 700)
    assert (use.temperature_c, use.temperature_max_c) == (80, 90)
    [lowered] = use.lowered
    assert (lowered.reason, lowered.share, lowered.sm_clock_mhz) == ("the power cap", 0.75, 1410)


def test_one_line_sums_it_up(program: Program) -> None:
    with program.recording:
        program.step(1, sm=61, tensor=18, dram=43)
        program.library.numbers |= {SM_CLOCK_NUMBER: 1410, REASONS: POWER_CAP}
        program.step(1, sm=61, tensor=18, dram=43)
    line = (
        "GPU 3: SMs 61%, tensor cores 18%, memory bandwidth 43% in use while steps ran; "
        "1.41 of 1.98 GHz for 50% of the time (the power cap)"
    )
    report = program.run.report(width=200)
    assert [each.strip() for each in report.splitlines() if "SMs" in each] == [line]
    verbose = program.run.report(verbose=True, width=200)
    assert "Use of GPU 3 while steps ran: 3 readings, for 2.00 s of steps" in verbose
    assert "Lowered clock: 1.41 of 1.98 GHz for 50% of the time (the power cap)" in verbose
    assert "gpu/3/" not in verbose  # not a second time, as metrics


def test_json_page_and_exports_have_it(program: Program, tmp_path: Path) -> None:
    with program.recording:
        program.step(1, sm=80, tensor=40, dram=20)
        program.step(3, sm=40, tensor=20, dram=10)
    run = program.run
    section = json.loads(json_text(document_of(run)))["gpu_use"]
    assert section[0]["tensor_active"] == 0.25
    curves = {curve.title: curve.data for curve in ASPECT.curves(run)}
    assert list(curves) == [
        f"GPU 3: {of}" for of in ("units in use", "clock", "power", "temperature")
    ]
    data = curves["GPU 3: units in use"]
    assert data["names"] == ["SMs", "tensor cores", "memory bandwidth"]
    assert (data["x"], data["y"][0]) == ([0, 1], [80, 40])
    run.export(tmp_path / "run.csv", metrics=True)
    with (tmp_path / "run.csv").open() as lines:
        found = [
            row["value"]
            for row in csv.DictReader(lines)
            if row["metric"] == "gpu/3/sm_active_percent"
        ]
    assert list(map(float, found)) == [80, 40]
    run.export(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    power = [each for each in events if each["name"] == "metrics/gpu/3/power_w"]
    assert [*power[0]["args"].values()] == [300]


def test_it_is_no_result_of_the_program(program: Program) -> None:
    with program.recording:
        program.step(1)
    assert final_values([program.run], [program.run]) == ()


@pytest.mark.parametrize("why", ["old", "divided", "no such function", "no permission"])
def test_without_gpm_activity_is_unknown(
    program: Program, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    program.library.has_gpm = why != "old"
    program.library.is_divided = why == "divided"
    if why == "no permission":
        program.library.statuses[ACTIVITY] = NO_PERMISSION
    if why == "no such function":
        monkeypatch.delattr(SimulatedNvml, "nvmlGpmQueryDeviceSupport")
    with program.recording:
        program.step(1, sm=80)
    use = use_of(program.run)
    assert (use.sm_active, use.tensor_active, use.dram_active) == (None, None, None)
    assert use.sm_clock_mhz == 1980
    assert [*ASPECT.summary((use,), document_of(program.run))] == []
    assert any("on Hopper and newer" in each for each in ASPECT.unknown(program.run))
    assert [*document_of(program.run).sections["gpu_use"]] == [use]


def test_what_fails_for_a_while_is_unknown_meanwhile(program: Program) -> None:
    statuses = program.library.statuses
    with program.recording:
        program.step(1, sm=80)
        statuses |= {POWER: NOT_SUPPORTED, ACTIVITY: NOT_SUPPORTED}
        program.step(1, sm=20)
        statuses.clear()
        program.library.numbers[POWER] = 500_000
        program.step(1, sm=50)
        statuses[SM] = NOT_SUPPORTED  # of one metric
        program.step(1, sm=50)
    assert values(program.run, "sm_active_percent") == [80, 35]  # of two steps
    assert values(program.run, "tensor_active_percent") == [0, 0, 0]
    assert values(program.run, "power_w") == [300, 300, 500, 500, 500]  # once more at the end
    assert len(values(program.run, "sm_clock_mhz")) == 6


def test_samples_that_are_too_close_tell_nothing(program: Program) -> None:
    with program.recording:
        program.step(1, sm=80)
        program.step(0.05, sm=0)
        program.step(0.95, sm=20)
    assert values(program.run, "sm_active_percent") == [80, 19]


def test_a_gpu_that_is_lost_ends_the_readings(program: Program) -> None:
    with program.recording:
        program.step(1, sm=80)
        program.library.status = GPU_IS_LOST
        assert not program.watch.read()
        program.step(1)
    assert values(program.run, "sm_active_percent") == [80]


def test_a_gpu_of_which_there_is_no_reading_is_unknown(program: Program) -> None:
    with program.recording, gpu_step():
        pass
    run = program.run
    assert [*ASPECT.unknown(run)] == []  # there may be no GPU
    run.device_timing = DeviceTimingSummary(1, 200, 300_000)
    told = "Use of GPUs: NVML was not read while steps ran."
    assert [*ASPECT.unknown(run)] == [told]


def test_a_gpu_that_cannot_be_read_is_refused() -> None:
    library = SimulatedNvml(status=NOT_SUPPORTED)
    with pytest.raises(NvmlError, match="nothing can be read"):
        UseReader("GPU-1", library)
    assert library.users == 0


def test_the_thread_loads_nvml_and_reads_at_the_end() -> None:
    library = SimulatedNvml()
    library.numbers |= {SM_CLOCK_NUMBER: 1980, REASONS: HEAT}
    recording = pig.record()
    watch = UseWatch(lambda: (3, partial(UseReader, "GPU-1", library)), NEVER_S)
    recording.watchers["gpu_use"] = watch
    with recording, gpu_step():
        pass
    assert library.users == 0
    assert values(recording.run, SM_CLOCK)[-1] == 1980
    assert values(recording.run, BY_HEAT)[-1] == 1
    assert values(recording.run, BY_POWER)[-1] == 0


def test_two_recordings_have_their_own(program: Program) -> None:
    with program.recording:
        program.step(1, sm=80)
    program.recording = pig.record()
    program.recording.watchers["gpu_use"] = program.watch = UseWatch(
        lambda: (3, program.reader()), NEVER_S
    )
    with program.recording:
        program.step(1, sm=20)
    assert values(program.run, "sm_active_percent") == [20]


def test_a_call_that_hangs_holds_nobody_up_and_is_no_later_recordings(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_polling, "_PATIENCE_S", 0)
    hangs, goes_on = threading.Event(), threading.Event()

    def hang() -> None:
        if threading.current_thread() is not threading.main_thread():
            hangs.set()
            goes_on.wait()

    program.watch.interval_s = 0
    with program.recording:
        program.library.before_reading = hang
        program.step(1)
        hangs.wait()
    first, thread = program.run, program.watch._thread
    with pig.record() as other, gpu_step():
        goes_on.set()
        assert thread is not None
        thread.join()
    assert first.metric_names
    assert other.run.metric_names == ()


def test_a_forked_child_reads_nothing(program: Program) -> None:
    with program.recording:
        program.step(1, sm=80)
        child = os.fork()
        if not child:
            took: list[object] = []
            with contextlib.suppress(BaseException):
                program.watch.took = lambda uuid, values: took.append(values)  # type: ignore[method-assign]
                program.watch.read()
            os._exit(len(took) + threading.active_count() - 1)
        assert os.waitpid(child, 0)[1] == 0


def test_readings_become_rarer(monkeypatch: pytest.MonkeyPatch, program: Program) -> None:
    monkeypatch.setattr(watch_module, "READINGS_PER_INTERVAL", 3)
    program.watch.interval_s = 1
    intervals = []
    with program.recording:
        for count in range(8):
            program.watch._count = count
            program.watch.took("GPU-1", {SM_CLOCK: count})
            intervals.append(program.watch.interval_s)
    assert intervals == [1, 1, 2, 2, 2, 4, 4, 4]


@pytest.mark.parametrize(
    "driver, build, looks", [(False, "12.8", 1), (True, None, 1), (True, "12.8", 3)]
)
def test_where_no_gpu_can_come_nobody_looks_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver: bool, build: str | None, looks: int
) -> None:
    monkeypatch.setattr(import_hook, "DRIVERS", [str(tmp_path if driver else tmp_path / "none")])
    torch = SimpleNamespace(
        __version__="2.13",
        version=SimpleNamespace(cuda=build),
        cuda=SimpleNamespace(is_initialized=lambda: False),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    looked = []

    def find() -> Any:
        looked.append(1)
        return watch_module._find()

    recording = pig.record()
    recording.watchers["gpu_use"] = UseWatch(find, NEVER_S)
    with recording:
        for _ in range(45):
            with gpu_step():
                pass
    assert len(looked) == looks


def test_structs_are_those_of_nvml() -> None:
    """As NVIDIA's own bindings have them, which nothing else needs."""
    pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py")

    def layout(struct: Any) -> list[tuple[str, int, int]]:
        return [
            (name, getattr(struct, name).offset, getattr(struct, name).size)
            for name, *_ in struct._fields_
        ]

    assert layout(nvml.GpmMetric) == layout(pynvml.c_nvmlGpmMetric_t)
    assert layout(nvml.GpmMetrics)[:-1] == layout(pynvml.c_nvmlGpmMetricsGet_t)[:-1]
    assert nvml.GpmMetrics.metrics.offset == pynvml.c_nvmlGpmMetricsGet_t.metrics.offset
    assert ctypes.sizeof(nvml.GpmMetrics) >= ctypes.sizeof(pynvml.c_nvmlGpmMetricsGet_t)
    assert layout(nvml.GpmSupport) == layout(pynvml.c_nvmlGpmSupport_t)
    assert [*nvml._Activity.METRICS.values()] == [
        pynvml.NVML_GPM_METRIC_SM_UTIL,
        pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
        pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    ]
    assert (pynvml.NVML_GPM_METRICS_GET_VERSION, pynvml.NVML_GPM_SUPPORT_VERSION) == (1, 1)
    assert (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM) == (nvml._SM, nvml._MEMORY)
    assert [*nvml._REASONS.values()] == [
        pynvml.nvmlClocksThrottleReasonSwPowerCap,
        pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
        | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
        pynvml.nvmlClocksThrottleReasonHwSlowdown
        | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
    ]


# The clock as a cause of slow steps.


def run_with(durations_ns: list[int], samples: list[tuple[int, int, int]]) -> Run:
    """A run with such steps, and such readings: when, the clock, and NVML's reasons."""
    with fake_clock() as advance, pig.record() as recording:
        for duration_ns in durations_ns:
            with gpu_step():
                advance(duration_ns)
    readings = {SM_CLOCK: [float(mhz) for _, mhz, _ in samples]}
    for name, bits in nvml._REASONS.items():
        readings[name] = [float(reasons & bits != 0) for *_, reasons in samples]
    run = recording.run
    run.metric_names = tuple(name_of(0, quantity) for quantity in readings)
    run.metrics = np.array(
        [
            (update, -1, samples[update][0], number, value)
            for number, column in enumerate(readings.values())
            for update, value in enumerate(column)
        ],
        METRIC_DTYPE,
    )
    return run


def test_a_lower_clock_takes_at_most_what_it_is_lower() -> None:
    steps = [
        (S, 2000, 0),
        (S, 2000, POWER_CAP),
        (S, 2000, 0),
        (2 * S, 1000, POWER_CAP),
        (S, 500, IDLE),  # it had nothing to do
        (4 * S, 1500, POWER_CAP | HEAT),
        (S, 2000, 0),
    ]
    now_ns, samples = 0, []
    for duration_ns, mhz, reasons in steps:
        samples.append((now_ns + duration_ns // 2, mhz, reasons))
        now_ns += duration_ns
    [cause] = ASPECT.causes(run_with([duration_ns for duration_ns, _, _ in steps], samples))
    assert cause.amounts["time_ns"].tolist() == [0, 0, 0, S, 0, S, 0]
    assert cause.words == "a lower clock of the GPU, by the power cap"


def test_steps_far_from_any_reading_are_unknown() -> None:
    [cause] = ASPECT.causes(run_with([S, S, 9 * S], [(S // 2, 900, 0), (S, 900, 0)]))
    assert cause.known is not None
    assert cause.known.tolist() == [0, 1]
