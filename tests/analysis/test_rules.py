# SPDX-License-Identifier: Apache-2.0
"""What guides advise, on runs of which it is known what each piece of advice is worth."""

import copy
from dataclasses import replace
from typing import Any

import pytest

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import Finding
from pyinstrument_gpu.analysis.rules import findings, is_nothing_worth_an_edit
from pyinstrument_gpu.analysis.rules.case import UNKNOWN, Worth, guidance
from pyinstrument_gpu.aspects.loader.aspect import ASPECT as LOADER
from pyinstrument_gpu.core.program_facts import KEY
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.sync_kind import SyncKind
from pyinstrument_gpu.core.syncs import Syncs
from pyinstrument_gpu.report.document import document_of
from tests.helpers.device_program import attached_cuda
from tests.helpers.made_runs import run_of
from tests.helpers.made_script import WatchedScript
from tests.helpers.simulator.duration import Duration
from tests.helpers.simulator.families import drawn
from tests.helpers.simulator.operations import Launches, Phase, Work
from tests.helpers.simulator.program import Program
from tests.helpers.simulator.simulation import simulated as simulate
from tests.helpers.sync_program import STEPS, Launch, Made, Sync, ran

MS = 1_000_000
US = 1_000


def simulated(made: Made, **facts: Any) -> Run:
    """A run of a program on the simulated driver."""
    with attached_cuda() as cuda:
        run = ran(made, cuda).run
    run.environment[KEY] = {"other_streams": False, "ranks": 1, **facts}
    return run


def found(run: Run, advice: str) -> list[Finding]:
    return [one for one in findings(run) if one.about.startswith(advice)]


def the(run: Run, advice: str) -> Finding:
    (one,) = found(run, advice)
    return one


def worth(finding: Finding) -> Worth:
    assert finding.low_ns is not None and finding.high_ns is not None
    assert finding.of_ns is not None and finding.of is not None
    return Worth(finding.low_ns, finding.high_ns, finding.of_ns, finding.of)


def _kernels(*pairs: tuple[int, int], syncs: tuple[Sync, ...] = (), loader_ns: int = 0) -> Made:
    """A phase for each kernel, given by what the host does before it and what it takes."""
    return Made(
        phases=tuple((Launch(host_ns, device_ns),) for host_ns, device_ns in pairs),
        syncs=syncs,
        loader_ns=(loader_ns,) * STEPS,
    )


def _read(phase: int, site: int) -> Sync:
    return Sync(phase, 0, False, 15_000, 3_000, site)


def _copy(phase: int, site: int, size: int) -> Sync:
    return Sync(phase, 0, False, 15_000, 3_000, site, SyncKind.H2D_PAGEABLE, size)


# --- reads ---


def test_a_second_read_costs_its_call_alone() -> None:
    run = simulated(
        _kernels((10 * US, 20 * MS), (15 * MS, 2 * US), syncs=(_read(0, 0), _read(0, 1)))
    )
    one = the(run, "read each value once")

    assert one.promised == "5-10 %"
    assert worth(one).low_ns == 0
    assert worth(one).high_ns == pytest.approx(18 * US, abs=1 * US)
    assert worth(one).of_ns == pytest.approx(35 * MS, rel=0.01)
    assert "1.00 reads per step" in one.evidence
    assert ".item() at train.py:11 after .item() at train.py:10" in one.evidence


def test_a_read_that_waits_for_work_of_its_own_is_no_second_read() -> None:
    syncs = (_read(0, 0), _read(1, 1))
    assert not found(
        simulated(_kernels((10 * US, 20 * MS), (10 * US, 5 * MS), syncs=syncs)), "read"
    )
    assert not found(simulated(_kernels((10 * US, 20 * MS), syncs=syncs[:1])), "read")


def test_two_reads_of_one_line_are_a_first_and_a_second() -> None:
    program = WatchedScript(SyncKind.ITEM)
    for _ in range(10):
        with program.step():
            program.work(5 * MS)
            program.wait(1, 4 * MS)
            program.wait(1, 10 * US)
            program.wait(1, 20 * US)
    one = the(program.run(), "read each value once")

    assert worth(one).high_ns == 30 * US
    assert one.evidence.startswith("2.00 reads per step take 30.0 us")


