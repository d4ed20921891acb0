# SPDX-License-Identifier: Apache-2.0
"""The functions that phases consist of, in the verdict and among what is worth trying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from msgspec import structs

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.sampled_time import waiting_share
from pyinstrument_gpu.aspects.stacks.data import StackNode, Stacks
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.report.document import document_of
from tests.helpers.made_script import WatchedScript
from tests.helpers.timed_runs import MS, made_run, with_waits

Line = tuple[str, str, int]
"""File, function and line."""
Phases = Mapping[str, Mapping[Sequence[Line], int]]
TRAIN, HOOK = ("/home/me/train.py", "main", 30), ("/home/me/x.py", "main.<locals>.hook", 10)
CONV = ("/usr/lib/python3.11/site-packages/torch/nn/conv.py", "Conv.forward", 100)
WAIT = ("/v/site-packages/torch/utils/data/dataloader.py", "_Iter._try_get_data", 5)


def stacks_of(phases: Phases, scope: Scope) -> Stacks:
    """So many samples of 20 ms of each stack, the outermost line first, in phases; "" is none."""
    paths = tuple(path for path in phases if path)
    functions: list[tuple[str, str]] = []
    places: list[tuple[int, int]] = []
    nodes: list[StackNode] = []
    for phase, stacks in phases.items():
        root = len(nodes)
        nodes.append(StackNode(-1 - scope, paths.index(phase) if phase else -1, 0, 0))
        for stack, samples in stacks.items():
            parent = root
            for depth, (file, function, line) in enumerate(stack, 1):
                functions.append((file, function))
                places.append((len(functions) - 1, line))
                own = samples if depth == len(stack) else 0
                nodes.append(StackNode(parent, len(places) - 1, own, own * 20 * MS))
                parent = len(nodes) - 1
    return Stacks(
        is_sampled=True,
        until_ns=sum(node.time_ns for node in nodes),
        functions=tuple(functions),
        places=tuple(places),
        nodes=tuple(nodes),
        paths=paths,
    )


def run_of(
    phases: Phases,
    shares: Mapping[str, float] | None = None,
    scope: Scope = Scope.STEP,
    gpus: Sequence[str] = (),
) -> Run:
    """A run of twenty steps of 10 ms."""
    run = made_run([10 * MS] * 20, shares or {"forward": 0.8}, gpus=list(gpus), cwd="/home/me")
    run.stacks = stacks_of(phases, scope)
    return run


def test_the_verdict_names_the_function_of_the_largest_phase_and_its_line() -> None:
    run = run_of({"forward": {(TRAIN, CONV, HOOK): 70, (TRAIN, CONV): 30}})
    verdict = document_of(run).verdict
    assert "the host spends 80% in forward (70% of it in hook, x.py:10); " in verdict


def test_what_a_library_does_counts_for_the_function_that_calls_it() -> None:
    second, third = (("/home/me/x.py", "main.<locals>.hook", line) for line in (11, 12))
    stacks: Mapping[Sequence[Line], int] = {
        (TRAIN, HOOK, CONV): 30,
        (TRAIN, second, CONV): 30,
        (TRAIN, third): 20,
        (TRAIN,): 20,
    }
    verdict = document_of(run_of({"forward": stacks})).verdict
    assert "(80% of it in hook, x.py:10-12)" in verdict


def test_what_torch_compile_has_written_is_not_the_programs() -> None:
    written = ("/tmp/torchinductor_me/d2/cd2fusn.py", "Runner.call", 1050)
    run = run_of({"forward": {(TRAIN, written): 100}})
    assert "(100% of it in main, train.py:30)" in document_of(run).verdict


@pytest.mark.parametrize(
    "stacks",
    [
        pytest.param({(TRAIN, HOOK): 9}, id="few samples"),
        pytest.param(
            {(TRAIN, CONV, ("/home/me/x.py", f"f{i}", i)): 3 for i in range(5)}, id="many"
        ),
        pytest.param({(CONV,): 100}, id="no line of the program"),
    ],
)
def test_nothing_is_named_that_the_phase_does_not_consist_of(
    stacks: Mapping[Sequence[Line], int],
) -> None:
    assert "of it in" not in document_of(run_of({"forward": stacks})).verdict


def test_the_line_that_calls_the_phase_says_nothing_new() -> None:
    run = run_of({"forward": {(TRAIN, CONV): 100}})
    assert "(100% of it in main, train.py:30)" in document_of(run).verdict
    noted = [{"phase": "forward", "file": TRAIN[0], "line": TRAIN[2]}]
    run.environment = {**run.environment, "phase_lines": noted}
    assert "of it in" not in document_of(run).verdict


def test_the_call_of_a_loop_in_a_library_is_no_function_that_a_phase_consists_of() -> None:
    fit, loop, step = (
        ("/v/site-packages/fit/loop.py", name, line)
        for name, line in (("fit", 5), ("epoch", 20), ("epoch", 21))
    )
    phases: Phases = {
        "": {(TRAIN, fit, loop): 60},
        "forward": {(TRAIN, fit, loop, CONV): 30, (TRAIN, fit, loop, HOOK): 10},
        "backward": {(TRAIN, fit, step, CONV): 40},
    }
    run = run_of(phases, {"forward": 0.2, "backward": 0.2})
    document = document_of(run)
    assert "train.py" not in document.verdict
    assert not [one for one in document.findings if "train.py" in one.about]
    lines = {
        one.phase: [(line.line, line.samples) for line in one.lines]
        for one in document.sections["stacks"].phases
    }
    assert lines == {
        None: [("fit/loop.py:20", 60)],
        "forward": [("fit/loop.py:20", 30), ("x.py:10", 10)],
        "backward": [("fit/loop.py:21", 40)],
    }
    # Of two phases in one line, that line may be the loop.
    run.stacks = stacks_of({path: phases[path] for path in ("", "forward")}, Scope.STEP)
    assert "(100% of it in main, train.py:30)" in document_of(run).verdict


@pytest.mark.parametrize(("forward", "is_named"), [(0.3, True), (0.1, False)])
def test_where_the_largest_phase_has_no_line_the_next_one_has(
    forward: float, is_named: bool
) -> None:
    """As a backward pass, which does in C++ what the lines of the forward pass ask for."""
    phases: Phases = {"forward": {(TRAIN, HOOK): 100}, "backward": {(TRAIN, CONV): 100}}
    run = run_of(phases, {"forward": forward, "backward": 0.6})
    noted = [{"phase": "backward", "file": TRAIN[0], "line": TRAIN[2]}]
    run.environment = {**run.environment, "phase_lines": noted}
    verdict = document_of(run).verdict
    both = "60% in backward and 30% in forward (100% of it in hook, x.py:10); "
    assert (both in verdict) is is_named
    assert ("of it in" in verdict) is is_named


def test_a_function_outside_phases_is_worth_trying_by_its_share_of_the_step() -> None:
    run = run_of({"": {(TRAIN, HOOK): 60}, "forward": {(TRAIN,): 40}}, {"forward": 0.4})
    document = document_of(run)
    (found,) = [one for one in document.findings if "hook" in one.about]
    assert found.about == "make hook (x.py:10) twice as fast"
    # 60 of 100 samples, give or take two standard deviations.
    doubt = 2 * (0.6 * 0.4 / 100) ** 0.5
    assert found.low_ns == pytest.approx((0.6 - doubt) / 2 * 10 * MS)
    assert found.likely_ns == pytest.approx(0.3 * 10 * MS)
    assert found.high_ns == pytest.approx((0.6 + doubt) / 2 * 10 * MS)
    assert (
        "could save 25% to 35% of the step: make hook (x.py:10) twice as fast" in document.verdict
    )


def test_a_first_step_that_takes_most_of_the_time_says_nothing_of_the_others() -> None:
    """As where the optimizer is made in it, for which torch imports modules."""
    run = made_run([400 * MS, *[10 * MS] * 20], {"forward": 0.4}, gpus=[], cwd="/home/me")
    run.stacks = stacks_of({"": {(TRAIN, HOOK): 60}, "forward": {(TRAIN,): 40}}, Scope.STEP)
    document = document_of(run)
    first = "The first step took 400 ms, 67% of the time of all steps. A step takes 28.6 ms on "
    assert document.verdict.startswith(first)
    assert "gpu_phase" not in document.verdict
    assert not [one for one in document.findings if "hook" in one.about]


def test_its_range_is_wider_where_processors_were_short() -> None:
    phases: Phases = {"": {(TRAIN, HOOK): 60}, "forward": {(TRAIN,): 40}}
    quiet, busy = run_of(phases, {"forward": 0.4}), run_of(phases, {"forward": 0.4})
    with_waits(busy, 0.5)
    (before,), (after,) = (
        [one for one in document_of(run).findings if "hook" in one.about] for run in (quiet, busy)
    )
    assert before.low_ns is not None and after.low_ns == pytest.approx(before.low_ns / 2)
    assert after.high_ns == before.high_ns


def test_with_a_gpu_nothing_says_that_the_step_would_be_shorter() -> None:
    phases: Phases = {"": {(TRAIN, HOOK): 60}, "forward": {(TRAIN,): 40}}
    run = run_of(phases, {"forward": 0.4}, gpus=["a GPU"])
    assert not any("hook" in one.about for one in document_of(run).findings)


def test_time_outside_of_steps_leads_where_it_is_most() -> None:
    run = made_run([10 * MS] * 20, gpus=[], cwd="/home/me")
    run.stacks = stacks_of({"": {(TRAIN, HOOK): 50}}, Scope.OUTSIDE)
    run.duration_ns = 1_000 * MS
    assert document_of(run).verdict.startswith(
        "80% of the 1.00 s since the first step began lies outside of steps (100% of it in hook, "
        "x.py:10). A step takes 10.0 ms"
    )
    run.duration_ns = 400 * MS
    assert document_of(run).verdict.startswith("A step takes 10.0 ms")


def test_what_came_before_the_first_step_is_not_what_steps_are_interrupted_by() -> None:
    """Samples do not say whether they are of the start-up."""
    program = WatchedScript()
    program.leaf("eval", 2_000 * MS)
    for _ in range(6):
        with program.step():
            program.leaf("forward", 10 * MS)
        program.leaf("eval", 40 * MS)
    run = program.run(environment={"gpus": [], "cwd": "/home/me"})
    run.stacks = stacks_of({"eval": {(TRAIN, HOOK): 50}}, Scope.OUTSIDE)
    begin = "80% of the 300 ms since the first step began lies outside of steps, 100% of it in eval"
    assert document_of(run).verdict.startswith(f"{begin}. A step takes")


def test_samples_that_stand_for_no_time_name_nothing() -> None:
    run = run_of({"": {(TRAIN, HOOK): 60}}, {"forward": 0.4})
    assert run.stacks is not None
    run.stacks = structs.replace(
        run.stacks, nodes=tuple(structs.replace(one, time_ns=0) for one in run.stacks.nodes)
    )
    assert "of it in" not in document_of(run).verdict


def test_the_loops_own_work_in_data_is_no_wait_for_workers() -> None:
    run = run_of({"data": {(TRAIN, WAIT): 30, (TRAIN, HOOK): 90}}, {"data": 0.8})
    assert waiting_share(run, "data") == 0.25
    assert analysis.of(run).waiting_share is None  # it has no workers
    assert waiting_share(run_of({"data": {(TRAIN, WAIT): 19}}), "data") is None
