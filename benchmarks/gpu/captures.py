# SPDX-License-Identifier: Apache-2.0
"""Programs that a recording could break or change, each run with one and without, all at once, each
in a process of its own: what they say of themselves must be the same to the bit.

    python -m benchmarks.gpu.captures [PROGRAM | --while-read]

With `--while-read` instead, CUDA graphs are captured while PyTorch's flight recorder is read each
millisecond, as a recording of several ranks does it more rarely: a reading asks for events, which
breaks the captures of other threads unless the mode of the reading one is relaxed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import pyinstrument_gpu as pig
from benchmarks.gpu.build import ROOT
from benchmarks.gpu.figure import Figure, print_figures
from benchmarks.gpu.gpu import Gpu
from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.aspects.collectives import flight_recorder
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.native import native

CAPTURES = 20
REPLAYS = 5
LIMIT_S = 28.0
"""Of each process: what the others say is not lost."""

Facts: TypeAlias = "dict[str, str | int]"
"""What a program says of itself."""


def digest(*tensors: Tensor) -> str:
    """Of every bit of them."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


# --- the programs ---


def _captured(gpu: Gpu, enqueue: Callable[[], None], *results: Tensor) -> Facts:
    """Captures it again and again; each graph is replayed."""
    for _ in range(CAPTURES):
        replay = gpu.capture(enqueue)
        for _ in range(REPLAYS):
            with gpu_step():
                replay()
            gpu.synchronize()
    return {"captures": CAPTURES, "results": digest(*results)}


def fork_joined_in_a_phase(gpu: Gpu) -> Facts:
    """The main stream waits for the side stream inside of the phase on that one, so what marks the
    phase's end comes behind the join."""
    side = gpu.stream()
    x, y = (torch.arange(4096.0, device=gpu.device) for _ in range(2))

    def enqueue() -> None:
        main = gpu.current_stream()
        x.mul_(1.001)
        side.wait_stream(main)
        with gpu.on_stream(side), gpu_phase("side"):
            y.add_(x).sqrt_()
            main.wait_stream(side)
        x.add_(y)

    return _captured(gpu, enqueue, x, y)


def copy_on_a_side_stream(gpu: Gpu) -> Facts:
    """The event for which the main stream waits is recorded inside of the phase."""
    side = gpu.stream()
    batches = torch.arange(8 * 4096.0, device=gpu.device).view(8, 4096)
    batch, total = (torch.zeros(4096, device=gpu.device) for _ in range(2))

    def enqueue() -> None:
        main = gpu.current_stream()
        total.mul_(0.5)
        side.wait_stream(main)
        with gpu.on_stream(side), gpu_phase("h2d"):
            batch.copy_(batches[3])
            done = side.record_event()
        main.wait_event(done)
        total.add_(batch)

    return _captured(gpu, enqueue, total)


def capture_after_an_error(gpu: Gpu) -> Facts:
    """Once a kernel has failed, PyTorch can't tell the current stream: it says so, and goes on."""
    said = []
    with gpu.side_stream():
        for attempt in (lambda: torch.zeros(3, device=gpu.device)[_far(gpu)], gpu.begin_capture):
            try:
                with gpu_phase("attempt"):
                    attempt()
                    gpu.synchronize()
                said.append("nothing")
            except Exception as error:
                said.append(type(error).__name__)
    return {"said": " ".join(said)}


def _far(gpu: Gpu) -> Tensor:
    return torch.tensor([7], device=gpu.device)


