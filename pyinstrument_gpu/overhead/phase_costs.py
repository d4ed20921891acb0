# SPDX-License-Identifier: Apache-2.0
"""What a phase costs on this machine, beside its peers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from pyinstrument_gpu.overhead.contender import per_use_ns
from pyinstrument_gpu.overhead.interleave import interleaved
from pyinstrument_gpu.overhead.lineup import lineup
from pyinstrument_gpu.overhead.ours import check_measurable
from pyinstrument_gpu.overhead.peer import Peer
from pyinstrument_gpu.overhead.peers import EMPTY_LOOP, PEERS
from pyinstrument_gpu.overhead.pinning import pinned

ROUNDS = 100
SECONDS = 6.0


@dataclass(frozen=True)
class PhaseCost:
    """What one use of a peer costs.

    Attributes:
        name, differs: as in the table of peers.
        is_ours: whether it is a way to use this package.
        best_ns, median_ns: of the batches; None where it is missing.
        rounds: on how many batches these figures rest; 0 where it is missing.
        missing: why, or None.
    """

    name: str
    differs: str
    is_ours: bool
    best_ns: float | None
    median_ns: float | None
    rounds: int = 0
    missing: str | None = None


def measure_phase_costs(
    peers: Sequence[Peer] | None = None, *, rounds: int = ROUNDS, seconds: float = SECONDS
) -> list[PhaseCost]:
    """Times all of them in turn, on one core, and returns them in the same order.

    Args:
        peers: what to time, the whole table by default; the empty loop must be among them.
        rounds: batches of each, at most.
        seconds: no round begins later than so long after the call; there is always one.

    Raises:
        RecordingError: a recording is active, or nothing can be recorded here.
    """
    check_measurable()
    peers = PEERS if peers is None else peers
    begin_s = monotonic()
    with pinned(), lineup(peers) as line:
        contenders = {contender.label: contender for contender in line.flat(EMPTY_LOOP)}
        arms = {label: contender.measure for label, contender in contenders.items()}
        batches = interleaved(arms, rounds=rounds, seconds=seconds - (monotonic() - begin_s))
    batches_ns = {label: values.tolist() for label, values in batches.items()}

    def cost(peer: Peer) -> PhaseCost:
        if peer in line.missing:
            reason = line.missing[peer]
            return PhaseCost(peer.name, peer.differs, peer.is_ours, None, None, missing=reason)
        contender = contenders[peer.name]
        best_ns = per_use_ns(contender, batches_ns, min)
        median_ns = per_use_ns(contender, batches_ns, statistics.median)
        done = len(batches_ns[peer.name])
        return PhaseCost(peer.name, peer.differs, peer.is_ours, best_ns, median_ns, done)

    return [cost(peer) for peer in peers]
