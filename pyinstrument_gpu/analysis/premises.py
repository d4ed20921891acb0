# SPDX-License-Identifier: Apache-2.0
"""What the device times of one stream prove rests on premises. Here is which of them hold in a run.

Events prove that everything before them on their stream is done. They don't tell work from a wait:
a stream that waits for another one, or in a collective for another rank, looks as if it worked.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyinstrument_gpu.analysis.correlation_points import CorrelationPoints
from pyinstrument_gpu.core.run import Run


@dataclass(frozen=True)
class Premises:
    """What is known of a run, beside its times.

    Attributes:
        one_stream: whether the device worked on a single stream; None unknown.
        one_rank: whether no other process took part in the training; None unknown.
        loader_workers: the worker processes of the loader; None unknown.
        cores: the processors that the process may use; None unknown.
    """

    one_stream: bool | None
    one_rank: bool | None
    loader_workers: int | None
    cores: int | None

    @property
    def lacks_cores(self) -> bool:
        """Whether the loader's workers and the loop are known to be as many as there are cores, so
        that more workers may deliver no more."""
        workers, cores = self.loader_workers, self.cores
        return workers is not None and cores is not None and workers + 1 >= cores

    @property
    def stream_never_waits(self) -> bool:
        """Whether the stream is known to work wherever it has something enqueued."""
        return self.one_stream is True and self.one_rank is True

    @property
    def doubt(self) -> str | None:
        """What the stream may wait for where it looks busy, in words; None: nothing."""
        if self.stream_never_waits:
            return None
        if self.one_rank is False:
            return "for another rank"
        if self.one_stream is False:
            return "for another stream"
        return "for another stream or rank, of which nothing is known"


def premises(run: Run, points: CorrelationPoints) -> Premises:
    facts = run.program_facts
    other_streams = True if not points.is_only_stream else facts.other_streams
    ranks = facts.ranks
    world_size = run.environment.get("world_size")
    if ranks is None and world_size is not None and world_size > 1:
        ranks = world_size
    return Premises(
        one_stream=None if other_streams is None else not other_streams,
        one_rank=None if ranks is None else ranks == 1,
        loader_workers=facts.loader_workers,
        cores=run.environment.get("cores"),
    )
