# SPDX-License-Identifier: Apache-2.0

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyinstrument_gpu.aspects.modules.data import (
    MODULE_SPAN_DTYPE,
    ModulePass,
    Modules,
    ModuleTimes,
    PassStatistics,
)
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Statistic

FORWARD, BACKWARD, RECOMPUTE = ModulePass

durations_ns = st.lists(st.integers(0, 10**12), min_size=1, max_size=5)
names = st.lists(
    st.sampled_from(["layers", "0", "1", "17", "attn", "٣", "4x"]), min_size=1, max_size=4
).map(".".join)
passes = st.tuples(names, st.sampled_from(ModulePass))
timed_passes = st.dictionaries(passes, st.tuples(durations_ns, st.none() | durations_ns))


def of(*durations_ns: int) -> Statistic:
    return Statistic.of(np.array(durations_ns, dtype=np.int64))


def forward(*durations_ns: int) -> PassStatistics:
    return PassStatistics(of(*durations_ns))


def test_modules_that_differ_by_an_index_alone_are_one_group() -> None:
    modules = Modules(
        {
            ("embed", FORWARD): forward(1),
            ("layers.0.attn", FORWARD): forward(2, 3),
            ("layers.0.attn", BACKWARD): PassStatistics(of(20), of(200)),
            ("layers.10.attn", FORWARD): forward(4),
            ("layers.10.attn", RECOMPUTE): forward(5),
            ("head.0", FORWARD): forward(6),
            ("layers.0", FORWARD): forward(7),
            ("layers.1", FORWARD): forward(8),
        }
    )

    assert list(modules) == ["layers.*.attn", "layers.*", "embed", "head.0"]
    assert modules["layers.*.attn"] == ModuleTimes(
        "layers.*.attn",
        modules=2,
        forward=of(2, 3, 4),
        backward=of(20),
        recompute=of(5),
        device_backward=of(200),
    )
    assert modules["layers.*.attn"].calls == 3
    assert modules["layers.10.attn"] == ModuleTimes(
        "layers.10.attn", forward=of(4), recompute=of(5)
    )
    assert modules["head.0"].modules == 1
    assert modules.of_group("layers.*.attn") == ("layers.0.attn", "layers.10.attn")
    assert modules.of_group("embed") == ("embed",)
    for name in ("layers", "head.*", "layers.2"):
        with pytest.raises(KeyError):
            modules[name]
        with pytest.raises(KeyError):
            modules.of_group(name)


def test_module_that_was_only_recomputed_has_no_calls() -> None:
    assert Modules({("a", RECOMPUTE): forward(1)})["a"].calls == 0


@settings(max_examples=40)
@given(timed_passes)
def test_a_table_of_modules_has_every_pass_once(
    timed: dict[tuple[str, ModulePass], tuple[list[int], list[int] | None]],
) -> None:
    modules = Modules(
        {
            key: PassStatistics(of(*host), None if device is None else of(*device))
            for key, (host, device) in timed.items()
        }
    )

    members = [name for row in modules for name in modules.of_group(row)]
    assert sorted(members) == sorted({name for name, _ in timed})
    is_group = [modules[row].modules > 1 for row in modules]
    assert is_group == sorted(is_group, reverse=True)
    for row, times in modules.items():
        of_group = modules.of_group(row)
        assert (times.name, times.modules) == (row, len(of_group))
        assert {re.sub(r"(?<![^.])[0-9]+(?![^.])", "*", name) for name in of_group} == {
            row if len(of_group) > 1 else re.sub(r"(?<![^.])[0-9]+(?![^.])", "*", row)
        }
        for kind in ModulePass:
            for side, statistic in enumerate(times.of_pass(kind)):
                parts = [timed[name, kind][side] for name in of_group if (name, kind) in timed]
                together = [ns for part in parts for ns in part or ()]
                assert statistic == (of(*together) if any(map(bool, parts)) else None)


@settings(max_examples=40)
@given(timed_passes)
def test_groups_and_single_modules_come_in_order_of_their_first_appearance(
    timed: dict[tuple[str, ModulePass], tuple[list[int], list[int] | None]],
) -> None:
    modules = Modules({key: PassStatistics(of(*host)) for key, (host, _) in timed.items()})

    order = list(dict.fromkeys(name for name, _ in timed))
    for are_groups in (True, False):
        rows = [row for row in modules if (modules[row].modules > 1) == are_groups]
        firsts = [order.index(modules.of_group(row)[0]) for row in rows]
        assert firsts == sorted(firsts)
        for row in rows:
            places = [order.index(name) for name in modules.of_group(row)]
            assert places == sorted(places)


def test_times_of_modules_made_by_hand_are_those_of_their_spans() -> None:
    rows = [
        (10, 15, 1, FORWARD, 0, 0, -1, 1, 0, 100, 130),
        (5, 20, 0, FORWARD, 0, 0, -1, 0, -1, -1, -1),
        (30, 37, 1, BACKWARD, 0, 0, -1, 0, -1, -1, -1),
        (40, 44, 1, FORWARD, 1, 0, -1, 0, 0, 200, -1),
    ]
    run = Run(module_names=("block", "0"), module_spans=np.array(rows, MODULE_SPAN_DTYPE))

    assert dict(run.modules) == {
        "block": ModuleTimes("block", forward=of(15)),
        "0": ModuleTimes("0", forward=of(5, 4), backward=of(7), device_forward=of(30)),
    }


def test_run_without_watched_modules_has_none() -> None:
    run = Run()

    assert (dict(run.modules), len(run.module_spans), run.module_names) == ({}, 0, ())
