# SPDX-License-Identifier: Apache-2.0
"""The peers of a phase, and how they are timed."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from benchmarks.contender import Contender, per_use_ns
from benchmarks.lineup import lineup, measured
from benchmarks.peer import Peer, PeerMissing, why_missing
from benchmarks.peers import EMPTY_LOOP, NULLCONTEXT, OURS, PEERS
from benchmarks.pinning import pinned, threads_elsewhere
from benchmarks.way import Way
from pyinstrument_gpu.recording import recording
from tests.helpers.script import run_script

# --- times ---


def test_what_a_use_costs_less_the_loop() -> None:
    loop = Contender("loop", lambda: 0, uses=10)
    contender = Contender("x", lambda: 0, uses=5, baseline=loop)
    batches_ns = {"loop": [100.0, 120.0], "x": [400.0, 250.0]}
    assert per_use_ns(contender, batches_ns, min) == 250 / 5 - 100 / 10
    assert per_use_ns(contender, batches_ns, max) == 400 / 5 - 120 / 10


def test_a_batch_is_timed_after_one_that_does_not_count() -> None:
    seen: list[str] = []
    now_ns = 0

    def loop(uses: int) -> None:
        nonlocal now_ns
        now_ns += 1000 if "loop" not in seen else 7 * uses
        seen.append("loop")

    @contextmanager
    def batch() -> Iterator[None]:
        seen.append("begin")
        yield
        seen.append("end")

    def settle() -> None:
        nonlocal now_ns
        now_ns += 50
        seen.append("settle")

    way = Way(loop, None, None, batch=batch, settle=settle)
    assert measured(way, loop, 3, clock_ns=lambda: now_ns)() == 21
    assert seen == ["begin", "loop", "settle", "loop", "settle", "end"]


def test_loops_of_c_are_not_charged_pythons_loop() -> None:
    in_c = Peer("c", "", lambda: nullcontext(Way(lambda uses: None, None, None, in_c=True)), 10)
    with lineup([EMPTY_LOOP, NULLCONTEXT, in_c]) as line:
        loop, null, c = line.flat(EMPTY_LOOP)
        assert (loop.baseline, null.baseline, c.baseline) == (None, loop, None)
        # Three deep, a batch has a third of the rounds; what cannot nest is not there.
        loop, null = line.nested(EMPTY_LOOP)
    assert (loop.uses, null.uses) == (3999, 3999)


# --- peers ---


def test_peers_are_told_apart() -> None:
    assert len({peer.name for peer in PEERS}) == len(PEERS)
    assert all(peer.differs for peer in PEERS)
    assert PEERS[0] is OURS
    assert any(peer.in_steps and not peer.is_ours for peer in PEERS)


def failing(error: Exception) -> Peer:
    def set_up() -> Any:
        raise error

    return Peer("broken", "nothing", set_up, 10)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PeerMissing("it needs a GPU"), "it needs a GPU"),
        (ModuleNotFoundError("No module", name="traceml_ai"), "traceml_ai is not installed"),
        (ImportError("libcupti.so.12: no such\nfile"), "ImportError: libcupti.so.12: no such file"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_a_missing_peer_is_named_with_its_reason(error: Exception, reason: str) -> None:
    assert why_missing(error) == reason
    peer = failing(error)
    with lineup([EMPTY_LOOP, peer]) as line:
        assert line.missing == {peer: reason}
        assert list(line.ways) == [EMPTY_LOOP]


def test_our_ways_record_in_their_batches() -> None:
    with lineup([OURS]) as line:
        way = line.ways[OURS]
    with way.batch():
        way.flat(5)
        active = recording.active()
        assert active is not None
        run = active.snapshot()
    assert run.phases["x"].count == 5


@pytest.mark.slow
def test_every_peer_that_is_there_can_be_used() -> None:
    run_script(
        """
from benchmarks.lineup import lineup
from benchmarks.peers import EMPTY_LOOP, PEERS
with lineup(PEERS) as line:
    for contender in [*line.flat(EMPTY_LOOP), *line.nested(EMPTY_LOOP)]:
        assert contender.measure() > 0, contender.label
    for peer, way in line.ways.items():
        if peer.in_steps:
            with way.batch(), way.phase("forward"), way.phase("inner"):
                pass
"""
    )


# --- cores ---


def test_a_thread_keeps_to_one_core_and_others_to_the_rest() -> None:
    cores = os.sched_getaffinity(0)
    found: list[set[int]] = []
    stop = threading.Event()
    with pinned():
        own = os.sched_getaffinity(0)
        assert len(own) == 1
        with threads_elsewhere():
            thread = threading.Thread(target=stop.wait)
            thread.start()
        assert thread.native_id is not None
        found.append(os.sched_getaffinity(thread.native_id))
        stop.set()
        thread.join()
        assert os.sched_getaffinity(0) == own
    assert found == [cores - own or own]
    assert os.sched_getaffinity(0) == cores
