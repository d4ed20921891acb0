# SPDX-License-Identifier: Apache-2.0

import contextlib
import copy
import gc
import pickle
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase
from tests.helpers.clock import fake_clock
from tests.helpers.script import run_script
from tests.helpers.spans import Span, dropped_of, spans_of, times_of
from tests.helpers.threads import on_thread

# More than any thread's stack of open phases holds, and what it does hold.
TOO_DEEP = 1100
STACK = 1023


# --- handles ---


def test_one_handle_per_name() -> None:
    handle = gpu_phase("forward")

    assert gpu_phase("forward") is handle
    assert gpu_phase("".join(["for", "ward"])) is handle
    assert gpu_phase("backward") is not handle
    assert handle.name == "forward"
    assert repr(handle) == "gpu_phase('forward')"


def test_handle_outlives_the_string_it_was_made_from() -> None:
    # The next strings are likely to get the addresses of those before.
    handles = [gpu_phase(f"short-lived {i % 5000}") for i in range(15_000)]

    assert all(handle.name == f"short-lived {i % 5000}" for i, handle in enumerate(handles))


def test_threads_get_the_same_handle() -> None:
    handles = []
    on_thread(lambda: handles.append(gpu_phase("made in a thread")))

    assert handles == [gpu_phase("made in a thread")]


@pytest.mark.parametrize(
    "twin", [copy.copy, copy.deepcopy, lambda handle: pickle.loads(pickle.dumps(handle))]
)
def test_copy_of_a_handle_is_the_handle(twin: Callable[[object], object]) -> None:
    handle = gpu_phase("copied")

    assert twin(handle) is handle


def test_handles_are_made_by_gpu_phase_only() -> None:
    handle, scope = gpu_phase("x"), gpu_phase.scope("x")

    kinds: list[Any] = [type(handle), type(scope), type(handle.__enter__), type(gpu_phase)]
    for kind in kinds:
        with pytest.raises(TypeError, match="cannot create"):
            kind()
    with pytest.raises(TypeError):
        copy.copy(scope)


def test_arguments_are_checked() -> None:
    handle = gpu_phase("x")
    wrong_calls: list[Callable[[], object]] = [
        lambda: gpu_phase(),  # type: ignore[call-arg]
        lambda: gpu_phase("x", "y"),  # type: ignore[call-arg]
        lambda: gpu_phase(name="x"),  # type: ignore[call-arg]
        lambda: gpu_phase.scope(),  # type: ignore[call-arg]
        lambda: handle.__exit__(),  # type: ignore[call-arg]
        lambda: handle.__enter__(1),  # type: ignore[call-arg]
        lambda: gpu_phase.scope("x").__exit__(None),  # type: ignore[call-arg]
        lambda: type(handle).__enter__("x"),  # type: ignore[arg-type]
        lambda: type(handle).__exit__(handle),  # type: ignore[call-arg]
    ]
    for call in wrong_calls:
        with pytest.raises(TypeError):
            call()


# --- names ---


@pytest.mark.parametrize(
    "name", ["x", "n" * 256, "\N{FIRE}" * 256, "a/b", "50%", " ", "\0", "\udcff\ud800", "%2F"]
)
def test_name_comes_back_as_it_was(name: str) -> None:
    with pig.record() as recording, gpu_phase(name):
        pass

    assert recording.run.names == (name,)
    assert gpu_phase(name).name == name


def test_slash_and_percent_in_a_name_are_escaped_in_its_path() -> None:
    with pig.record() as recording, gpu_phase("a/b"), gpu_phase("50%"):
        pass

    assert recording.run.paths == ("a%2Fb", "a%2Fb/50%25")


@pytest.mark.parametrize("make", [gpu_phase, gpu_phase.scope])
def test_name_without_characters(make: Callable[[str], object]) -> None:
    with pytest.raises(pig.PhaseNameError, match="must not be empty"):
        make("")


