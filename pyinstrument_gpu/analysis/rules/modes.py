# SPDX-License-Identifier: Apache-2.0
"""Rules on what a program has chosen for all of its work: anomaly detection, a graph of the
backward pass, double precision, autocast, and activations that are computed twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyinstrument_gpu.analysis.advice import EDIT_SHARE, Finding
from pyinstrument_gpu.analysis.rules.case import (
    SHORT_STEP_NS,
    UNKNOWN,
    Case,
    Worth,
    guidance,
)
from pyinstrument_gpu.analysis.sampled_time import line_that_calls, sampled_range
from pyinstrument_gpu.parts.words import small_percent

_SINGLE_SAVES = 0.6
"""The most of a time that single precision saves: half by arithmetic and by memory, and a little
where the data then fits into caches."""
_GRAPH_SAVES = 0.6
"""The most of a backward pass that it saves to record no graph of it."""
_CAST_TAKES = 0.6
"""The most of a time that autocast on a CPU may cost: beside layers of 48 by 48, it took 2.5 times
as long as without it (benchmarks/results/2026-11-29-autocast-on-cpu.md)."""
_SMALL_ELEMENTS = 64 * 64
"""A layer of at most so many weights may be slower with autocast, whatever the batch."""
_CHECKPOINT_FILE = "torch/utils/checkpoint.py"


def anomaly_mode(case: Case) -> Iterator[Finding]:
    """Yield what the detection of anomalies takes: a stack trace for each operation, of which
    samples of stacks tell the time, and a look at each gradient, which is a part of the backward
    pass of unknown size. Where no step has such a sample, it may not be on in them."""
    calls = tuple(case.run.setup_calls.of_kind("anomaly"))
    likely_ns, high_ns, low_ns = _sampled_ns(
        case, lambda file, name: file.endswith("torch/fx/traceback.py") and "format_stack" in name
    )
    if not calls or not likely_ns:
        return
    made = [f"{one.call} at {case.run.name_of_line(one.place)}" for one in calls[:2]]
    share = small_percent(high_ns, case.step_ns)
    yield guidance(
        "switch the detection of anomalies off",
        None,
        *Worth(0.0 if case.has_device else low_ns, high_ns + _backward_ns(case), case.step_ns),
        f"the stack traces that it takes are up to {share} of the step, and the backward pass "
        "looks at each gradient besides",
        f"remove {' and '.join(made)}",
    )


def graph_of_backward(case: Case) -> Iterator[Finding]:
    """Yield what it may take that a backward pass records a graph of itself, as a derivative of it
    needs one. It then runs other functions, which note each operation and keep what these need."""
    calls = tuple(case.run.setup_calls.of_kind("backward"))
    if not calls or not _backward_ns(case):
        return
    line = case.run.name_of_line(calls[0].place)
    evidence = f"{calls[0].call} at {line} builds a graph of the backward pass"
    worth = Worth(0.0, _GRAPH_SAVES * _backward_ns(case), case.step_ns)
    low_ns, high_ns, of_ns, of = UNKNOWN if case.has_device else worth
    yield guidance(
        "take the backward pass without a graph of its own",
        None,
        low_ns,
        high_ns,
        of_ns,
        of,
        f"{evidence}, which only a derivative of its gradients needs",
        f"leave out create_graph=True at {line}, unless you differentiate the gradients",
    )


def double_precision(case: Case) -> Iterator[Finding]:
    """Yield what single precision may save where an optimizer's parameters are doubles. Only of
    programs without a GPU is it known what their work takes."""
    optimizers = tuple(case.run.setup_calls.of_kind("optimizer"))
    if not optimizers or any(one.dtypes != ("float64",) for one in optimizers):
        return
    made = f"{optimizers[0].call} at {case.run.name_of_line(optimizers[0].place)}"
    evidence = f"the parameters of {made} are float64"
    if case.run.environment.get("gpus") != []:
        yield guidance("use single precision", None, *UNKNOWN, evidence)
        return
    computing_ns = sum(case.computing_by_path.values())
    if computing_ns <= EDIT_SHARE * case.step_ns:
        return
    arrays = next(case.run.setup_calls.of_kind("doubles"), None)
    inputs = "its inputs"
    if arrays is not None:
        inputs = f"what {arrays.call} makes at {case.run.name_of_line(arrays.place)}"
    yield guidance(
        "use single precision",
        None,
        *Worth(0.0, _SINGLE_SAVES * computing_ns, case.step_ns),
        f"{evidence}, and a step computes for {small_percent(computing_ns, case.step_ns)} of its "
        "time; numbers of 32 bits take about half as long, and are less exact",
        f"make the model and {inputs} float32, by .float()",
    )


def autocast_on_cpu(case: Case) -> Iterator[Finding]:
    """Yield what autocast may cost on a CPU, where it casts the weights of each layer for each
    pass: that pays where layers and batches are large. Where all layers that are trained are small
    and linear and steps are short, so that no large one is frozen, this run can't tell. Elsewhere
    nothing is said."""
    calls = tuple(case.run.setup_calls.of_kind("autocast"))
    optimizers = [one for one in case.run.setup_calls.of_kind("optimizer") if one.matrices]
    if not calls or not optimizers or case.run.environment.get("gpus") != []:
        return
    mean = sum(one.elements for one in optimizers) / sum(one.matrices for one in optimizers)
    is_small = mean <= _SMALL_ELEMENTS and not any(one.kernels for one in optimizers)
    if not is_small or case.step_ns > SHORT_STEP_NS:
        return
    lines = " and ".join(case.run.name_of_line(one.place) for one in calls[:2])
    passes_ns = sum(_computing_ns(case, name) for name in ("forward", "loss", "backward"))
    yield guidance(
        "compute without autocast",
        None,
        *Worth(0.0, _CAST_TAKES * passes_ns, case.step_ns),
        f"the layers that are trained have {mean:,.0f} weights on average, and on a CPU, casting "
        "such small ones for each pass may take longer than it saves",
        f"remove {calls[0].call} at {lines}, or try with enabled=False",
    )


def recomputation(case: Case) -> Iterator[Finding]:
    """Yield what it takes to compute activations again in the backward pass, by samples of stacks:
    that of `use_reentrant=False`, as the other kind runs a backward pass in the same function. Only
    where there is no GPU that would do it."""
    if case.run.environment.get("gpus") != []:
        return
    likely_ns, high_ns, low_ns = _sampled_ns(
        case, lambda file, name: file.endswith(_CHECKPOINT_FILE) and name.endswith("unpack_hook")
    )
    if not low_ns or low_ns < EDIT_SHARE * case.step_ns:
        return
    line = line_that_calls(
        case.run, lambda file, name: file.endswith(_CHECKPOINT_FILE) and name == "checkpoint"
    )
    where = "" if line is None else f" at {case.run.name_of_line(line)}"
    yield guidance(
        "keep activations instead of computing them again",
        None,
        *Worth(low_ns, high_ns, case.step_ns),
        f"torch.utils.checkpoint computes them again for {small_percent(likely_ns, case.step_ns)} "
        "of the step",
        f"call layers without torch.utils.checkpoint{where}, as many as memory allows",
    )


def _backward_ns(case: Case) -> float:
    """Return the time that a step computes in backward passes."""
    return _computing_ns(case, "backward")


def _computing_ns(case: Case, name: str) -> float:
    """Return the time that a step computes in phases of this name."""
    return sum(
        time_ns
        for path, time_ns in case.computing_by_path.items()
        if case.run.names[case.run.path_names[path]] == name
    )


def _sampled_ns(case: Case, is_meant: Callable[[str, str], bool]) -> tuple[float, float, float]:
    """Return what some functions take of a step, by samples of its phases: the likely time, the
    most and the least. 0 of phases with few samples."""
    total_ns = [0.0, 0.0, 0.0]
    for path, time_ns in case.computing_by_path.items():
        shares = sampled_range(case.run, case.run.paths[path], is_meant)
        for place, share in enumerate(shares or ()):
            total_ns[place] += share * time_ns
    likely_ns, high_ns, low_ns = total_ns
    return likely_ns, high_ns, low_ns
