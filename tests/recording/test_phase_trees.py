# SPDX-License-Identifier: Apache-2.0
"""Generated programs: what is recorded equals a plain model of the rules.

A program is a tree of the operations below. It runs twice on the same worker threads: once with the
package on a fake clock, once with `Model`, which has the same face (gpu_phase, gpu_step, gpu_steps)
and follows docs/phases.md in the plainest way. Threads hand over to one another, so the order of
events is known; the clock moves by one at every event, so no two times are equal by accident.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import queue
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyinstrument_gpu as pig
from pyinstrument_gpu.core.run import Run
from tests.helpers.clock import fake_clock
from tests.helpers.spans import Span, dropped_of, spans_of

# --- programs ---


class Begin(NamedTuple):
    name: str


class End(NamedTuple):
    name: str


class Raise(NamedTuple):
    pass


class With(NamedTuple):
    manager: str  # a key of MANAGERS
    name: str
    body: Block


class Loop(NamedTuple):
    """`for _ in gpu_steps(...)`; the loader enters a phase for every item, and to find the end."""

    items: int
    accumulate: int
    body: Block


class Try(NamedTuple):
    body: Block


class On(NamedTuple):
    """Run on another thread, and wait for it."""

    thread: int
    body: Block


class Make(NamedTuple):
    """Make a generator that runs one of its bodies between two yields, all of them in a `with`.

    If it is a task, it is resumed in a context of its own, as event loops do, but closed anywhere.
    """

    slot: int
    manager: str
    name: str
    bodies: tuple[Block, ...]
    is_task: bool = False


class MakeLoop(NamedTuple):
    """Make an iterator of `gpu_steps`."""

    slot: int
    items: int
    accumulate: int


class Next(NamedTuple):
    slot: int


class Close(NamedTuple):
    slot: int


Operation = Begin | End | Raise | With | Loop | Try | On | Make | MakeLoop | Next | Close
Block = tuple[Operation, ...]

THREADS = 3  # 0 is the main thread
SLOTS = 3
MANAGERS = ("phase", "scope", "call", "step")

names = st.sampled_from("abc")
managers = st.sampled_from(MANAGERS)
slots = st.integers(0, SLOTS - 1)
items = st.integers(0, 3)
accumulates = st.integers(1, 2)


def blocks(operations: st.SearchStrategy[Operation]) -> st.SearchStrategy[Block]:
    return st.lists(operations, max_size=5).map(tuple)


simple_operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Next, slots),
    st.builds(Begin, names),
    st.builds(End, names),
    st.builds(Close, slots),
    st.builds(MakeLoop, slots, items, accumulates),
    st.builds(Raise),
)


def compound_operations(inner: st.SearchStrategy[Operation]) -> st.SearchStrategy[Operation]:
    body = blocks(inner)
    return st.one_of(
        st.builds(With, managers, names, body),
        st.builds(
            Make,
            slots,
            managers,
            names,
            st.lists(body, min_size=1, max_size=3).map(tuple),
            st.booleans(),
        ),
        st.builds(On, st.integers(0, THREADS - 1), body),
        st.builds(Loop, items, accumulates, body),
        st.builds(Try, body),
    )


programs = blocks(st.recursive(simple_operations, compound_operations, max_leaves=25))

# --- running a program ---


class Worker:
    """A thread that runs one function after another, each while its caller waits."""

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._result: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def call(self, function: Callable[[], object]) -> None:
        self._work.put(function)
        error = self._result.get()
        if error is not None:
            raise error

    def end(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (function := self._work.get()) is not None:
            try:
                function()
            except BaseException as error:
                self._result.put(error)
            else:
                self._result.put(None)


class Raised(Exception):
    """What programs raise."""


class Interpreter:
    """Runs programs against a face: the package's or the model's."""

    def __init__(
        self,
        face: Any,
        tick: Callable[[int], None],
        workers: list[Worker],
        resumes: Callable[[object], contextlib.AbstractContextManager[object]],
    ) -> None:
        """`resumes` is told which task is resumed."""
        self._face = face
        self._resumes = resumes
        self._tick = tick
        self._workers = workers
        self._busy = {0}  # threads that run, or wait for the one that does
        self._generators: dict[int, Any] = {}
        self._tasks: dict[int, contextvars.Context] = {}

    def run(self, program: Block) -> None:
        with contextlib.suppress(Raised):
            self._block(program)
        for slot in range(SLOTS):
            with contextlib.suppress(Raised):
                self._operation(Close(slot))
        # A thread closes what another one has ended for it when it next records.
        self._operation(With("phase", "last", ()))
        for thread in range(1, THREADS):
            self._operation(On(thread, (With("phase", "last", ()),)))

    def _block(self, block: Block) -> None:
        for operation in block:
            self._operation(operation)

    def _operation(self, operation: Operation) -> None:
        self._tick(1)
        match operation:
            case Begin(name):
                self._face.gpu_phase(name).begin()
            case End(name):
                self._face.gpu_phase(name).end()
            case Raise():
                raise Raised
            case With("call", name, body):
                self._face.gpu_phase(name)(self._block)(body)
            case With(manager, name, body):
                with self._manager(manager, name):
                    self._block(body)
                    self._tick(1)
            case Loop(count, accumulate, body):
                # Closed where it is left, as a loop over a local iterator is.
                with contextlib.closing(self._steps(count, accumulate)) as steps:
                    for _ in steps:
                        self._block(body)
                        self._tick(1)
            case Try(body):
                with contextlib.suppress(Raised):
                    self._block(body)
            case On(thread, body) if thread not in self._busy:
                self._busy.add(thread)
                try:
                    self._workers[thread - 1].call(functools.partial(self._block, body))
                finally:
                    self._busy.remove(thread)
            case Make(slot, manager, name, bodies, is_task) if slot not in self._generators:
                self._tasks.pop(slot, None)
                if is_task:
                    self._tasks[slot] = contextvars.copy_context()
                if manager == "call":
                    self._generators[slot] = self._face.gpu_phase(name)(self._generate)(bodies)
                else:
                    self._generators[slot] = self._generate_in(manager, name, bodies)
            case MakeLoop(slot, count, accumulate) if slot not in self._generators:
                self._tasks.pop(slot, None)
                self._generators[slot] = self._steps(count, accumulate)
            case Next(slot) if self._is_idle(slot):
                try:
                    self._resume(slot)
                except StopIteration:
                    del self._generators[slot]
                except Raised:
                    del self._generators[slot]
                    raise
            case Close(slot) if self._is_idle(slot):
                self._generators.pop(slot).close()

    def _resume(self, slot: int) -> None:
        if (task := self._tasks.get(slot)) is None:
            next(self._generators[slot])
        else:
            with self._resumes(task):
                task.run(next, self._generators[slot])

    def _is_idle(self, slot: int) -> bool:
        # A loop over steps runs no operation itself, so it is idle whenever there is one to run.
        generator = self._generators.get(slot)
        return generator is not None and not getattr(generator, "gi_running", False)

    def _manager(self, manager: str, name: str) -> contextlib.AbstractContextManager[object]:
        result: contextlib.AbstractContextManager[object] = {
            "phase": self._face.gpu_phase,
            "scope": self._face.gpu_phase.scope,
            "step": lambda name: self._face.gpu_step(),
        }[manager](name)
        return result

    def _steps(self, items: int, accumulate: int) -> Generator[object, None, None]:
        steps: Generator[object, None, None] = iter(
            self._face.gpu_steps(self._load(items), accumulate)
        )
        return steps

    def _load(self, items: int) -> Iterator[None]:
        for _ in range(items):
            self._operation(With("phase", "load", ()))
            yield
        self._operation(With("phase", "load", ()))

    def _generate(self, bodies: tuple[Block, ...]) -> Generator[None, None, None]:
        for body in bodies:
            self._block(body)
            yield
        self._tick(1)

    def _generate_in(
        self, manager: str, name: str, bodies: tuple[Block, ...]
    ) -> Generator[None, None, None]:
        with self._manager(manager, name):
            yield from self._generate(bodies)


# --- the model ---


@dataclass(eq=False)
class Frame:
    path: str
    name: str
    parent: Frame | None
    thread: str
    begin_ns: int
    step: OpenStep | None
    depth: int
    task: object
    by_call: bool  # of begin()
    end_ns: int = -1
    self_ns: int = -1
    children_ns: int = 0


@dataclass(eq=False)
class OpenStep:
    thread: str
    begin_ns: int
    end_ns: int | None = None
    items: int = 0
    complete: bool = False
    is_dropped: bool = False


@dataclass
class Model:
    """The rules of docs/phases.md. Its face is that of the package."""

    now_ns: int = 0
    stacks: dict[str, list[Frame]] = field(default_factory=dict)
    tasks: dict[str, list[object]] = field(default_factory=dict)  # that are resumed, by thread
    ended: dict[str, list[Frame]] = field(default_factory=dict)
    steps: list[OpenStep] = field(default_factory=list)
    open_step: OpenStep | None = None
    dropped: Counter[str] = field(default_factory=Counter)

    def tick(self, ns: int) -> None:
        self.now_ns += ns

    @contextlib.contextmanager
    def resumes(self, task: object) -> Iterator[None]:
        tasks = self.tasks.setdefault(threading.current_thread().name, [None])
        tasks.append(task)
        try:
            yield
        finally:
            tasks.pop()

    # Phases: what is open per thread. Who begins is the child of the innermost that its task has
    # open, or else the one in which that is resumed.

    def open_frames(self) -> list[Frame]:
        """The innermost first."""
        return self.stacks.get(threading.current_thread().name, [])[::-1]

    def begin(self, name: str, by_call: bool = False) -> Frame:
        thread = threading.current_thread().name
        tasks = self.tasks.get(thread, [None])
        parent = next(
            (
                frame
                for task in reversed(tasks)
                for frame in self.open_frames()
                if frame.task is task
            ),
            None,
        )
        frame = Frame(
            path=f"{parent.path}/{name}" if parent else name,
            name=name,
            parent=parent,
            thread=thread,
            begin_ns=self.now_ns,
            step=self.open_step,
            depth=parent.depth + 1 if parent else 0,
            task=tasks[-1],
            by_call=by_call,
        )
        self.stacks.setdefault(thread, []).append(frame)
        return frame

    def end(self, frame: Frame) -> None:
        if frame not in self.stacks[frame.thread]:
            self.dropped["unmatched_ends"] += 1  # an end by name was faster
            return
        self.stacks[frame.thread].remove(frame)
        duration_ns = self.now_ns - frame.begin_ns
        frame.end_ns = self.now_ns
        frame.self_ns = duration_ns - frame.children_ns  # children that are still open count here
        if frame.parent is not None:
            frame.parent.children_ns += duration_ns
        self.ended.setdefault(frame.thread, []).append(frame)

    def is_open(self, frame: Frame) -> bool:
        return frame in self.stacks[frame.thread]

    def end_innermost(self, name: str, by_call: bool) -> None:
        """Of the task: what a call has begun, if this is one, or else what else there is."""
        task = self.tasks.get(threading.current_thread().name, [None])[-1]
        named = [frame for frame in self.open_frames() if frame.name == name]
        own = [frame for frame in named if frame.task is task]
        if by_call:
            own = sorted(own, key=lambda frame: not frame.by_call)
            own += [frame for frame in named if frame.by_call]
        if own:
            return self.end(own[0])
        self.dropped["unmatched_ends"] += 1

    # Steps: one is open in the process. A further one is a phase "step", and counted.

    def begin_step(self) -> OpenStep | Frame:
        if self.open_step is not None:
            return self.begin("step")
        self.open_step = OpenStep(threading.current_thread().name, self.now_ns)
        self.steps.append(self.open_step)
        return self.open_step

    def end_step(self, step: OpenStep | Frame, complete: bool) -> None:
        if isinstance(step, Frame):
            self.dropped["nested_steps"] += 1
            return self.end(step)
        step.end_ns, step.complete = self.now_ns, complete
        self.open_step = None

    def drop_step(self, step: OpenStep | Frame) -> None:
        if isinstance(step, Frame):
            self.stacks[step.thread].remove(step)
        else:
            step.is_dropped = True
            self.open_step = None

    # The face.

    @property
    def gpu_phase(self) -> ModelPhases:
        return ModelPhases(self)

    @contextlib.contextmanager
    def gpu_step(self) -> Iterator[None]:
        step = self.begin_step()
        if isinstance(step, OpenStep):
            step.items = 1
        complete = False
        try:
            yield
            complete = True
        finally:
            self.end_step(step, complete)

    def gpu_steps(self, loader: Iterator[object], accumulate: int) -> Iterator[object]:
        exhausted = False
        while not exhausted:
            step = self.begin_step()
            items = 0
            try:
                while items < accumulate and not exhausted:
                    data = self.begin("data")
                    try:
                        item = next(loader)
                    except StopIteration:
                        self.stacks[data.thread].remove(data)
                        exhausted = True
                        continue
                    except BaseException:
                        self.end(data)
                        raise
                    self.end(data)
                    items += 1
                    if isinstance(step, OpenStep):
                        step.items = items
                    yield item
            except BaseException:
                exhausted = True
                raise
            finally:
                if items:
                    self.end_step(step, complete=items == accumulate and not exhausted)
                else:
                    self.drop_step(step)

    # What was recorded.

    def spans(self) -> dict[str, list[Span]]:
        """Of each thread, in the order in which they ended."""
        return {
            thread: [
                Span(
                    path=frame.path,
                    begin_ns=frame.begin_ns,
                    end_ns=frame.end_ns,
                    self_ns=frame.self_ns,
                    step=self.index_of(frame.step),
                    depth=frame.depth,
                    thread=thread,
                    on_step_thread=frame.step is not None and frame.step.thread == thread,
                )
                for frame in ended
            ]
            for thread, ended in self.ended.items()
        }

    def open_phases(self) -> list[tuple[str, str, int, int, int]]:
        return sorted(
            (frame.thread, frame.path, frame.begin_ns, self.index_of(frame.step), frame.depth)
            for stack in self.stacks.values()
            for frame in stack
        )

    def closed_steps(self) -> list[tuple[int, str, int, int, int, bool]]:
        """With the one that is open at the end, which the end closes."""
        return [
            (
                self.index_of(step),
                step.thread,
                step.begin_ns,
                self.now_ns if step.end_ns is None else step.end_ns,
                step.items,
                step.complete,
            )
            for step in self.steps
            if not step.is_dropped
        ]

    def index_of(self, step: OpenStep | None) -> int:
        if step is None or step.is_dropped:
            return -1
        return [step for step in self.steps if not step.is_dropped].index(step)


@dataclass
class ModelPhases:
    model: Model

    def __call__(self, name: str) -> ModelPhase:
        return ModelPhase(self.model, name)

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        frame = self.model.begin(name)
        try:
            yield
        finally:
            self.model.end(frame)


@dataclass
class ModelPhase:
    model: Model
    name: str

    frame: Frame | None = None  # a block's own

    def begin(self) -> None:
        self.model.begin(self.name, by_call=True)

    def end(self) -> None:
        self.model.end_innermost(self.name, by_call=True)

    def __enter__(self) -> None:
        self.frame = self.model.begin(self.name)

    def __exit__(self, *_: object) -> None:
        assert self.frame is not None
        if self.model.is_open(self.frame):
            self.model.end(self.frame)
        else:
            self.model.end_innermost(self.name, by_call=False)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if function.__name__ == "_generate":

            def generator(*arguments: object) -> Generator[object, object, object]:
                with self.model.gpu_phase.scope(self.name):
                    return (yield from function(*arguments))

            return generator

        def wrapper(*arguments: object) -> object:
            with self.model.gpu_phase.scope(self.name):
                return function(*arguments)

        return wrapper


# --- both ---


def recorded(run: Run) -> dict[str, Any]:
    spans: dict[str, list[Span]] = {}
    for span in spans_of(run):
        spans.setdefault(span.thread, []).append(span)
    return {
        "spans": spans,
        "steps": [
            (step.index, run.threads[step.thread].name, *step_rest)
            for step in run.steps
            for step_rest in [(step.begin_ns, step.end_ns, step.items, step.complete)]
        ],
        "open": sorted(
            (run.threads[phase.thread].name, phase.path, phase.begin_ns, phase.step, phase.depth)
            for phase in run.open_phases
        ),
        "dropped": dropped_of(run),
        "phases": {
            path: (phase.count, phase.host.total_ns, phase.self_host.total_ns)
            for path, phase in run.phases.items()
            if phase.host is not None and phase.self_host is not None
        },
    }


def modelled(model: Model) -> dict[str, Any]:
    spans = model.spans()
    phases: dict[str, tuple[int, int, int]] = {}
    for span in (span for ended in spans.values() for span in ended):
        count, host_ns, self_ns = phases.get(span.path, (0, 0, 0))
        phases[span.path] = (
            count + 1,
            host_ns + span.end_ns - span.begin_ns,
            self_ns + span.self_ns,
        )
    return {
        "spans": spans,
        "steps": model.closed_steps(),
        "open": model.open_phases(),
        "dropped": {cause: count for cause, count in model.dropped.items() if count},
        "phases": phases,
    }


def check(program: Block) -> None:
    workers = [Worker(f"worker {number}") for number in range(1, THREADS)]
    try:
        with fake_clock() as tick, pig.record() as recording:
            Interpreter(pig, tick, workers, contextlib.nullcontext).run(program)
        model = Model()
        Interpreter(model, model.tick, workers, model.resumes).run(program)
    finally:
        for worker in workers:
            worker.end()
    assert recorded(recording.run) == modelled(model)


@settings(max_examples=50, derandomize=True)
@given(programs)
def test_recorded_tree_equals_the_model(program: Block) -> None:
    check(program)


@pytest.mark.slow
@settings(max_examples=5_000)
@given(programs)
def test_recorded_tree_equals_the_model_at_length(program: Block) -> None:
    check(program)


@pytest.mark.parametrize(
    "program",
    [
        # Interleaved generators, which would close each other's spans were they not exact.
        (
            Make(0, "scope", "a", ((), ())),
            Make(1, "call", "a", ((), ())),
            Next(0),
            Next(1),
            Close(0),
            With("phase", "b", ()),
            Close(1),
        ),
        # A generator that begins on one thread and ends on another.
        (
            On(1, (Make(0, "call", "a", ((),)), Next(0), Begin("b"))),
            Close(0),
            On(1, (End("b"), End("b"))),
        ),
        # Loops that take turns: the step of the second is a phase in the step of the first.
        (
            MakeLoop(0, 2, 2),
            MakeLoop(1, 3, 1),
            Next(0),
            Next(1),
            Next(0),
            Next(1),
            Next(0),
            Next(1),
        ),
        # Tasks that take turns, each with phases of its own, and one that another thread closes.
        (
            With(
                "phase",
                "a",
                (
                    Make(0, "phase", "b", ((With("phase", "c", ()),),), is_task=True),
                    Make(1, "phase", "b", ((), (Begin("c"),)), is_task=True),
                    Next(0),
                    Next(1),
                    Next(1),
                    Next(0),
                    On(1, (With("phase", "b", (Close(1),)),)),
                    End("c"),
                ),
            ),
        ),
        # A loop in a loop, left by an exception on another thread.
        (Loop(2, 1, (Loop(1, 2, (On(1, (With("call", "a", (Raise(),)),)),)),)),),
    ],
)
def test_programs_that_are_worth_a_name(program: Block) -> None:
    check(program)
