# SPDX-License-Identifier: Apache-2.0
"""Graphs that TorchInductor has compiled: when they are called, and of which phases their kernels
are.

Dynamo has labelled the operations (`patching/dynamo.py`). Once Inductor has fused them and knows
their order, each kernel has the operations that it is made of, and with them its label. While it
writes the code of a graph, labels are noted for the kernels, and with marks a line of that code
tells the label wherever it changes. What is fused is the same with and without marks.

Torch keeps what it has compiled on disk, by keys that know nothing of labels. So marks are written
only where a pass of ours, which does nothing, has put the labels into the key; and labels that are
only noted belong to the graph that was compiled, and are unknown for one that comes from a cache.

What is hooked is private to torch. Each name is looked at first; where it is not as known, the rest
goes on without it, and why is said. Nothing that fails here reaches the compilation.

| torch | 2.10, 2.11, 2.12 | 2.13 | 2.14 |
|---|---|---|---|
| `output_code.CompiledFxGraph.__call__(inputs)`, `.post_compile(...)` | ? | run | read |
| `scheduler.Scheduler.enter_context(node)`, `._codegen(nodes)`, `.flush()` | ? | run | read |
| `config.post_grad_custom_post_pass`, asked for its `uuid()` by a user of `gm` | ? | run | read |
| `annotate` in Dynamo, copied to the backward graph | ? | run | read |
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any, NamedTuple

from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching import dynamo
from pyinstrument_gpu.patching.import_hook import when_imported

Label = tuple[str, ...]
"""Names of phases, the outermost first; empty outside of phases."""

_OTHER = "other"
_MOST_CALLS = 1_000_000
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")
_EXTERN = re.compile(r"\b(extern_kernels|torch\.ops\.(\w+))\.(\w+)[\w.]*\(")
_MARKS = """
try:
    from pyinstrument_gpu.native import native as _pig_native
    _pig_mark = _pig_native.graph_mark
except Exception:
    def _pig_mark(*names): return lambda: None