def test_long_name_is_cut_and_counted() -> None:
    """Once for each phase, and in every recording, as its phases were made at import perhaps."""
    script = """
import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase

long = "é" * 300

@gpu_phase("d" * 257)
def decorated():
    pass

def use(name):
    decorated()
    with gpu_phase(name), gpu_phase.scope(name):
        pass

with pig.record() as first:
    for end in "ab":
        use(long + end)
with pig.record() as second:
    use(long)
    use("x" * 256)
for recording in (first, second):
    assert recording.run.dropped["long_names"] == 2, recording.run.dropped
assert first.run.names == ("d" * 256, "é" * 256), first.run.names
assert first.run.phases["d" * 256].count == 2
assert gpu_phase(long) is gpu_phase("é" * 256)
assert "2 phases recorded under the first 256 characters" in first.run.report(verbose=True)
"""
    run_script(script)


@pytest.mark.parametrize("name", [None, 3, b"x", ["x"]])
@pytest.mark.parametrize("make", [gpu_phase, gpu_phase.scope])
def test_name_that_is_no_str(make: Callable[[object], object], name: object) -> None:
    with pytest.raises(TypeError, match="must be a str"):
        make(name)


def test_of_a_str_subclass_only_the_text_counts() -> None:
    class Strange(str):
        def __eq__(self, other: object) -> bool:
            return False

        def __hash__(self) -> int:
            return 0

    handle = gpu_phase(Strange("strange"))

    assert handle is gpu_phase("strange")
    assert type(handle.name) is str


def test_too_many_names() -> None:
    """65,535 names in a process: beyond them an error, or, while recording, a count."""
    script = """
import pyinstrument_gpu as pig
made = 2  # "data" and "step"
try:
    for i in range(70_000):
        pig.gpu_phase(f"phase {i}")
        made += 1
except pig.PhaseNameError as error:
    assert "65535" in str(error) and "'phase 65533'" in str(error), error
assert made == 65_535, made
assert pig.gpu_phase("phase 7").name == "phase 7"

with pig.record() as recording:
    for i in range(3):
        with pig.gpu_phase(f"new {i}"):
            with pig.gpu_phase("phase 7"):
                pass
    with pig.gpu_phase("phase 8"):
        pass
run = recording.run
assert run.dropped["names"] == 3, run.dropped
counts = {path: phase.count for path, phase in run.phases.items()}
assert counts == {"(too many names)": 3, "(too many names)/phase 7": 3, "phase 8": 1}, counts

# What was good enough while recording does not end the program afterwards.
assert pig.gpu_phase("new 0").name == "(too many names)"
"""
    run_script(script)


def test_too_many_names_when_switched_off() -> None:
    script = """
import pyinstrument_gpu as pig
for i in range(66_000):
    with pig.gpu_phase(f"step {i}"):
        pass
"""
    run_script(script, environment={"PYINSTRUMENT_GPU": "0"})


# --- one span ---


def test_with() -> None:
    with fake_clock() as tick, pig.record() as recording:
        tick(3)
        with gpu_phase("a") as handle:
            tick(5)
        tick(7)

    assert handle is gpu_phase("a")
    assert spans_of(recording.run) == [Span("a", 3, 8, 5, -1, 0, "MainThread", False)]
    assert recording.run.duration_ns == 15


def test_nesting() -> None:
    with fake_clock() as tick, pig.record() as recording, gpu_phase("a"):
        tick(1)
        with gpu_phase("b"):
            tick(10)
            with gpu_phase("c"):
                tick(100)
        with gpu_phase("b"):
            tick(1000)

    assert spans_of(recording.run) == [
        Span("a/b/c", 11, 111, 100, -1, 2, "MainThread", False),
        Span("a/b", 1, 111, 10, -1, 1, "MainThread", False),
        Span("a/b", 111, 1111, 1000, -1, 1, "MainThread", False),
        Span("a", 0, 1111, 1, -1, 0, "MainThread", False),
    ]


def test_used_as_unbound_methods() -> None:
    with pig.record() as recording:
        phase = gpu_phase("a")
        assert type(phase).__enter__(phase) is phase
        type(phase).__exit__(phase, None, None, None)

    assert list(recording.run.phases) == ["a"]


# --- exceptions ---


