# SPDX-License-Identifier: Apache-2.0
"""More than there is room for."""

import json
import os
from pathlib import Path

import _phase_loop  # type: ignore[import-not-found]
import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.aspects.memory import out_of_memory
from tests.faults.fault import FaultGroup, Trial
from tests.helpers.endurance import THREADS
from tests.helpers.script import run_script
from tests.helpers.spans import dropped_of

FAULTS = FaultGroup("memory")

MILLION = 1_000_000

# What the allocator's arenas and the interpreter may add. Of spans of 32 bytes, two million are
# 64 MB and 100 million 3200 MB.
MEMORY_SLACK_BYTES = 16 << 20

# The history is kept in blocks of 408 spans: one more than asked for is being filled, one is not
# yet dropped.
HISTORY_SLACK_SPANS = 2 * 408

NO_SPAN_LOST = (
    "The statistics have every span. What the history lacks is counted, and memory does not grow."
)


@FAULTS.fault(
    done="Eight threads record two million spans as fast as they can, with room for 50,000.",
    holds=NO_SPAN_LOST,
)
def two_million_spans(trial: Trial) -> None:
    check_no_span_is_lost([200_000, 800_000, MILLION], 50_000)


@FAULTS.fault(
    done="The same with 100 million spans and room for 200,000.",
    holds=NO_SPAN_LOST,
    times=0,
    slow_times=1,
)
def hundred_million_spans(trial: Trial) -> None:
    check_no_span_is_lost([MILLION, 9 * MILLION, *[10 * MILLION] * 9], 200_000)


@FAULTS.fault(
    done="A GPU runs out of memory.",
    holds="The run file says in which phase and step, and how much was asked for, before the "
    "program gets the exception.",
)
def out_of_gpu_memory(trial: Trial) -> None:
    with pig.record(trial.path), gpu_step(), gpu_phase("forward"):
        out_of_memory.observe(0, 300, 1000, 50)  # as the allocator does, before it raises
        memory = pig.Run.load(trial.path).memory
    assert memory is not None
    (event,) = memory.out_of_memory
    assert (event.path, event.step) == ("forward", 0)
    assert (event.request_bytes, event.limit_bytes, event.free_bytes) == (300, 1000, 50)


SPARE_BYTES = [0, *(1 << bits for bits in (16, 18, 20, 22, 23, 24, 25, 26, 27))]


@FAULTS.fault(
    done="A program's address space is limited to what it has, or to 64 KiB, 256 KiB, 1, 4, 8, 16, "
    "32, 64 or 128 MiB more (`RLIMIT_AS`), and it takes all of that. Then three threads use new "
    "names, scopes, decorated functions and steps, and the recording ends. With and without torch, "
    "in a file, in memory, and with `PYINSTRUMENT_GPU=0`.",
    holds="Nothing raises, and the program ends as it would have. What is not recorded is counted.",
    thorough_times=9,
    slow_times=50,
)
def no_memory(trial: Trial) -> None:
    if "LD_PRELOAD" in os.environ:
        pytest.skip("a sanitizer needs more address space than any limit leaves")
    turn, size = divmod(trial.number, len(SPARE_BYTES))
    is_off, in_memory, with_torch = turn == 5, turn % 2 == 1, turn in (2, 3)
    environment = {"MALLOC_ARENA_MAX": "1"}  # no thread has memory that others can't take
    if is_off:
        environment["PYINSTRUMENT_GPU"] = "0"
    done = run_script(
        "from tests.helpers.short_memory import main; main()",
        Path(_phase_loop.__file__).with_name("inject_no_memory.so"),
        SPARE_BYTES[size],
        "" if in_memory else trial.path,
        *(["torch"] if with_torch else []),
        environment=environment,
        is_fresh=True,
    )
    facts = json.loads(done.stdout)
    if is_off:
        return
    assert facts["complete"], facts
    assert facts["no_memory"] > 0, facts
    assert facts["recorded"] == facts["counts"] >= facts["spans"], facts


def check_no_span_is_lost(stages: list[int], history_spans: int) -> None:
    spans = sum(stages)

    facts = json.loads(
        run_script(
            "from tests.helpers.endurance import main; main()",
            *stages,
            "--history-spans",
            history_spans,
        ).stdout
    )

    assert facts["counts"] == {"outer": spans // 2, "outer/inner": spans // 2}
    assert facts["phases_recorded"] == spans
    assert facts["threads"] == THREADS
    # Nothing else may be lost than history, and each lost span is counted once.
    assert facts["dropped"].keys() <= {"ring_full", "span_history"}
    assert facts["retained"] + sum(facts["dropped"].values()) == spans
    assert 0 <= facts["retained"] - history_spans <= HISTORY_SLACK_SPANS
    first_bytes, *later_bytes = facts["resident_bytes"]
    assert max(later_bytes) - first_bytes < MEMORY_SLACK_BYTES, facts["resident_bytes"]


@FAULTS.fault(
    done="A file reaches `max_bytes`, here 1 MiB.",
    holds="It does not grow any more and has the newest spans. The statistics have all spans, and "
    "those that are missing in the history are counted.",
)
def max_bytes(trial: Trial) -> None:
    spans = 200_000
    with pig.record(trial.path, max_bytes=1 << 20) as recording:
        for number in range(1, spans + 1):
            with gpu_phase("a"):
                pass
            if number % 8000 == 0:  # a ring holds 8192
                recording.snapshot()
                assert trial.path.stat().st_size <= 1 << 20
    run = recording.run
    assert run.phases["a"].count == run.phases_recorded == spans
    assert 15_000 < len(run.spans) < spans
    assert dropped_of(run) == {"span_history": spans - len(run.spans)}
    assert run.complete


@FAULTS.fault(
    done="A loop makes 66,000 names of phases, more than there is room for.",
    holds="No name raises. The spans of those beyond 65,535 are recorded under one common name, "
    "and counted.",
    times=0,
    thorough_times=1,
)
def names(trial: Trial) -> None:
    script = """
import pyinstrument_gpu as pig
with pig.record() as recording:
    for i in range(66_000):
        with pig.gpu_phase(f"step {i}"):
            pass
run = recording.run
# "data" and "step" have names too, and of the paths the last two stand for "too many".
assert run.dropped["names"] == 66_000 - 65_533, run.dropped
assert run.phases_recorded == 66_000
assert run.phases["step 0"].count == 1
assert sum(phase.count for phase in run.phases.values()) == 66_000
assert run.phases["(too many names)"].count == 66_000 - 65_533
"""
    run_script(script)
