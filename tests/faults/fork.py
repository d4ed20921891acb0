# SPDX-License-Identifier: Apache-2.0
"""Forked children: they record nothing, harm nothing, and do not hang.

Each program runs in a process of its own, so that no row forks pytest itself.
"""

import pyinstrument_gpu as pig
from tests.faults.fault import FaultGroup, Trial
from tests.helpers.script import run_script

FAULTS = FaultGroup("fork")

# `fork(child)` runs a function in a child, which then ends as those of multiprocessing do, and
# returns its exit code.
PREAMBLE = """
import os, sys, traceback, warnings
import pyinstrument_gpu as pig

# Python 3.12 and later warn of every fork beside a thread, such as the recorder's own.
warnings.filterwarnings("ignore", category=DeprecationWarning)

def fork(child):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

path = sys.argv[1]
"""


def parent_of(trial: Trial, script: str) -> pig.Run:
    """The run of a program that forks. It prints no error, and is complete."""
    assert run_script(PREAMBLE + script, trial.path).stderr == ""
    run = pig.Run.load(trial.path)
    assert run.complete
    return run


def counts_of(run: pig.Run) -> dict[str, int]:
    return {path: phase.count for path, phase in run.phases.items()}


@FAULTS.fault(
    done="A forked child records phases and steps, and ends a phase of its parent.",
    holds="It records nothing, and its parent's run has its own spans and no other.",
)
def child_records(trial: Trial) -> None:
    script = """
@pig.gpu_phase("decorated")
def decorated():
    yield

def child():
    with pig.gpu_phase("child"), pig.gpu_phase.scope("scope"), pig.gpu_step():
        list(decorated())
        list(pig.gpu_steps([1, 2]))
    pig.gpu_phase("parent").end()  # inherited as open

with pig.record(path) as recording:
    with pig.gpu_phase("parent"):
        assert fork(child) == 0
    with pig.gpu_phase("after"):
        pass
"""
    run = parent_of(trial, script)
    assert counts_of(run) == {"parent": 1, "after": 1}
    assert [thread.name for thread in run.threads] == ["MainThread"]
    assert not any(run.dropped.values())


@FAULTS.fault(
    done="A forked child asks for its parent's run, or stops its recording.",
    holds="It gets a `RecordingError` that names the parent, whose recording goes on.",
)
def child_uses_the_recording(trial: Trial) -> None:
    script = """
def child():
    for use in (recording.stop, recording.snapshot, lambda: recording.run):
        try:
            use()
        except pig.RecordingError as error:
            assert str(os.getppid()) in str(error), error
        else:
            raise AssertionError("the child used its parent's recording")

recording = pig.start(path)
assert fork(child) == 0
with pig.gpu_phase("after"):
    pass
recording.stop()
"""
    assert counts_of(parent_of(trial, script)) == {"after": 1}


@FAULTS.fault(
    done="A forked child leaves `with pig.record(...)` by an exception.",
    holds="The parent's recording goes on, and its run is complete.",
)
def child_leaves_the_block(trial: Trial) -> None:
    script = """
pid = None
try:
    with pig.record(path) as recording:
        with pig.gpu_phase("a"):
            pid = os.fork()
            if pid == 0:
                raise ValueError("in the child")
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        with pig.gpu_phase("b"):
            pass
except ValueError:
    assert pid == 0
    os._exit(7)
"""
    assert counts_of(parent_of(trial, script)) == {"a": 1, "b": 1}


@FAULTS.fault(
    done="A forked child ends with `sys.exit`, through the interpreter's own end.",
    holds="The parent's recording goes on, and its run is complete.",
)
def child_exits(trial: Trial) -> None:
    script = """
recording = pig.start(path)
with pig.gpu_phase("a"):
    pass
pid = os.fork()
if pid == 0:
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
with pig.gpu_phase("b"):
    pass
"""
    assert counts_of(parent_of(trial, script)) == {"a": 1, "b": 1}


@FAULTS.fault(
    done="A forked child makes a recording of its own.",
    holds="Both runs are whole, and neither has anything of the other.",
)
def child_has_its_own(trial: Trial) -> None:
    script = """
def child():
    with pig.record(path + ".child") as own:
        with pig.gpu_phase("child"):
            pass
        for _ in pig.gpu_steps([1, 2]):
            pass
    assert list(own.run.phases) == ["child", "data"]
    assert [step.index for step in own.run.steps] == [0, 1]
    assert own.run.open_phases == ()
    assert own.run.environment["pid"] == os.getpid()

with pig.record(path):
    with pig.gpu_phase("parent"), pig.gpu_step():
        assert fork(child) == 0
"""
    parent, child = parent_of(trial, script), pig.Run.load(f"{trial.path}.child")
    assert counts_of(parent) == {"parent": 1}
    assert counts_of(child) == {"child": 1, "data": 2}
    assert parent.environment["pid"] != child.environment["pid"]


