# SPDX-License-Identifier: Apache-2.0
"""The environment of a run: facts about the machine and the program, and what recording costs
there."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter_ns
from types import ModuleType
from typing import Any

from pyinstrument_gpu.core.launcher import launcher_number
from pyinstrument_gpu.native import native
from pyinstrument_gpu.recording.interactive import notebook
from pyinstrument_gpu.recording.steps import gpu_steps
from pyinstrument_gpu.version import __version__

_MAX_ARGUMENTS = 200
_MAX_ARGUMENT_CHARACTERS = 1000
_MAX_PACKAGES = 300
_MAX_VARIABLES = 100
_VARIABLES = re.compile(
    "(CUDA|CUBLAS|CUDNN|NCCL|OMP|KMP|MKL|TORCH|TORCHDYNAMO|TORCHINDUCTOR|PYTORCH|MALLOC)_|PYTHON"
    "|LD_PRELOAD$"
)
"""Those that change how fast a program trains. What names a secret, or one attempt of a job, is not
among them."""
_NOT_RECORDED = re.compile("KEY|TOKEN|SECRET|PASS|AUTH|CREDENTIAL")
_SITE = re.compile(r"(.*/(?:site|dist)-packages)/")
_DRIVER = "/sys/module/nvidia/version"
_OVERHEAD_BATCHES = 7
_OVERHEAD_USES = 300


def gather() -> dict[str, Any]:
    """Return the facts known now. Imports and starts nothing: of torch and CUDA only what the
    program has loaded."""
    facts: dict[str, Any] = {
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "python": sys.version.split()[0],
        "platform": _platform(),
        "cores": len(os.sched_getaffinity(0)),
        "command": _words(sys.orig_argv),
        "arguments": notebook() or _words(getattr(sys, "argv", ())),
        "cwd": _working_directory(),
        "program_folder": str(_folder_of_program()),
        "started": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "version": __version__,
        "driver": driver_version(),
        "variables": variables(os.environ),
    }
    for key in ("rank", "world_size", "local_rank"):
        number = launcher_number(key.upper())
        if number is not None:
            facts[key] = number
    job = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if job != "none":  # which is torchrun's own default, for every job
        facts["job"] = job
    restarts = launcher_number("TORCHELASTIC_RESTART_COUNT")
    if restarts is not None:
        facts["restarts"] = restarts
    slurm_job = launcher_number("SLURM_JOB_ID")
    if slurm_job is not None:
        facts["slurm_job"] = str(slurm_job)
    revision = code_revision(_folder_of_program())
    if revision is not None:
        facts["revision"] = revision
    facts.update(torch_facts())
    return facts


def last_facts() -> dict[str, Any]:
    """Return what the program has loaded and set by its end. Reads the names of some folders."""
    facts = torch_facts()
    with contextlib.suppress(Exception):  # of a program that changes them meanwhile
        facts.update(variables=variables(os.environ), packages=packages())
    return facts


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that matter to how fast a program trains."""
    names = [name for name in sorted(environment) if _VARIABLES.match(name)]
    return {
        name: environment[name][:_MAX_ARGUMENT_CHARACTERS]
        for name in names[:_MAX_VARIABLES]
        if not _NOT_RECORDED.search(name)
    }


def driver_version() -> str | None:
    """Return the version of NVIDIA's driver; None where there is none."""
    try:
        return Path(_DRIVER).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def packages() -> dict[str, str]:
    """The versions of the packages that are imported, by the names of their modules: those of what
    is installed, or else what a module says itself."""
    loaded = {
        # Not `vars`: a module that is lazy would be loaded.
        name: object.__getattribute__(module, "__dict__")
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType)
        and "." not in name
        and name not in sys.stdlib_module_names
    }
    installed: dict[str, str] = {}
    for folder in {match[1] for one in loaded.values() if (match := _SITE.match(_origin(one)))}:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                package, _, version = name.removesuffix(".dist-info").partition("-")
                if version and name.endswith(".dist-info"):
                    installed[package.lower()] = version
    versions = {
        name: installed.get(name.lower()) or one.get("__version__") for name, one in loaded.items()
    }
    told = sorted((name, one) for name, one in versions.items() if isinstance(one, str))
    return dict(told[:_MAX_PACKAGES])


def _origin(names: Mapping[str, Any]) -> str:
    """The file of a module with these names in it."""
    return str(names.get("__file__"))


def _words(arguments: object) -> list[str]:
    """Return the arguments of a command line that fit; none where a program put something else."""
    if not isinstance(arguments, list) or not all(isinstance(one, str) for one in arguments):
        return []
    return [argument[:_MAX_ARGUMENT_CHARACTERS] for argument in arguments[:_MAX_ARGUMENTS]]


