# SPDX-License-Identifier: Apache-2.0
"""Edits of how processes train together, and of the memory that they allocate."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pyinstrument_gpu.trial.edits.edit import Changes, Edit, Facts, Hand, Value

_MALLOCS = ("libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2")


class DistributedDataParallel(Edit):
    """Other arguments of `DistributedDataParallel`."""

    name = "ddp"
    group = "distributed"
    changes = Changes.LAST_DIGITS

    def reach(self, facts: Facts) -> float:
        return facts.share("backward", "forward", "optimizer") if facts.ranks > 1 else 0.0

    def values(self, facts: Facts) -> Sequence[Value]:
        return (["gradient_as_bucket_view", True], ["static_graph", True], ["bucket_cap_mb", 100])

    def text(self, value: Value) -> str:
        return f"DistributedDataParallel({value[0]}={value[1]})"

    def keywords(self, value: Value) -> Mapping[str, str]:
        return {value[0]: repr(value[1])}

    def make(self, value: Value, hand: Hand) -> None:
        from torch.nn.parallel import DistributedDataParallel as Parallel

        def change(arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
            return None if arguments.get(value[0]) == value[1] else {value[0]: value[1]}

        hand.replace(Parallel, "__init__", change)


class ExpandableSegments(Edit):
    """Memory of the GPU in segments that grow, which fragments less."""

    name = "expandable_segments"
    group = "memory"
    changes = Changes.NOTHING

    def reach(self, facts: Facts) -> float:
        return facts.compute_share if facts.has_gpu else 0.0

    def text(self, value: Value) -> str:
        return "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"

    def environment(self, value: Value) -> Mapping[str, str]:
        return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}

    def where(self, value: Value) -> str:
        return "before the command"


class Malloc(Edit):
    """Another allocator of the host's memory, of those that are installed."""

    name = "malloc"
    group = "memory"
    changes = Changes.NOTHING

    def reach(self, facts: Facts) -> float:
        return 0.0 if facts.has_gpu or not installed_mallocs() else facts.compute_share

    def values(self, facts: Facts) -> Sequence[Value]:
        return installed_mallocs()

    def text(self, value: Value) -> str:
        return f"LD_PRELOAD={value}"

    def environment(self, value: Value) -> Mapping[str, str]:
        return {"LD_PRELOAD": str(value)}

    def where(self, value: Value) -> str:
        return "before the command"


@cache
def installed_mallocs() -> tuple[str, ...]:
    """Return the paths of the allocators that the dynamic linker finds."""
    program = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")
    if program is None:
        return ()
    done = subprocess.run([program, "-p"], capture_output=True, text=True, errors="replace")
    words = [line.split() for line in done.stdout.splitlines()]
    return tuple(line[-1] for line in words if line and line[0] in _MALLOCS)