# --- copies ---


def test_small_copies_of_one_size_are_told_from_the_batch() -> None:
    sizes = {0: 4_000_000, 1: 8_192, 2: 4_096}
    run = simulated(
        _kernels((5 * MS, 9 * MS), syncs=tuple(_copy(0, 5 * n, sizes[n]) for n in sizes))
    )
    one = the(run, "make tensors on the device")

    assert one.promised == "2-4 %"
    assert one.evidence.startswith("2.00 small copies per step, 12,288 bytes")
    assert "train.py:15" in one.evidence
    assert "train.py:20" in one.evidence
    assert worth(one).high_ns == pytest.approx(36 * US, abs=2 * US)


def test_labels_and_copies_of_other_sizes_are_loaded() -> None:
    beside = (_copy(0, 0, 4_000_000), _copy(0, 1, 512))
    assert not found(simulated(_kernels((5 * MS, 9 * MS), syncs=beside)), "make tensors")

    program = WatchedScript(SyncKind.H2D_PAGEABLE, SyncKind.ITEM, SyncKind.H2D_PAGEABLE)
    for step in range(10):
        with program.step():
            program.work(5 * MS)
            program.wait(1, 1 * MS, 1 << 21)
            program.wait(3, 10 * US, 100 + step % 3)
    assert not found(program.run(), "make tensors")


def test_copies_that_the_report_recommends_to_change_are_not_said_twice() -> None:
    waits_long = _kernels((10 * US, 5 * MS), (5 * MS, 2 * US), syncs=(_copy(0, 0, 4_096),))
    run = simulated(waits_long)

    named = [*analysis.of(run).advice, *analysis.of(run).doubts]
    assert "copies to the device" in [one.about for one in named]
    assert not found(run, "pin memory")


def test_copies_that_wait_for_nothing_are_worth_their_call() -> None:
    one = the(simulated(_kernels((5 * MS, 10 * US), syncs=(_copy(0, 0, 64),))), "pin memory")

    assert one.promised == "3-5 %"
    assert worth(one).high_ns <= 30 * US


def _with_evaluations(*, copy_ns: int = 0, read_ns: int = 0) -> Run:
    """20 steps of 10 ms, and after each five of them 30 ms of evaluation."""
    program = WatchedScript(SyncKind.H2D_PAGEABLE, SyncKind.ITEM)
    for step in range(20):
        with program.step():
            program.work(10 * MS)
        if step % 5 == 4:
            for _ in range(2):
                program.leaf("data", 5 * MS)
                if copy_ns:
                    program.wait(1, copy_ns, 4_096)
                program.leaf("eval", 10 * MS - copy_ns - read_ns)
                if read_ns:
                    program.wait(2, read_ns)
    return program.run()


def test_copies_in_evaluations() -> None:
    run = _with_evaluations(copy_ns=250 * US)
    one = the(run, "pin memory and copy with non_blocking in evaluations")

    assert one.evidence.startswith("2.0 copies of an evaluation make the host wait for 500 us")
    assert worth(one).of == "elapsed time"
    assert worth(one).high_ns == pytest.approx(4 * 500 * US / 20, rel=0.3)
    assert not found(_with_evaluations(), "pin memory")


def test_copies_in_steps_are_not_those_of_evaluations() -> None:
    program = WatchedScript(SyncKind.H2D_PAGEABLE, SyncKind.H2D_PAGEABLE)
    for step in range(20):
        with program.step():
            program.wait(1, 50 * US, 4_096)
            program.work(10 * MS)
        if step % 5 == 4:
            program.wait(2, 40 * US, 4_096)
            program.leaf("eval", 10 * MS)
    run = program.run()
    in_all, in_evaluations = found(run, "pin memory and copy")

    assert in_all.about == "pin memory and copy with non_blocking"
    assert worth(in_all).high_ns == pytest.approx(58 * US, rel=0.1)
    assert in_evaluations.about.endswith("in evaluations")
    assert worth(in_evaluations).low_ns == 0
    assert worth(in_evaluations).high_ns == 8 * US
    assert "train.py:2" in in_evaluations.evidence


