# SPDX-License-Identifier: Apache-2.0

import gc
import importlib
import inspect
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step, gpu_steps
from pyinstrument_gpu.core.file import MAGIC
from tests.helpers.clock import fake_clock
from tests.helpers.script import run_script
from tests.helpers.spans import dropped_of, times_of
from tests.helpers.threads import on_thread

# Fewer than half a thread's ring holds: brought into the log by a snapshot, none is lost before.
CHUNK = 4000

SPANS_IN_A_BLOCK = 408


# --- record, start, stop, run, snapshot ---


@pytest.mark.parametrize("in_file", [False, True])
def test_with_block(tmp_path: Path, in_file: bool) -> None:
    path = tmp_path / "train.gpurun" if in_file else None
    with fake_clock() as tick, pig.record(path) as recording:
        tick(1)
        with gpu_step(), gpu_phase("a"):
            tick(1)

    run = recording.run
    assert recording.path == path
    assert run is recording.run is recording.stop()
    assert run.complete
    assert run.notes == ()
    assert times_of(run) == [("a", 1, 2)]
    assert len(run.steps) == 1
    if path is not None:
        assert times_of(pig.Run.load(path)) == [("a", 1, 2)]


def test_exception_in_the_block_passes_through_and_completes_the_run() -> None:
    error = ValueError("x")
    with pytest.raises(ValueError) as caught, pig.record() as recording:
        raise error

    assert caught.value is error
    assert recording.run.complete


def _ctrl_c() -> None:
    raise KeyboardInterrupt


