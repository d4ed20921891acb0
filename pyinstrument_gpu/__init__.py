# SPDX-License-Identifier: Apache-2.0
"""Phase timing for PyTorch training loops that is always on.

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_steps

with pig.record("train.gpurun") as recording:
    for x, y in gpu_steps(loader):
        with gpu_phase("forward"):
            loss = loss_fn(model(x), y)
print(recording.run.report())

PYTEST_DONT_REWRITE: under `pyinstrument-gpu run -m pytest` it is there before pytest.
"""

from __future__ import annotations

# First of all: no other import may find what lies in the working directory.
from pyinstrument_gpu.patching import own_imports  # noqa: F401

# isort: split
import importlib
from typing import TYPE_CHECKING, Any

from pyinstrument_gpu.aspects.modules.watch import ModuleWatch, watch_modules
from pyinstrument_gpu.aspects.operations.profile_steps import profile_steps
from pyinstrument_gpu.aspects.syncs.allow import allow_sync
from pyinstrument_gpu.aspects.syncs.watching import watch_syncs
from pyinstrument_gpu.auto import auto_phases
from pyinstrument_gpu.errors import (
    ConfigurationError,
    ExportError,
    GateError,
    JobError,
    MissingDependencyError,
    NonFiniteError,
    PhaseNameError,
    PyinstrumentGpuError,
    RecordingActiveError,
    RecordingError,
    RunFileDamagedError,
    RunFileError,
    RunFileVersionError,
    RunPathError,
    SinkError,
    TrialError,
)
from pyinstrument_gpu.native import native as _native
from pyinstrument_gpu.patching import dynamo
from pyinstrument_gpu.recording import environment_variable, native_callbacks
from pyinstrument_gpu.recording.recording import Recording, record, start
from pyinstrument_gpu.recording.steps import add_to_step, gpu_step, gpu_steps
from pyinstrument_gpu.version import __version__

if TYPE_CHECKING:
    from pyinstrument_gpu.core.run import Run
    from pyinstrument_gpu.job.job import Job
    from pyinstrument_gpu.metrics import (
        MetricAccumulator,
        Reading,
        tqdm_postfix,
    )
    from pyinstrument_gpu.sinks import (
        MLflowSink,
        PrometheusSink,
        RunUpdate,
        Sink,
        TensorBoardSink,
        WandbSink,
    )


__all__ = [
    "ConfigurationError",
    "ExportError",
    "GateError",
    "Job",
    "JobError",
    "MLflowSink",
    "MetricAccumulator",
    "MissingDependencyError",
    "ModuleWatch",
    "NonFiniteError",
    "PhaseNameError",
    "PrometheusSink",
    "PyinstrumentGpuError",
    "Reading",
    "Recording",
    "RecordingActiveError",
    "RecordingError",
    "Run",
    "RunFileDamagedError",
    "RunFileError",
    "RunFileVersionError",
    "RunPathError",
    "RunUpdate",
    "Sink",
    "SinkError",
    "TensorBoardSink",
    "TrialError",
    "WandbSink",
    "__version__",
    "add_to_step",
    "allow_sync",
    "auto_phases",
    "gpu_phase",
    "gpu_step",
    "gpu_steps",
    "profile_steps",
    "record",
    "start",
    "tqdm_postfix",
    "watch_modules",
    "watch_syncs",
]

gpu_phase = _native.gpu_phase

native_callbacks.install()
dynamo.register_when_imported()


# Most need numpy, whose import takes longer than everything else here.
_HEAVY = {
    "Job": "job.job",
    "Run": "core.run",
    "load_ipython_extension": "integrations.ipython",  # by `%load_ext pyinstrument_gpu`
    **dict.fromkeys(
        ("MetricAccumulator", "Reading", "tqdm_postfix"),
        "metrics",
    ),
    **dict.fromkeys(
        (
            "MLflowSink",
            "PrometheusSink",
            "RunUpdate",
            "Sink",
            "TensorBoardSink",
            "TrialError",
            "WandbSink",
        ),
        "sinks",
    ),
}


def __getattr__(name: str) -> Any:
    if name in _HEAVY:
        return getattr(importlib.import_module(f"{__name__}.{_HEAVY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    # The submodules are attributes, too, but none of them is public.
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


environment_variable.record_if_asked()