# --- logging ---


def _logging(every: int, waits_ns: int = 20 * US) -> Run:
    program = WatchedScript(SyncKind.PRINT)
    for step in range(40):
        with program.step():
            program.leaf("forward", 10 * MS)
            program.work(step % 2 * 10 * US)
            if step % every == 0:
                program.wait(1, waits_ns)
                program.work(2 * MS)
    return program.run()


def test_steps_that_log_compute_more() -> None:
    one = the(_logging(every=4), "print and log")
    # Of a quarter of the steps 2 ms and a wait of 20 us; of those without, two in three are 10 us
    # longer, which is noise.
    assert one.promised == "1-2 %"
    assert worth(one).low_ns < (2 * MS + 20 * US - 10 * US * 2 / 3) / 4 < worth(one).high_ns
    assert worth(one).high_ns - worth(one).low_ns < 1 * US
    assert one.evidence.startswith("10 of 40 steps log, print at train.py:1: 5.00 us of waits")


def test_what_logging_computes_is_unknown_if_every_step_logs() -> None:
    one = the(_logging(every=1), "print and log")

    assert "too few steps differ to tell" in one.evidence
    assert worth(one).high_ns < 30 * US


def test_a_value_that_is_read_in_every_step_is_no_log() -> None:
    program = WatchedScript(SyncKind.ITEM)
    for _ in range(20):
        with program.step():
            program.work(10 * MS)
            program.wait(1, 20 * US)
    assert not found(program.run(), "print and log")


# --- what comes now and then ---


def test_half_as_many_evaluations_save_half_their_time() -> None:
    one = the(_with_evaluations(), "evaluate half as often")

    # 4 of 30 ms, in 20 steps and 320 ms.
    assert worth(one) == Worth(3 * MS, 3 * MS, 16 * MS, "elapsed time")
    assert one.evidence == "4 times in 20 steps, 30.0 ms each"


@pytest.mark.parametrize("phase", ["eval", "no_grad"])
def test_what_may_be_a_rollout_is_named_with_its_line_and_not_advised(phase: str) -> None:
    program = WatchedScript()
    for step in range(20):
        with program.step():
            program.work(10 * MS)
        if step % 5 == 4:
            program.leaf(phase, 80 * MS)
    lines = [{"phase": phase, "file": "train.py", "line": 7}]
    run = program.run(environment={"gpus": [], "optimizer_seen": True, "phase_lines": lines})
    one = the(run, "evaluate half as often")

    assert one.high_ns is None
    assert one.evidence.endswith("training may need what they compute") is (phase == "no_grad")
    report = " ".join(run.report(width=100, color=False).split())
    assert f"of it in {phase} (first called at train.py:7). A step takes 10.0 ms" in report


def test_what_the_first_evaluation_takes_longer_is_not_saved() -> None:
    """As where it compiles a model."""
    program = WatchedScript()
    for number in range(5):
        for _ in range(4):
            with program.step():
                program.work(10 * MS)
        program.leaf("eval", (3_000 if number == 0 else 30) * MS)
    one = worth(the(program.run(), "evaluate half as often"))

    assert one.low_ns == 5 * 30 * MS / 2 / 20
    assert one.high_ns == (3_000 + 4 * 30) * MS / 2 / 20


def test_an_evaluation_begins_behind_the_read_that_waits_for_the_steps() -> None:
    one = the(_with_evaluations(read_ns=3 * MS), "evaluate half as often")

    # The first read ends after 15 of 30 ms, and the last one, of 3 ms, may be for something else.
    assert worth(one) == Worth(1.2 * MS, 3 * MS, 16 * MS, "elapsed time")


def test_an_evaluation_on_a_device_without_a_read_has_no_known_time() -> None:
    one = the(_with_evaluations(copy_ns=1 * MS), "evaluate half as often")

    assert one.high_share is None
    assert "no read" in one.evidence


