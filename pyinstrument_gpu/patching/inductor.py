# SPDX-License-Identifier: Apache-2.0
"""Graphs that TorchInductor has compiled: when they are called, and with marks, in which phases
inside.

Dynamo has labelled the operations (`patching/dynamo.py`). Once Inductor has fused them and knows
their order, each kernel has the operations that it is made of, and with them its label. While it
writes the code of a graph, a line of that code tells the label wherever it changes. What is fused
is the same with and without marks.

Torch keeps what it has compiled on disk, by keys that know nothing of labels. So marks are written
only where a pass of ours, which does nothing, has put the labels into the key.

What is hooked is private to torch, and each name is looked at first:

| used | without it |
|---|---|
| `output_code.CompiledFxGraph.__call__`, called by a slot | graphs have no time of their own |
| `.post_compile` of it | the same |
| `scheduler.Scheduler.enter_context(node)`, `._codegen(nodes)`, `.flush()` | no marks |
| `codegen.wrapper.PythonWrapperCodegen.lines`, `.writeline`, `.header` | the same |
| `config.post_grad_custom_post_pass`, a local `gm` where it is asked | no caches, or no marks |

Why something is missing is said, and nothing that fails here reaches the compilation. Versions of
torch differ in this, of all that the package uses of the compiler, of CUDA graphs and of loaders:

| torch | |
|---|---|
| 2.10, 2.11 | what is constant for Dynamo takes plain constants only (`dynamo.py`) |
| 2.10 | the record of a limit that was reached has other words (`aspects/compilations/log.py`) |
| 2.12 on | a pass may want to know whether it is for inference: then there are no marks |
| 2.14 | `annotate` has its keys elsewhere (`dynamo.py`) |

2.10 and 2.13 were run; of 2.11, 2.12 and 2.14 the source was read.
"""

from __future__ import annotations

import os
import re
import sys
import weakref
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching import dynamo, graph_labels
from pyinstrument_gpu.patching.graph_labels import GraphCode, hash_of_labels, label_of, whole_of
from pyinstrument_gpu.patching.import_hook import undo_all, when_imported

_MOST_NAMES = 4_096
_NEVER = 0  # of patching/hooks.py, which imports torch
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")


class _Graph:
    """The known facts of a compiled graph."""

    phase: Any = None
    compile_id: str | None = None


