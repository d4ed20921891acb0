# SPDX-License-Identifier: Apache-2.0
"""The GPU benchmarks without a GPU: all of them but the device."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import interleave
from benchmarks.gpu import build, run
from benchmarks.gpu.build import ROOT
from benchmarks.gpu.figure import Figure, read_figures
from benchmarks.gpu.limits import compile_limits, nvcc
from benchmarks.gpu.part import Part, run_part
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


def python(source: str, name: str = "part", limit_s: float = 600, **options: float) -> Part:
    return Part(name, (sys.executable, "-c", source), limit_s, **options)  # type: ignore[arg-type]


def test_a_part_gives_its_figures_and_its_last_word(tmp_path: Path) -> None:
    figure = Figure("x", 1.5, "ns")
    outcome = run_part(python(f"print('hello'); print({figure.to_json()!r})"), tmp_path, 600)
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
    outcome = run_part(python(source, limit_s=5), tmp_path, 60)
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
"""The libraries that only tests and benchmarks use, by the names of their targets."""


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
    built = {target for call in calls if "--target" in call for target in call}
    text = run_on_a_gpu()
    used = {
        name
        for name in LIBRARIES
        if re.search(rf"^ *(?:from|import) {name}\b", text, re.M) or f'"{name}.so"' in text
    }
    assert "_call_loop" in used
    assert used <= built


def test_every_package_that_is_used_on_a_gpu_is_named_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    imported = set(re.findall(r"^(?:from|import) (\w+)", run_on_a_gpu(), re.M))
    ours = {"pyinstrument_gpu", "benchmarks", "tests", *LIBRARIES}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert imported - sys.stdlib_module_names - ours <= set(run.missing())


# --- the whole ---


def test_one_part_that_fails_keeps_no_other_from_running(tmp_path: Path) -> None:
    facts = {"gpu": "NVIDIA H200", "driver": None, "nvtx": "0.2.11", "torchmetrics": None}
    parts = [
        python(f"print({json.dumps(facts)!r})", "Machine"),
        python("print('lost'); raise SystemExit(1)", "Broken"),
        python(f"print({Figure('x', 2, 'ns', goal=1).to_json()!r})", "Works"),
    ]
    outcomes = run.run_parts(parts, tmp_path, 600)
    machine = run.machine_of(outcomes, "abc123")
    table = run.write(tmp_path / "results", "costs", machine, outcomes, 12.3)
    assert table.name.endswith("-nvidia-h200-costs.md")
    page = table.read_text()
    assert "# NVIDIA H200" in page
    assert "* driver: unknown" in page
    assert "* commit: abc123" in page
    assert (
        "peers: nvtx 0.2.11; not installed: nvidia-resiliency-ext, torcheval, torchmetrics" in page
    )
    assert "**failed: exit code 1**" in page
    assert "| x | 2 ns |  | <= 1 | not met |" in page
    data = json.loads(table.with_suffix(".json").read_text())
    assert data["machine"]["gpu"] == "NVIDIA H200"
    assert [part["error"] for part in data["parts"]] == [None, "exit code 1", None]
    assert data["parts"][2]["figures"] == [
        {"name": "x", "value": 2, "unit": "ns", "goal": 1, "verdict": "not met"}
    ]
    assert "lost" in (tmp_path / "results" / f"{table.stem}-failures.log").read_text()


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


def test_tests_that_may_hang_are_apart_and_first() -> None:
    commands = [part.command for part in run.parts_of("costs", "Tests")[2:]]
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
            "seconds=0, width=8, batch=1, steps=1, around=2",
            "the steps after those: longer by",
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
        ("enqueue_cost", "batches=2", "a CUDA graph's replay, least"),
        ("overlap", "rounds=2", "CUDA_DEVICE_MAX_CONNECTIONS=unset: recording"),
        (
            "metric_cost",
            "rounds=2, large=[metric_cost.Size(64, 100, metric_cost.torch.bfloat16, 2)]",
            "64 x 100 bfloat16: with the loss from the logits, as a multiple of the copy",
        ),
        (
            "element_cost",
            "rounds=2, few=10, many=160",
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