def test_an_evaluation_has_its_loader_and_not_that_of_the_training() -> None:
    program = WatchedScript()
    for _ in range(3):
        for _ in range(5):
            with program.step():
                program.work(10 * MS)
        program.leaf("data end", 1 * MS)
        program.work(2 * MS)
        program.leaf("data start", 4 * MS)
        program.leaf("eval", 10 * MS)
        program.leaf("data end", 1 * MS)
        program.leaf("checkpoint", 5 * MS)
        program.work(7 * MS)
        program.leaf("data start", 20 * MS)
    run = program.run()
    one = the(run, "evaluate half as often")

    # 15 ms in phases, and 9 ms that may be of the evaluation too.
    assert worth(one).low_ns == 3 * 15 * MS / 2 / 15
    assert worth(one).high_ns == 3 * 24 * MS / 2 / 15
    assert one.evidence == "3 times in 15 steps, 15.0 ms to 24.0 ms each"
    saved = the(run, "save checkpoints half as often")
    assert worth(saved).low_ns == worth(saved).high_ns == 3 * 5 * MS / 2 / 15


def test_a_prediction_at_the_end_is_no_evaluation_with_all_that_lies_before_it() -> None:
    program = WatchedScript()
    for _ in range(2):
        for _ in range(5):
            with program.step():
                program.work(10 * MS)
        program.leaf("eval", 10 * MS)
        program.work(2 * MS)
        program.leaf("eval", 10 * MS)
    program.work(60 * MS)
    program.leaf("eval", 1 * MS)
    one = the(program.run(), "evaluate half as often")

    # 22 ms, and what is behind the last step: 21 ms in phases, and 62 ms that may be anything.
    # By 1 ms the first is longer, which may be what comes once.
    assert worth(one).low_ns == (21 + 21) * MS / 2 / 10
    assert worth(one).high_ns == (22 + 83) * MS / 2 / 10


def test_what_is_done_in_some_steps_is_an_occasion_too() -> None:
    program = WatchedScript()
    for step in range(20):
        with program.step():
            program.leaf("forward", 10 * MS)
            if step % 10 == 9:
                program.leaf("checkpoint", 40 * MS)
                program.leaf("sample", 20 * MS)
    run = program.run()

    assert worth(the(run, "save checkpoints")) == Worth(2 * MS, 2 * MS, 16 * MS, "elapsed time")
    assert worth(the(run, 'run "sample" half as often')).high_ns == 1 * MS
    assert not found(run, 'run "forward"')


def test_advice_on_an_occasion_has_the_name_of_its_phase_as_the_program_spells_it() -> None:
    program = WatchedScript()
    for step in range(20):
        with program.step():
            program.leaf("forward", 10 * MS)
            if step % 10 == 9:
                program.leaf(f"[Callback]Samples.draw {step}", 20 * MS)

    assert worth(the(program.run(), 'run "[Callback]Samples.draw" half')).high_ns == 1 * MS


def test_a_phase_in_most_steps_or_around_them_is_no_occasion() -> None:
    program = WatchedScript()
    for _ in range(2):
        with program.phase("epoch"):
            for _ in range(5):
                with program.step():
                    program.leaf("forward", 10 * MS)
                    program.leaf("eval", 10 * MS)
    assert findings(program.run()) == []


def test_one_evaluation_cannot_come_half_as_often() -> None:
    program = WatchedScript()
    for _ in range(10):
        with program.step():
            program.work(10 * MS)
    program.leaf("eval", 50 * MS)

    assert findings(program.run()) == []


def test_without_all_spans_the_time_of_evaluations_is_unknown() -> None:
    run = _with_evaluations()
    run.phases_recorded += 7
    run.dropped["ring_full"] = 7
    one = the(run, "evaluate half as often")

    assert one.high_share is None
    assert "7 spans" in one.evidence


# --- the optimizer ---


def _named(made: Made, *names: str) -> Run:
    run = simulated(made)
    run.names = names
    return run


