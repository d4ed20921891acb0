# SPDX-License-Identifier: Apache-2.0
"""Labels in a graph that TorchInductor compiles: of its operations, and of what is fused of them.

A label is the names of the phases that something is of. An operation has that of the phase in which
the program has it. A kernel may be fused of several: its label says all of them, and none is
guessed.
"""

from __future__ import annotations

from typing import Any

from pyinstrument_gpu.patching.dynamo import KEY

Label = tuple[str, ...]
"""Names of phases, the outermost first; empty outside of phases."""

_OTHER = "other"
"""What is of the phases around, but of none of those that the rest is of."""
_MARKS = """
try:
    from pyinstrument_gpu.native import native as _pig_native
    _pig_mark = _pig_native.graph_mark
except Exception:
    def _pig_mark(*names): return lambda: None
"""


def whole_of(wrapper: Any) -> Any:
    """The wrapper of the whole graph, where this one is that of a partition, which a CUDA graph
    replays by itself. Other subgraphs are left as they are."""
    is_partition = getattr(wrapper, "partition_signatures", None) is not None
    return wrapper.parent_wrapper if is_partition else wrapper


class GraphCode:
    """The code of a graph, or of a part of it, while it is written.

    Args:
        marks: what the functions are called that tell a label: one dict for all parts of a graph,
            which become one module.
    """

    def __init__(self, wrapper: Any, marks: dict[Label, str]) -> None:
        self._wrapper = wrapper
        self._marks = marks
        self._last: Label = ()

    def needs_mark(self, label: Label) -> bool:
        """Return whether what comes next is marked. What is not written by now has to be first."""
        return label != self._last

    def enters(self, label: Label) -> None:
        if self.needs_mark(label):
            self._wrapper.writeline(f"{self._mark(label)}()")
        self._last = label

    def _mark(self, label: Label) -> str:
        if label not in self._marks:
            header = whole_of(self._wrapper).header
            if not self._marks:
                header.splice(_MARKS)
            self._marks[label] = f"_pig_mark_{len(self._marks)}"
            names = ", ".join(map(repr, label))
            header.writeline(f"{self._marks[label]} = _pig_mark({names})")
        return self._marks[label]


def label_of(node: Any) -> Label:
    """Return the label of what Inductor has fused: all phases whose operations it has."""
    paths = {
        _path_of(origin)
        for part in node.get_nodes()
        if part.node is not None
        for origin in part.node.get_origins()
        if origin.op not in ("placeholder", "output", "get_attr") and _is_of_program(origin)
    }
    return merged(paths)


def _is_of_program(node: Any) -> bool:
    """Return whether the program has an operation for it. Where gradients are added up, and of what
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
    return tuple(one[len(KEY) :] for one in custom if isinstance(one, str) and one.startswith(KEY))


def hash_of_labels(module: Any) -> str | None:
    """A hash of where a graph has which labels; None if there is no graph."""
    if module is None:
        return None
    import hashlib  # torch has

    labels = hashlib.sha256()
    for one in module.modules():
        for number, node in enumerate(getattr(getattr(one, "graph", None), "nodes", ())):
            path = _path_of(node)
            if path:
                labels.update(repr((number, path)).encode())
        labels.update(b";")
    return labels.hexdigest()
