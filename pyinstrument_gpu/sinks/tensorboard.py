# SPDX-License-Identifier: Apache-2.0
"""TensorBoard scalars by step; docs/exporters/viewers.md lists the tags.

A file of its own, as each sink has one.
"""

from __future__ import annotations

from typing import Protocol

from pyinstrument_gpu.sinks.scalars import scalars_of
from pyinstrument_gpu.sinks.sink import RunUpdate, Sink


class ScalarWriter(Protocol):
    """A writer like `torch.utils.tensorboard.SummaryWriter` and that of tensorboardX."""

    def add_scalar(
        self, tag: str, scalar_value: float, global_step: int, walltime: float, /
    ) -> object: ...


class TensorBoardSink(Sink):
    """Writes scalars of every step, and the metrics that are read, to a `SummaryWriter`.

    Args:
        writer: a `torch.utils.tensorboard.SummaryWriter`, or anything with
            `add_scalar(tag, value, step, walltime)`. It remains the caller's: it is flushed but
            not closed.
    """

    def __init__(self, writer: ScalarWriter) -> None:
        if not callable(getattr(writer, "add_scalar", None)):
            raise TypeError(
                "writer must have add_scalar(tag, value, step, walltime), as torch's "
                f"SummaryWriter does, got {writer!r}"
            )
        self._writer = writer

    def write(self, update: RunUpdate) -> None:
        """Write the scalars of new steps and readings."""
        for scalar in scalars_of(update):
            self._writer.add_scalar(*scalar)

    def close(self) -> None:
        """Flush the writer."""
        flush = getattr(self._writer, "flush", None)
        if flush is not None:
            flush()
