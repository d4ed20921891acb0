# SPDX-License-Identifier: Apache-2.0
"""Phases in phases in phases: what each of them costs."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.contender import Contender
from benchmarks.lineup import lineup
from benchmarks.peers import EMPTY_LOOP, OURS, PEERS
from benchmarks.race import race, race_of_peers

pytestmark = pytest.mark.usefixtures("one_core")

ROUNDS = 100


def test_nested(benchmark: BenchmarkFixture) -> None:
    with lineup(PEERS) as line:
        contenders = line.nested(EMPTY_LOOP)
        title = "nested: three deep, per use"
        race_of_peers(benchmark, title, line, contenders, ROUNDS)


def test_no_dearer_than_flat(benchmark: BenchmarkFixture) -> None:
    with lineup([OURS, EMPTY_LOOP]) as line:
        flat, _ = line.flat(EMPTY_LOOP)
        nested, empty = line.nested(EMPTY_LOOP)
        # Each has an empty loop of its own.
        once = Contender(f"{flat.label}, flat", flat.measure, flat.uses, flat.baseline)
        nested_empty = Contender("empty loop of a third", empty.measure, empty.uses)
        deep = Contender(f"{nested.label}, nested", nested.measure, nested.uses, nested_empty)
        title = "nested: beside the same, flat (5 % count as no dearer)"
        race(benchmark, title, deep, [once], ROUNDS, {once.label: 1.05})
