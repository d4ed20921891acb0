# SPDX-License-Identifier: Apache-2.0
"""A rank of a job that benchmarks/goodput.py starts, kills and starts again. It trains nothing.

It writes down itself when it did what, each event at once, by the wall clock, so that the truth
survives a SIGKILL: lines of JSON in the file that TRUTH names. Ranks meet in each step by way of
rank 0, and who has lost the others waits until it is killed.
"""

from __future__ import annotations

import json
import os
import random
import socket
import time
from pathlib import Path
from typing import Any

import pyinstrument_gpu as pig

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PLAN: dict[str, Any] = json.loads(os.environ["PLAN"])
TRUTH = os.open(os.environ["TRUTH"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
PEERS = [socket.socket(fileno=int(number)) for number in os.environ["PEERS"].split()]
STATE = Path("state.json")


def note(what: str, *values: int | str) -> None:
    os.write(TRUTH, (json.dumps([what, *values]) + "\n").encode())


def meet() -> None:
    """Wait for all ranks."""
    try:
        if RANK:
            PEERS[0].send(b".")
        for peer in PEERS:
            if not peer.recv(1):
                raise ConnectionError
        if not RANK:
            for peer in PEERS:
                peer.send(b".")
    except ConnectionError:
        time.sleep(600)


def main() -> None:
    rng = random.Random(PLAN["seed"] * 1000 + RANK)
    time.sleep(PLAN["load_s"])
    first = json.loads(STATE.read_text())["step"] if STATE.exists() else 0
    with pig.record(os.environ["RUN"], watchdog_s=0.3):
        time.sleep(rng.uniform(0, 0.05))
        for number in pig.gpu_steps(range(first, PLAN["steps"]), start=first):
            train(rng, number, number - first)


def train(rng: random.Random, number: int, index: int) -> None:
    begin_ns = time.time_ns()
    note("begin", number, begin_ns)
    with pig.gpu_phase("data"):
        time.sleep(rng.uniform(0.001, 0.003))
    with pig.gpu_phase("forward"):
        slow_s = PLAN["slow_s"] if PLAN["slow_rank"] == RANK else 0
        time.sleep(PLAN["step_s"] + rng.uniform(0, 0.003) + slow_s)
        if index == PLAN["hang_at"] and PLAN["hang_rank"] % WORLD_SIZE == RANK:
            note("hang", time.time_ns())
            time.sleep(600)
    arrived_ns = time.time_ns()
    note("arrived", number, arrived_ns)
    with pig.gpu_phase("allreduce"):
        meet()
    left_ns = time.time_ns()
    if RANK == 0 and number % PLAN["checkpoint_every"] == PLAN["checkpoint_every"] - 1:
        since_ns = time.time_ns()
        note("begins", "checkpoint", since_ns)
        with pig.gpu_phase("checkpoint"):
            time.sleep(PLAN["checkpoint_s"])
            Path("state.new").write_text(json.dumps({"step": number + 1}))
            os.replace("state.new", STATE)
        note("checkpoint", since_ns, time.time_ns())
    if number % PLAN["evaluate_every"] == PLAN["evaluate_every"] - 1:
        since_ns = time.time_ns()
        note("begins", "evaluation", since_ns)
        with pig.gpu_phase("eval"):
            time.sleep(PLAN["evaluate_s"])
        note("evaluation", since_ns, time.time_ns())
    note("step", number, begin_ns, arrived_ns, left_ns, time.time_ns())


if __name__ == "__main__":
    main()
