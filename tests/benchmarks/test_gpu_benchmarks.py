# SPDX-License-Identifier: Apache-2.0
"""The GPU benchmarks without a GPU: all of them but the device."""

import importlib.util
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import interleave
from benchmarks.gpu import build, captures, run
from benchmarks.gpu.build import ROOT
from benchmarks.gpu.figure import Figure, read_figures
from benchmarks.gpu.limits import compile_limits, nvcc
from benchmarks.gpu.part import GRACE_S, NOT_REACHED, Outcome, Part, Stop, run_part
from benchmarks.interleave import interleaved, relative_difference
from tests.helpers.script import run_script

# --- figures ---


@pytest.mark.parametrize(
    ("figure", "verdict"),
    [
        (Figure("x", 1, "ns"), ""),
        (Figure("x", 1, "ns", goal=1), "met"),
        (Figure("x", 1.1, "ns", goal=1), "not met"),
        (Figure("x", 0.9, "ns", low=0.8, high=0.95, goal=1), "met"),
        (Figure("x", 0.9, "ns", low=0.8, high=1.2, goal=1), "met within its interval"),
        (Figure("x", 1.1, "ns", low=0.8, high=1.2, goal=1), "not met, unsure"),
        (Figure("x", 1.1, "ns", low=1.05, high=1.2, goal=1), "not met"),
    ],
)
def test_verdicts(figure: Figure, verdict: str) -> None:
    assert figure.verdict == verdict


# --- arms in turn ---


def test_every_arm_is_measured_in_every_round_in_changing_order() -> None:
    seen: list[str] = []

    def arm(name: str, value: float) -> float:
        seen.append(name)
        return value

    arms = {"a": lambda: arm("a", 1.0), "b": lambda: arm("b", 2.0), "c": lambda: arm("c", 3.0)}
    results = interleaved(arms, rounds=20, warm_up=2)
    assert {name: values.tolist() for name, values in results.items()} == {
        "a": [1.0] * 20,
        "b": [2.0] * 20,
        "c": [3.0] * 20,
    }
    rounds = [tuple(seen[i : i + 3]) for i in range(0, len(seen), 3)]
    assert len(rounds) == 22
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds)
    assert len(set(rounds)) > 3


def test_the_interval_holds_the_truth_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """95 % of the time, within what 100 trials can tell, also with noise that has a long tail."""
    monkeypatch.setattr(interleave, "_RESAMPLES", 500)
    generator = np.random.default_rng(1)
    truth, held = 0.01, 0
    for trial in range(100):
        noise = 1 + 0.05 * generator.exponential(size=(2, 40))
        difference = relative_difference(noise[0], noise[1] * (1 + truth), seed=trial)
        # Ratios of two such noises have their median at the truth.
        held += difference.low <= truth <= difference.high
    assert 89 <= held <= 99


# --- parts ---


def python(source: str, name: str = "part", limit_s: float = 60, **options: float) -> Part:
    return Part(name, (sys.executable, "-c", source), limit_s, **options)  # type: ignore[arg-type]


def test_a_part_gives_its_figures_and_its_last_word(tmp_path: Path) -> None:
    figure = Figure("x", 1.5, "ns")
    part = python(f"print('hello'); print({figure.to_json()!r})")
    outcome = run_part(part, tmp_path, 600, tmp_path / "log", Stop())
    assert (outcome.error, outcome.figures, outcome.last_line) == (None, [figure], "hello")


def is_alive(pid: str) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"  # not yet collected by its parent


def test_a_part_that_takes_too_long_ends_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = subprocess.Popen.wait

    def wait_until_printed(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout != 5:
            return wait(process, timeout)
        (tmp_path / "printed").read_bytes()  # waits for who opens it to write
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait_until_printed)
    os.mkfifo(tmp_path / "printed")
    figure = Figure("x", 1.5, "ns")
    child = "import time; time.sleep(600)"
    source = (
        "import resource, subprocess, sys, time\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        f"print({figure.to_json()!r})\n"
        "print('child', child.pid)\n"
        "def hang():\n"
        "    open('printed', 'w').close()\n"
        "    time.sleep(600)\n"
        "hang()"
    )
    outcome = run_part(python(source), tmp_path, 5, tmp_path / "log", Stop())
    assert (outcome.error, outcome.figures) == ("stopped after 5 s", [figure])
    assert " in hang" in outcome.output
    (child_pid,) = re.findall(r"^child (\d+)$", outcome.output, re.M)
    # A kill takes a moment. Only a process that lives on holds the test up.
    hangs_at = time.monotonic() + 600
    while is_alive(child_pid):
        assert time.monotonic() < hangs_at
        os.sched_yield()