def test_start_that_is_interrupted_leaves_nothing_active(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("pyinstrument_gpu.recording.environment.overhead_facts", _ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            pig.start()

    pig.start().stop()


def test_stop_inside_the_block() -> None:
    with pig.record() as recording:
        run = recording.stop()

    assert recording.run is run


def test_run_is_there_only_after_the_end() -> None:
    with pig.record() as recording, pytest.raises(pig.RecordingError, match="has not stopped"):
        _ = recording.run
    assert recording.run.complete


def test_recording_that_was_never_started() -> None:
    recording = pig.record()

    for use in (recording.stop, recording.snapshot):
        with pytest.raises(pig.RecordingError, match="never started"):
            use()
    with pytest.raises(pig.RecordingError):
        _ = recording.run


def test_recording_is_started_once() -> None:
    recording = pig.record()
    with recording:
        pass
    with pytest.raises(pig.RecordingError, match="started once"), recording:
        pass


@pytest.mark.parametrize("in_file", [False, True])
def test_snapshot(tmp_path: Path, in_file: bool) -> None:
    with fake_clock() as tick, pig.record(tmp_path / "a.gpurun" if in_file else None) as recording:
        with gpu_phase("a"):
            tick(1)
        with gpu_phase("open"):
            tick(1)
            first = recording.snapshot()
        second = recording.snapshot()

    assert times_of(first) == [("a", 0, 1)]
    assert [(phase.path, phase.begin_ns) for phase in first.open_phases] == [("open", 1)]
    assert first.phases["a"].count == 1
    assert times_of(second) == times_of(recording.run) == [("a", 0, 1), ("open", 1, 2)]
    assert second.open_phases == ()
    assert (first.complete, second.complete, recording.run.complete) == (False, False, True)
    assert recording.snapshot() is recording.run


def test_recordings_one_after_the_other_share_nothing() -> None:
    runs = []
    with fake_clock() as tick:
        for name in ("a", "b"):
            with pig.record() as recording, gpu_step(), gpu_phase(name):
                tick(1)
                gpu_phase("unmatched").end()
            runs.append(recording.run)

    assert [times_of(run) for run in runs] == [[("a", 0, 1)], [("b", 0, 1)]]
    assert [run.names for run in runs] == [("a",), ("b",)]
    assert [len(run.steps) for run in runs] == [1, 1]
    assert [dropped_of(run) for run in runs] == [{"unmatched_ends": 1}] * 2


def test_one_recording_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "second.gpurun"
    with fake_clock() as tick, pig.record(tmp_path / "first.gpurun") as first:
        with pytest.raises(pig.RecordingActiveError, match=r"first\.gpurun"):
            pig.start(path)
        with gpu_phase("a"):
            tick(1)

    assert not path.exists()
    assert times_of(first.run) == [("a", 0, 1)]


# --- paths ---


def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.gpurun"
    path.write_bytes(b"precious")
    with pytest.raises(pig.RunPathError, match=r"a\.gpurun already exists.*overwrite=True"):
        pig.start(path)

    assert path.read_bytes() == b"precious"


def test_existing_file_is_overwritten_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.gpurun"
    path.write_bytes(MAGIC + b"x" * 10_000_000)  # damaged behind its first bytes
    with pig.record(path, overwrite=True) as recording, gpu_phase("a"):
        pass

    assert list(recording.run.phases) == ["a"]
    assert path.stat().st_size < 1_000_000


@pytest.mark.parametrize("is_link", [False, True], ids=["source", "link to a run"])
def test_only_a_run_file_is_overwritten(tmp_path: Path, is_link: bool) -> None:
    path, other = tmp_path / "train.py", tmp_path / "other.gpurun"
    content = MAGIC if is_link else b"print('precious')"
    other.write_bytes(content)
    if is_link:
        path.symlink_to(other)
    else:
        other.rename(path)
    with pytest.raises(pig.RunPathError, match=r"train\.py is .*overwrite=True.*only run files"):
        pig.start(path, overwrite=True)

    assert path.read_bytes() == content
    assert path.is_symlink() == is_link
    assert len(list(tmp_path.iterdir())) == 1 + is_link


@pytest.mark.parametrize(
    "name",
    ["missing/a.gpurun", "directory", "file/a.gpurun", "n" * 300],
    ids=lambda name: name[:20],
)
def test_path_that_can_not_be_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(pig.RunPathError):
        pig.start(tmp_path / name, overwrite=True)

    with pig.record() as recording:  # nothing of the attempt is left
        pass
    assert recording.run.complete


def test_directory_as_path(tmp_path: Path) -> None:
    with pytest.raises(pig.RunPathError, match="is a directory"):
        pig.start(tmp_path, overwrite=True)
    with pytest.raises(pig.RunPathError, match="create it first"):
        pig.start(tmp_path / "missing" / "train.gpurun")


def test_path_with_a_null_character(tmp_path: Path) -> None:
    with pytest.raises((pig.RunPathError, ValueError)):
        pig.start(tmp_path / "a\0b.gpurun").stop()

    assert list(tmp_path.iterdir()) == []


def test_path_that_is_no_unicode(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff.gpurun")
    with pig.record(path) as recording, gpu_phase("a"):
        pass

    assert list(recording.run.phases) == ["a"]
    assert list(tmp_path.iterdir()) == [path]


def test_relative_path_when_the_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pig.record("a.gpurun") as recording, gpu_phase("a"):
        monkeypatch.chdir("/")

    assert list(recording.run.phases) == ["a"]


# --- ranks ---


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("train.gpurun", "train.rank3.gpurun"),
        ("train.v1.gpurun", "train.v1.rank3.gpurun"),
        ("train", "train.rank3"),
        ("train-{rank}.gpurun", "train-3.gpurun"),
        ("{rank}/train.gpurun", "3/train.gpurun"),
        ("{rank}/train-{rank}.gpurun", "3/train-3.gpurun"),
        # The program has put it there.
        ("train.rank3.gpurun", "train.rank3.gpurun"),
        ("Rank_03.gpurun", "Rank_03.gpurun"),
        # These are of another rank, or of none.
        ("train.rank0.gpurun", "train.rank0.rank3.gpurun"),
        ("train.rank31.gpurun", "train.rank31.rank3.gpurun"),
        ("frank3.gpurun", "frank3.rank3.gpurun"),
    ],
)
def test_rank_goes_into_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, expected: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    (tmp_path / expected).parent.mkdir(exist_ok=True)
    with pig.record(tmp_path / path) as recording:
        pass

    assert recording.path == tmp_path / expected
    assert recording.path.exists()
    assert recording.run.environment["rank"] == 3
    assert recording.run.environment["world_size"] == 4


@pytest.mark.parametrize(
    ("requeues", "restarts", "path", "expected"),
    [
        ("0", "0", "train.gpurun", "train.rank3.gpurun"),
        ("", "2", "train.gpurun", "train.restart2.rank3.gpurun"),
        ("1", "", "train.gpurun", "train.requeue1.rank3.gpurun"),
        ("1", "2", "train-{rank}.gpurun", "train-3.requeue1.restart2.gpurun"),
    ],
)
def test_attempt_goes_into_the_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    requeues: str,
    restarts: str,
    path: str,
    expected: str,
) -> None:
    for name, value in (("WORLD_SIZE", "4"), ("RANK", "3")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_RESTART_COUNT", requeues)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
    with pig.record(tmp_path / path) as recording:
        pass

    assert recording.path == tmp_path / expected
    assert recording.run.environment.get("restarts") == (int(restarts) if restarts else None)


def test_an_attempt_that_torchrun_does_not_count_has_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    first, second = (tmp_path / f"train.restart{count}.gpurun" for count in (1, 2))
    first.touch()
    since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.time()

    written_s = first.stat().st_mtime + since_boot_s

    def path_if(began_s: int, agent_began_s: int) -> Path | None:
        began = {os.getpid(): began_s, os.getppid(): agent_began_s}
        monkeypatch.setattr(
            "pyinstrument_gpu.core.file.run_path.begin_of_process_s",
            lambda pid: written_s + began[pid],
        )
        return pig.record(tmp_path / "train.gpurun").path

    assert path_if(began_s=10, agent_began_s=-10) == second
    assert path_if(began_s=10, agent_began_s=10) == first  # the file is of another job
    assert path_if(began_s=-10, agent_began_s=-20) == first  # it is of this process


@pytest.mark.parametrize("world_size", [None, "1", "many"])
def test_rank_of_a_single_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world_size: str | None
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    if world_size is None:
        monkeypatch.delenv("WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("WORLD_SIZE", world_size)

    assert pig.record(tmp_path / "a.gpurun").path == tmp_path / "a.gpurun"
    assert pig.record(tmp_path / "a-{rank}.gpurun").path == tmp_path / "a-0.gpurun"


# --- arguments ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_bytes": (1 << 20) - 1}, "max_bytes must be an int >= 1048576"),
        ({"max_bytes": 1e9}, "max_bytes must be an int"),
        ({"history_spans": -1}, "history_spans must be an int >= 0 or None"),
        ({"history_spans": 1.5}, "history_spans must be an int"),
        ({"device_timing": True}, "device_timing must be"),
    ],
)
def test_arguments_are_checked_at_once(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pig.record(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [pig.record, pig.start])
def test_a_wrong_keyword_names_the_right_ones(function: Callable[..., pig.Recording]) -> None:
    names = "flops, stacks, compiled_phases, watchdog_s, on_hang, arguments, aspects, sinks"
    with pytest.raises(TypeError, match=rf"^{function.__name__}\(\) .*'overwrit'.*{names}$"):
        function(overwrit=True)


def test_record_and_start_say_what_they_take() -> None:
    assert inspect.signature(pig.record) == inspect.signature(pig.start)
    assert list(inspect.signature(pig.record).parameters)[:2] == ["path", "overwrite"]


NO_ROOM = """
import os, resource, sys
import pyinstrument_gpu as pig

folder = sys.argv[1]
path = folder + "/train.gpurun"
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
for overwrite in (False, True):
    resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 10, most))
    try:
        pig.start(path, overwrite=overwrite)
    except pig.RunPathError as error:
        assert "File too large" in str(error), error
    else:
        raise SystemExit("it has begun")
    assert os.listdir(folder) == []
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    with pig.record(path):
        pass
    os.remove(path)
"""


def test_a_recording_that_could_not_begin_leaves_no_file(tmp_path: Path) -> None:
    run_script(NO_ROOM, tmp_path)


def test_limits_of_any_size() -> None:
    with pig.record(max_bytes=2**80, history_spans=2**80) as recording, gpu_phase("a"):
        pass

    assert recording.run.phases["a"].count == 1


# --- the environment ---


def test_environment_of_the_run() -> None:
    with fake_clock(), pig.record() as recording:
        pass

    environment = recording.run.environment
    assert environment["pid"] == os.getpid()
    assert environment["command"] == sys.orig_argv
    assert environment["arguments"] == sys.argv
    assert environment["version"] == pig.__version__
    assert environment["clock"] == {"kind": "injected", "frequency_hz": 1e9}
    assert environment["anchor"]["run_ns"] == 0
    assert recording.run.overhead["phase_ns"] >= 0


def test_working_directory_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()
    with pig.record(tmp_path / "a.gpurun") as recording:
        pass

    assert recording.run.complete


# --- PYINSTRUMENT_GPU=0 ---


def test_off(tmp_path: Path) -> None:
    script = """
import os, sys
import pyinstrument_gpu as pig

@pig.gpu_phase("f")
def function():
    return 1

path = sys.argv[1]
with pig.record(path) as recording:
    for item in pig.gpu_steps([1, 2]):
        with pig.gpu_phase("a"), pig.gpu_phase.scope("b"), pig.gpu_step():
            function()
    snapshot = recording.snapshot()
assert os.listdir(os.path.dirname(path)) == []
assert recording.run is recording.stop()
for run in (snapshot, recording.run, pig.start(path).stop()):
    assert len(run.spans) == len(run.steps) == len(run.phases) == 0
    assert "PYINSTRUMENT_GPU in the environment turns it off" in run.report(verbose=True)
"""
    run_script(script, tmp_path / "a.gpurun", environment={"PYINSTRUMENT_GPU": "0"})


# --- bounds ---


@pytest.mark.parametrize("in_file", [False, True])
def test_max_bytes_drops_the_oldest_spans(tmp_path: Path, in_file: bool) -> None:
    max_bytes = 1 << 20
    chunks = 15
    path = tmp_path / "a.gpurun" if in_file else None
    sizes = []
    with fake_clock() as tick, pig.record(path, max_bytes=max_bytes) as recording:
        for _ in range(chunks):
            for _ in range(CHUNK):
                with gpu_phase("a"):
                    tick(1)
            recording.snapshot()
            if path is not None:
                sizes.append(path.stat().st_size)

    run = recording.run
    spans = chunks * CHUNK
    kept = len(run.spans)
    assert all(size <= max_bytes for size in sizes)
    assert 15_000 < kept < spans
    assert run.spans["host_begin_ns"].tolist() == list(range(spans - kept, spans))
    assert dropped_of(run) == {"span_history": spans - kept}
    assert run.phases_recorded == spans
    host = run.phases["a"].host
    assert host is not None
    assert (host.count, host.total_ns, host.min_ns, host.max_ns) == (spans, spans, 1, 1)
    assert run.complete


def test_max_bytes_drops_the_oldest_steps_too(tmp_path: Path) -> None:
    max_bytes = 1 << 20
    steps = 22_000
    with fake_clock() as tick, pig.record(tmp_path / "a.gpurun", max_bytes=max_bytes) as recording:
        for i in range(steps):
            with gpu_step():
                tick(1)
            if i % CHUNK == 0:
                recording.snapshot()

    run = recording.run
    kept = len(run.steps)
    assert (tmp_path / "a.gpurun").stat().st_size <= max_bytes
    assert 13_000 < kept < steps
    assert run.steps.array["index"].tolist() == list(range(steps - kept, steps))
    assert run.steps.array["begin_ns"].tolist() == list(range(steps - kept, steps))
    assert dropped_of(run) == {"step_history": steps - kept}
    assert run.step_totals.count == run.step_totals.duration.total_ns == steps


def test_statistics_in_the_file_have_the_spans_that_its_history_dropped(tmp_path: Path) -> None:
    path = tmp_path / "run.gpurun"
    with fake_clock() as advance_ns, pig.record(path, history_spans=0) as recording:
        for _ in range(5 * SPANS_IN_A_BLOCK):
            with gpu_phase("a"):
                pass
        # Less than what otherwise passes between the statistics in the file and the next.
        advance_ns(900_000_000)
        recording.flush()
        run = pig.Run.load(path)
    assert len(run.spans) < 5 * SPANS_IN_A_BLOCK
    assert run.phases["a"].count == run.phases_recorded == 5 * SPANS_IN_A_BLOCK
    assert not any("statistics" in note for note in run.notes)


@pytest.mark.parametrize("history_spans", [0, 1, 1000, 3 * SPANS_IN_A_BLOCK])
def test_history_spans_keeps_at_least_so_many_of_the_newest(history_spans: int) -> None:
    with fake_clock() as tick, pig.record(history_spans=history_spans) as recording:
        for _ in range(CHUNK):
            with gpu_phase("a"):
                tick(1)

    run = recording.run
    kept = len(run.spans)
    assert history_spans <= kept <= history_spans + 2 * SPANS_IN_A_BLOCK
    assert run.spans["host_begin_ns"].tolist() == list(range(CHUNK - kept, CHUNK))
    assert dropped_of(run) == {"span_history": CHUNK - kept}
    assert run.phases["a"].count == CHUNK


def test_spans_of_steps_that_were_dropped_keep_their_numbers(tmp_path: Path) -> None:
    """Also where loaders ran dry in between, whose steps have no number."""
    epochs, items = 60, 50
    with fake_clock() as tick, pig.record(history_spans=0, max_bytes=1 << 20) as recording:
        for epoch in range(epochs):
            for _ in gpu_steps(range(items)):
                tick(1)
            if epoch % 20 == 0:
                recording.snapshot()

    run = recording.run
    assert run.dropped["span_history"] > 0
    assert run.spans["step"].tolist() == run.spans["host_begin_ns"].tolist()
    assert run.spans["step"].tolist()[-1] == epochs * items - 1


# --- the end of the process ---

RECORD_AND_END = """
import os, sys
import pyinstrument_gpu as pig
recording = pig.start(sys.argv[1])
for _ in pig.gpu_steps([1, 2]):
    with pig.gpu_phase("a"):
        pass
pig.gpu_phase("open").begin()
"""


def test_recording_that_has_ended_is_let_go() -> None:
    importlib.import_module("multiprocessing.util")  # it keeps what is to be called at the end
    with pig.record() as recording:
        pass
    gone = weakref.ref(recording)
    gc.disable()
    try:
        del recording
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("end", "exit_code"), [("", 0), ("sys.exit(3)", 3), ("raise ValueError('x')", 1)]
)
def test_interpreter_that_exits_without_stop_completes_the_run(
    tmp_path: Path, end: str, exit_code: int
) -> None:
    path = tmp_path / "a.gpurun"
    done = run_script(RECORD_AND_END + end, path, exit_code=exit_code)

    run = pig.Run.load(path)
    assert "pyinstrument_gpu" not in done.stderr
    assert run.complete
    assert {path: phase.count for path, phase in run.phases.items()} == {"data": 2, "a": 2}
    assert [step.complete for step in run.steps] == [True, True]
    assert [phase.path for phase in run.open_phases] == ["open"]


