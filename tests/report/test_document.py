# SPDX-License-Identifier: Apache-2.0
"""The document's numbers are those of the run, and what is not known is None."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.aspects.memory.data import MEMORY_POINT_DTYPE, Memory
from pyinstrument_gpu.aspects.scalars.aspect import Metric
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE, SPAN_DTYPE
from pyinstrument_gpu.core.steps import Step, Steps
from pyinstrument_gpu.core.syncs import SYNC_DTYPE, Syncs, SyncTotals
from pyinstrument_gpu.recording.environment import torch_facts
from pyinstrument_gpu.report.document import Document, document_of
from pyinstrument_gpu.report.one_step import step_document
from pyinstrument_gpu.report.phases import PhaseInSteps
from tests.helpers.made_runs import run_of
from tests.helpers.made_script import Script
from tests.helpers.timed_runs import with_waits
from tests.page.runs import training
from tests.report.programs import (
    MIB,
    diverged,
    full_run,
    out_of_memory,
    program,
    run_of_phases,
)

MS = 1_000_000


def phase_of(document: Document, path: str) -> PhaseInSteps:
    (phase,) = (phase for phase in document.phases if phase.path == path)
    return phase


def test_times_are_those_of_the_program() -> None:
    """phase0 launches 5 ms of work after 10 us, and then the program reads it."""
    document = document_of(program())
    phase = phase_of(document, "phase0")
    assert (phase.calls, phase.host_ns, phase.self_ns) == (50, 10_000, 10_000)
    assert phase.device is not None
    assert phase.device.calls is None  # all were timed
    assert phase.device.mean_ns == pytest.approx(5 * MS, rel=0.01)
    steps = document.steps
    assert steps is not None
    assert steps.outside_phases_ns is not None
    assert (steps.count, steps.cut_short) == (50, 0)
    assert steps.phases_ns + steps.outside_phases_ns == steps.total_ns
    assert document.run.is_complete


def test_both_sides_of_the_time_budget_add_up_to_the_step() -> None:
    document = document_of(program())
    time_budget, steps = document.time_budget, document.steps
    assert time_budget is not None and steps is not None
    total = time_budget.total
    host = (total.computing_ns, total.blocked_ns)
    device = (total.busy_ns, total.data_wait_ns, total.sync_wait_ns, total.host_wait_ns)
    assert sum(ns or 0 for ns in host) == pytest.approx(steps.mean_ns)
    assert sum(ns or 0 for ns in (*device, total.unknown_ns)) == pytest.approx(steps.mean_ns)


def test_what_is_not_known_is_none() -> None:
    document = document_of(run_of([]))
    for name in ("steps", "time_budget", "savings", "guides"):
        assert getattr(document, name) is None
    assert not any(document.sections.values())
    assert (document.phases, document.findings) == ((), ())
    assert document.run.gpu_count is None
    assert (document.recorder.phase_ns, document.recorder.core_share) == (None, None)
    assert document_of(Run.empty("it was off")).notes == ("it was off",)


def test_what_was_not_recorded_is_named() -> None:
    unknown = " ".join(document_of(run_of([])).unknown)
    for what in ("Times on the device", "syncs were not watched", "Times per step", "Memory"):
        assert what in unknown
    assert not any("Memory" in one or "modules" in one for one in document_of(full_run()).unknown)


def test_times_of_a_phase_that_are_not_known_are_none() -> None:
    run = run_of([(0, 0, -1, 0, 0, -1, -1, 5, 25, -1, -1, -1, 0)], duration_ns=100)
    (phase,) = document_of(run).phases_without_steps

    assert (phase.path, phase.calls, phase.total_ns) == ("forward", 1, 20)
    for name in ("self_ns", "device_ns", "blocked_ns", "device", "during_steps"):
        assert getattr(phase, name) is None


def test_metrics_that_are_not_finite_say_so() -> None:
    rows = [(1, 0, 0, 0, 2.0), (2, 1, 0, 0, np.nan), (2, -1, 0, 1, -np.inf)]
    run = run_of([], metric_names=("loss", "scale"), metrics=np.array(rows, METRIC_DTYPE))

    assert document_of(run).sections["metrics"] == (
        Metric("loss", None, "nan", 1, 2.0, 0, 2.0, 0),
        Metric("scale", None, "-inf", None, None, None, None, None),
    )


def test_one_step() -> None:
    document = step_document(program(), 3)
    assert (document.step, document.is_complete, document.is_timed_on_device) == (3, True, True)
    assert document.phases_ns + document.outside_phases_ns == document.total_ns
    assert [phase.path for phase in document.phases] == ["data", "phase0", "phase1"]


def test_failures_come_first() -> None:
    document = document_of(out_of_memory())
    first = document.findings[0]
    assert (first.kind, first.about) == ("failure", "GPU 0 ran out of memory in data")
    assert document.verdict == (
        "GPU 0 ran out of memory in data: 512.00 MiB were asked for and 256.00 MiB of "
        "1.00 GiB were free."
    )
    assert all(one.kind != "failure" for one in document_of(program()).findings)


def test_certain_findings_come_before_doubts() -> None:
    kinds = [one.is_certain for one in document_of(full_run()).findings if one.kind != "failure"]
    assert kinds == sorted(kinds, reverse=True)


def test_findings_name_commands_with_the_file() -> None:
    looks = [one.look or "" for one in document_of(program(), "a file.gpurun").findings]
    assert "pyinstrument-gpu export 'a file.gpurun' -o trace.json" in looks


def test_verdicts_of_runs_with_next_to_no_steps() -> None:
    assert "1 step is too few" in document_of(training([10 * MS])).verdict
    run = run_of_phases(2)
    assert document_of(run).verdict.startswith("No step ended")
    # That of a killed run does not say that none ended.
    run.complete = False
    document = document_of(run)
    assert document.verdict.startswith("The recording was not stopped")
    assert "Times per step: no step that ended is in the file." in document.unknown


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        (["pyinstrument-gpu", "run", "train.py"], "put `with pyinstrument_gpu.record("),
        (
            ["pyinstrument-gpu", "run", "/bin/torchrun", "--nproc-per-node", "2", "a b.py", "x.py"],
            "run `torchrun --nproc-per-node 2 -m pyinstrument_gpu run 'a b.py' x.py`.",
        ),
        (
            ["-m", "pyinstrument_gpu", "run", "-m", "torch.distributed.run", "--module", "train"],
            "run `python -m torch.distributed.run -m pyinstrument_gpu run -m train`.",
        ),
        (
            [
                *("/bin/pyinstrument-gpu", "run", "--stacks", "-o", "a b.gpurun", "python3", "-u"),
                *("-m", "torch.distributed.run", "--nproc-per-node=2", "train.py", "--stacks"),
            ],
            "run `python -m torch.distributed.run --nproc-per-node=2 -m pyinstrument_gpu run "
            "--stacks -o 'a b.gpurun' train.py --stacks`.",
        ),
        (
            ["pyinstrument-gpu", "run", "accelerate", "launch", "train.py", "-m"],
            "run `accelerate launch -m pyinstrument_gpu run train.py -m`.",
        ),
        (
            ["pyinstrument-gpu", "run", "torchrun", "a program"],
            "put `with pyinstrument_gpu.record(",
        ),
    ],
)
def test_verdict_of_a_program_whose_children_worked(command: list[str], advice: str) -> None:
    run = run_of_phases(3)
    run.environment = {**run.environment, "children_cpu_s": 8.52, "command": command}
    verdict = document_of(run).verdict
    assert verdict.startswith("No step ended: ")
    used = "its child processes, which are not recorded, used 8.5 s of CPU time. If they train, "
    assert used + advice in verdict
    run.environment["children_cpu_s"] = 0.4  # of a compiler, or of git
    assert document_of(run).verdict.endswith("used 0.4 s of CPU time.")


def test_a_preview_of_a_launcher_claims_nothing_of_the_ranks() -> None:
    run = run_of_phases(3)
    run.syncs = Syncs(watched_ns=((0, 1),), is_as_if=True)
    assert "Not known" not in run.report(verbose=True)
    command = ["pyinstrument-gpu", "run", "--as-if-cuda", "torchrun", "train.py"]
    run.environment = {**run.environment, "children_cpu_s": 8.52, "command": command}
    assert "what the child processes of the program would wait for" in " ".join(
        run.report(verbose=True).split()
    )
    assert (
        "run `torchrun -m pyinstrument_gpu run --as-if-cuda train.py`" in document_of(run).verdict
    )


def test_killed_run_says_so_and_claims_nothing_of_what_the_file_lacks() -> None:
    run = program()
    whole = document_of(run)
    run.complete = False
    killed = document_of(run)
    assert (
        killed.verdict
        == f"{whole.verdict[:-1]}; the recording was not stopped, so its end is not here."
    )
    assert not any("were not watched (pig" in sentence for sentence in killed.unknown)


def test_device_timing_is_off_only_where_it_was_turned_off() -> None:
    with pig.record(device_timing=False) as recording:
        pass
    off = recording.run.environment["device_timing"]  # what a recording says of it
    for timing, why in (({"mode": "auto"}, "the run has none"), (off, "device timing was off")):
        run = run_of([], environment={"device_timing": timing})
        assert f"Times on the device: {why}." in document_of(run).unknown


@pytest.mark.parametrize(
    ("hip", "device", "name"), [("6.4", "cuda", "ROCm"), (None, "xpu", "XPU"), (None, "mps", "MPS")]
)
def test_a_build_for_other_accelerators_says_that_their_times_are_not_supported(
    monkeypatch: pytest.MonkeyPatch, hip: str | None, device: str, name: str
) -> None:
    torch = SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda=None, hip=hip),
        cuda=SimpleNamespace(is_initialized=lambda: False),
        accelerator=SimpleNamespace(current_accelerator=lambda: SimpleNamespace(type=device)),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    run = run_of([], environment=torch_facts())
    why = f"Times on the device: not supported on {name}, only on NVIDIA GPUs."
    assert why in document_of(run).unknown


@pytest.mark.parametrize("slow", [0, 1])
def test_saving_of_a_few_steps_says_so(slow: int) -> None:
    """Of 40 steps that wait 30 us each, one waits for 300 ms."""
    run = training([100_000] * (40 - slow) + [1_000 * MS] * slow, on_device=False)
    document = document_of(run)
    # Without device times nothing says what the device had to do behind the last wait.
    found = next(one for one in document.findings if one.kind == ("doubt" if slow else "advice"))
    assert found.is_rare is (bool(slow) if found.likely_ns is not None else None)
    assert ("most of it in few steps" in document.verdict) is bool(found.is_rare)


@pytest.mark.parametrize("step_bytes, is_named", [(MIB // 100, False), (MIB, True)])
def test_growth_is_a_failure_from_a_hundredth_on(step_bytes: int, is_named: bool) -> None:
    run = program()
    points = [(step, 100 * MIB + step * step_bytes, -1) for step in range(40)]
    run.memory = Memory(device=None, steps=40, points=np.array(points, MEMORY_POINT_DTYPE))
    document = document_of(run)
    assert document.sections["memory"].growth is not None
    assert document.verdict.startswith("Memory of the process grows: 1.00 MiB") is is_named
    assert any(one.kind == "failure" for one in document.findings) is is_named


def test_failures_name_what_shows_more() -> None:
    assert (
        document_of(out_of_memory()).findings[0].look
        == "pyinstrument-gpu run --memory=exact PROGRAM"
    )
    assert (
        document_of(diverged(), "a.gpurun").findings[0].look
        == "pyinstrument-gpu report a.gpurun --html"
    )


def test_a_phase_that_launches_nothing_is_no_doubt() -> None:
    """Of the phases of the full run only the first three launched anything when profiled."""
    abouts = [one.about for one in document_of(full_run()).findings]
    assert "launches in phase1" in abouts
    assert "launches in phase5" not in abouts


@pytest.mark.parametrize("is_whole", [True, False])
def test_times_per_step_leave_out_the_step_that_is_open(is_whole: bool) -> None:
    """Two steps ended. The third has taken far longer in "forward" already, and has not ended."""
    ended = training([10 * MS, 10 * MS], on_device=False)
    begin_ns = 23 * MS
    long = (0, 0, 2, 0, 0, -1, -1, begin_ns, begin_ns + 900 * MS, -1, -1, 800 * MS, 1)
    still_open = Step(2, begin_ns, -1, 16.0, 1, False, 0)
    wait = (begin_ns, 800 * MS, 4, 0, 0, 2, 0)
    (site,) = ended.syncs.sites
    totals = SyncTotals(3, 3, site.totals.blocked_ns + 800 * MS, 12)
    run = training(
        [10 * MS, 10 * MS],
        on_device=False,
        spans=np.append(ended.spans, np.array([long], SPAN_DTYPE)),
        span_self_ns=np.append(ended.span_self_ns, 900 * MS),
        steps=Steps.with_open(ended.steps.array, still_open),
        open_step=still_open,
        syncs=replace(
            ended.syncs,
            sites=(replace(site, totals=totals),),
            events=np.append(ended.syncs.events, np.array([wait], SYNC_DTYPE)),
        ),
        complete=False,
        duration_ns=begin_ns + 950 * MS,
        phases_recorded=7 if is_whole else 8,
    )
    document = document_of(run)
    forward, backward = phase_of(document, "forward"), phase_of(document, "backward")
    assert forward.calls == 3
    (waits,) = document.sections["syncs"].sites
    assert (waits.count, waits.count_per_step, waits.count_outside) == (3, 1, 0)
    assert waits.blocked_ns_per_step == 3 * MS
    assert (backward.host_ns, backward.share) == (5 * MS, 0.5)
    if not is_whole:  # the statistics lack a span: whether it is one of these is unknown
        assert forward.share is None
        return
    assert (forward.host_ns, forward.self_ns, forward.share) == (4 * MS, 2 * MS, 0.4)
    assert "the host spends 50% in backward" in document.verdict
    assert document.steps is not None
    assert document.steps.phases_ns == 2 * 9 * MS


# What lies between the phases, steps that were cut short, and optimizers that step unequally


@pytest.mark.parametrize(
    ("work_ms", "where"),
    [
        ((20, 1, 0), "91% lies outside all phases, 95% of that in front of forward"),
        ((0, 21, 0), "91% lies outside all phases between forward and backward"),
        (
            (1, 0, 20),
            "91% lies outside all phases, 95% of that after backward, the last phase of the",
        ),
    ],
)
def test_the_verdict_says_where_most_of_the_step_is_if_no_phase_has_it(
    work_ms: tuple[int, int, int], where: str
) -> None:
    script = Script()
    for _ in range(10):
        with script.step():
            script.work(work_ms[0] * MS)
            script.leaf("forward", MS)
            script.work(work_ms[1] * MS)
            with script.phase("backward"):
                script.leaf("inside", MS)
            script.work(work_ms[2] * MS)
    verdict = document_of(script.run()).verdict
    assert verdict.startswith(f"A step takes 23.0 ms, of which {where}")
    assert verdict.endswith('put gpu_phase("...") around the parts of that code to see what it is.')


def test_a_gap_of_few_steps_is_called_so() -> None:
    script = Script()
    for step in range(20):
        with script.step():
            script.leaf("forward", MS)
            script.work(500 * MS if step == 3 else MS)
            script.leaf("backward", MS)
    assert (
        "between forward and backward, most of it in few steps;"
        in document_of(script.run()).verdict
    )


def test_the_phases_around_a_gap_have_their_lines_if_these_are_known() -> None:
    script = Script()
    for _ in range(10):
        with script.step():
            script.leaf("forward", MS)
            script.work(9 * MS)
            script.leaf("backward", MS)
    lines = [{"phase": "forward", "file": "/home/me/train.py", "line": 12}]
    run = script.run(environment={"cwd": "/home/me", "phase_lines": lines})
    assert "between forward (first called at train.py:12) and backward;" in document_of(run).verdict


def test_steps_without_a_phase_are_all_outside_of_phases() -> None:
    script = Script()
    script.leaf("forward", MS)
    for _ in range(10):
        with script.step():
            script.work(MS)
    assert (
        "of which 100% lies outside all phases, as it has none" in document_of(script.run()).verdict
    )


def _interrupted(complete: bool) -> Run:
    """20 steps of 3 ms, and one of 600 ms that may have been left by an exception."""
    script = Script()
    for i in range(21):
        with script.step(complete=complete or i < 20):
            script.leaf("forward", MS if i < 20 else 500 * MS)
            script.leaf("backward", 2 * MS if i < 20 else 100 * MS)
    return script.run()


def test_means_leave_out_a_step_that_was_cut_short() -> None:
    document = document_of(_interrupted(complete=False))
    steps = document.steps
    assert steps is not None
    assert (steps.count, steps.cut_short, steps.mean_ns) == (20, 1, 3 * MS)
    assert (steps.p50_ns, steps.p95_ns) == (3 * MS, 3 * MS)
    assert (steps.phases_ns, steps.outside_phases_ns) == (60 * MS, 0)
    assert [phase_of(document, path).host_ns for path in ("forward", "backward")] == [MS, 2 * MS]
    assert document.verdict.startswith("A step takes 3.00 ms, of which the host spends 67%")
    assert "Cut short: 1 of 21 steps; times per step leave them out." in document.notes
    contended = document_of(with_waits(_interrupted(complete=False), 0.5))
    waited = "CPU contention: steps waited 50% of the time for a processor. Times are"
    assert waited in contended.notes[0]

    whole = document_of(_interrupted(complete=True)).steps
    assert whole is not None
    assert (whole.count, whole.cut_short, whole.total_ns) == (21, 0, 660 * MS)


def test_steps_that_were_cut_short_count_if_they_cannot_be_told_from_others() -> None:
    run = _interrupted(complete=False)
    run.steps = Steps(run.steps.array[:20])
    document = document_of(run)
    assert document.steps is not None
    assert (document.steps.count, document.steps.total_ns) == (21, 660 * MS)
    assert "Cut short: 1 of 21 steps." in document.notes


def test_a_run_of_which_all_steps_were_cut_short_has_their_times() -> None:
    script = Script()
    with script.step(complete=False):
        script.leaf("forward", MS)
    steps = document_of(script.run()).steps
    assert steps is not None
    assert (steps.count, steps.cut_short, steps.mean_ns) == (1, 1, MS)


def test_trainings_one_after_the_other_have_no_common_update() -> None:
    """Nor have steps that all have one of the first optimizer."""
    script = Script()
    for name, count in (("optimizer", 20), ("optimizer 2", 50)):
        for _ in range(count):
            with script.step():
                script.leaf(name, 3 * MS)
    assert "update" not in document_of(script.run()).verdict
    script = Script()
    for i in range(20):
        with script.step():
            script.leaf("optimizer", 3 * MS)
            if i % 5 == 0:
                script.leaf("optimizer 2", 3 * MS)
    assert "update" not in document_of(script.run()).verdict


def test_successive_trainings_are_told_apart() -> None:
    """As where Adam is followed by one call of L-BFGS, which is no cause of its being slow."""
    script = Script()
    for _ in range(99):
        with script.step(), script.phase("optimizer"):
            script.leaf("backward", 3 * MS)
    with script.step(), script.phase("optimizer 2"):
        for _ in range(301):
            script.leaf("backward", 3 * MS)
    document = document_of(script.run())
    assert document.verdict.startswith(
        "A step takes 12.0 ms on average, 3.00 ms in 99 steps of optimizer and 903 ms in 1 step of "
        "optimizer 2 (301 backward passes each), of which"
    )
    assert document.findings == ()
    assert document.slow_steps is None


def test_optimizers_that_step_unequally_have_the_time_of_an_update() -> None:
    """An actor that is updated with every other update of its critic, each in a step of its own."""
    script = Script()
    for i in range(20):
        with script.step():
            script.leaf("optimizer", 3 * MS)
        if i % 2:
            with script.step():
                script.leaf("optimizer 2", 3 * MS)
    verdict = document_of(script.run()).verdict
    assert verdict.startswith(
        "A step takes 3.00 ms and an update 4.50 ms (the optimizers step 20 and 10 times in "
        "30 steps), of which"
    )