# --- what they need ---

LIBRARIES = {
    path.stem.removeprefix("module") if path.stem.startswith("module_") else path.stem
    for pattern in ("tests/native/module_*", "tests/native/inject_*", "benchmarks/native/stub_*")
    for path in ROOT.glob(pattern)
}
"""The libraries that only tests and benchmarks use, by their names."""


def run_on_a_gpu() -> str:
    """The text of all that `tests/gpu` and `benchmarks/gpu` import of the tests and benchmarks, and
    of the programs that they start."""
    left = [*ROOT.glob("tests/gpu/*.py"), *ROOT.glob("benchmarks/gpu/*.py")]
    left.append(ROOT / "tests" / "conftest.py")
    texts: dict[Path, str] = {}
    while left:
        path = left.pop()
        if path.exists() and path not in texts:
            texts[path] = path.read_text()
            imported = re.findall(
                r"^ *(?:from|import) ((?:tests|benchmarks)[.\w]*)", texts[path], re.M
            )
            left += [ROOT / (name.replace(".", "/") + ".py") for name in imported]
    return "\n".join(texts.values())


def test_every_library_that_is_used_on_a_gpu_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(build, "cmake", lambda *arguments: calls.append(arguments))
    build.main()
    (targets,) = (set(call[call.index("--target") + 1 :]) for call in calls if "--target" in call)
    text = run_on_a_gpu()
    used = {
        name
        for name in LIBRARIES
        if re.search(rf"^ *(?:from|import) {name}\b", text, re.M) or f'"{name}.so"' in text
    }
    assert "_call_loop" in used
    # Modules are one library under several names.
    assert {"test_modules" if name.startswith("_") else name for name in used} <= targets
    made = re.findall(
        r"\b(?:add_library|pybind11_add_module)\((\w+)", (ROOT / "CMakeLists.txt").read_text()
    )
    assert targets <= {*made, *(name for name in LIBRARIES if not name.startswith("_"))}


def test_every_package_that_is_used_on_a_gpu_is_named_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    imported = set(re.findall(r"^(?:from|import) (\w+)", run_on_a_gpu(), re.M))
    ours = {"pyinstrument_gpu", "benchmarks", "tests", *LIBRARIES}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert imported - sys.stdlib_module_names - ours <= set(run.missing())
    needed = [
        need for need in requires("pyinstrument-gpu") or [] if "html" in need or ";" not in need
    ]
    assert {re.findall(r"^[\w-]+", need)[0] for need in needed} - {"pyinstrument-gpu"} <= set(
        run.missing()
    )


# --- the whole ---

REST = ("tests/gpu", "--ignore", run.HAZARDS)

