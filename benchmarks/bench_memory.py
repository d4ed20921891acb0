# SPDX-License-Identifier: Apache-2.0
"""What those that keep a history take for it, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.gpu.figure import Figure
from benchmarks.peer import Peer
from benchmarks.peers import PEERS

_LIMIT_S = 120


@pytest.mark.parametrize(
    "peer", [peer for peer in PEERS if peer.history is not None], ids=lambda peer: peer.name
)
def test_memory(benchmark: BenchmarkFixture, peer: Peer) -> None:
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
    benchmark.extra_info["title"] = f"memory: by how much a process grows, {peer.name}"
    if "missing" in result:
        benchmark.extra_info["missing"] = {peer.name: result["missing"]}
        return
    per_span = int(result["growth_bytes"]) / history.spans
    note = f"{history.spans:,} spans; it keeps {history.note}"
    figure = Figure(peer.name, per_span, "bytes per span", note=note)
    benchmark.extra_info["figures"] = [figure.to_dict()]
