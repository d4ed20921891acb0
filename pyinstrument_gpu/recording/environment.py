# SPDX-License-Identifier: Apache-2.0
"""The environment of a run: facts about the machine and the program, and what recording costs
there."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter_ns
from types import ModuleType
from typing import Any

from pyinstrument_gpu.core.launcher import launcher_number
from pyinstrument_gpu.native import native
from pyinstrument_gpu.recording.interactive import notebook
from pyinstrument_gpu.recording.secrets import masked, masked_words
from pyinstrument_gpu.recording.steps import gpu_steps
from pyinstrument_gpu.version import __version__

_MAX_ARGUMENTS = 200
_MAX_ARGUMENT_CHARACTERS = 1000
_MOST_READ = 2 * _MAX_ARGUMENT_CHARACTERS
"""Of an argument. More than is kept, as half a secret may not be known as one."""
_MAX_PACKAGES = 300
_VARIABLES = {
    "CUDA_": "CACHE_DISABLE CACHE_MAXSIZE CACHE_PATH DEVICE_MAX_CONNECTIONS DEVICE_ORDER HOME "
    "FORCE_PTX_JIT INJECTION64_PATH LAUNCH_BLOCKING MANAGED_FORCE_DEVICE_ALLOC MODULE_DATA_LOADING "
    "MODULE_LOADING MPS_ACTIVE_THREAD_PERCENTAGE MPS_PIPE_DIRECTORY SCALE_LAUNCH_QUEUES "
    "VISIBLE_DEVICES",
    "CUBLAS": "_WORKSPACE_CONFIG LT_WORKSPACE_SIZE",
    "NVIDIA_": "TF32_OVERRIDE",
    "NCCL_": "ALGO ASYNC_ERROR_HANDLING BLOCKING_WAIT BUFFSIZE CHECKS_DISABLE COLLNET_ENABLE "
    "CROSS_NIC CUMEM_ENABLE DEBUG DEBUG_SUBSYS DMABUF_ENABLE GRAPH_MIXING_SUPPORT GRAPH_REGISTER "
    "IB_ADAPTIVE_ROUTING IB_CUDA_SUPPORT IB_DISABLE IB_GID_INDEX IB_HCA IB_MERGE_NICS "
    "IB_PCI_RELAXED_ORDERING IB_QPS_PER_CONNECTION IB_RETRY_CNT IB_SL IB_SPLIT_DATA_ON_QPS IB_TC "
    "IB_TIMEOUT IGNORE_CPU_AFFINITY LAUNCH_MODE LL_BUFFSIZE LL128_BUFFSIZE LOCAL_REGISTER MAX_CTAS "
    "MAX_NCHANNELS MAX_P2P_NCHANNELS MIN_CTAS MIN_NCHANNELS MIN_P2P_NCHANNELS MNNVL_ENABLE NET "
    "NET_GDR_LEVEL NET_GDR_READ NET_PLUGIN NET_SHARED_BUFFERS NSOCKS_PERTHREAD NTHREADS "
    "NVB_DISABLE NVLS_ENABLE P2P_DISABLE P2P_LEVEL P2P_NET_CHUNKSIZE P2P_PXN_LEVEL PROTO "
    "PXN_DISABLE RUNTIME_CONNECT SHM_DISABLE SHM_LOCALITY SHM_USE_CUDA_MEMCPY SOCKET_FAMILY "
    "SOCKET_IFNAME SOCKET_NTHREADS TOPO_FILE TUNER_PLUGIN WORK_FIFO_DEPTH",
    "OMP_": "DYNAMIC MAX_ACTIVE_LEVELS NESTED NUM_THREADS PLACES PROC_BIND SCHEDULE STACKSIZE "
    "THREAD_LIMIT WAIT_POLICY",
    "GOMP_": "CPU_AFFINITY SPINCOUNT",
    "KMP_": "AFFINITY BLOCKTIME HW_SUBSET LIBRARY TPAUSE",
    "MKL_": "CBWR DEBUG_CPU_TYPE DOMAIN_NUM_THREADS DYNAMIC ENABLE_INSTRUCTIONS NUM_THREADS "
    "SERVICE_FORCE_INTEL THREADING_LAYER",
    "OPENBLAS_": "NUM_THREADS",
    "TORCH_": "ALLOW_TF32_CUBLAS_OVERRIDE BLAS_PREFER_CUBLASLT BLAS_PREFER_HIPBLASLT COMPILE_DEBUG "
    "COMPILE_DISABLE CUDNN_USE_HEURISTIC_MODE_B CUDNN_V8_API_DEBUG CUDNN_V8_API_DISABLED "
    "CUDNN_V8_API_LRU_CACHE_LIMIT DISTRIBUTED_DEBUG FORCE_NO_WEIGHTS_ONLY_LOAD FR_BUFFER_SIZE "
    "LINALG_PREFER_CUSOLVER LOGS NUM_THREADS SHOW_CPP_STACKTRACES TRACE",
    "TORCH_NCCL_": "ASYNC_ERROR_HANDLING AVOID_RECORD_STREAMS BLOCKING_WAIT CUDA_EVENT_CACHE "
    "DESYNC_DEBUG DUMP_ON_TIMEOUT ENABLE_MONITORING ENABLE_TIMING HEARTBEAT_TIMEOUT_SEC "
    "HIGH_PRIORITY NAN_CHECK SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING TRACE_BUFFER_SIZE "
    "USE_COMM_NONBLOCKING USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
    "TORCHDYNAMO_": "AUTOMATIC_DYNAMIC_LOCAL_PGO CAPTURE_SCALAR_OUTPUTS COMPILED_AUTOGRAD DISABLE "
    "DYNAMIC_SHAPES REPRO_AFTER REPRO_LEVEL VERBOSE",
    "TORCHINDUCTOR_": "AUTOGRAD_CACHE BENCHMARK_FUSION CACHE_DIR COMPILE_THREADS "
    "COORDINATE_DESCENT_TUNING CPP_WRAPPER CUDAGRAPHS FORCE_DISABLE_CACHES FREEZING FX_GRAPH_CACHE "
    "FX_GRAPH_REMOTE_CACHE LAYOUT_OPTIMIZATION MAX_AUTOTUNE MAX_AUTOTUNE_GEMM "
    "MAX_AUTOTUNE_GEMM_BACKENDS MAX_AUTOTUNE_POINTWISE PERMUTE_FUSION PROFILE UNIQUE_KERNEL_NAMES "
    "WORKER_START",
    "PYTORCH_": "ALLOC_CONF CUDA_ALLOC_CONF ENABLE_MPS_FALLBACK HIP_ALLOC_CONF JIT JIT_LOG_LEVEL "
    "NO_CUDA_MEMORY_CACHING NVFUSER_DISABLE NVML_BASED_CUDA_CHECK TUNABLEOP_ENABLED "
    "TUNABLEOP_TUNING",
    "MALLOC_": "ARENA_MAX ARENA_TEST CHECK_ CONF MMAP_MAX_ MMAP_THRESHOLD_ PERTURB_ TCACHE_COUNT "
    "TOP_PAD_ TRIM_THRESHOLD_",
    "GLIBC_": "TUNABLES",
    "PYTHON": "ASYNCIODEBUG DEVMODE DONTWRITEBYTECODE FAULTHANDLER HASHSEED HOME INTMAXSTRDIGITS "
    "IOENCODING MALLOC MALLOCSTATS NOUSERSITE OPTIMIZE PATH PERFSUPPORT PROFILEIMPORTTIME "
    "PYCACHEPREFIX SAFEPATH TRACEMALLOC UNBUFFERED UTF8 WARNINGS _CPU_COUNT _FROZEN_MODULES _GIL "
    "_JIT",
    "LD_": "PRELOAD",
}
"""The environment variables that change how fast a program trains, by how their names begin and
end. Others are not recorded: a name of any other may be that of a secret."""
_SITE = re.compile(r"(.*/(?:site|dist)-packages)/")
_DRIVER = "/sys/module/nvidia/version"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_COMMIT = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_MAX_PACKED = 64 << 20
_OVERHEAD_BATCHES = 7
_OVERHEAD_USES = 300


def gather(arguments: bool = True) -> dict[str, Any]:
    """Return the facts known now. Imports and starts nothing: of torch and CUDA only what the
    program has loaded.

    Args:
        arguments: whether the command line is among them.
    """
    facts: dict[str, Any] = {
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "python": sys.version.split()[0],
        "platform": _platform(),
        "cores": len(os.sched_getaffinity(0)),
        "cwd": _working_directory(),
        "program_folder": str(_folder_of_program()),
        "started": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "version": __version__,
        "driver": driver_version(),
        "variables": variables(os.environ),
    }
    if arguments:
        facts["command"] = _words(sys.orig_argv)
        facts["arguments"] = notebook() or _words(getattr(sys, "argv", ()))
    for key in ("rank", "world_size", "local_rank"):
        number = launcher_number(key.upper())
        if number is not None:
            facts[key] = number
    facts.update(_boot())
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


def _boot() -> dict[str, Any]:
    """Return what tells the starts of a machine apart, and how long it has slept since this one:
    times by the monotonic clock of one start can be compared, however the wall clock is set."""
    try:
        boot_id = Path(_BOOT_ID).read_text().strip()
        asleep_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    except (OSError, UnicodeDecodeError, AttributeError):
        return {}
    return {"boot_id": boot_id, "asleep_ns": max(0, asleep_ns)}


def last_facts() -> dict[str, Any]:
    """Return what the program has loaded and set by its end. Reads the names of some folders."""
    facts = torch_facts()
    with contextlib.suppress(Exception):  # of a program that changes them meanwhile
        facts.update(variables=variables(os.environ), packages=packages())
        if "torch" in facts:
            facts["torch_threads"] = int(sys.modules["torch"].get_num_threads())
    return facts


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that matter to how fast a program trains."""
    names = (begin + end for begin, ends in _VARIABLES.items() for end in ends.split())
    return {name: _kept(environment[name]) for name in sorted(names) if name in environment}


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
    words = [argument[:_MOST_READ] for argument in arguments[:_MAX_ARGUMENTS]]
    return [word[:_MAX_ARGUMENT_CHARACTERS] for word in masked_words(words)]


