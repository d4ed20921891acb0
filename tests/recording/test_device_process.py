# SPDX-License-Identifier: Apache-2.0
"""Device timing over the life of a process, on the simulated driver: each in one of its own."""

import signal
from pathlib import Path

import pyinstrument_gpu as pig
from tests.helpers.script import run_script

# A PyTorch as far as the recorder looks at it, and a program with a GPU's driver below.
PRELUDE = """
import os, sys, types
from tests.helpers.simulated_cuda import exchange_api_capsule, simulated_cuda

class TorchCuda:
    initialized = True
    def is_initialized(self): return self.initialized
    def device_count(self): return 0

torch = types.ModuleType("torch")
torch.__version__ = "2.13.0"
torch.version = types.SimpleNamespace(cuda="13.0")
torch.cuda = TorchCuda()
torch.Tensor = type("Tensor", (), {"__dlpack_c_exchange_api__": exchange_api_capsule()})
sys.modules["torch"] = torch

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step
"""


def run_program(source: str, path: Path, exit_code: int = 0) -> str:
    """What a program, in a new process whose torch is that of the prelude, wrote to stderr."""
    return run_script(PRELUDE + source, path, exit_code=exit_code, is_fresh=True).stderr


def test_a_killed_process_names_the_phases_that_its_device_had_not_finished(tmp_path: Path) -> None:
    path = tmp_path / "run.gpurun"
    program = """
with simulated_cuda() as cuda:
    recording = pig.start(sys.argv[1])
    with gpu_phase("data"):
        cuda.advance(2_000)
    cuda.advance(10_000)
    with gpu_phase("forward"):
        cuda.default_stream.hang()
        cuda.advance(2_000)
    with gpu_phase("backward"):
        cuda.advance(2_000)
    while "data" in recording.snapshot().pending_device_work:
        recording.flush(0)
    os.kill(os.getpid(), 9)
"""
    run_program(program, path, exit_code=-signal.SIGKILL)

    run = pig.Run.load(path)
    assert not run.complete
    assert run.pending_device_work == {"forward": 1, "backward": 1}
    assert "Device work not finished at the end: forward (1 span), backward (1 span)" in " ".join(
        run.report(verbose=True, width=200).split()
    )


def test_it_begins_by_itself_once_pytorch_has_initialised_cuda(tmp_path: Path) -> None:
    program = """
torch.cuda.initialized = False
with simulated_cuda(clock=False) as cuda, pig.record(sys.argv[1]):
    for _ in range(1_000):
        with gpu_phase("before"):
            pass
    assert cuda.count("cuCtxGetCurrent") == 0  # nothing of the driver is called before PyTorch did
    torch.cuda.initialized = True
    while not cuda.count("cuEventRecord"):  # until the recorder's own thread has noticed
        with gpu_phase("noticing"):
            os.stat("/")  # gives the GIL away, as the operators of PyTorch do
    with gpu_step(), gpu_phase("after"):
        pass
    cuda.run_dry()
"""
    run_program(program, tmp_path / "run.gpurun")

    run = pig.Run.load(tmp_path / "run.gpurun")
    assert run.phases["before"].device is None
    assert run.phases["after"].device is not None


def test_it_begins_while_the_main_thread_only_waits(tmp_path: Path) -> None:
    program = """
import threading
torch.cuda.initialized = False
with simulated_cuda(clock=False) as cuda, pig.record(sys.argv[1]):
    def train():
        cuda.devices[0].activate()
        torch.cuda.initialized = True
        while not cuda.count("cuEventRecord"):
            with gpu_step():
                os.stat("/")
        with gpu_step(), gpu_phase("train"):
            pass
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    cuda.run_dry()
"""
    run_program(program, tmp_path / "run.gpurun")

    run = pig.Run.load(tmp_path / "run.gpurun")
    assert run.phases["train"].device is not None


def test_a_pytorch_that_cannot_be_asked_for_its_stream_is_named_once(tmp_path: Path) -> None:
    program = """
torch.Tensor = type("Tensor", (), {})
with simulated_cuda(clock=False) as cuda:
    recording = pig.start(sys.argv[1])
    with gpu_step(), gpu_phase("host"):
        pass
    recording.flush(0)
    recording.stop()
    assert cuda.count("cuCtxGetCurrent") == 0
"""
    done = run_program(program, tmp_path / "run.gpurun")
    assert done.count("can't be asked for its current stream") == 1
    assert pig.Run.load(tmp_path / "run.gpurun").phases["host"].device is None


def test_a_forked_child_never_calls_the_driver(tmp_path: Path) -> None:
    program = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside a thread
with simulated_cuda() as cuda, pig.record(sys.argv[1]):
    with gpu_phase("parent"):
        pass
    child = os.fork()
    if child == 0:
        before = {name: cuda.count(name) for name in ("cuCtxGetCurrent", "cuEventRecord")}
        with gpu_phase("ignored"):
            pass
        with pig.record() as own, gpu_step(), gpu_phase("child"):
            pass
        assert own.run.phases["child"].count == 1
        assert own.run.device_timing is None
        assert before == {name: cuda.count(name) for name in before}
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    cuda.run_dry()
"""
    run_program(program, tmp_path / "run.gpurun")

    run = pig.Run.load(tmp_path / "run.gpurun")
    assert run.phases["parent"].device is not None


def test_a_program_that_ends_without_stopping_has_its_device_times(tmp_path: Path) -> None:
    program = """
manager = simulated_cuda(clock=False)
cuda = manager.__enter__()
pig.start(sys.argv[1])
with gpu_step(), gpu_phase("forward"):
    cuda.default_stream.launch(1_000_000)
cuda.run_dry()
"""
    run_program(program, tmp_path / "run.gpurun")

    run = pig.Run.load(tmp_path / "run.gpurun")
    assert run.complete
    assert run.phases["forward"].device is not None
    assert run.phases["forward"].device.total_ns == 1_000_000 // 32 * 32


def test_an_ending_driver_is_no_news(tmp_path: Path) -> None:
    program = """
import warnings
warnings.simplefilter("error")
with simulated_cuda(clock=False) as cuda:
    recording = pig.start(sys.argv[1])
    with gpu_phase("forward"):
        pass
    cuda.fail("*", 4, count=None)  # CUDA_ERROR_DEINITIALIZED
    with gpu_phase("late"):
        pass
    recording.stop()
"""
    done = run_program(program, tmp_path / "run.gpurun")
    assert done == ""