FACTS = {"gpu": "NVIDIA H200", "driver": None, "nvtx": "0.2.11", "torchmetrics": None}
MACHINE = python(f"print({json.dumps(FACTS)!r})", "Machine")
WORKS = python(f"print({Figure('x', 2, 'ns', goal=1).to_json()!r})", "Works")


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as the whole knows."""
    for name in ("PATH", "PYTHONPATH"):  # which it changes
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr(run, "why_not", lambda: None)
    monkeypatch.setattr(resource, "setrlimit", lambda *arguments: None)


def results_of(
    parts: list[Part], output: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str, dict[str, Any]]:
    """What the whole makes of these parts: its exit code, the page, and the JSON."""
    monkeypatch.setattr(run, "PARTS", [replace(part, group="") for part in parts])
    code = run.main(["--output", str(output), "--commit", "abc123"])
    (table,) = output.glob("*.md")
    (data,) = output.glob("*.json")
    assert table.name.endswith("-nvidia-h200-first.md")
    return code, table.read_text(), json.loads(data.read_text())


@pytest.mark.usefixtures("on_a_gpu")
def test_parts_that_fail_or_hang_keep_no_other_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wait = subprocess.Popen.wait

    def hangs(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout == 30:
            raise subprocess.TimeoutExpired(process.args, timeout)
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", hangs)
    parts = [
        MACHINE,
        python("print('lost'); raise SystemExit(1)", "Broken"),
        python("import signal; signal.pause()", "Hangs", limit_s=20),
        WORKS,
        # What was had before it is on the disk.
        python(f"import glob; print(*glob.glob({str(tmp_path / '*.json')!r}))"),
    ]
    code, page, data = results_of(parts, tmp_path, monkeypatch)
    assert code == 1
    assert "# NVIDIA H200" in page
    assert "* driver: unknown" in page
    assert "* commit: abc123" in page
    assert (
        "peers: nvtx 0.2.11; not installed: nvidia-resiliency-ext, torcheval, torchmetrics" in page
    )
    assert "**failed: exit code 1**" in page
    assert "| x | 2 ns |  | <= 1 | not met |" in page
    assert data["machine"]["gpu"] == "NVIDIA H200"
    states = [part["state"] for part in data["parts"]]
    assert states == ["passed", "exit code 1", "stopped after 30 s", "1 goals missed", "passed"]
    assert data["parts"][3]["figures"] == [
        {"name": "x", "value": 2, "unit": "ns", "goal": 1, "verdict": "not met"}
    ]
    assert data["parts"][4]["last_line"].endswith("-nvidia-h200-first.json")
    assert (tmp_path / "logs" / "02-broken.log").read_text() == "lost\n"
    assert "===== Broken: exit code 1\nlost" in capsys.readouterr().out


@pytest.mark.usefixtures("on_a_gpu")
def test_a_run_that_is_ended_says_what_was_not_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = "import os, signal; os.kill(os.getppid(), signal.SIGTERM); signal.pause()"
    parts = [MACHINE, WORKS, python(asks, "Asks"), python("", "Late")]
    before = signal.getsignal(signal.SIGTERM)
    code, page, data = results_of(parts, tmp_path, monkeypatch)
    assert signal.getsignal(signal.SIGTERM) is before
    assert code == 1
    states = [part["state"] for part in data["parts"]]
    assert states == ["passed", "1 goals missed", "ended by SIGTERM", "not reached: SIGTERM"]
    assert "| Late | 0 | not reached: SIGTERM |" in page
    assert "| x | 2 ns |  | <= 1 | not met |" in page


def test_the_first_minutes_have_their_order_and_their_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where each part takes all that it may, and where all but one take nothing."""
    parts = run.parts_of("first")
    assert [" ".join(part.command[2:]).removeprefix("benchmarks.gpu.") for part in parts] == [
        "build",
        "about",
        "captures",
        *(" ".join(run._pytest(*tests)[2:]) for tests in ([run.HAZARDS], REST)),
        "graph_cost",
        "full_queue",
        "enqueue_cost",
        "event_limits",
        "green_context",
        "captures --while-read",
        "savings_got",
        "module_cost --seconds 12",
        "metric_cost",
        "recorded_program {output}",
    ]
    now_s, limits_s = 0.0, []
    hangs = {part.name for part in parts}

    def take(part: Part, directory: Path, limit_s: float, log: Path, stop: Stop) -> Outcome:
        nonlocal now_s
        limits_s.append(limit_s)
        now_s += limit_s + GRACE_S if part.name in hangs else 0
        return Outcome(part, limit_s, None, [], "")

    monkeypatch.setattr(run, "monotonic", lambda: now_s)
    monkeypatch.setattr(run, "run_part", take)

    def whole_s() -> float:
        nonlocal now_s
        now_s = 0.0
        limits_s.clear()
        outcomes = run.run_parts(parts, tmp_path, run.TOTAL_S, tmp_path, id, Stop())
        assert not any((outcome.error or "").startswith(NOT_REACHED) for outcome in outcomes)
        assert all(limit >= part.limit_s for limit, part in zip(limits_s, parts, strict=True))
        return now_s

    assert whole_s() <= run.TOTAL_S <= 540
    for part in parts:
        hangs = {part.name}
        assert whole_s() <= run.LONGEST * part.limit_s + GRACE_S


def test_what_is_missing_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert {"cmake", "ninja", "a C++ compiler"} <= set(run.missing())
    assert "cmake" in (run.why_not() or "")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_fails_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("PATH", "PYTHONPATH"):  # which it changes
        monkeypatch.setenv(name, os.environ.get(name, ""))
    assert run.main([]) == 1
    output, errors = capsys.readouterr()
    assert output == ""
    assert len(errors.splitlines()) == 1
    assert errors.startswith("make gpu: ")


