# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of the metrics: compiled and loaded beside the training, which goes on.

For each device a thread takes the code from the cache, or has `nvrtc.py` compile it in a process of
its own, and hands it to the native side, which loads it in a thread that needs no interpreter.
Nothing waits for them: a program may end and fork at any time. In a forked child no kernels come.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import torch

from pyinstrument_gpu import disk_cache
from pyinstrument_gpu.metrics import nvrtc
from pyinstrument_gpu.native import native
from pyinstrument_gpu.version import __version__

_OPTIONS = ["--std=c++17"]
# Of CUDA 11 all from 11.2 on have one name.
_LIBRARY_NAMES = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"]

_threads: dict[int, threading.Thread] = {}
_starting = threading.Lock()


def request(device: int) -> None:
    """Have the kernels made for a device of this number, unless that was done before, or it is none
    of CUDA's: ROCm has the same names. Returns at once."""
    with _starting:
        if device in _threads or torch.version.hip is not None:
            return
        thread = threading.Thread(
            target=_make, args=(device,), name="pyinstrument_gpu kernels", daemon=True
        )
        _threads[device] = thread
    thread.start()


def wait(timeout_s: float) -> bool:
    """Wait until the kernels that were requested are ready, or known not to come. For tests and
    benchmarks; False where that takes longer."""
    for thread in list(_threads.values()):
        thread.join(timeout_s)
        if thread.is_alive():
            return False
    return native.wait_for_metric_kernels(timeout_s)


def _make(device: int) -> None:
    try:
        code = compiled(native.compute_capability(device))
    except Exception as error:
        native.fail_metric_kernels(device, f"{error}")
    else:
        native.load_metric_kernels(device, code)


def compiled(capability: int) -> bytes:
    """The kernels for devices of a compute capability, as 90 for 9.0, from the cache where it has
    them.

    Raises:
        CompileError: there are none; the message says why.
        OSError: the compiler's process could not be started.
    """
    libraries = _libraries()
    wanted = {
        "libraries": libraries,
        "capability": capability,
        "options": _OPTIONS,
        "texts": native.metric_kernel_texts(),
    }
    versions = [__version__, torch.version.cuda, *map(_version_of, libraries)]
    key = hashlib.sha256(json.dumps([wanted, versions]).encode()).hexdigest()
    code = disk_cache.load(key)
    if code is None:
        code = _compile(wanted)
        disk_cache.store(key, code)
    return code


def _compile(wanted: dict[str, Any]) -> bytes:
    # Files, not pipes: the end of a pipe does not come while a process forked meanwhile has it too.
    with _memory_file("request") as question, _memory_file("answer") as answer:
        question.write(json.dumps(wanted).encode())
        question.seek(0)
        program = [sys.executable, "-I", "-S", nvrtc.__file__]
        process = subprocess.Popen(
            program, stdin=question, stdout=answer, stderr=subprocess.DEVNULL
        )
        exit_code = process.wait()
        answer.seek(0)
        content: bytes = answer.read()
        error, found, code = content.partition(b"\n")
    if error or not found:
        said = error.decode() or f"the process that runs NVRTC ended with exit code {exit_code}"
        raise nvrtc.CompileError(said)
    return code


def _memory_file(name: str) -> Any:
    return open(os.memfd_create(f"pyinstrument_gpu {name}"), "w+b")


def _libraries() -> list[str]:
    """Return where NVRTC may be, the best first: what the environment names; what this process has
    loaded; the packages that PyTorch depends on, of its major version; the system."""
    if named := os.environ.get("PYINSTRUMENT_GPU_LIBNVRTC"):
        return [named]
    packaged: list[str] = []
    if torch.version.cuda is not None:
        major = torch.version.cuda.split(".")[0]
        packages = Path(torch.__file__).parent.parent / "nvidia"
        packaged = sorted(map(str, packages.glob(f"*/lib/libnvrtc.so.{major}*")))
    return list(dict.fromkeys([*nvrtc.loaded_libraries(), *packaged, *_LIBRARY_NAMES]))


def _version_of(library: str) -> list[int]:
    """Return a version that changes with the file. Of the system's libraries only the name is
    known: what an older one of the same name has compiled is as good."""
    try:
        status = os.stat(library)
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns]
