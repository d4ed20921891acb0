# SPDX-License-Identifier: Apache-2.0
"""What a recording does where an allocation fails: each of them in turn, and all from it on."""

import os
from pathlib import Path

import _phase_loop  # type: ignore[import-not-found]
import pytest

from tests.helpers.script import run_script

LIBRARY = Path(_phase_loop.__file__).with_name("inject_no_memory.so")

pytestmark = pytest.mark.skipif(
    "LD_PRELOAD" in os.environ, reason="another library has replaced the allocation functions"
)

# Does `action(name)` again and again, with a new name each time. Each time another allocation of
# the native module fails, until none does any more.
HARNESS = """
import ctypes, itertools, threading
import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step, gpu_steps

allocations = ctypes.CDLL(None)
names = map("a name of many characters, {}".format, itertools.count())

def for_each_failure(action):
    did_fail = False
    for is_last in (True, False):
        for nth in itertools.count(1):
            name = next(names)
            allocations.fail_allocations(nth, nth if is_last else 1 << 30)
            try:
                action(name)
            finally:
                failed = allocations.allocations_failed()
            did_fail = did_fail or failed > 0
            if failed == 0:
                break
    assert did_fail
"""


def run_failing(source: str, *arguments: object) -> None:
    environment = {"LD_PRELOAD": os.fspath(LIBRARY)}
    run_script(HARNESS + source, *arguments, environment=environment, is_fresh=True)


USES = {
    "phase": "with gpu_phase(name): pass",
    "scope": "with gpu_phase.scope(name): pass",
    "step": "with gpu_step(), gpu_phase(name): pass",
    "begin": "gpu_phase(name).begin(); gpu_phase(name).end()",
    "decorator": "gpu_phase(name)(lambda: None)()",
    "steps": "for _ in gpu_steps([name]): pass",
}


def test_a_name_without_memory_gets_a_handle_and_later_its_own() -> None:
    run_failing("""
got = []
for_each_failure(lambda name: got.append((name, gpu_phase(name))))
shared = {phase.name for name, phase in got if phase.name != name}
assert shared == {"(no memory for the name)"}, shared
assert all(gpu_phase(name).name == name for name, _ in got)
""")


@pytest.mark.parametrize("use", USES)
def test_a_use_that_finds_no_memory_is_counted(use: str) -> None:
    run_failing(f"""
def use(name):
    {USES[use]}

with pig.record() as recording:
    for_each_failure(use)
    use("with memory")
run = recording.run
assert run.complete and run.notes == (), run.notes
assert run.dropped["no_memory"] > 0
assert run.phases_recorded == sum(phase.count for phase in run.phases.values()) == len(run.spans)
assert any(phase.count for phase in run.phases.values())
""")


def test_a_new_thread_without_memory_records_nothing_and_goes_on() -> None:
    run_failing("""
def in_thread(name):
    def work():
        allocations.fail_allocations(*failing)
        with gpu_phase(name):
            pass
        done.append((allocations.allocations_failed(), name))
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

with pig.record() as recording:
    for is_last in (True, False):
        for nth in itertools.count(1):
            failing, done = (nth, nth if is_last else 1 << 30), []
            in_thread(next(names))
            ((failed, _),) = done  # it came to its end
            if failed == 0:
                break
        assert nth > 3, nth  # its state, its stack and its ring, at the least
run = recording.run
assert run.complete and run.dropped["no_memory"] > 0
# A thread that could not be noted leaves nothing behind.
assert len(run.threads) <= run.phases_recorded + run.dropped["no_memory"]
assert run.phases_recorded == sum(phase.count for phase in run.phases.values()) == len(run.spans)
""")


@pytest.mark.parametrize("where", ["file", "memory"])
def test_a_harvest_without_memory_ends_the_history_and_says_so(where: str, tmp_path: Path) -> None:
    """In a file the statistics go on. In memory the names may be missing."""
    run_failing(
        """
import sys, warnings
warnings.simplefilter("ignore", RuntimeWarning)

def snapshot(name):
    path = None if sys.argv[1] == "memory" else f"{sys.argv[2]}/{nth}.gpurun"
    with pig.record(path) as recording:
        with gpu_step(), gpu_phase(name):
            pass
        allocations.fail_allocations(nth, nth)
        try:
            recording.snapshot()
        except pig.RecordingError as error:
            assert "there is no memory" in str(error)
        failures.append(allocations.allocations_failed())
        with gpu_phase(name):
            pass
    run = recording.run
    counted = sum(phase.count for phase in run.phases.values())
    has_ended = "the history ends early: Cannot allocate memory" in run.notes
    assert has_ended or run.notes == (), run.notes
    assert counted == run.phases_recorded or (has_ended and path is None)
    assert run.phases_recorded == 2 or run.dropped["no_memory"] == 1
    assert len(run.spans) == run.phases_recorded or has_ended
    ended.append(has_ended)

failures, ended = [1], []
for nth in itertools.count(1):
    if failures[-1] == 0:
        break
    snapshot(next(names))
assert any(ended) and not ended[-1]
""",
        where,
        tmp_path,
    )


@pytest.mark.parametrize("where", ["file", "memory"])
def test_a_block_ends_without_memory(where: str, tmp_path: Path) -> None:
    """And its run is read once there is memory again, with a note."""
    run_failing(
        """
import sys

def record(name):
    path = None if sys.argv[1] == "memory" else f"{sys.argv[2]}/{name}.gpurun"
    with pig.record(path) as recording:
        with gpu_phase(name):
            pass
        allocations.fail_allocations(nth, last)
    failures.append(allocations.allocations_failed())
    run = recording.run
    if failures[-1] == 0:
        assert run.complete and run.notes == (), run.notes
    assert run.complete or run.dropped["no_memory"] > 0 or run.notes

for is_last in (True, False):
    failures = [1]
    for nth in itertools.count(1):
        last = nth if is_last else 1 << 30
        if failures[-1] == 0:
            break
        record(next(names))
    assert len(failures) > 3
""",
        where,
        tmp_path,
    )


def test_memory_that_python_lacks_for_our_objects_is_counted() -> None:
    pytest.importorskip("_testcapi")
    run_script("""
import _testcapi
import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step, gpu_steps

def function(): pass

decorated, items = gpu_phase("decorated")(function), [1, 2]
steps = gpu_steps(items)
calls = {
    "phase": lambda: gpu_phase(name),
    "scope": lambda: gpu_phase.scope(name),
    "step": lambda: gpu_step(),
    "steps": lambda: gpu_steps(items),
    "iterator": lambda: iter(steps),
    "decorated": lambda: decorated(),
    "decorator": lambda: gpu_phase("decorated")(function),
}
with pig.record() as recording:
    for what, call in calls.items():
        name = what
        call()  # up to Python 3.10 the interpreter takes memory for a function that it first calls
        for nth in range(1, 40):
            name = f"{what} {nth}"
            _testcapi.set_nomemory(nth, nth + 1)
            try:
                got = call()
            finally:
                _testcapi.remove_mem_hooks()
            if what in ("phase", "scope", "step"):
                with got:
                    pass
            elif what in ("steps", "iterator"):
                assert list(got) == items
run = recording.run
assert run.complete and run.dropped["no_memory"] > 0, run.dropped
""")
