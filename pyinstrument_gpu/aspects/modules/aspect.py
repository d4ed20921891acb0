# SPDX-License-Identifier: Apache-2.0
"""The modules of the model as an aspect of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from pyinstrument_gpu.aspects.modules import section as sections
from pyinstrument_gpu.aspects.modules.data import MODULE_SPAN_DTYPE, Modules, fold_module_spans
from pyinstrument_gpu.aspects.modules.file import take_modules_out
from pyinstrument_gpu.aspects.modules.live import LiveModules
from pyinstrument_gpu.core.aspect import Aspect
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.file.steps import module_step_weights
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Part


class ModulesAspect(Aspect):
    """The times of the model's modules, forward and backward."""

    name = "modules"
    live = LiveModules()
    section_type = sections.Modules | None
    about = "of the model, forward and backward."
    in_preview = False

    def attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        names, spans = tuple(given.get("module_names", ())), given.get("module_spans")
        if spans is None:
            spans = np.empty(0, MODULE_SPAN_DTYPE)
        modules = given.get("modules")
        if modules is None:
            modules = Modules(fold_module_spans(spans, names))
        return {
            "modules": modules,
            "module_names": names,
            "module_spans": spans,
            "module_step_weights": given.get("module_step_weights"),
        }

    def read(self, found: Found) -> dict[str, Any]:
        items = found.step_records.items[: len(found.steps)]
        return {"module_step_weights": module_step_weights(items)}

    def take_out(self, run: dict[str, Any], found: Found) -> None:
        if found.tables.path_kinds.any():
            take_modules_out(run, found.tables.path_kinds)

    def join_history(self, run: Run, earlier: Run) -> None:
        run.module_names, run.module_spans = earlier.module_names, earlier.module_spans
        run.module_step_weights = earlier.module_step_weights

    def section(self, run: Run) -> sections.Modules | None:
        return sections.modules(run)

    def parts(self, modules: sections.Modules, document: Any) -> Iterable[Part]:
        return sections.modules_section(modules)

    def unknown(self, run: Run) -> Iterator[str]:
        if not run.modules:
            yield "Times of modules: they were not watched (run --modules)."