def test_an_optimizer_saves_no_more_than_the_device_leaves() -> None:
    run = _named(_kernels((10 * US, 20 * MS), (2 * MS, 5 * MS)), "forward", "optimizer")
    one = the(run, "use a fused")

    assert worth(one).high_ns == pytest.approx(0.01 * MS, abs=0.1 * MS)
    assert "optimizer takes 2." in one.evidence
    # Where the device is not known to be busy, it is named beside the savings.
    run.environment[KEY] = {"other_streams": True, "ranks": 1}
    run = copy.copy(run)
    assert "launches in optimizer" in [one.about for one in analysis.of(run).doubts]
    assert not found(run, "use a fused")


def test_an_optimizer_that_the_report_names_already_is_not_said_twice() -> None:
    run = _named(_kernels((10 * MS, 10 * US), (200 * US, 50 * US)), "forward", "optimizer")
    assert worth(the(run, "use a fused")).high_ns == pytest.approx(200 * US, rel=0.01)

    run = _named(_kernels((10 * MS, 10 * US), (2 * MS, 50 * US)), "forward", "optimizer")
    assert "launches in optimizer" in [one.about for one in analysis.of(run).doubts]
    assert not found(run, "use a fused")


def test_without_device_times_nothing_is_said_of_launches() -> None:
    program = WatchedScript()
    for _ in range(10):
        with program.step():
            program.leaf("forward", 10 * MS)
            program.leaf("optimizer", 5 * MS)
    assert findings(program.run()) == []


# --- the loader ---


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        # A batch comes every 15 ms, and the loop alone takes 5.
        (2, "a batch takes 15.0 ms"),
        # The loop makes it itself in 10 ms, which a worker does in the 5 of the loop and 5 more.
        # What it takes to hand it over is not known.
        (0, "; with 1 it would wait 4.99 ms to 10.0 ms for a batch"),
        (None, "the number of workers is unknown"),
    ],
)
def test_what_the_loader_takes(workers: int | None, words: str) -> None:
    made = _kernels((10 * US, 4 * MS), (5 * MS, 10 * US), loader_ns=10 * MS)
    one = the(simulated(made, loader_workers=workers), "use more loader workers")

    assert words in one.evidence
    assert worth(one).high_ns == pytest.approx(10 * MS, rel=0.01)


CYCLES = 12


def _waiting(takes_ns: tuple[int, ...], loop_ns: int, workers: int | None = 4) -> Run:
    """A program without a GPU, of which the first batch is there, and which then waits so long for
    its batches, and so again."""
    program = WatchedScript()
    for data_ns in (0, *(takes_ns * CYCLES)):
        with program.step():
            program.leaf("data", data_ns)
            program.leaf("forward", loop_ns)
    return program.run(environment={"gpus": [], KEY: {"loader_workers": workers}})


@pytest.mark.parametrize(
    ("takes_ns", "loop_ns", "low_ns", "words"),
    [
        # The workers and the loop share cores, and so to hand over a batch takes milliseconds.
        ((2 * MS, 9 * MS, 5 * MS), 83 * MS, 0, "too little, or too seldom"),
        ((200 * US,), 10 * MS, 0, "too little, or too seldom"),
        # To hand it over takes no 80 ms, but how long it takes is not known.
        ((80 * MS,), 120 * MS, 60 * MS, "too little, or too seldom"),
        # Less than half of the time, and half of it.
        ((60 * MS - 2,), 60 * MS, 40 * MS - 2, "too little, or too seldom"),
        ((60 * MS,), 60 * MS, 59_700 * US, "a batch takes 120 ms to make"),
        # Batches of four workers come at once: one is waited for, and four have been made.
        ((40 * MS, 0, 0, 0), 5 * MS, 39_700 * US, "a batch takes 15.0 ms to make"),
        # So do eight, as each may make two ahead. Where nine come, the workers waited for the loop.
        ((80 * MS, *(0,) * 7), 5 * MS, 79_700 * US, "a batch takes 15.0 ms to make"),
        ((90 * MS, *(0,) * 8), 5 * MS, 70 * MS, "too little, or too seldom"),
    ],
)
def test_the_loaders_pace_is_told_where_the_loop_waits_for_it(
    takes_ns: tuple[int, ...], loop_ns: int, low_ns: int, words: str
) -> None:
    run = _waiting(takes_ns, loop_ns)
    one = the(run, "use more loader workers")

    assert words in one.evidence
    assert worth(one).low_ns * len(run.steps) == pytest.approx(CYCLES * low_ns)
    assert worth(one).high_ns * len(run.steps) == pytest.approx(CYCLES * sum(takes_ns))


