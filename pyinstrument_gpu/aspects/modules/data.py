# SPDX-License-Identifier: Apache-2.0
"""The modules of a run: how long each module of the model took, forward and backward.

Models repeat themselves. Modules whose names differ by an index alone (`layers.0.attn`,
`layers.1.attn`) are one group, whose name has `*` for every index (`layers.*.attn`).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.arrays import durations_ns_of, groups
from pyinstrument_gpu.core.paths import without_indices
from pyinstrument_gpu.core.schema import has_device_times
from pyinstrument_gpu.core.statistics import Statistic, merge_known, of_known

MODULE_SPAN_DTYPE = np.dtype(
    [
        ("host_begin_ns", "<i8"),
        ("host_end_ns", "<i8"),
        ("module", "<u4"),
        ("kind", "u1"),
        ("step", "<i8"),
        ("thread", "<u4"),
        ("path", "<i8"),
        ("depth", "<u2"),
        ("stream", "<i8"),
        ("device_begin_ns", "<i8"),
        ("device_end_ns", "<i8"),
    ]
)
"""One pass through a module. `module` indexes `Run.module_names`, `kind` is a `ModulePass`, `path`
is that of the phase around it, `depth` counts the modules around it, and `step`, `thread`, `stream`
and the times are as in a span; -1 is missing."""


class ModulePass(enum.IntEnum):
    """The kind of a pass through a module."""

    FORWARD = 0
    """Its call."""
    BACKWARD = 1
    """Its part of a backward pass."""
    RECOMPUTE = 2
    """A call that repeats an earlier one during a backward pass (activation checkpointing)."""


class PassStatistics(NamedTuple):
    """The times of one module in one kind of pass.

    Attributes:
        host: times on the CPU's clock.
        device: times on the stream; None where none is known.
    """

    host: Statistic
    device: Statistic | None = None


ModuleStatistics: TypeAlias = Mapping[tuple[str, ModulePass], PassStatistics]
"""Statistics by the name of a module and the kind of pass, in order of first appearance."""


@dataclass(frozen=True)
class ModuleTimes:
    """The times of one module, or of a group of modules that differ by an index alone.

    Each statistic has one duration per pass through a module, submodules included, and is None
    where nothing was measured.

    Attributes:
        name: as `named_modules()` of the model has it; of a group with `*` for each index.
        modules: how many modules the name stands for; 1 for a single one.
        forward: host time of its calls.
        backward: host time of its parts of backward passes.
        recompute: host time of the calls that repeat earlier ones during a backward pass.
        device_forward, device_backward, device_recompute: the same by the stream's clock. They have
            fewer durations where not all passes were timed on the device.
    """

    name: str
    modules: int = 1
    forward: Statistic | None = None
    backward: Statistic | None = None
    recompute: Statistic | None = None
    device_forward: Statistic | None = None
    device_backward: Statistic | None = None
    device_recompute: Statistic | None = None

    @property
    def calls(self) -> int:
        """The number of calls, without those that repeat earlier ones."""
        return self.forward.count if self.forward is not None else 0

    def of_pass(self, kind: ModulePass) -> tuple[Statistic | None, Statistic | None]:
        """Host and device time of one kind of pass."""
        name = kind.name.lower()
        return getattr(self, name), getattr(self, f"device_{name}")

    @classmethod
    def merge(cls, name: str, parts: Sequence[ModuleTimes]) -> ModuleTimes:
        """The times of several modules together, under a name for all."""
        merged = {
            field: merge_known(getattr(part, field) for part in parts)
            for kind in ModulePass
            for field in (kind.name.lower(), f"device_{kind.name.lower()}")
        }
        return cls(name, sum(part.modules for part in parts), **merged)


class Modules(Mapping[str, ModuleTimes]):
    """The times of modules by their names.

    Iterating gives the rows of a table in which every module counts once: first the groups, and
    then the modules that are in none, both in order of first appearance. `modules["layers.*.attn"]`
    finds a group, and `modules["layers.3.attn"]` a member of one as well.
    """

    def __init__(self, statistics: ModuleStatistics | None = None) -> None:
        single: dict[str, dict[str, Statistic | None]] = {}
        for (name, kind), (host, device) in (statistics or {}).items():
            field = kind.name.lower()
            single.setdefault(name, {}).update({field: host, f"device_{field}": device})
        self._single = {name: ModuleTimes(name, 1, **found) for name, found in single.items()}

        alike: dict[str, list[str]] = {}
        for name in single:
            alike.setdefault(without_indices(name), []).append(name)
        self._members = {name: tuple(of) for name, of in alike.items() if len(of) > 1}
        grouped = {name for members in self._members.values() for name in members}
        self._rows = {
            group: ModuleTimes.merge(group, [self._single[name] for name in members])
            for group, members in self._members.items()
        } | {name: times for name, times in self._single.items() if name not in grouped}

    def __getitem__(self, name: str) -> ModuleTimes:
        times = self._rows.get(name)
        return self._single[name] if times is None else times

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def of_group(self, name: str) -> tuple[str, ...]:
        """The names of the modules of a group, in order of first appearance; of a single module its
        own.

        Raises:
            KeyError: there is no such module.
        """
        return self._members.get(name) or (self[name].name,)

    @property
    def passes(self) -> int:
        """The number of passes of all kinds through all modules."""
        hosts = [times.of_pass(kind)[0] for times in self.values() for kind in ModulePass]
        return sum(host.count for host in hosts if host is not None)

    def __repr__(self) -> str:
        return f"<Modules {', '.join(self)}>"


def fold_module_spans(
    spans: NDArray[np.void], module_names: Sequence[str]
) -> dict[tuple[str, ModulePass], PassStatistics]:
    """The statistics of passes (`MODULE_SPAN_DTYPE`), in the order of the modules' numbers."""
    folded = {}
    for key, places in groups(spans["module"].astype(np.int64) * len(ModulePass) + spans["kind"]):
        module, kind = divmod(key, len(ModulePass))
        some = spans[places]
        device_ns = durations_ns_of(some, "device_")
        folded[module_names[module], ModulePass(kind)] = PassStatistics(
            host=Statistic.of(durations_ns_of(some, "host_")),
            device=of_known(np.where(has_device_times(some), device_ns, -1)),
        )
    return folded