def test_process_that_ends_at_once_leaves_a_file_that_loads(tmp_path: Path) -> None:
    path = tmp_path / "a.gpurun"
    run_script(RECORD_AND_END + "recording.snapshot(); os._exit(7)", path, exit_code=7)

    run = pig.Run.load(path)
    assert not run.complete
    assert run.notes
    assert {path: phase.count for path, phase in run.phases.items()} == {"data": 2, "a": 2}
    assert len(run.steps) == 2
    assert [phase.path for phase in run.open_phases] == ["open"]


# --- threads ---


def test_threads_have_the_names_python_knows() -> None:
    native_ids = []

    def work() -> None:
        native_ids.append(threading.get_native_id())
        with gpu_phase("a"):
            pass

    names = ["loader", "\N{FIRE}", "", "n" * 256]
    with pig.record() as recording:
        for name in names:
            thread = threading.Thread(target=work, name="to be renamed")
            thread.name = name
            thread.start()
            thread.join()

    threads = recording.run.threads
    assert [thread.name for thread in threads] == names
    assert [thread.native_id for thread in threads] == native_ids


def test_thread_with_a_name_too_long_for_the_file() -> None:
    with pig.record() as recording:
        on_thread(gpu_phase("a")(lambda: None), name="n" * 100_000)

    assert recording.run.phases["a"].count == 1
    assert [thread.name for thread in recording.run.threads] == [""]