"""


class Kernel(NamedTuple):
    """A kernel of a graph, by the name that a profiler shows."""

    name: str
    label: Label


class GraphCall(NamedTuple):
    """A call of a graph, with its kernels in their order; None if they are not known, as of a graph
    that has come from a cache."""

    native_thread: int
    begin_ns: int  # by the wall clock
    kernels: tuple[Kernel, ...] | None


_calls: list[GraphCall] | None = None


def watch_calls() -> tuple[list[GraphCall], Callable[[], None]]:
    """Have calls of graphs noted. Returns where they are, and the function that ends it."""
    global _calls
    found: list[GraphCall] = []
    _calls = found

    def end() -> None:
        global _calls
        if _calls is found:
            _calls = None

    return found, end


class GraphHooks:
    """Hooks of Inductor while one recording goes on.

    Args:
        marks: whether to mark phases in the code of graphs.
        note: told, in a sentence without its full stop, why something is not known.
    """

    def __init__(self, marks: bool, note: Callable[[str], None]) -> None:
        self._marks = marks
        self._note = note
        self._salt: Any = None
        self._undo: list[Callable[[], None]] = []
        # By the ids of graphs, with what takes them out.
        self._graphs: dict[int, _Graph] = {}
        self._names: dict[str, str] = {}

    def begin(self) -> None:
        self._undo.append(dynamo.label_phases())
        self._when("torch._inductor.codecache", self._salt_keys)
        self._when("torch._inductor.output_code", self._hook_graphs)
        self._when("torch._inductor.scheduler", self._hook_scheduler)

    def end(self) -> None:
        with contextlib.suppress(IndexError):  # another thread ends it as well
            while True:
                self._undo.pop()()

    def _when(self, module: str, hook: Callable[[Any], None]) -> None:
        def hook_it() -> None:
            try:
                hook(sys.modules[module])
            except Exception as error:
                self._fails(error)

        self._undo.append(when_imported(module, hook_it))

    def _fails(self, error: Exception) -> None:
        self._note(f"TorchInductor of this version of torch is not built as expected ({error!r})")

    def _patch(self, owner: Any, name: str, made: Callable[[Any], Any], *arguments: str) -> None:
        before = getattr(owner, name)
        found = tuple(inspect.signature(before).parameters)[1 : 1 + len(arguments)]
        if found != arguments:
            raise TypeError(f"{owner.__name__}.{name} takes {found}")
        ours = made(before)
        setattr(owner, name, ours)

        def undo() -> None:
            if vars(owner).get(name) is ours:  # else somebody else's calls it
                setattr(owner, name, before)

        self._undo.append(undo)

    # --- calls ---

    def _hook_graphs(self, output_code: Any) -> None:
        dynamo.leave_out(sys.modules[__name__])

        def called(before: Any) -> Any:
            def __call__(graph: Any, inputs: Any) -> Any:
                number = self._begins(graph)
                try:
                    return before(graph, inputs)
                finally:
                    native.end_graph(number)

            return __call__

        def made(before: Any) -> Any:
            def post_compile(graph: Any, /, *args: Any, **options: Any) -> Any:
                result = before(graph, *args, **options)
                self._quietly(self._is_made, graph)
                return result

            return post_compile

        def initialised(before: Any) -> Any:
            def __init__(of: Any, /, *args: Any, **options: Any) -> None:
                before(of, *args, **options)
                self._quietly(self._is_compiled, of, *args[1:2], **options)

            return __init__

        graphs = output_code.CompiledFxGraph
        self._patch(graphs, "__call__", called, "inputs")
        self._patch(graphs, "post_compile", made)
        self._patch(graphs, "__init__", initialised, "current_callable", "graph")

    def _quietly(self, function: Callable[..., None], *args: Any, **options: Any) -> None:
        try:
            function(*args, **options)
        except Exception as error:
            self._fails(error)

    def _is_compiled(self, of: Any, graph: Any, **_: Any) -> None:
        self._graph_of(of).kernels = graph.__dict__.get("_pig_kernels")

    def _is_made(self, graph: Any) -> None:
        known = self._graph_of(graph)
        known.compile_id = str(sys.modules["torch._guards"].CompileContext.current_compile_id())

    def _graph_of(self, graph: Any) -> _Graph:
        known = self._graphs.get(id(graph))
        if known is None:
            number = id(graph)
            gone = weakref.finalize(graph, self._graphs.pop, number, None)
            gone.atexit = False
            known = self._graphs[number] = _Graph()
        return known

    def _begins(self, graph: Any) -> int:
        try:
            known = self._graphs.get(id(graph)) or self._graph_of(graph)
            if known.phase is None:
                known.phase = native.gpu_phase(self._name_of(graph, known))
            if _calls is not None and len(_calls) < _MOST_CALLS:
                kernels = () if self._salt is not None else known.kernels  # marks are phases
                _calls.append(GraphCall(threading.get_native_id(), time.time_ns(), kernels))
            return native.begin_graph(known.phase)
        except Exception as error:
            self._fails(error)
            return 0

    def _name_of(self, graph: Any, known: _Graph) -> str:
        is_backward = bool((graph.fx_kwargs or {}).get("is_backward"))
        if not is_backward:
            name = _function_name()
            if known.compile_id is not None:
                self._names[known.compile_id] = name
        else:
            name = self._names.get(known.compile_id or "", "")
        return f"{'backward' if is_backward else 'forward'} graph" + (f" of {name}" if name else "")

    # --- kernels ---

    def _hook_scheduler(self, scheduler: Any) -> None:
        def entering(before: Any) -> Any:
            def enter_context(self_: Any, node: Any) -> Any:
                result = before(self_, node)
                self._quietly(self._enters, self_, node)
                return result

            return enter_context

        def generating(before: Any) -> Any:
            def _codegen(self_: Any, nodes: Any) -> Any:
                self._quietly(self._begins_code, self_)
                result = before(self_, nodes)
                self._quietly(self._ends_code, self_)
                return result

            return _codegen

        owner = scheduler.Scheduler
        self._virtualized = scheduler.V
        if tuple(inspect.signature(owner.flush).parameters) != ("self",):
            raise TypeError("Scheduler.flush takes arguments")
        self._patch(owner, "_codegen", generating, "nodes")
        self._patch(owner, "enter_context", entering, "node")

    def _begins_code(self, scheduler: Any) -> None:
        graph = self._virtualized.graph
        scheduler._pig_code = _Code(graph.wrapper_code, self._may_mark(graph))

    def _may_mark(self, graph: Any) -> bool:
        config = sys.modules["torch._inductor.config"]
        if self._salt is None or type(graph.wrapper_code).__name__.startswith("Subgraph"):
            return False
        if config.post_grad_custom_post_pass is not self._salt:
            why = "the program has replaced torch._inductor.config.post_grad_custom_post_pass"
        elif config.triton.cudagraphs:
            why = "CUDA graphs replay them"
        elif type(graph.wrapper_code).__name__ != "PythonWrapperCodegen":
            why = f"their code is written by {type(graph.wrapper_code).__name__}"
        else:
            return True
        self._note(f"phases in some graphs are not marked: {why}")
        return False

    def _enters(self, scheduler: Any, node: Any) -> None:
        code: _Code | None = scheduler.__dict__.get("_pig_code")
        if code is None or type(node).__name__ == "NopKernelSchedulerNode":
            return
        code.enters(scheduler, _label_of(node))

    def _ends_code(self, scheduler: Any) -> None:
        code: _Code | None = scheduler.__dict__.pop("_pig_code", None)
        if code is None:
            return
        code.enters(scheduler, ())
        graph = self._virtualized.graph
        graph._pig_kernels = (*graph.__dict__.get("_pig_kernels", ()), *code.kernels())

    # --- keys of caches ---

    def _salt_keys(self, codecache: Any) -> None:
        if not self._marks:
            return
        config: Any = sys.modules["torch._inductor.config"]
        passes: Any = sys.modules["torch._inductor.custom_graph_pass"]
        before = config.post_grad_custom_post_pass
        own = before if isinstance(before, (list, tuple)) else [] if before is None else [before]
        aware = getattr(passes, "CustomInferenceAwareGraphPass", ())
        if any(isinstance(one, aware) for one in own):
            raise TypeError("a pass of the program's wants to know whether it is for inference")

        ours = passes.get_hash_for_files((__file__,))

        class Salt(passes.CustomGraphPass):  # type: ignore[misc]
            """The program's passes, whose key also has the labels of the graph at hand."""

            def __call__(self, graph: Any) -> None:
                for one in own:
                    one(graph)

            def uuid(self) -> Any:
                if not all(isinstance(one, passes.CustomGraphPass) for one in own):
                    return None  # torch then leaves its caches alone
                ids = [one.uuid() for one in own]
                labels = _labels_in(_graph_at_hand())
                return None if None in ids or labels is None else (labels, ours, *ids)

        self._salt = config.post_grad_custom_post_pass = Salt()

        def undo() -> None:
            if config.post_grad_custom_post_pass is self._salt:
                config.post_grad_custom_post_pass = before

        self._undo.append(undo)


