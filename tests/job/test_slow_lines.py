# SPDX-License-Identifier: Apache-2.0
"""The line of the program in which a slow rank takes longer than the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.job.analysis import of
from pyinstrument_gpu.job.findings import OUTSIDE_PHASES
from pyinstrument_gpu.job.gather import rank_data
from pyinstrument_gpu.job.job import FunctionTime, Job
from pyinstrument_gpu.job.verdict import job_findings, job_verdict
from tests.aspects.stacks.test_functions import CONV, TRAIN, Phases, stacks_of
from tests.helpers.job_files import rank_environment, rank_run
from tests.helpers.simulated_job import MS, Slow, simulated_job

AUGMENT = ("/home/me/data.py", "Set.augment", 44)
"""File, function and line."""
SLOW = Slow(1, extra_ns={"data": 200 * MS})


def in_data(function: str, samples: int, path: str = "data") -> FunctionTime:
    """So many samples of 20 ms in 100 steps."""
    name = f"{function} (data.py:44)"
    return FunctionTime(path, ("data.py", function), name, samples, samples * 20 * MS / 100)


def sampled(job: Job, *functions: tuple[FunctionTime, ...]) -> Job:
    ranks = (
        replace(rank, functions=found) for rank, found in zip(job.ranks, functions, strict=True)
    )
    return replace(job, ranks=tuple(ranks))


def line_of(job: Job) -> tuple[str | None, float | None]:
    found = of(job).stragglers.straggler
    assert found is not None and (found.rank, found.path) == (1, "data")
    return found.line, found.line_ns


def test_the_function_in_which_it_takes_longer_than_the_others_is_named() -> None:
    usual = (in_data("read", 500), in_data("augment", 40))
    job = sampled(
        simulated_job(3, 1000, SLOW), usual, (in_data("read", 520), in_data("augment", 1000)), usual
    )
    assert line_of(job) == ("augment (data.py:44)", 960 * 20 * MS / 100)
    found = of(job)
    findings = job_findings(job, found, None, ())
    assert " of that in data, in augment (data.py:44); " in job_verdict(
        job, found.stragglers, findings, ()
    )
    [straggler] = [one for one in findings if one.kind == "straggler"]
    assert straggler.evidence.endswith(
        "; it is in augment (data.py:44) for 192 ms more of each step than the others"
    )


@pytest.mark.parametrize(
    ("late", "usual"),
    [
        pytest.param((in_data("read", 1000),), (in_data("read", 990),), id="as the others"),
        pytest.param((in_data("read", 400),), (in_data("read", 1),), id="less than half of it"),
        pytest.param((in_data("read", 1000, "forward"),), (in_data("read", 1),), id="elsewhere"),
        pytest.param((in_data("read", 1000),), (), id="of the others nothing is known"),
        pytest.param((), (in_data("read", 1),), id="of it nothing is known"),
    ],
)
def test_otherwise_none_is(late: tuple[FunctionTime, ...], usual: tuple[FunctionTime, ...]) -> None:
    assert line_of(sampled(simulated_job(2, 1000, SLOW), usual, late)) == (None, None)


def test_few_samples_may_be_chance() -> None:
    job = simulated_job(2, 1000, SLOW)
    rest = in_data("read", 25)
    for samples, named in ((4, False), (6, False), (40, True)):
        slow = replace(in_data("augment", samples), time_ns=200.0 * MS)
        found = line_of(sampled(job, (in_data("read", 40),), (rest, slow)))
        assert (found[0] is not None) is named


def test_a_share_of_the_samples_in_steps_is_one_of_their_time() -> None:
    """Samples may not have been taken all the time."""
    environment = rank_environment(0, cwd="/home/me")
    run = rank_run(0, {"data": [10 * MS] * 20}, environment=environment)
    in_steps: Phases = {"data": {(TRAIN, AUGMENT, CONV): 25}, "": {(TRAIN,): 5}}
    run.stacks = stacks_of(in_steps, Scope.STEP)
    [data, outside] = rank_data(run).functions
    assert (data.path, data.name, data.samples) == ("data", "Set.augment (data.py:44)", 25)
    assert (outside.path, outside.name) == (OUTSIDE_PHASES, "main (train.py:30)")
    assert (data.time_ns, outside.time_ns) == pytest.approx((10 * MS * 25 / 30, 10 * MS * 5 / 30))
    run.stacks = stacks_of(in_steps, Scope.OUTSIDE)
    assert rank_data(run).functions == ()
