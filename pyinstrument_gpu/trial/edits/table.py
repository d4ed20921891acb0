# SPDX-License-Identifier: Apache-2.0
"""The only list of edits, and those of other packages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from pyinstrument_gpu import plugins
from pyinstrument_gpu.trial.edits import loader, models, optimizers, processes, settings
from pyinstrument_gpu.trial.edits.edit import Changes, Edit

EDITS: tuple[Edit, ...] = (
    loader.Workers(),
    loader.PersistentWorkers(),
    loader.PrefetchFactor(),
    loader.PinMemory(),
    settings.Threads(),
    processes.LIBRARY_THREADS,
    settings.Collector(),
    settings.TorchSetting(
        "cudnn_benchmark",
        "cudnn",
        Changes.LAST_DIGITS,
        "torch.backends.cudnn.benchmark = True",
        settings.benchmark_convolutions,
    ),
    settings.TorchSetting(
        "matmul_precision",
        "precision",
        Changes.RESULTS,
        'torch.set_float32_matmul_precision("high")',
        settings.use_tf32,
    ),
    settings.NoAnomalyDetection(),
    settings.NoDeterminism(),
    optimizers.Implementation(),
    optimizers.SetToNone(),
    models.ChannelsLast(),
    models.Autocast(),
    models.Compile(),
    processes.DistributedDataParallel(),
    processes.EXPANDABLE_SEGMENTS,
    processes.MALLOC,
)


@cache
def edits() -> Mapping[str, Edit]:
    """Return all edits by name; those of other packages stand behind ours and replace none."""
    found = {edit.name: edit for edit in EDITS}
    added = plugins.load_all("edits", lambda one: isinstance(one, Edit))
    return {**{edit.name: edit for _, edit in added}, **found}