@pytest.mark.parametrize("make", [gpu_phase, gpu_phase.scope])
@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), StopIteration(1)])
def test_exception_closes_and_passes_through(
    make: Callable[[str], contextlib.AbstractContextManager[object]], error: BaseException
) -> None:
    with fake_clock() as tick, pig.record() as recording:
        with pytest.raises(type(error)) as caught, make("a"), make("b"):
            tick(1)
            raise error
        tick(1)
        with make("c"):
            tick(1)

    assert caught.value is error
    assert error.__context__ is None
    assert times_of(recording.run) == [("a/b", 0, 1), ("a", 0, 1), ("c", 2, 3)]


# --- out of order ---


def test_exit_closes_the_innermost_open_phase_of_its_name() -> None:
    with fake_clock() as tick, pig.record() as recording:
        gpu_phase("a").begin()
        tick(1)
        gpu_phase("a").begin()
        tick(1)
        gpu_phase("b").begin()
        tick(1)
        gpu_phase("a").end()  # the inner one; "b" stays open
        tick(1)
        gpu_phase("c").begin()  # in "b"
        tick(1)
        gpu_phase("c").end()
        gpu_phase("b").end()
        gpu_phase("d").begin()  # in the outer "a" again
        tick(1)
        gpu_phase("d").end()
        gpu_phase("a").end()
        gpu_phase("a").end()  # there is none left

    assert spans_of(recording.run) == [
        Span("a/a", 1, 3, 2, -1, 1, "MainThread", False),
        Span("a/a/b/c", 4, 5, 1, -1, 3, "MainThread", False),
        Span("a/a/b", 2, 5, 2, -1, 2, "MainThread", False),
        Span("a/d", 5, 6, 1, -1, 1, "MainThread", False),
        Span("a", 0, 6, 3, -1, 0, "MainThread", False),
    ]
    assert dropped_of(recording.run) == {"unmatched_ends": 1}


@pytest.mark.parametrize("make", [gpu_phase, gpu_phase.scope])
def test_scopes_are_exact_when_interleaved(
    make: Callable[[str], contextlib.AbstractContextManager[object]],
) -> None:
    def fetch() -> Iterator[None]:
        with make("fetch"):
            yield

    with fake_clock() as tick, pig.record() as recording:
        first, second = fetch(), fetch()
        next(first)
        tick(1)
        next(second)
        tick(10)
        assert next(first, None) is None
        tick(100)
        assert next(second, None) is None

    assert times_of(recording.run) == [("fetch", 0, 11), ("fetch/fetch", 1, 111)]
    assert dropped_of(recording.run) == {}


def test_scope_is_a_fresh_object() -> None:
    scope = gpu_phase.scope("a")

    assert scope is not gpu_phase.scope("a")
    assert scope.name == "a"
    assert repr(scope) == "gpu_phase.scope('a')"
    with scope as entered:
        assert entered is scope


def test_scope_closed_on_another_thread_while_its_own_records_no_more() -> None:
    with fake_clock() as tick, pig.record() as recording:
        scope = gpu_phase.scope("a")
        scope.__enter__()
        tick(1)
        on_thread(lambda: scope.__exit__(None, None, None))
        tick(10)

    assert times_of(recording.run) == [("a", 0, 1)]
    assert recording.run.open_phases == ()


# --- depth ---


def test_phases_deeper_than_the_stack_are_counted() -> None:
    with pig.record() as recording:
        for _ in range(TOO_DEEP):
            gpu_phase("a").begin()
        for _ in range(TOO_DEEP):
            gpu_phase("a").end()
        with gpu_phase("b"):
            pass

    run = recording.run
    assert dropped_of(run) == {"depth": TOO_DEEP - STACK}
    assert sorted(run.spans["depth"].tolist()) == sorted([*range(STACK), 0])
    assert run.open_phases == ()


@pytest.mark.parametrize(
    "enter",
    [gpu_phase.scope, lambda name: contextlib.closing(gpu_phase(name)(open_generator)())],
    ids=["scope", "generator"],
)
def test_scopes_and_decorators_deeper_than_the_stack(
    enter: Callable[[str], contextlib.AbstractContextManager[object]],
) -> None:
    with pig.record() as recording:
        with contextlib.ExitStack() as stack:
            for _ in range(STACK):
                stack.enter_context(gpu_phase("a"))
            for _ in range(3):
                entered = stack.enter_context(enter("b"))
                if isinstance(entered, Iterator):
                    next(entered)
        with gpu_phase("c"):
            pass

    run = recording.run
    assert dropped_of(run) == {"depth": 3}
    assert len(run.spans) == STACK + 1
    assert run.phases["c"].count == 1