def _trained(gpu: Gpu, backward: Callable[[Tensor], None]) -> Facts:
    """Steps of a small model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).to(gpu.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(6, 8).to(gpu.device), torch.randint(3, (6,)).to(gpu.device)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        backward(loss)
        optimizer.step()
        losses.append(loss.detach())
    return {"results": digest(*losses, *model.parameters())}


def compiled_autograd(gpu: Gpu) -> Facts:
    """A backward pass that has to be one graph."""
    from torch._dynamo import compiled_autograd
    from torch._dynamo.utils import counters

    def compiled(graph: Any) -> Any:
        return torch.compile(graph, backend="eager", fullgraph=True)

    def backward(loss: Tensor) -> None:
        with compiled_autograd._enable(compiled):
            loss.backward()

    facts = _trained(gpu, backward)
    return {**facts, "graphs": str(dict(counters["compiled_autograd"]))}


class _Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


class _Functions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


def modes_of_its_own(gpu: Gpu) -> Facts:
    """A program that looks at each operator and function sees its own, and none of ours."""
    with _Operators() as operators, _Functions() as functions:
        facts = _trained(gpu, lambda loss: loss.backward())
    for mode in (operators, functions):
        name = type(mode).__name__
        facts[f"{name} seen"] = len(mode.seen)
        facts[name] = hashlib.sha256("\n".join(mode.seen).encode()).hexdigest()[:16]
    return facts


PROGRAMS: dict[str, tuple[Callable[[Gpu], Facts], tuple[str, ...]]] = {
    "fork joined in a phase": (fork_joined_in_a_phase, ()),
    "copy on a side stream": (copy_on_a_side_stream, ()),
    "capture after an error": (capture_after_an_error, ()),
    "compiled autograd, fullgraph": (compiled_autograd, ("--modules",)),
    "modes of its own": (modes_of_its_own, ("--modules", "--nonfinite=1")),
}
"""By name, with the options of `pyinstrument-gpu run`."""


# --- with and without ---


class Ended(NamedTuple):
    """How a process of a program ended, and what the program said."""

    code: int
    facts: Facts
    errors: str = ""


def _run_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.gpurun"


def ended(name: str, recorded: bool, folder: Path, options: Sequence[str], limit_s: float) -> Ended:
    """Runs a program in a process of its own, which is ended after so long."""
    launch = ["-m", "pyinstrument_gpu", "run", "-q", "-o", str(_run_file(folder, name))]
    launch = [*launch, *PROGRAMS[name][1]] if recorded else []
    command = [sys.executable, *launch, "-m", "benchmarks.gpu.captures", name, *options]
    try:
        done = subprocess.run(
            command, cwd=ROOT, timeout=limit_s, capture_output=True, text=True, errors="replace"
        )
    except subprocess.TimeoutExpired as error:
        return Ended(-signal.SIGKILL, {}, f"{error}\n{error.stderr!r}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return Ended(done.returncode, json.loads(lines[-1]) if lines else {}, done.stderr)


def compared(name: str, without: Ended, recorded: Ended) -> Iterator[Figure]:
    """What is to be said of one program."""
    failed = 0
    for way, one in (("without", without), ("with", recorded)):
        if one.code or not one.facts:
            failed += 1
            print(f"{name}, {way} a recording: exit code {one.code}\n{one.errors}", flush=True)
    yield Figure(f"{name}: failed, of once without and once with a recording", failed, "", goal=0)
    names = without.facts.keys() | recorded.facts.keys()
    other = {k for k in names if without.facts.get(k) != recorded.facts.get(k)}
    note = ", ".join(f"{k}: {without.facts.get(k)}, {recorded.facts.get(k)}" for k in sorted(other))
    yield Figure(f"{name}: facts that a recording changes", len(other), "", goal=0, note=note)


def figures(
    names: Sequence[str] = tuple(PROGRAMS), options: Sequence[str] = (), limit_s: float = LIMIT_S
) -> Iterator[Figure]:
    """All that this part measures. The options go to the programs."""
    with tempfile.TemporaryDirectory() as created, ThreadPoolExecutor(2 * len(names)) as pool:
        folder = Path(created)
        arguments = folder, options, limit_s
        both = {
            name: [pool.submit(ended, name, recorded, *arguments) for recorded in (False, True)]
            for name in names
        }
        for name in names:
            yield from compared(name, *(way.result() for way in both[name]))
            run_file = _run_file(folder, name)
            known = Run.load(run_file).graph_phases if run_file.exists() else None
            if known is not None and known.graphs:
                timed = sum(one.count for one in known.phases)
                yield Figure(f"{name}: times of phases in its graphs", timed, "")


# --- while the flight recorder is read ---


def while_read(gpu: Gpu, *, seconds: float = 6) -> Iterator[Figure]:
    """Captures behind collective operations that nobody has seen end, while a thread reads."""
    torch.distributed.init_process_group(
        "nccl" if gpu.device == "cuda" else "gloo",
        store=torch.distributed.HashStore(),  # type: ignore[attr-defined]
        rank=0,
        world_size=1,
    )
    x = torch.ones(4096, device=gpu.device)
    torch.distributed.all_reduce(x)
    gpu.synchronize()
    with pig.record():
        with gpu_step(), gpu_phase("before"):
            x.add_(0)
        for mode in ("relaxed", "usual"):
            captures, failed, reads, entries = _captures_while(gpu, x, mode == "relaxed", seconds)
            goal = 0 if mode == "relaxed" else None
            note = "" if goal is not None else "the mode that a recording avoids"
            yield Figure(f"{mode} mode: captures", captures, "")
            yield Figure(f"{mode} mode: captures that failed", failed, "", goal=goal, note=note)
            yield Figure(f"{mode} mode: reads of the flight recorder", reads, "")
            name = f"{mode} mode: reads without an operation, of the last"
            yield Figure(name, int(entries == 0), "", goal=goal, note=f"{entries} operations")


def _captures_while(
    gpu: Gpu, x: Tensor, is_relaxed: bool, seconds: float
) -> tuple[int, int, int, int]:
    """Captures, of them failed, reads, and operations in the last one."""
    read: Callable[[], flight_recorder.Dump] = flight_recorder.read
    over = threading.Event()
    reads: list[int] = []

    def keep_reading() -> None:
        while not over.wait(0.001):
            dump = native.call_in_relaxed_mode(read) if is_relaxed else read()
            reads.append(len(dump.entries))

    def enqueue() -> None:
        x.add_(0).mul_(1)

    thread = threading.Thread(target=keep_reading)
    thread.start()
    captures = failed = 0
    end_s = monotonic() + seconds
    try:
        # Behind a failure PyTorch need not be what it was.
        while failed == 0 and thread.is_alive() and (not reads or monotonic() < end_s):
            for _ in range(3):
                torch.distributed.all_reduce(x)
            captures += 1
            try:
                gpu.capture(enqueue)()
                gpu.synchronize()
            except RuntimeError as error:
                failed += 1
                print(f"a capture failed: {error}", flush=True)
    finally:
        over.set()
        thread.join()
    return captures, failed, len(reads), reads[-1] if reads else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", nargs="?", choices=PROGRAMS)
    parser.add_argument("--while-read", action="store_true")
    parser.add_argument("--gpu", default="benchmarks.gpu.gpu:CudaGpu", help="a class of GPUs")
    options = parser.parse_args()
    if options.program is not None:
        gpu = pkgutil.resolve_name(options.gpu)()
        print(json.dumps(PROGRAMS[options.program][0](gpu)))
    elif options.while_read:
        print_figures(while_read(pkgutil.resolve_name(options.gpu)()))
        os._exit(0)  # behind a capture that failed, PyTorch's groups need not end
    else:
        print_figures(figures(options=["--gpu", options.gpu]))


if __name__ == "__main__":
    main()