def test_the_parts_are_there() -> None:
    for part in run.PARTS:
        if part.command[1:2] == ("-m",) and part.command[2].startswith("benchmarks."):
            assert (ROOT / (part.command[2].replace(".", "/") + ".py")).exists()
    assert sum(part.name.startswith("Machine") for part in run.PARTS) == 1
    assert {part.group for part in run.PARTS} == {"", *run.GROUPS}


def test_the_first_parts_take_their_arguments() -> None:
    """What they measure has no device here: all but that."""
    done = run_script(
        """
import importlib, os, sys
from unittest import mock
import torch
from benchmarks.gpu import gpu, run

os._exit = print
gpu.CudaGpu = lambda: None
for part in run.parts_of("first")[2:]:
    name, *arguments = part.command[2:]
    if name.startswith("benchmarks."):
        module = importlib.import_module(name)
        measured = "while_read" if "--while-read" in arguments else "figures"
        figures = mock.create_autospec(getattr(module, measured), return_value=[])
        with mock.patch.object(module, measured, figures):
            with mock.patch.object(sys, "argv", [name, *arguments]):
                module.main()
        figures.assert_called_once()
        print(module.__name__)
""",
    )
    assert done.stdout.count("benchmarks.gpu.") == 11


def test_tests_that_may_hang_are_apart_and_first() -> None:
    commands = [part.command for part in run.parts_of("first", "Tests")[2:]]
    assert run.HAZARDS in commands[0]
    assert commands[1][commands[1].index("--ignore") + 1] == run.HAZARDS
    assert (ROOT / run.HAZARDS).exists()


# --- what they measure, on a device that does nothing ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "options", "expected"),
    [
        ("phase_cost", "rounds=2", "isolated phases: cost less the records, as a share of them"),
        ("boundary_cost", "rounds=2", "device time of one boundary"),
        ("step_cost", "rounds=2, step_ns=1000", "A/B: with less without"),
        ("training", "seconds=0, block_s=0.01", "A/B: with less without"),
        (
            "module_cost",
            "seconds=0, width=8, batch=1, steps=1",
            "operations counted: once in a run",
        ),
        (
            "compiled_cost",
            "seconds=0, width=8, batch=1, steps=1, backend='aot_eager'",
            "recorded, with marks: longer by",
        ),
        (
            "graph_cost",
            "rounds=2, seconds=0, replays=3, profiled=2, steps=2",
            "tensors that differ after training by a marked graph",
        ),
        ("savings_got", "rounds=1, steps=2, width=32, layers=1, batch=1", "a step without a wait"),
        ("full_queue", "steps=2, launches=2", "a record as the recorder counts it"),
        ("green_context", "", "kernels lost"),
        ("enqueue_cost", "batches=2", "a CUDA graph's replay, least"),
        (
            "metric_cost",
            "rounds=2, few=10, many=160,"
            "large=[metric_cost.Size(64, 100, metric_cost.torch.bfloat16, 2)],"
            "shapes=[metric_cost.Size(8, 9, metric_cost.torch.float64, 2)]",
            "update_scalar, 160 numbers: as a multiple of its floor",
        ),
    ],
)
def test_a_benchmark_gives_its_figures(module: str, options: str, expected: str) -> None:
    done = run_script(
        f"""
import torch
from tests.helpers.fake_gpu import FakeGpu
from benchmarks.gpu import {module}
from benchmarks.gpu.figure import print_figures
print_figures({module}.figures(FakeGpu(), {options}))
""",
    )
    figures = {figure.name: figure for figure in read_figures(done.stdout)}
    assert expected in figures
    if module == "phase_cost":
        # Two records a phase where none is shared; a phase with work in it shares one.
        assert figures["isolated phases: records of a phase"].value == 2
        assert 1 <= figures["adjacent phases: records of a phase"].value <= 2
        assert figures["nested phases: records of a phase"].value <= 1.5
    if module == "step_cost":
        assert figures["records of a step"].value >= 1


FAKE = ("--gpu", "tests.helpers.fake_gpu:FakeGpu")


@pytest.mark.slow
def test_a_recording_changes_no_program() -> None:
    figures = list(captures.figures(["copy on a side stream", "modes of its own"], FAKE, 600))
    assert len(figures) == 4
    assert {figure.verdict for figure in figures} == {"met"}