def open_generator() -> Generator[None, None, None]:
    yield


# --- threads ---


def test_threads_do_not_see_each_others_open_phases() -> None:
    phase = gpu_phase("shared")

    def work() -> None:
        with phase, gpu_phase("inner"):
            tick(1)

    with fake_clock() as tick, pig.record() as recording, phase:
        tick(1)
        on_thread(work, name="loader")
        tick(1)

    assert sorted(spans_of(recording.run)) == [
        Span("shared", 0, 3, 3, -1, 0, "MainThread", False),
        Span("shared", 1, 2, 0, -1, 0, "loader", False),
        Span("shared/inner", 1, 2, 1, -1, 1, "loader", False),
    ]


# --- the edges of a recording ---


def test_nothing_is_recorded_outside_a_recording() -> None:
    def use_every_way() -> None:
        with gpu_phase("a"), gpu_phase.scope("b"):
            gpu_phase("c")(len)("3")
        gpu_phase("d").begin()
        gpu_phase("d").end()
        gpu_phase("e").end()

    use_every_way()
    with pig.record() as recording:
        pass
    use_every_way()

    assert len(recording.run.spans) == 0
    assert recording.run.threads == ()
    assert dropped_of(recording.run) == {}


def test_phase_opened_before_the_recording_is_not_in_it() -> None:
    gpu_phase("a").begin()
    scope = gpu_phase.scope("b")
    scope.__enter__()
    with fake_clock() as tick, pig.record() as recording:
        with gpu_phase("c"):
            tick(1)
        scope.__exit__(None, None, None)  # it knows that it was not recorded
        gpu_phase("a").end()  # this has no begin here

    assert times_of(recording.run) == [("c", 0, 1)]
    assert dropped_of(recording.run) == {"unmatched_ends": 1}


def test_phase_still_open_at_the_end_is_named_and_not_in_the_next() -> None:
    with fake_clock() as tick:
        with pig.record() as first:
            tick(2)
            scope = gpu_phase.scope("a")
            scope.__enter__()
            gpu_phase("b").begin()
            tick(1)
        with pig.record() as second:
            with gpu_phase("c"):
                tick(1)
            scope.__exit__(None, None, None)  # of the recording before
        gpu_phase("b").end()

    assert times_of(first.run) == []
    assert [(phase.path, phase.begin_ns, phase.depth) for phase in first.run.open_phases] == [
        ("a", 2, 0),
        ("a/b", 2, 1),
    ]
    assert times_of(second.run) == [("c", 0, 1)]
    assert dropped_of(second.run) == {}


# --- where a phase may be entered ---


def test_signal_handler_enters_a_phase() -> None:
    def handler(number: int, frame: object) -> None:
        with gpu_phase("handler"):
            tick(1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with fake_clock() as tick, pig.record() as recording, gpu_phase("a"):
            tick(1)
            signal.raise_signal(signal.SIGUSR1)
            tick(1)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert times_of(recording.run) == [("a/handler", 1, 2), ("a", 0, 3)]


def test_finaliser_enters_a_phase() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            with gpu_phase("finaliser"):
                tick(1)

    with fake_clock() as tick, pig.record() as recording, gpu_phase("a"):
        Cycle()
        gc.collect()

    assert times_of(recording.run) == [("a/finaliser", 0, 1), ("a", 0, 1)]


def test_phase_entered_while_the_thread_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for the thread's name runs Python code, and with it finalisers and signal handlers."""
    enumerate_threads = threading.enumerate

    def enter_a_phase_once() -> list[threading.Thread]:
        monkeypatch.setattr(threading, "enumerate", enumerate_threads)
        with gpu_phase("unexpected"):
            tick(1)
        return enumerate_threads()

    with fake_clock() as tick, pig.record() as recording:
        monkeypatch.setattr(threading, "enumerate", enter_a_phase_once)
        with gpu_phase("a"):
            tick(1)

    assert times_of(recording.run) == [("unexpected", 0, 1), ("a", 1, 2)]
    assert [thread.name for thread in recording.run.threads] == ["MainThread"]