class _Graph:
    """What is known of a compiled graph."""

    phase: Any = None
    compile_id: str | None = None
    kernels: tuple[Kernel, ...] | None = None


class _Code:
    """The code of a graph, or of a part of it, while it is written."""

    def __init__(self, wrapper: Any, has_marks: bool) -> None:
        self._wrapper = wrapper
        self.has_marks = has_marks
        self._marks: dict[Label, str] = {}
        self._last: Label = ()
        self._labels: list[tuple[int, Label]] = []

    def enters(self, scheduler: Any, label: Label) -> None:
        if label != self._last and self.has_marks:
            scheduler.flush()  # what is written by now is of the label before
            self._wrapper.writeline(f"{self._mark(label)}()")
        self._last = label
        self._labels.append((len(self._wrapper.lines), label))

    def _mark(self, label: Label) -> str:
        if label not in self._marks:
            if not self._marks:
                self._wrapper.header.splice(_MARKS)
            self._marks[label] = f"_pig_mark_{len(self._marks)}"
            names = ", ".join(map(repr, label))
            self._wrapper.header.writeline(f"{self._marks[label]} = _pig_mark({names})")
        return self._marks[label]

    def kernels(self) -> Iterable[Kernel]:
        lines = self._wrapper.lines
        ends = [place for place, _ in self._labels[1:]] + [len(lines)]
        for (begin, label), end in zip(self._labels, ends, strict=True):
            for line in lines[begin:end]:
                name = _kernel_in(line)
                if name is not None:
                    yield Kernel(name, label)


