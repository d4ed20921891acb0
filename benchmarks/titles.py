# SPDX-License-Identifier: Apache-2.0
"""Names of tables and rows that are looked for where results are published.

What stands before the colon of a title is its group.
"""

PHASE = "phase: recorded"
NOT_RECORDING = "phase: while nothing is recorded"
WITH_HARVESTER = "phase: with the harvester's work"
NESTED = "nested: three deep, per use"
NESTED_AND_FLAT = "nested: beside the same, flat (5 % count as no dearer)"
COLD = "cold caches: 48 MB touched before each use"
METRICS_SMALL = "metrics: an update of 256 x 1000 float32 (1 MB), one thread"
METRICS_LARGE = "metrics: an update of 4096 x 32000 bfloat16 (262 MB), one thread"
LOAD = "load: a run file of a million spans"

TORCHMETRICS = "torchmetrics accuracy (micro) + MeanMetric"
READ_FLOOR = "reading the bytes"
UNTIMED = "untimed"
UNTIMED_AGAIN = "untimed, once more: the floor"


GROUPS = (
    "phase",
    "nested",
    "threads",
    "cold caches",
    "stubbed device",
    "metrics",
    "export",
    "load",
)
"""In which order they are shown."""


def group(title: str) -> str:
    """Of a table."""
    return title.partition(":")[0]