@FAULTS.fault(
    done="A forked child wants to record into its parent's file.",
    holds="It gets a `RunPathError`, and the parent's run is whole.",
)
def child_takes_the_file(trial: Trial) -> None:
    script = """
def child():
    try:
        pig.start(path, overwrite=True)
    except pig.RunPathError as error:
        assert "another process is recording into it" in str(error), error
    else:
        raise AssertionError("the child took its parent's file")

with pig.record(path), pig.gpu_phase("parent"):
    assert fork(child) == 0
"""
    assert counts_of(parent_of(trial, script)) == {"parent": 1}


@FAULTS.fault(
    done="A process forks 5 times while three other threads record.",
    holds="No child hangs, each can record, and the parent loses no span.",
)
def threads_record(trial: Trial) -> None:
    """Whatever lock another thread holds at that moment, the child does not wait for it."""
    script = """
import threading

pig.Run  # imports numpy once, not in every child
running = threading.Barrier(4)
stop = threading.Event()

def work():
    running.wait()
    while not stop.is_set():
        with pig.gpu_phase("worker"):
            pass

def child():
    for i in range(100):
        with pig.gpu_phase("child"):
            pig.gpu_phase(f"new name {i}").begin()
    with pig.record() as own:
        with pig.gpu_phase("child"):
            pass
    assert own.run.phases["child"].count == 1

with pig.record(path) as recording:
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    running.wait()
    for _ in range(5):
        with pig.gpu_phase("fork"):
            assert fork(child) == 0
    stop.set()
    for thread in threads:
        thread.join()
run = recording.run
assert set(run.phases) == {"worker", "fork"}
assert run.phases["fork"].count == 5
assert run.phases_recorded == run.phases["worker"].count + 5
"""
    parent_of(trial, script)


@FAULTS.fault(
    done="A forked child outlives its parent's recording.",
    holds="It holds no lock on the file: the next recording can replace it.",
)
def child_lives_on(trial: Trial) -> None:
    """The child, which may live on, keeps nothing of the file."""
    script = """
with pig.record(path):
    read, write = os.pipe()
    read_ready, write_ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write_ready, b"1")
        os.close(write)
        os.read(read, 1)  # the parent's end
        os._exit(0)
    os.read(read_ready, 1)  # until it runs, it has what its parent had
    with pig.gpu_phase("a"):
        pass
with pig.record(path, overwrite=True) as second:  # nobody holds a lock on it
    with pig.gpu_phase("b"):
        pass
os.close(write)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
    assert counts_of(parent_of(trial, script)) == {"b": 1}


@FAULTS.fault(
    done="Workers of `multiprocessing` record phases: forked, spawned and from a server in turn.",
    holds="The parent's run is complete and has nothing of theirs.",
    times=2,
    thorough_times=1,
)
def workers(trial: Trial) -> None:
    method = ("fork", "spawn", "forkserver")[trial.number]
    program = trial.directory / "program.py"
    program.write_text(
        PREAMBLE
        + """
import multiprocessing

phase = pig.gpu_phase("worker")

def work(task):
    handle, number = task
    assert handle is phase
    with handle:
        return number + 1

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[2])
    with pig.record(path), context.Pool(2) as pool:
        tasks = [(phase, number) for number in range(20)]
        for item in pig.gpu_steps(pool.imap(work, tasks)):
            with pig.gpu_phase("train"):
                pass
        pool.close()
        pool.join()
"""
    )
    path = trial.path
    start = f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')"
    assert run_script(start, path, method).stderr == ""

    run = pig.Run.load(path)
    assert run.complete
    assert counts_of(run) == {"data": 20, "train": 20}
    assert len(run.steps) == 20


@FAULTS.fault(
    done="Workers of a `DataLoader` record phases.",
    holds="The parent's run is complete and has nothing of theirs.",
    times=0,
    thorough_times=1,
)
def data_loader(trial: Trial) -> None:
    script = """
import torch

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        with pig.gpu_phase("load"):
            return i * i

loader = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=2)
with pig.record(path):
    for epoch in range(2):
        steps = pig.gpu_steps(loader, samples=len)
        assert len(steps) == 3
        for batch in steps:
            with pig.gpu_phase("train"):
                batch.sum()
"""
    run = parent_of(trial, script)
    assert counts_of(run) == {"data": 6, "train": 6}
    assert [step.samples for step in run.steps] == [4] * 6


@FAULTS.fault(
    done="A child of `multiprocessing` records and ends without `stop`.",
    holds="Its run is complete.",
)
def child_without_stop(trial: Trial) -> None:
    script = """
import multiprocessing

def child():
    pig.start(path)
    with pig.gpu_phase("child"):
        pass

process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
assert process.exitcode == 0
"""
    assert counts_of(parent_of(trial, script)) == {"child": 1}