def test_what_a_recording_changes_is_seen() -> None:
    without = captures.Ended(0, {"captures": 20, "results": "1f"})
    same = list(captures.compared("x", without, without))
    assert [(figure.value, figure.verdict) for figure in same] == [(0, "met"), (0, "met")]
    other = captures.Ended(0, {"captures": 20, "results": "2f"}, "")
    failed, changed = captures.compared("x", without, other)
    assert (failed.value, changed.value, changed.note) == (0, 1, "results: 1f, 2f")
    for broken in (captures.Ended(1, {}, "unjoined"), captures.Ended(-11, without.facts, "")):
        failed, changed = captures.compared("x", without, broken)
        assert (failed.value, failed.verdict) == (1, "not met")
    # Programs that can't run at all show nothing.
    assert next(captures.compared("x", broken, broken)).value == 2


def test_captures_while_the_flight_recorder_is_read() -> None:
    done = run_script(
        """
import torch
from tests.helpers.fake_gpu import FakeGpu
from benchmarks.gpu import captures
from benchmarks.gpu.figure import print_figures
print_figures(captures.while_read(FakeGpu(), seconds=0))
""",
        environment={**run.FLIGHT_RECORDER},
    )
    figures = read_figures(done.stdout)
    assert {figure.verdict for figure in figures} == {"", "met"}
    assert figures[0].value >= 1


def test_distances_that_the_recorder_could_not_use_are_seen() -> None:
    done = run_script(
        """
import json
import torch
from tests.helpers.cuda_kernels import CudaError
from tests.helpers.fake_gpu import FakeGpu
from benchmarks.gpu import event_limits

def refusing(distance):
    if distance < 0:
        raise CudaError("refused")
    return distance

class Gpu(FakeGpu):
    def distance_ms(self, begin, end):
        return change(super().distance_ms(begin, end))

for change in (float, refusing, abs, lambda distance: distance + 0.01 * (distance > 394)):
    figures = list(event_limits.figures(Gpu()))
    ticks = {figure.name: figure.value for figure in figures}
    assert ticks["resolution: the divisor of all short distances"] == 32
    print(json.dumps([figure.name for figure in figures if figure.verdict == "not met"]))
""",
    )
    each_wrong = "distances with a wrong sign or size"
    each_refused = "distances backwards that the driver refuses"
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        [],
        [f"one stream: {each_refused}", f"two streams: {each_refused}"],
        [f"one stream: {each_wrong}", f"two streams: {each_wrong}"],
        [
            f"two streams: {each_wrong}",
            "the same, rounded as the recorder does: size of the error",
        ],
    ]


def test_whether_an_enqueue_fits_between_shared_boundaries() -> None:
    done = run_script(
        """
import torch
from tests.helpers.fake_gpu import FakeGpu
from benchmarks.gpu import enqueue_cost
from benchmarks.gpu.figure import print_figures
enqueue_cost.least_ns = lambda gpu, batch, batches: len(batch())
for interval_ns in (0, 10**12):
    enqueue_cost.SHARE_BOUNDARIES_NS = interval_ns
    print_figures([list(enqueue_cost.figures(FakeGpu(), batches=1))[-1]])
""",
    )
    fits, does_not = read_figures(done.stdout)
    assert (fits.verdict, fits.value) == ("met", 0)
    assert "the cheapest is cuLaunchKernel" in fits.note
    assert (does_not.verdict, does_not.value) == ("not met", 10**10)
    assert "unseen between two boundaries that share an event: share_boundaries_" in does_not.note


# --- the probe ---


@pytest.mark.slow
@pytest.mark.skipif(nvcc() is None, reason="needs nvcc")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90", "sm_120"])
def test_the_probe_compiles(tmp_path: Path, architecture: str) -> None:
    compile_limits(tmp_path / "limits", architecture)
    assert (tmp_path / "limits").stat().st_size > 0


@pytest.mark.skipif(nvcc() is None, reason="needs ptxas")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90", "sm_120"])
def test_the_kernels_assemble(tmp_path: Path, architecture: str) -> None:
    ptxas = Path(nvcc() or "").resolve().with_name("ptxas")
    source = Path(__file__).parents[1] / "helpers" / "cuda_kernels.ptx"
    subprocess.run([ptxas, f"-arch={architecture}", "-o", tmp_path / "cubin", source], check=True)