def _kept(value: str) -> str:
    return masked(value[:_MOST_READ])[:_MAX_ARGUMENT_CHARACTERS]


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
                git = place / _text_of(git).removeprefix("gitdir:").strip()
            if (git / "HEAD").is_file():
                found = _commit(git, _text_of(git / "HEAD").strip())
                return found if found is not None and _COMMIT.fullmatch(found) else None
    except (OSError, UnicodeDecodeError, ValueError):
        pass
    return None


def _commit(git: Path, head: str) -> str | None:
    """What a reference leads to, which need not be a commit: the files may say anything."""
    if not head.startswith("ref: "):
        return head
    name = head.removeprefix("ref: ")
    if not name.startswith("refs/") or ".." in name:
        return None
    shared = git / "commondir"
    folders = [git, git / _text_of(shared).strip()] if shared.is_file() else [git]
    for folder in folders:
        if (folder / name).is_file():
            return _text_of(folder / name).strip()
        packed = folder / "packed-refs"
        lines = _text_of(packed, _MAX_PACKED).splitlines() if packed.is_file() else []
        for line in lines:
            if line.endswith(f" {name}"):
                return line.split()[0]
    return None


def _text_of(path: Path, most: int = 4096) -> str:
    """The text of a file that is not longer.

    Raises:
        OSError, UnicodeDecodeError, ValueError: it is longer, or can't be read.
    """
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{path} is too long")
    return data.decode()


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
