# SPDX-License-Identifier: Apache-2.0
"""What those that keep a history take for it, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.board import Board
from benchmarks.peer import Peer
from benchmarks.peers import PEERS
from benchmarks.row import MemoryRow

_LIMIT_S = 120


@pytest.mark.parametrize(
    "peer", [peer for peer in PEERS if peer.history is not None], ids=lambda peer: peer.name
)
def test_memory(benchmark: BenchmarkFixture, board: Board, peer: Peer) -> None:
    history = peer.history
    assert history is not None
    results: list[dict[str, int | str]] = []

    def measure() -> None:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", peer.name],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=_LIMIT_S,
        )
        results.append(json.loads(done.stdout.splitlines()[-1]))

    benchmark.pedantic(measure, rounds=1)  # type: ignore[no-untyped-call]
    (result,) = results
    growth = result.get("growth_bytes")
    board.memory.append(
        MemoryRow(
            peer.name,
            history.spans,
            None if growth is None else int(growth),
            history.note,
            None if growth is not None else str(result["missing"]),
        )
    )
