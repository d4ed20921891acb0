# SPDX-License-Identifier: Apache-2.0
"""What a phase costs beside its peers: how it is reckoned, shown, and asked for."""

import json
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import pyinstrument_gpu as pig
from pyinstrument_gpu.cli import main
from pyinstrument_gpu.errors import RecordingError
from pyinstrument_gpu.model.device_clock import DeviceClock
from pyinstrument_gpu.overhead import phase_costs
from pyinstrument_gpu.overhead.contender import Contender, per_use_ns
from pyinstrument_gpu.overhead.lineup import lineup, measured
from pyinstrument_gpu.overhead.peer import Peer, PeerMissing, why_missing
from pyinstrument_gpu.overhead.peers import EMPTY_LOOP, NULLCONTEXT, OURS, PEERS
from pyinstrument_gpu.overhead.phase_costs import PhaseCost, measure_phase_costs
from pyinstrument_gpu.overhead.pinning import pinned, threads_elsewhere
from pyinstrument_gpu.overhead.run_step import RunStep
from pyinstrument_gpu.overhead.way import Way, empty, fresh, kept
from pyinstrument_gpu.recording import recording
from pyinstrument_gpu.report.overhead import overhead_facts, overhead_report
from pyinstrument_gpu.run import Run
from tests.cli.test_commands import made_run
from tests.helpers.script import run_script

# --- ways ---


class Marks:
    """Says what was entered and left, and how many managers were made."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.seen: list[str] = []

    def make(self, name: str) -> Any:
        self.made.append(name)

        @contextmanager
        def mark() -> Iterator[None]:
            self.seen.append(f"+{name}")
            yield
            self.seen.append(f"-{name}")

        class Again:
            def __enter__(self) -> None:
                self._open = mark()
                self._open.__enter__()

            def __exit__(self, *error: Any) -> None:
                self._open.__exit__(*error)

        return Again()


def test_a_fresh_manager_for_each_use() -> None:
    marks = Marks()
    way = fresh(marks.make)
    way.flat(2)
    assert marks.seen == ["+x", "-x"] * 2
    assert marks.made == ["x", "x"]
    marks.seen.clear()
    assert way.nested is not None
    way.nested(1)
    assert marks.seen == ["+a", "+b", "+c", "-c", "-b", "-a"]


def test_kept_managers_are_made_once() -> None:
    marks = Marks()
    way = kept(marks.make)
    way.flat(3)
    assert marks.seen == ["+x", "-x"] * 3
    assert sorted(marks.made) == ["a", "b", "c", "x"]
    assert way.phase is not None
    assert way.phase("forward") is way.phase("forward")


def test_every_way_has_code_of_its_own() -> None:
    ways = [fresh(nullcontext), fresh(nullcontext), kept(nullcontext), empty(), empty()]
    assert len({id(way.flat.__code__) for way in ways}) == len(ways)


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


def test_a_peer_that_fails_in_use_takes_no_others_with_it() -> None:
    def use(name: str) -> Any:
        raise AttributeError(f"no {name} in this version")

    peer = Peer("broken", "nothing", lambda: nullcontext(fresh(use)), 10)
    with lineup([EMPTY_LOOP, peer, NULLCONTEXT]) as line:
        assert line.missing == {peer: "AttributeError: no x in this version"}
        assert list(line.ways) == [EMPTY_LOOP, NULLCONTEXT]


def test_our_ways_record_in_their_batches() -> None:
    with lineup([OURS]) as line:
        way = line.ways[OURS]
    with way.batch():
        way.flat(5)
        assert recording._active is not None
        run = recording._active.snapshot()
    assert run.phases["x"].count == 5


@pytest.mark.slow
def test_every_peer_that_is_there_can_be_used() -> None:
    run_script(
        """
from pyinstrument_gpu.overhead.lineup import lineup
from pyinstrument_gpu.overhead.peers import EMPTY_LOOP, PEERS
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


# --- a step of a run ---


def test_a_step_of_a_run() -> None:
    step = RunStep.of(made_run())
    assert step.phases == 1
    assert step.median_ns == 10_000_000
    assert step.share(50.0) == 50 / 10_000_000
    assert (step.host, step.device_timed) == ("trainbox", False)
    assert RunStep.of(made_run(environment={"host": 7})).host is None
    assert RunStep.of(made_run(device_clocks=[DeviceClock.same_as_run(0)])).device_timed


def test_a_run_without_steps_has_no_share() -> None:
    with pytest.raises(ValueError, match="no steps"):
        RunStep.of(Run())


# --- what is shown ---

COSTS = [
    PhaseCost("ours", "records", True, 50.0, 55.0, 100),
    PhaseCost("null", "less: does nothing", False, 100.0, 110.0, 100),
    PhaseCost("theirs", "more", False, None, None, missing="theirs is not installed"),
]


def test_the_table() -> None:
    header, rule, ours, _, null, *rest = overhead_report(COSTS).splitlines()
    assert header.split()[-4:] == ["median", "best", "x", "ours"]
    assert set(rule) == {"-", " "}
    assert ours.split() == ["ours", "55.0", "50.0", "1"]
    assert null.split() == ["null", "110.0", "100.0", "2"]
    assert rest == [
        "",
        "Each figure is of 100 rounds, all in turn, on one core.",
        "More or less than a recorded phase of ours:",
        "  null: less: does nothing",
        "Missing: theirs: theirs is not installed",
    ]


