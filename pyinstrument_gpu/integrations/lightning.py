# SPDX-License-Identifier: Apache-2.0
"""`GpuPhaseCallback` and `GpuPhaseProfiler` for the Trainer of Lightning, under both of its names:
`lightning` and `pytorch_lightning`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import sys
import threading
from typing import Any

from pyinstrument_gpu.auto import AutoPhases
from pyinstrument_gpu.core.launcher import note_launcher
from pyinstrument_gpu.errors import PyinstrumentGpuError
from pyinstrument_gpu.integrations.training_recording import (
    RecordsTraining,
    TrainingRecording,
    import_framework,
    version_of,
)
from pyinstrument_gpu.native import native

_PACKAGES = {"lightning.pytorch": "lightning", "pytorch_lightning": "pytorch-lightning"}
_OLDEST = (2, 0)
_ARGUMENTS = re.compile(r"(?<=^\[Callback\])(\w+)\{.*\}")
"""Of a callback, in the names of its actions: ModelCheckpoint has five lines of them."""


def _import_lightning() -> list[Any]:
    """The modules that the program uses, under either name."""
    used = [name for name in _PACKAGES if name in sys.modules]
    if not used:
        found = (name for name in _PACKAGES if importlib.util.find_spec(name.partition(".")[0]))
        used = [next(found, "lightning.pytorch")]
    return [import_framework(name, _PACKAGES[name], _OLDEST) for name in used]


_modules = _import_lightning()


def _base(of: str, *path: str) -> Any:
    """A class of Lightning's; of a program that uses both names, one that is both."""
    classes = []
    for module in _modules:
        for name in path:
            module = getattr(module, name)
        classes.append(getattr(module, of))
    return classes[0] if len(classes) == 1 else type(of, tuple(classes), {})


_Callback: Any = _base("Callback")
_Profiler: Any = _base("Profiler", "profilers")


