# SPDX-License-Identifier: Apache-2.0
"""`GpuPhaseCallback` for the Trainer of Hugging Face's transformers, and for those of TRL."""

from __future__ import annotations

import functools
import os
import sys
import weakref
from typing import Any

from pyinstrument_gpu.auto import AutoPhases
from pyinstrument_gpu.core.launcher import note_launcher
from pyinstrument_gpu.integrations.training_recording import (
    RecordsTraining,
    TrainingRecording,
    import_framework,
    version_of,
)
from pyinstrument_gpu.native import DISABLED

_transformers = import_framework("transformers", "transformers", (4, 46))
_TrainerCallback: Any = _transformers.TrainerCallback
_callbacks: weakref.WeakSet[GpuPhaseCallback] = weakref.WeakSet()


class GpuPhaseCallback(RecordsTraining, _TrainerCallback):  # type: ignore[misc]
    """Records each `train()`: `Trainer(..., callbacks=[GpuPhaseCallback("train.gpurun")])`.

    Phases and steps are placed automatically, as by `auto_phases`. A step is what the Trainer
    counts as one: the batches of one update. Its items and samples are those that it trains on,
    although the loader of accelerate fetches one batch ahead.

    If a recording is active, it gets the phases and steps, and none is started. Several trainings
    of one callback are several runs: "train.gpurun", "train-2.gpurun". Nothing raises into the
    training: what goes wrong is a RuntimeWarning.

    Args:
        path: the run file; None keeps the run in memory.
        report: print the report to standard error when a training ends, of several ranks the first.
        options: those of `record`.

    Raises:
        ValueError, TypeError, ConfigurationError: an argument or a setting is wrong.

    Cost: that of automatic phases. Never synchronises.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, report: bool = True, **options: Any
    ) -> None:
        super().__init__()
        self._training = TrainingRecording(
            "pyinstrument_gpu.integrations.transformers.GpuPhaseCallback",
            path,
            options,
            report=report,
        )
        self._global_step = 0
        _watch_trainer()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any
    ) -> None:
        """Begin to record."""
        note_launcher(
            RANK=getattr(args, "process_index", 0),
            WORLD_SIZE=getattr(args, "world_size", 1),
            LOCAL_RANK=getattr(args, "local_process_index", 0),
        )
        _callbacks.add(self)
        self._training.begin(
            state, "transformers", version_of(_transformers), functools.partial(_hook, optimizer)
        )
        self._global_step = state.global_step
        self._training.note_step_number(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count the Trainer's steps."""
        if state.global_step != self._global_step:
            self._global_step = state.global_step
            self._training.note_update()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the recording."""
        self._training.end()


def _hook(optimizer: Any, phases: AutoPhases) -> None:
    # Here, as they need torch.
    from pyinstrument_gpu.auto import batches, calls

    while hasattr(optimizer, "optimizer"):  # one of accelerate's, around the one that steps
        optimizer = optimizer.optimizer
    if optimizer is not None and phases.is_hooked:
        calls.note_optimizer(optimizer)
    accelerate: Any = sys.modules.get("accelerate.data_loader")
    for name in ("DataLoaderShard", "DataLoaderDispatcher", "SkipDataLoader"):
        loader = getattr(accelerate, name, None)
        if isinstance(loader, type):
            batches.follow(phases, loader)


@functools.cache
def _watch_trainer() -> None:
    """Tell callbacks of a training that an exception ends, for which there is no event."""
    if DISABLED:
        return
    trainer: Any = _transformers.Trainer
    train = trainer.train

    @functools.wraps(train)
    def watched(*args: Any, **kwargs: Any) -> Any:
        try:
            return train(*args, **kwargs)
        except BaseException:
            for callback in list(_callbacks):
                callback._training.end(failed=True)
            raise

    trainer.train = watched