def test_what_the_first_batch_waits_for_is_the_start_of_the_workers() -> None:
    program = WatchedScript()
    for data_ns in (500 * MS, *(2 * MS,) * 9):
        with program.step():
            program.leaf("data", data_ns)
            program.leaf("forward", 10 * MS)
    one = the(
        program.run(environment={"gpus": [], KEY: {"loader_workers": 4}}), "use more loader workers"
    )
    assert worth(one).low_ns == 0


@pytest.mark.parametrize(
    ("workers", "why"),
    [
        (0, "taking a batch from a worker costs time, too; only a try tells how much"),
        (None, "handing over a finished batch may take as long"),
        (2, "handing over a finished batch may take as long"),
    ],
)
def test_batches_that_are_handed_over_as_fast_are_not_sure_to_save_anything(
    workers: int | None, why: str
) -> None:
    run = _waiting((2 * MS,), 10 * MS, workers)
    one = the(run, "use more loader workers")
    assert worth(one).low_ns == 0
    assert worth(one).high_ns * len(run.steps) == pytest.approx(CYCLES * 2 * MS)
    assert [one.evidence for one in analysis.of(run).doubts] == [why]
    # So the verdict promises no more than that.
    assert "one change may save at most 16% of the step" in document_of(run).verdict


def test_without_workers_or_a_gpu_even_long_batches_are_not_sure_to_save_anything() -> None:
    # The cores that workers would need may be those that train.
    run = _waiting((80 * MS,), 20 * MS, workers=0)
    assert worth(the(run, "use more loader workers")).low_ns == 0
    assert analysis.of(run).advice == []


def test_without_workers_a_timed_step_surely_saves_what_handing_over_cannot_take() -> None:
    for loader_ns, low_ns in ((10 * MS, 0), (50 * MS, 30 * MS)):
        made = _kernels((10 * US, 4 * MS), (5 * MS, 10 * US), loader_ns=loader_ns)
        one = the(simulated(made, loader_workers=0), "use more loader workers")
        assert worth(one).low_ns == pytest.approx(low_ns, abs=0.1 * MS)
        assert worth(one).high_ns == pytest.approx(loader_ns, rel=0.01)


@pytest.mark.parametrize(("workers", "cores", "is_sure"), [(2, 3, False), (2, 4, True)])
def test_more_workers_are_not_sure_to_help_without_a_core(
    workers: int, cores: int, is_sure: bool
) -> None:
    made = _kernels((10 * US, 4 * MS), (5 * MS, 10 * US), loader_ns=10 * MS)
    run = simulated(made, loader_workers=workers)
    run.environment["cores"] = cores
    about = analysis.of(run)

    assert (worth(the(run, "use more loader workers")).low_ns > 0) == is_sure
    assert ("waiting for data" in [one.about for one in about.advice]) == is_sure
    doubted = [one for one in about.doubts if one.about == "waiting for data"]
    assert len(doubted) == (not is_sure)
    for one in doubted:
        assert one.low_ns == 0
        assert one.evidence.startswith("2 loader workers and the loop have 3 cores, so more")


def test_more_workers_are_worth_nothing_if_batches_wait() -> None:
    made = _kernels((10 * US, 4 * MS), (20 * MS, 10 * US), loader_ns=50 * US)
    one = the(simulated(made, loader_workers=4), "use more loader workers")

    assert one.high_share is not None and one.high_share < 0.003
    assert "would do" not in one.evidence


# --- batch size, AMP ---


