# SPDX-License-Identifier: Apache-2.0
"""Threads that come, go and record at moments that suit nobody."""

import asyncio
import os
import sys
import threading

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase
from tests.faults.fault import FaultGroup, Trial
from tests.helpers.script import run_script
from tests.helpers.spans import dropped_of
from tests.helpers.threads import ended_thread

FAULTS = FaultGroup("threads")


@FAULTS.fault(
    done="Recordings begin and end while four threads record without a pause.",
    holds="A run has what each thread recorded in between, except that the span it was in at "
    "either end may be missing. No span is in two runs.",
    times=1,
    thorough_times=1,
    slow_times=95,
)
def record_all_the_time(trial: Trial) -> None:
    threads = 4
    done = [0] * threads
    quit_now = threading.Event()
    running = threading.Barrier(threads + 1)

    def work(number: int) -> None:
        phase = gpu_phase(f"thread {number}")
        running.wait()
        while not quit_now.is_set():
            with phase:
                pass
            done[number] += 1

    workers = [threading.Thread(target=work, args=[number]) for number in range(threads)]
    for worker in workers:
        worker.start()
    running.wait()
    first = list(done)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)  # many moments at which another thread goes on
    runs = []
    try:
        for i in range(3):
            before = list(done)
            recording = pig.start(trial.path if i == 1 else None)
            begun = list(done)
            while any(now == seen for now, seen in zip(done, begun, strict=True)):
                os.sched_yield()
            ending = list(done)
            run = recording.stop()
            after = list(done)
            runs.append(run)
            for number in range(threads):
                count = run.phases[f"thread {number}"].count
                assert (
                    ending[number] - begun[number] - 1
                    <= count
                    <= after[number] - before[number] + 1
                )
            assert run.complete
            assert run.phases_recorded == sum(phase.count for phase in run.phases.values())
            kept = run.phases_recorded - run.dropped["ring_full"]
            assert len(run.spans) == kept
    finally:
        quit_now.set()
        sys.setswitchinterval(interval_s)
        for worker in workers:
            worker.join()
    recorded = sum(run.phases_recorded for run in runs)
    assert recorded <= sum(done) - sum(first) + threads


@FAULTS.fault(
    done="500 threads record one after the other, and half of them end inside a phase.",
    holds="Each has its own name and all its spans. The phases left open are counted.",
)
def short_lived(trial: Trial) -> None:
    """Each gets the state of one that has ended: nothing of that one may be left in it."""
    threads, spans = 500, 20

    def work(number: int) -> None:
        for _ in range(spans):
            with gpu_phase(f"thread {number % 7}"):
                pass
        if number % 2:
            gpu_phase("left open").begin()

    with pig.record() as recording:
        for number in range(threads):
            ended_thread(work, number, name=str(number))
            if number % 10 == 0:
                recording.snapshot()  # takes in what ended

    run = recording.run
    assert [thread.name for thread in run.threads] == [str(number) for number in range(threads)]
    assert run.phases_recorded == len(run.spans) == threads * spans
    assert dropped_of(run) == {"open_at_thread_end": threads // 2}
    for number in (0, 1, threads - 1):
        own = run.spans[run.spans["thread"] == number]
        assert {run.paths[path] for path in own["path"]} == {f"thread {number % 7}"}
        assert len(own) == spans


@FAULTS.fault(
    done="The interpreter ends while a daemon thread records.",
    holds="The program ends as it would have, and the run is complete.",
    times=1,
    thorough_times=2,
    slow_times=47,
)
def daemon_at_exit(trial: Trial) -> None:
    script = """
import sys, threading
import pyinstrument_gpu as pig
recording = pig.start(sys.argv[1])
running = threading.Event()

def work():
    while True:
        with pig.gpu_phase("a"):
            running.set()

threading.Thread(target=work, daemon=True).start()
running.wait()
"""
    assert run_script(script, trial.path).stderr == ""

    run = pig.Run.load(trial.path)
    assert run.complete
    assert run.phases["a"].count == run.phases_recorded > 0


@FAULTS.fault(
    done="Eight threads start and stop recordings, ten times each, all at once.",
    holds="Each time a thread gets a run, which has what it has recorded and nothing of the "
    "others, or a `RecordingActiveError` as it starts.",
    times=1,
    slow_times=99,
)
def start_all_at_once(trial: Trial) -> None:
    threads = 8
    errors: list[BaseException] = []
    ready = threading.Barrier(threads)

    def race(number: int) -> None:
        ready.wait()
        for turn in range(1, 11):
            try:
                recording = pig.start()
            except pig.RecordingActiveError:
                continue
            for _ in range(turn):
                with gpu_phase(f"thread {number}"):
                    pass
            run = recording.stop()
            # Only who has the recording records.
            counts = {path: phase.count for path, phase in run.phases.items()}
            assert counts == {f"thread {number}": turn}
            assert run.complete
            assert run is recording.run

    def target(number: int) -> None:
        try:
            race(number)
        except BaseException as error:
            errors.append(error)

    racing = [threading.Thread(target=target, args=[number]) for number in range(threads)]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(0.00001)
    try:
        for thread in racing:
            thread.start()
        for thread in racing:
            thread.join()
    finally:
        sys.setswitchinterval(interval_s)
    assert errors == []


@FAULTS.fault(
    done="64 threads record at once, each in an event loop of its own with eight tasks, and with "
    "names of its own.",
    holds="The run is complete, each span is in the statistics, and none lies within a phase of "
    "another task.",
    thorough_times=2,
    slow_times=50,
)
def many_threads_with_tasks(trial: Trial) -> None:
    threads, tasks, turns = 64, 8, 5

    async def work(name: str) -> None:
        for _ in range(turns):
            with gpu_phase(name):
                await asyncio.sleep(0)
                with gpu_phase("inside"):
                    await asyncio.sleep(0)

    async def work_in_tasks(names: list[str]) -> None:
        await asyncio.gather(*map(work, names))

    names = [[f"{thread}.{task}" for task in range(tasks)] for thread in range(threads)]
    workers = [threading.Thread(target=asyncio.run, args=[work_in_tasks(own)]) for own in names]
    with pig.record(trial.path) as recording:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    counts = {path: phase.count for path, phase in recording.run.phases.items()}
    expected = [path for own in names for name in own for path in (name, f"{name}/inside")]
    assert counts == dict.fromkeys(expected, turns)
    assert recording.run.complete
    assert dropped_of(recording.run) == {}