def _kernel_in(line: Any) -> str | None:
    """The name of what a line calls, as a profiler shows it. Kernels of the CPU are written later
    than their operations, and are not shown."""
    name = getattr(line, "kernel_name", None)
    if name is not None:
        return str(name) if getattr(line, "triton", False) else None
    if isinstance(line, str):
        text = line
    elif type(line).__name__ in ("ExternKernelOutLine", "ExternKernelAllocLine"):
        text = f"{line.node.python_kernel_name}("
    else:
        return None
    found = _EXTERN.search(text)
    return None if found is None else f"{found[2] or 'aten'}::{found[3]}"


def _label_of(node: Any) -> Label:
    """Of what Inductor has fused: all phases whose operations it has."""
    paths = {
        _path_of(origin)
        for part in node.get_nodes()
        if part.node is not None
        for origin in part.node.get_origins()
        if origin.op not in ("placeholder", "output", "get_attr") and _is_of_program(origin)
    }
    return merged(paths)


def _is_of_program(node: Any) -> bool:
    """Whether the program has an operation for it. Where gradients are added up, and of what
    Inductor puts in place of other operations, nobody knows the phase: it counts where it was
    fused."""
    meta = node.meta
    return not meta.get("is_gradient_acc") and ("stack_trace" in meta or "seq_nr" in meta)


def merged(paths: set[Label]) -> Label:
    """The label of what has operations of all these phases: what they have in common, and then
    their names as one."""
    if len(paths) < 2:
        return next(iter(paths), ())
    first, last = min(paths), max(paths)
    same = [one == other for one, other in zip(first, last, strict=False)]
    shared = first[: (*same, False).index(False)]
    names = {path[len(shared)] if len(path) > len(shared) else _OTHER for path in paths}
    return (*shared, "+".join(sorted(names, key=lambda name: (name == _OTHER, name))))


def _path_of(node: Any) -> Label:
    custom = node.meta.get("custom") or {}
    key = dynamo.KEY
    return tuple(one[len(key) :] for one in custom if isinstance(one, str) and one.startswith(key))


def _labels_in(module: Any) -> str | None:
    """A hash of where a graph has which labels; None if there is no graph."""
    if module is None:
        return None
    labels = hashlib.sha256()
    for one in module.modules():
        for number, node in enumerate(getattr(getattr(one, "graph", None), "nodes", ())):
            path = _path_of(node)
            if path:
                labels.update(repr((number, path)).encode())
        labels.update(b";")
    return labels.hexdigest()


def _graph_at_hand() -> Any:
    """The graph of which torch makes the key: a local of the function that does."""
    frame = sys._getframe(2)
    for _ in range(8):
        module = frame.f_locals.get("gm")
        if hasattr(module, "graph") and hasattr(module, "modules"):
            return module
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


def _function_name() -> str:
    """Of the function that calls a graph: the innermost that is none of the compiler's."""
    torch = os.path.dirname(sys.modules["torch"].__file__ or "") + os.sep
    frame = sys._getframe(4)
    while frame.f_back is not None:
        code = frame.f_code
        inside = code.co_filename.removeprefix(torch)
        if not code.co_filename.startswith("<eval_with_key>") and (
            inside == code.co_filename
            or not PurePath(inside).parts[0].startswith(("_", "autograd", "fx", "utils"))
        ):
            return _RESUMED.sub(r"\1", getattr(code, "co_qualname", code.co_name)).replace(
                "<locals>.", ""
            )
        frame = frame.f_back
    return ""