def _platform() -> str:
    # As `platform.platform()` writes it, which starts a process for that.
    system = os.uname()
    try:
        libc = (os.confstr("CS_GNU_LIBC_VERSION") or "").replace(" ", "")
    except (OSError, ValueError):  # another C library
        libc = ""
    parts = (system.sysname, system.release, system.machine, *(["with", libc] if libc else []))
    return "-".join(parts)


def _folder_of_program() -> Path:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(os.path.abspath(main)).parent if main else Path(_working_directory() or "/")


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


def torch_facts() -> dict[str, Any]:
    """Versions and GPUs, as far as the program has loaded torch and initialised CUDA."""
    torch: Any = sys.modules.get("torch")
    # Half of it is there while it is being imported.
    if not hasattr(torch, "cuda") or not hasattr(torch, "version"):
        return {}
    facts: dict[str, Any] = {"torch": str(torch.__version__), "cuda": torch.version.cuda}
    find_accelerator = getattr(getattr(torch, "accelerator", None), "current_accelerator", None)
    try:
        # What this build of torch knows beside the host: asking initialises none.
        accelerator = None if find_accelerator is None else find_accelerator()
        if find_accelerator is not None and accelerator is None:
            facts["gpus"] = []
        if getattr(torch.version, "hip", None) is not None:
            facts["accelerator"] = "ROCm"  # whose device type is "cuda", too
        elif accelerator is not None and accelerator.type != "cuda":
            facts["accelerator"] = str(accelerator.type).upper()
        # Asking about GPUs before the program has used one would initialise CUDA.
        if torch.cuda.is_initialized():
            devices = range(torch.cuda.device_count())
            facts["gpus"] = [torch.cuda.get_device_name(device) for device in devices]
    except Exception as error:  # of a driver: the names are not worth a training run
        facts["gpus_error"] = str(error)
    return facts


def code_revision(folder: Path) -> str | None:
    """The commit of the git repository around a folder, or None. Read without running git; what was
    changed since is not seen."""
    try:
        for place in (folder, *folder.parents):
            git = place / ".git"
            if git.is_file():  # a worktree or a submodule
                git = place / git.read_text().removeprefix("gitdir:").strip()
            if (git / "HEAD").is_file():
                return _commit(git, (git / "HEAD").read_text().strip())
    except (OSError, UnicodeDecodeError, ValueError):
        pass
    return None


def _commit(git: Path, head: str) -> str | None:
    if not head.startswith("ref: "):
        return head
    name = head.removeprefix("ref: ")
    shared = git / "commondir"
    folders = [git, git / shared.read_text().strip()] if shared.is_file() else [git]
    for folder in folders:
        if (folder / name).is_file():
            return (folder / name).read_text().strip()
        packed = folder / "packed-refs"
        lines = packed.read_text().splitlines() if packed.is_file() else []
        for line in lines:
            if line.endswith(f" {name}"):
                return line.split()[0]
    return None


def overhead_facts() -> dict[str, float]:
    """Measure what a phase and a step cost Python code, in nanoseconds: `phase_ns` and `step_ns`.

    A phase is one `with gpu_phase(...)`; a step is one item of `gpu_steps`, without its phase
    "data". Medians of some batches on warm caches, loops taken off, recorded where nobody reads.
    Needs an active recording with NVTX ranges off (with a tool attached they would fill its
    timeline). Takes about two milliseconds.
    """
    with native.Scratch():
        loop_ns = _median_ns(_empty_loop)
        phase_ns = max(_median_ns(_phase_loop) - loop_ns, 0.0)
        step_ns = max(_median_ns(_step_loop) - loop_ns - phase_ns, 0.0)
    return {"phase_ns": round(phase_ns, 1), "step_ns": round(step_ns, 1)}


def _empty_loop() -> None:
    for _ in range(_OVERHEAD_USES):
        pass


def _phase_loop() -> None:
    gpu_phase = native.gpu_phase
    for _ in range(_OVERHEAD_USES):
        with gpu_phase("data"):
            pass


def _step_loop() -> None:
    for _ in gpu_steps(range(_OVERHEAD_USES)):
        pass


def _median_ns(loop: Callable[[], object]) -> float:
    """Return how many nanoseconds a round of the loop takes."""
    batches_ns = []
    for _ in range(_OVERHEAD_BATCHES):
        begin_ns = perf_counter_ns()
        loop()
        batches_ns.append(perf_counter_ns() - begin_ns)
    return sorted(batches_ns)[_OVERHEAD_BATCHES // 2] / _OVERHEAD_USES