# What was learnt in one recording holds in the next. By the ids of graphs, which take themselves
# out, and by the ids of compilations.
_graphs: dict[int, _Graph] = {}
_names: dict[str, str] = {}


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

    def begin(self) -> None:
        self._when("torch._inductor.output_code", self._hook_graphs)
        if self._marks:
            self._undo.append(dynamo.label_phases())
            self._when("torch._inductor.codecache", self._salt_keys)
            self._when("torch._inductor.scheduler", self._hook_scheduler)

    def end(self) -> None:
        undo_all(self._undo)

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
        import inspect  # torch has

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

        def made(before: Any) -> Any:
            def post_compile(graph: Any, /, *args: Any, **options: Any) -> Any:
                result = before(graph, *args, **options)
                self._quietly(self._is_made, graph)
                return result

            return post_compile

        graphs = output_code.CompiledFxGraph
        self._patch(graphs, "post_compile", made)
        leave = self._ends  # the same object each time: it tells whose hooks they are
        # A slot of the type calls it, and no frame of ours is in between.
        if not native.hook_call(
            graphs.__call__, _NEVER, enter=self._begins, leave=leave, from_c=True
        ):
            raise TypeError("calls of graphs can't be observed")
        self._undo.append(lambda: native.unhook(leave))

    def _quietly(self, function: Callable[..., None], *args: Any, **options: Any) -> None:
        try:
            function(*args, **options)
        except Exception as error:
            self._fails(error)

    def _is_made(self, graph: Any) -> None:
        context = sys.modules["torch._guards"].CompileContext
        _graph_of(graph).compile_id = str(context.current_compile_id())

    def _begins(self, args: tuple[Any, ...], _: object) -> int:
        graph = args[0]
        try:
            known = _graphs.get(id(graph)) or _graph_of(graph)
            if known.phase is None:
                known.phase = native.gpu_phase(_name_of(graph, known))
            return native.begin_graph(known.phase)
        except Exception as error:
            self._fails(error)
            return 0

    def _ends(self, number: int, _: object, __: object) -> None:
        native.end_graph(number)

    # --- marks ---

    def _hook_scheduler(self, scheduler: Any) -> None:
        def entering(before: Any) -> Any:
            def enter_context(self_: Any, node: Any) -> Any:
                result = before(self_, node)
                self._enters(self_, node)
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
        if owner.flush.__code__.co_argcount != 1:
            raise TypeError("Scheduler.flush takes arguments")
        self._patch(owner, "_codegen", generating, "nodes")
        self._patch(owner, "enter_context", entering, "node")

    def _begins_code(self, scheduler: Any) -> None:
        graph = self._virtualized.graph
        if self._may_mark(graph):
            marks = graph.__dict__.setdefault("_pig_marks", {})
            scheduler._pig_code = GraphCode(graph.wrapper_code, marks)

    def _may_mark(self, graph: Any) -> bool:
        config = sys.modules["torch._inductor.config"]
        kind = type(whole_of(graph.wrapper_code)).__name__
        if self._salt is None or kind.startswith("Subgraph"):
            return False
        if config.post_grad_custom_post_pass is not self._salt:
            why = "the program has replaced torch._inductor.config.post_grad_custom_post_pass"
        elif kind != "PythonWrapperCodegen":
            why = f"their code is written by {kind}"
        else:
            return True
        self._note(f"phases in some graphs are not marked: {why}")
        return False

    def _enters(self, scheduler: Any, node: Any) -> None:
        code: GraphCode | None = scheduler.__dict__.get("_pig_code")
        if code is None or type(node).__name__ == "NopKernelSchedulerNode":
            return
        try:
            label = label_of(node)
        except Exception as error:
            return self._fails(error)
        if code.needs_mark(label):
            scheduler.flush()  # what fails there is Inductor's
        self._quietly(code.enters, label)

    def _ends_code(self, scheduler: Any) -> None:
        code: GraphCode | None = scheduler.__dict__.pop("_pig_code", None)
        if code is not None:
            code.enters(())

    # --- keys of caches ---

    def _salt_keys(self, codecache: Any) -> None:
        if dynamo.why_no_labels() is not None:
            return
        config: Any = sys.modules["torch._inductor.config"]
        passes: Any = sys.modules["torch._inductor.custom_graph_pass"]
        before = config.post_grad_custom_post_pass
        own = before if isinstance(before, (list, tuple)) else [] if before is None else [before]
        aware = getattr(passes, "CustomInferenceAwareGraphPass", ())
        if any(isinstance(one, aware) for one in own):
            raise TypeError("a pass of the program's wants to know whether it is for inference")

        ours = passes.get_hash_for_files((__file__, graph_labels.__file__))

        class Salt(passes.CustomGraphPass):  # type: ignore[misc]
            """The program's passes, whose key also has the labels of the graph at hand."""

            def __call__(self, graph: Any) -> None:
                for one in own:
                    one(graph)

            def uuid(self) -> Any:
                if not all(isinstance(one, passes.CustomGraphPass) for one in own):
                    return None  # torch then leaves its caches alone
                ids = [one.uuid() for one in own]
                labels = hash_of_labels(_graph_at_hand())
                return None if None in ids or labels is None else (labels, ours, *ids)

        self._salt = config.post_grad_custom_post_pass = Salt()

        def undo() -> None:
            if config.post_grad_custom_post_pass is self._salt:
                config.post_grad_custom_post_pass = before

        self._undo.append(undo)


def _graph_of(graph: Any) -> _Graph:
    number = id(graph)
    if number not in _graphs:
        weakref.finalize(graph, _graphs.pop, number, None).atexit = False
        _graphs[number] = _Graph()
    return _graphs[number]


def _name_of(graph: Any, known: _Graph) -> str:
    """Return the name of the phase. The first call of a forward graph tells the function, also for
    the backward graph of the same compilation."""
    compilation = known.compile_id or ""
    if (graph.fx_kwargs or {}).get("is_backward"):
        name = _names.get(compilation)
        return "backward graph" if name is None else f"backward graph of {name}"
    if len(_names) > _MOST_NAMES:
        _names.clear()
    _names[compilation] = _function_name()
    return f"forward graph of {_names[compilation]}"


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
    """Return the name of the function that calls a graph: the innermost outside the compiler."""
    torch = os.path.dirname(sys.modules["torch"].__file__ or "") + os.sep
    frame = sys._getframe()
    while frame.f_back is not None:
        code = frame.f_code
        inside = code.co_filename.removeprefix(torch)
        if not code.co_filename.startswith((__file__, "<eval_with_key>")) and (
            inside == code.co_filename
            or not PurePath(inside).parts[0].startswith(("_", "autograd", "fx", "utils"))
        ):
            return _RESUMED.sub(r"\1", getattr(code, "co_qualname", code.co_name)).replace(
                "<locals>.", ""
            )
        frame = frame.f_back
    return "?"