def test_a_median_of_one_round_is_said_to_be_that() -> None:
    costs = [replace(cost, rounds=min(cost.rounds, 1)) for cost in COSTS]
    assert "Each figure is of 1 round, all in turn, on one core. So few say little." in (
        overhead_report(costs).splitlines()
    )


def test_the_table_beside_a_step() -> None:
    report = overhead_report(COSTS, RunStep(phases=6.0, median_ns=1_000_000))
    ours, null = (line.split() for line in report.splitlines()[2:5:2])
    assert ours == ["ours", "55.0", "50.0", "1", "0.033%"]
    assert null == ["null", "110.0", "100.0", "2", "0.066%"]
    assert " ".join(report.split()).endswith(
        "A step of the run: 6.0 phases x 55.0 ns = 330 ns, 0.033% of 1.000 ms (the median step)"
    )


def test_what_sets_a_step_apart_from_what_is_measured() -> None:
    def caveats(**of_step: Any) -> list[str]:
        report = overhead_report(COSTS, RunStep(6.0, 1_000_000, **of_step))
        return " ".join(report.split()).split("(the median step)")[1].split(". ")

    assert caveats(host=platform.node()) == [""]
    assert caveats(host="train\x1bbox") == [
        r" The run is of another machine (train\x1bbox): its steps, but what a phase costs here."
    ]
    assert caveats(device_timed=True) == [
        " The run timed a device as well, which costs more than what is measured."
    ]


def test_the_facts() -> None:
    facts = overhead_facts(COSTS, RunStep(phases=6.0, median_ns=1_000_000))
    assert facts["step"] == {
        "phases": 6.0,
        "median_ns": 1_000_000,
        "host": None,
        "device_timed": False,
    }
    assert [cost["rounds"] for cost in facts["costs"]] == [100, 100, 0]
    assert [cost["share_of_step"] for cost in facts["costs"]] == [0.00033, 0.00066, None]
    assert facts["costs"][2]["missing"] == "theirs is not installed"
    assert "share_of_step" not in overhead_facts(COSTS)["costs"][0]
    json.dumps(facts)


# --- the command ---


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["overhead", *arguments])


@pytest.fixture
def few_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PyTorch, whose import takes seconds."""
    missing = failing(PeerMissing("it needs a GPU"))
    monkeypatch.setattr(phase_costs, "PEERS", (OURS, EMPTY_LOOP, NULLCONTEXT, missing))


@pytest.mark.usefixtures("few_peers")
def test_the_command(tmp_path: Path) -> None:
    made_run().save(tmp_path / "train.gpurun")
    result = invoke("--rounds", "2", str(tmp_path / "train.gpurun"))
    assert result.exit_code == 0, result.output
    for text in ('with gpu_phase("x")', "nullcontext, reused", "Missing: broken: it needs a GPU"):
        assert text in result.stdout
    assert "1.0 phases x" in result.stdout


@pytest.mark.usefixtures("few_peers")
def test_the_command_as_json() -> None:
    facts = json.loads(invoke("--rounds", "2", "--json").stdout)
    assert facts["step"] is None
    assert facts["environment"]["python"] == platform.python_version()
    ours, loop, null, missing = facts["costs"]
    assert ours["best_ns"] is not None
    assert loop["name"] == "empty loop"
    assert null["median_ns"] is not None
    assert [cost["rounds"] for cost in facts["costs"]] == [2, 2, 2, 0]
    assert (missing["best_ns"], missing["missing"]) == (None, "it needs a GPU")


def test_a_bad_run_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(**_: Any) -> Any:
        raise AssertionError("it was measured all the same")

    monkeypatch.setattr(phase_costs, "measure_phase_costs", measure)
    none, damaged, stepless = (str(tmp_path / name) for name in ("none", "damaged", "stepless"))
    Path(damaged).write_bytes(b"not a run")
    Run().save(stepless)
    for file, message in (
        (none, f"Error: {none}: No such file or directory\n"),
        (damaged, f"Error: {damaged}: not a run file"),
        (stepless, f"Error: {stepless}: the run has no steps"),
    ):
        result = invoke(file)
        assert result.exit_code == 1
        assert message in result.stderr


def test_recordings_that_are_off_cannot_be_measured() -> None:
    done = run_script(
        """
import pytest
from pyinstrument_gpu.errors import RecordingError
from pyinstrument_gpu.overhead.phase_costs import measure_phase_costs
with pytest.raises(RecordingError, match="PYINSTRUMENT_GPU=0 turns all recording off"):
    measure_phase_costs()
print("said so")
""",
        environment={"PYINSTRUMENT_GPU": "0"},
    )
    assert done.stdout == "said so\n"


def test_it_cannot_be_measured_while_something_is_recorded() -> None:
    cores = os.sched_getaffinity(0)
    with pig.record(), pytest.raises(RecordingError, match="active"):
        measure_phase_costs([OURS, EMPTY_LOOP], rounds=1)
    assert os.sched_getaffinity(0) == cores