class GpuPhaseCallback(RecordsTraining, _Callback):  # type: ignore[misc]
    """Records each `fit`: `Trainer(callbacks=[GpuPhaseCallback("train.gpurun")])`.

    Phases and steps are placed automatically, as by `auto_phases`. A step is an iteration in which
    optimizers step, with the batches that were accumulated for it. (Lightning's `global_step`
    counts the steps of each optimizer.)

    If a recording is active, it gets the phases and steps, and none is started. Several fits of one
    callback are several runs: "train.gpurun", "train-2.gpurun". Nothing raises into the training:
    what goes wrong is a RuntimeWarning.

    Args:
        path: the run file; None keeps the run in memory. With several ranks, each has its own:
            "train.rank3.gpurun".
        report: print the report to standard error when a fit ends, of several ranks the first.
        options: those of `record`.

    Raises:
        ValueError, TypeError, ConfigurationError: an argument or a setting is wrong.

    Cost: that of automatic phases, and a function call for each batch. Never synchronises.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, report: bool = True, **options: Any
    ) -> None:
        super().__init__()
        self._training = TrainingRecording(
            "pyinstrument_gpu.integrations.lightning.GpuPhaseCallback", path, options, report=report
        )
        self._global_step = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin to record a fit."""
        if stage == "fit":
            _begin(self._training, trainer)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Note the count of a checkpoint."""
        self._global_step = trainer.global_step
        with contextlib.suppress(AttributeError):  # it counts iterations, as steps do
            self._training.note_step_number(trainer.fit_loop.epoch_loop._batches_that_stepped)

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Count the steps."""
        if trainer.global_step != self._global_step:
            self._global_step = trainer.global_step
            self._training.note_update()

    def on_exception(self, trainer: Any, *_: Any, **__: Any) -> None:
        """End the recording of a fit that an exception has ended."""
        self._training.end(failed=True)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the recording."""
        if stage == "fit":
            self._training.end()


class GpuPhaseProfiler(RecordsTraining, _Profiler):  # type: ignore[misc]
    """Records each `fit` as `GpuPhaseCallback` does, with Lightning's own actions as phases:
    `Trainer(profiler=GpuPhaseProfiler("train.gpurun"))`.

    Each `profile("...")` of Lightning's and of the program's is a phase, named without the
    arguments of a callback. Automatic phases nest in them. At the end of the fit the report goes to
    Lightning's log, or with `dirpath` and `filename` into a file.

    Args:
        path: the run file; None keeps the run in memory.
        dirpath, filename: those of Lightning's profilers: where the report goes.
        options: those of `record`.

    Raises:
        ValueError, TypeError, ConfigurationError: an argument or a setting is wrong.

    Cost: that of automatic phases, and two calls of Python for each of Lightning's actions, of
    which there are some dozens in a step. Never synchronises.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dirpath=dirpath, filename=filename)
        self._open: dict[tuple[int, str], list[Any]] = {}
        self._is_told = False
        self._training = TrainingRecording(
            "pyinstrument_gpu.integrations.lightning.GpuPhaseProfiler",
            path,
            options,
            counts_updates=False,
        )

    def __getstate__(self) -> dict[str, Any]:
        state = {**vars(self), "_open": {}}
        state.pop("_lightning_module", None)  # a proxy that Lightning makes again
        return state

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        """Begin to record a fit."""
        super().setup(stage, local_rank, log_dir)
        if stage == "fit":
            self._is_told = False
            module = getattr(self, "_lightning_module", None)
            _begin(self._training, getattr(module, "_trainer", None))

    def start(self, action_name: str) -> None:
        """Begin the phase of an action."""
        with contextlib.suppress(PyinstrumentGpuError, TypeError):  # it has no name for a phase
            scope = native.gpu_phase.scope(_ARGUMENTS.sub(r"\1", action_name))
            scope.__enter__()
            self._open.setdefault((threading.get_ident(), action_name), []).append(scope)

    def stop(self, action_name: str) -> None:
        """End the phase of an action. Actions may overlap."""
        key = threading.get_ident(), action_name
        scopes = self._open.get(key)
        if scopes:
            scopes.pop().__exit__(None, None, None)
            if not scopes:
                del self._open[key]
        if action_name.endswith(".on_exception"):
            self._training.end(failed=True)  # Lightning tells its callbacks, and no profiler

    def summary(self) -> str:
        """The report of the newest fit; empty where there is none."""
        if self.recording is None:
            return ""
        path = self.recording.path
        try:
            return self.run.report(file=None if path is None else str(path))
        except Exception as error:
            return f"pyinstrument_gpu: no report: {error!r}"

    def describe(self) -> None:
        """End the recording, and log the report, which a validation or test later does not."""
        self._training.end()
        if not self._is_told:
            self._is_told = True
            super().describe()

    def teardown(self, stage: str | None) -> None:
        """End the recording."""
        # It is called by `__del__`, too, where the constructor has raised.
        training = getattr(self, "_training", None)
        if training is not None:
            training.end()
        super().teardown(stage)


def _begin(training: TrainingRecording, trainer: Any) -> None:
    with contextlib.suppress(Exception):  # it need not be one of Lightning's own
        note_launcher(
            RANK=trainer.global_rank, WORLD_SIZE=trainer.world_size, LOCAL_RANK=trainer.local_rank
        )
    module = type(trainer).__module__.partition(".")[0]
    package = next((one for one in _modules if one.__name__.startswith(module)), _modules[0])
    training.begin(trainer, _PACKAGES[package.__name__], version_of(package), _observe_fetchers)


def _observe_fetchers(phases: AutoPhases) -> None:
    from pyinstrument_gpu.auto import batches  # here, as it needs torch

    for module in _modules:
        with contextlib.suppress(ImportError):  # internals, which may have another name
            fetchers = importlib.import_module(f"{module.__name__}.loops.fetchers")
            fetcher = getattr(fetchers, "_PrefetchDataFetcher", None)
            if isinstance(fetcher, type):
                batches.follow_fetcher(
                    phases, fetcher, lambda self: list(self.combined_loader.flattened)
                )