def test_a_larger_batch_halves_the_launches_per_sample() -> None:
    run = simulated(_kernels((10 * MS, 10 * US), (10 * MS, 10 * US)))
    one = the(run, "double the batch size")

    assert worth(one).low_ns == 0
    assert worth(one).high_ns == pytest.approx(10 * MS, rel=0.01)


def test_a_larger_batch_halves_all_that_is_done_once_a_step() -> None:
    # 4 ms of launches, and 3 ms of work in a phase that launches nothing and outside of phases.
    def made(device_ns: int, steps: int) -> Program:
        launches = Launches(1, Duration(20 * US), (device_ns,) * 200, Duration(1))
        log = Phase("log", (Work(2, Duration(2 * MS)),))
        step = (Phase("forward", (launches,)), log, Work(3, Duration(1 * MS)))
        return Program(seed=3, steps=steps, step=step)

    was, larger = simulate(made(2 * US, 60)), simulate(made(4 * US, 30))
    saved_ns = (was.elapsed_ns - larger.elapsed_ns) / 60

    assert saved_ns > 3_400 * US
    assert worth(the(was.run, "double the batch size")).high_ns == pytest.approx(saved_ns, rel=0.02)


@pytest.mark.parametrize("kernels", [2_000, 100])
def test_launches_that_wait_for_a_full_queue_are_not_the_time_of_their_phase(kernels: int) -> None:
    # 12 ms of work on the device in each step, and 8 ms more in every fourth, launched in less.
    def made(every: int) -> Program:
        forward = Launches(1, Duration(4 * US), (6 * US,) * 2_000, Duration(1))
        update = Launches(2, Duration(4 * US), (8 * MS // kernels,) * kernels, Duration(1))
        step = (Phase("forward", (forward,)), Phase("update", (update,), every))
        return Program(seed=3, steps=40, step=step, queue_depth=256)

    was = simulate(made(4))
    saved_ns = (was.elapsed_ns - simulate(made(8)).elapsed_ns) / 40
    found_worth = worth(the(was.run, 'run "update" half as often'))

    assert saved_ns == pytest.approx(1 * MS, rel=0.1)
    assert found_worth.low_ns <= saved_ns <= 1.1 * found_worth.high_ns


def test_what_a_device_gains_from_a_larger_batch_is_unknown() -> None:
    one = the(simulated(_kernels((10 * US, 20 * MS))), "double the batch size")

    assert one.high_share is None
    assert "no phase is launch-bound" in one.evidence


def test_amp_is_worth_nothing_if_the_host_never_waits() -> None:
    one = the(simulated(_kernels((10 * MS, 10 * US))), "use AMP or TF32")

    assert worth(one).high_ns == 0


def test_amp_is_the_advice_where_the_device_is_the_limit() -> None:
    run = simulated(_kernels((10 * US, 20 * MS)))

    assert "AMP" in str(analysis.of(run).advice[-1].edit)
    assert not found(run, "use AMP")


def test_amp_cannot_be_told_where_the_stream_may_wait_for_others() -> None:
    run = simulated(_kernels((10 * US, 20 * MS)), ranks=8)
    one = the(run, "use AMP or TF32")

    assert one.high_share is None
    assert "another rank" in one.evidence


# --- all together ---


def _short_reads() -> WatchedScript:
    program = WatchedScript(SyncKind.ITEM)
    for _ in range(20):
        with program.step():
            program.work(10 * MS)
            program.wait(1, 10 * US)
            program.wait(1, 10 * US)
    return program


def _without_waits() -> WatchedScript:
    program = WatchedScript()
    for _ in range(20):
        with program.step():
            program.leaf("forward", 10 * MS)
    return program


def test_nothing_is_worth_an_edit() -> None:
    run = _without_waits().run(environment={})

    assert findings(run) == []
    assert is_nothing_worth_an_edit(run, [])
    assert is_nothing_worth_an_edit(run, [guidance("little", None, *Worth(0, 0.009, 1), "")])
    assert not is_nothing_worth_an_edit(run, [guidance("unknown", None, *UNKNOWN, "")])
    whole = Worth(0, 0.01, 1)
    assert not is_nothing_worth_an_edit(run, [guidance("worth it", None, *whole, "")])


def test_computing_that_has_no_price_may_be_worth_an_edit() -> None:
    run = _without_waits().run()  # on the host, where no saving looks at what it computes

    assert findings(run) == []
    assert not is_nothing_worth_an_edit(run, [])
    report = " ".join(run.report(width=100, color=False).split())
    assert "no change that was considered saves 1% of it, and 100% of it is the program's" in report


def test_what_was_not_recorded_may_be_worth_an_edit() -> None:
    run = _short_reads().run()
    (one,) = findings(run)

    assert worth(one).high_ns == 10 * US
    assert [doubt.about for doubt in analysis.of(run).doubts] == ["launches"]
    assert not is_nothing_worth_an_edit(run, [one])


def test_too_few_steps_and_previews_have_no_findings() -> None:
    program = _short_reads()
    program.steps = program.steps[:4]
    assert findings(program.run()) == []
    program = _without_waits()
    program.steps = program.steps[:4]
    assert not is_nothing_worth_an_edit(program.run(), [])

    run = _short_reads().run()
    syncs = run.syncs
    run.syncs = Syncs(syncs.sites, syncs.events, syncs.watched_ns, is_as_if=True)
    assert findings(run) == []
    assert findings(Run()) == []


def test_steps_of_no_length_are_worth_nothing() -> None:
    program = WatchedScript(SyncKind.ITEM)
    for _ in range(10):
        with program.step():
            program.wait(1, 0)
            program.wait(1, 0)
    report = program.run().report(verbose=True, width=100, color=False)

    assert "read each value once (guides say 5-10 %): nothing" in report


def test_the_report_says_what_advice_is_worth() -> None:
    report = _with_evaluations(read_ns=3 * MS).report(verbose=True, width=100, color=False)
    section = report.split("What guides advise, and what it is worth in this run\n")[1]

    assert section.split("\n\n")[0].splitlines() == [
        "evaluate half as often: 7.5% to 19% of the elapsed time",
        "   4 times in 20 steps, 12.0 ms to 30.0 ms each",
    ]
    report = _short_reads().run().report(verbose=True, width=100, color=False)
    section = report.split("What guides advise, and what it is worth in this run\n")[1]
    assert section.split("\n\n")[0].splitlines() == [
        "read each value once (guides say 5-10 %): at most 0.1% of the step",
    ]
    report = _without_waits().run(environment={}).report(verbose=True, width=100, color=False)
    section = report.split("What guides advise, and what it is worth in this run\n")[1]
    assert section.split("\n\n")[0].splitlines() == [
        "Nothing here is worth an edit: no saving and no advice reaches 1%",
    ]
    assert "What guides advise" not in run_of([]).report(verbose=True)


# --- simulated programs ---


def test_half_as_many_evaluations_save_what_is_said() -> None:
    said, right = 0, 0
    for seed in range(6):
        program = drawn("validation", seed)
        each = program.periodic[0]
        was = simulate(program)
        one = next((one for one in findings(was.run) if one.about.startswith("evaluate")), None)
        if one is None or one.high_share is None or each.name != "eval":
            continue
        rarer = (replace(each, every=2 * each.every), *program.periodic[1:])
        saved_ns = was.elapsed_ns - was.again(replace(program, periodic=rarer)).elapsed_ns
        count = program.steps // each.every
        left_out = count - program.steps // (2 * each.every)
        low_ns, high_ns = (2 * left_out / count * ns * program.steps for ns in worth(one)[:2])
        edge_ns = 0.005 * was.elapsed_ns
        said += 1
        right += low_ns - edge_ns <= saved_ns <= high_ns + edge_ns
    assert said >= 5
    assert right >= 0.8 * said


def test_without_workers_no_option_is_advised_that_needs_them() -> None:
    for workers, edit in ((0, "DataLoader(num_workers=N)"), (4, "prefetch_factor")):
        run = _waiting((5 * MS,), 5 * MS, workers)
        (cause,) = [one for one in LOADER.causes(run)]
        assert edit in (cause.remedy or "")
