# SPDX-License-Identifier: Apache-2.0
"""Edits of how processes train together, and of the memory that they allocate."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
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


class Variables(Edit):
    """Variables in the environment of the program.

    Args:
        changes: the most that they may change of the results.
        reach: the share of the time that they may save at most.
        values: the variants, each a mapping of names to values.
    """

    def __init__(
        self,
        name: str,
        group: str,
        changes: Changes,
        reach: Callable[[Facts], float],
        values: Callable[[], Sequence[Mapping[str, str]]],
    ) -> None:
        self.name, self.group, self.changes = name, group, changes
        self._reach = reach
        self._values = values

    def reach(self, facts: Facts) -> float:
        return self._reach(facts) if self._values() else 0.0

    def values(self, facts: Facts) -> Sequence[Value]:
        return self._values()

    def text(self, value: Value) -> str:
        return " ".join(f"{name}={text}" for name, text in value.items())

    def environment(self, value: Value) -> Mapping[str, str]:
        return dict(value)

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


LIBRARY_THREADS = Variables(
    "library_threads",
    "threads",
    Changes.LAST_DIGITS,
    # Loader workers have enough of them.
    lambda facts: facts.share("data") if facts.workers else 0.0,
    lambda: ({"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},),
)
EXPANDABLE_SEGMENTS = Variables(
    "expandable_segments",
    "memory",
    Changes.NOTHING,
    lambda facts: facts.compute_share if facts.has_gpu else 0.0,
    lambda: ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},),
)
MALLOC = Variables(
    "malloc",
    "memory",
    Changes.NOTHING,
    lambda facts: 0.0 if facts.has_gpu else facts.compute_share,
    lambda: [{"LD_PRELOAD": path} for path in installed_mallocs()],
)