# --- subinterpreters ---

RUN_IN_SUBINTERPRETER = """
import sys

def run_in_subinterpreter(source):
    if sys.version_info >= (3, 13):
        import _interpreters as interpreters
        # Legacy: shares the GIL, and may import single-phase modules.
        failure = interpreters.exec(interpreters.create("legacy"), source)
        assert failure is None, failure.formatted
    else:
        import _xxsubinterpreters as interpreters
        interpreters.run_string(interpreters.create(), source)
"""


def test_subinterpreter_is_refused() -> None:
    in_subinterpreter = f"""
import sys
sys.path[:] = {sys.path!r}
import pyinstrument_gpu as pig

with pig.gpu_phase("a"), pig.gpu_phase.scope("b"), pig.gpu_step():
    assert list(pig.gpu_steps([1, 2])) == [1, 2]
try:
    pig.start()
except pig.RecordingError as error:
    assert "subinterpreter" in str(error), error
else:
    raise AssertionError("a recording was started")
"""
    script = f"""
{RUN_IN_SUBINTERPRETER}
import pyinstrument_gpu as pig
with pig.record() as recording, pig.gpu_phase("main"):
    run_in_subinterpreter({in_subinterpreter!r})
assert list(recording.run.phases) == ["main"]
"""
    run_script(script)
