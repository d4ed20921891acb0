# SPDX-License-Identifier: Apache-2.0
"""By how much a process grows when a peer keeps its history: run as a program, it prints that.

`python -m benchmarks.memory NAME`
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

from benchmarks.effort import size
from benchmarks.lineup import lineup
from benchmarks.ours import drain
from benchmarks.peer import Peer
from benchmarks.peers import OURS, PEERS

_WARM_UP_SPANS = 10_000


def resident_bytes() -> int:
    """What this process has in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def growth_bytes(peer: Peer) -> int:
    """What a peer's history adds to this process. Raises what its set-up raises."""
    assert peer.history is not None
    with lineup([peer]) as line:
        if peer in line.missing:
            raise RuntimeError(line.missing[peer])
        way = line.ways[peer]

        def use(spans: int) -> None:
            for done in range(0, spans, peer.uses):
                way.flat(min(peer.uses, spans - done))
                if peer is OURS:
                    # As in a training loop, where the harvester keeps up.
                    drain()

        with way.batch():
            use(_WARM_UP_SPANS)
            way.settle()
            gc.collect()
            before_bytes = resident_bytes()
            use(size(peer.history.spans, _WARM_UP_SPANS))
            return resident_bytes() - before_bytes


def main() -> None:
    peer = next(peer for peer in PEERS if peer.name == sys.argv[1])
    try:
        result: dict[str, int | str] = {"growth_bytes": growth_bytes(peer)}
    except RuntimeError as error:
        result = {"missing": str(error)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
