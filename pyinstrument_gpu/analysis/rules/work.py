# SPDX-License-Identifier: Apache-2.0
"""Rules on the work of a step, and on what is done between steps: the size of batches, optimizers,
threads, precision, and phases that come only now and then."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial

import numpy as np

from pyinstrument_gpu.analysis.advice import Finding, made_at
from pyinstrument_gpu.analysis.bottleneck import Bottleneck
from pyinstrument_gpu.analysis.contention import waited_for_processor
from pyinstrument_gpu.analysis.rules.case import (
    SHORT_STEP_NS,
    UNKNOWN,
    Case,
    Worth,
    guidance,
)
from pyinstrument_gpu.analysis.rules.occasions import (
    CHECKPOINT_PHASES,
    EVALUATION_PHASES,
    Occasions,
)
from pyinstrument_gpu.analysis.sampled_time import sampled_range
from pyinstrument_gpu.analysis.savings import Change
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.core.step_values import (
    ELEMENTS,
    ELEMENTS_WITHOUT_PADDING,
    TOKENS,
    WITHOUT_PADDING,
    values_of_steps,
)
from pyinstrument_gpu.parts.words import counted, duration, small_percent

MIN_SHARE = 0.01
"""The least share of the step that an optimizer takes on the host to be named."""
_ADVICE = "use AMP or TF32"
MIN_OCCASIONS = 2
MIN_OCCASIONS_SHARE = 0.01
"""The least share of the elapsed time that other phases have to take to be named."""
_FUSED_SAVES = {
    "_single_tensor_adam": 0.25,
    "_single_tensor_adamw": 0.25,
    "_single_tensor_adagrad": 0.1,
}
"""The functions of torch that go over parameters one by one, and the least part of their time that
a fused optimizer saves on a CPU."""
MIN_SIZED_STEPS = 20
LARGE, USUAL = 2.0, 1.25
"""So many times the median, batches are large, and at most so many times it, usual."""
MOST_LARGE = 0.25
"""Of the steps. More are no exceptions."""
MIN_PADDED = 0.3
"""The least part of large batches that is padding."""
_FEW_SAMPLES = 8
_EVALUATE = "evaluate half as often"
_MAY_BE_ROLLOUTS = (
    "modules run without gradients, but in training mode, or without a loader and a loss, so "
    "training may need what they compute"
)


def batch_size(case: Case) -> Iterator[Finding]:
    """Yield the worth of a larger batch: what the host takes for launches it takes for any batch.
    Per sample, of a batch twice as large. Of programs that time the device; and of those without
    one whose batches are of few samples, in steps so short that much of them must be the same for
    any batch, though this run can't tell how much.

    All that the host does once a step may be cheaper by the sample, in whichever phase, if there
    are launch-bound ones. What the device takes for a larger batch can't be told from a run with
    one size: it is assumed to take as long for a sample.
    """
    loader = case.run.setup_calls.only("loader")
    if case.run.environment.get("gpus") == [] and loader is not None:
        if 0 < loader.batch_size <= _FEW_SAMPLES and case.step_ns <= SHORT_STEP_NS:
            yield guidance(
                "double the batch size",
                None,
                *Worth(0.0, case.all_computing_ns / 2, case.step_ns),
                f"by the sample: batches have {counted(loader.batch_size, 'sample')}, and much of "
                f"a step of {duration(case.step_ns)} is the same for any number of them",
                f"{loader.call}(batch_size={2 * loader.batch_size}){made_at(case.run, 'loader')}, "
                "or far larger, as long as the model learns as well",
            )
        return
    judged = case.found.bottlenecks(Scope.STEP)
    kinds = {one.kind for one in judged.values()} - {Bottleneck.UNKNOWN}
    launches = [path for path, one in judged.items() if one.kind == Bottleneck.LAUNCH]
    if not kinds:
        return
    if not launches:
        yield guidance("double the batch size", None, *UNKNOWN, "no phase is launch-bound")
        return
    fixed_ns = sum(case.computing_ns(path) for path in launches)
    host_ns = case.all_computing_ns
    names = ", ".join(case.run.paths[path] for path in launches[:3])
    yield guidance(
        "double the batch size",
        None,
        *Worth(0.0, host_ns / 2, case.step_ns),
        f"by the sample: the host computes for {duration(host_ns)} per step, "
        f"{duration(fixed_ns)} of it in launch-bound phases ({names}), the same for any size as "
        "far as they launch; the gain on the device is unknown",
    )


def padding(case: Case) -> Iterator[Finding]:
    """Yield what steps with far larger batches than usual take more than the usual ones, as far as
    these batches are padding: one long sample pads all others of its batch. Zeros at the ends of
    rows of integers count as padding where no mask says what is.
    """
    run, steps = case.run, case.steps
    durations_ns = durations_ns_of(steps)
    for with_it, without_it in ((TOKENS, WITHOUT_PADDING), (ELEMENTS, ELEMENTS_WITHOUT_PADDING)):
        sizes, full = (values_of_steps(run, name, steps) for name in (with_it, without_it))
        known = np.isfinite(sizes) & (sizes > 0) & (full >= 0) & (full <= sizes)
        if np.count_nonzero(known) < MIN_SIZED_STEPS:
            continue
        usual_size = float(np.median(sizes[known]))
        is_large = known & (sizes > LARGE * usual_size)
        is_usual = known & (sizes <= USUAL * usual_size)
        count = int(np.count_nonzero(is_large))
        if not MIN_OCCASIONS <= count <= MOST_LARGE * np.count_nonzero(known):
            continue
        usual_ns, large_ns = durations_ns[is_usual].mean(), durations_ns[is_large].mean()
        padded = 1 - full[is_large].sum() / sizes[is_large].sum()
        if large_ns < USUAL * usual_ns or padded < MIN_PADDED:
            continue
        more_ns = padded * float((durations_ns[is_large] - usual_ns).sum())
        share = small_percent(durations_ns[is_large].sum(), durations_ns.sum())
        yield guidance(
            "pad less: put samples of like length into a batch",
            None,
            *Worth(0.0, more_ns / len(steps), case.step_ns),
            f"{counted(count, 'step')} of {len(steps):,} have batches of more than twice the usual "
            f"size, {padded:.0%} of them padding, and take {share} of the time of all steps",
            f"sort samples by length before they are put into batches{case.collated_by}",
        )


def optimizer_host_time(case: Case) -> Iterator[Finding]:
    """Yield the host's own time in optimizers, which a fused or foreach implementation saves.

    Of programs that time the device: without one, the optimizer computes on the host itself.

    No more can be saved than the host takes, and than the device is not busy for.
    """
    run, found = case.run, case.found
    idle_ns = max(0.0, case.step_ns - (found.savings.busy_ns or 0.0))
    for path in found.bottlenecks(Scope.STEP):
        name = run.names[run.path_names[path]]
        host_ns = case.computing_ns(path)
        if name.rstrip("0123456789 ") != "optimizer" or host_ns < MIN_SHARE * case.step_ns:
            continue
        saving = case.saving(Change.LAUNCHES, path=path)
        if saving is None or not case.is_listed(saving):
            yield guidance(
                "use a fused or foreach optimizer",
                None,
                *Worth(0.0, min(host_ns, idle_ns), case.step_ns),
                f"{run.paths[path]} takes {duration(host_ns)} of the host per step",
                f"Optimizer(fused=True){made_at(case.run, 'optimizer')}",
            )


def fused_optimizer(case: Case) -> Iterator[Finding]:
    """Yield the time of an optimizer on the CPU that goes over its parameters one by one, as it
    does there unless it is told otherwise, if samples of the stack have seen that.

    How much of it a fused one saves depends on the parameters: `_FUSED_SAVES` is what it was at
    least in benchmarks/results/2026-11-29-fused-optimizers.md. SGD was slower with it in some
    cases, and foreach=True, which torch takes by itself on a GPU, too: neither is advised.
    """
    run = case.run
    dtypes = {name for one in run.setup_calls.of_kind("optimizer") for name in one.dtypes}
    if run.environment.get("gpus") != [] or any("float" not in name for name in dtypes):
        return  # a fused one takes floating point alone
    for path, mean_ns in case.computing_by_path.items():
        name = run.names[run.path_names[path]].rstrip("0123456789 ")
        if name != "optimizer" or mean_ns < MIN_SHARE * case.step_ns:
            continue
        low_ns = high_ns = likely_ns = 0.0
        for function, least in _FUSED_SAVES.items():
            is_it = partial(_is_function, "torch/optim/", function)
            found = sampled_range(run, run.paths[path], is_it)
            if found is not None and found[0]:
                likely_ns += found[0] * mean_ns
                high_ns += found[1] * mean_ns
                low_ns += found[2] * mean_ns * least
        if likely_ns:
            yield guidance(
                "use a fused optimizer",
                None,
                *Worth(low_ns, min(high_ns, mean_ns), case.step_ns),
                f"{run.paths[path]} takes {duration(mean_ns)} of a step, and goes over the "
                f"parameters one by one for {likely_ns / mean_ns:.0%} of that",
                f"fused=True for the optimizer{made_at(case.run, 'optimizer')}",
            )


def _is_function(folder: str, function: str, file: str, name: str) -> bool:
    return name == function and folder in file


def too_many_threads(case: Case) -> Iterator[Finding]:
    """Yield what steps waited for a processor where torch runs an operator on more threads than the
    process has processors. All of it may be what these threads take from each other."""
    threads, found = case.run.environment.get("torch_threads"), case.found.contention
    cores = None if found is None else found.processors
    if found is None or threads is None or cores is None or threads <= cores:
        return
    share = found.share
    if not share:
        return
    yield guidance(
        "run no more threads than there are processors",
        None,
        *Worth(0.0, share * case.step_ns, case.step_ns),
        f"torch uses {threads} threads on {cores} processor{'s' * (cores != 1)}, and "
        f"{waited_for_processor(share)}",
        f"torch.set_num_threads({cores}){made_at(case.run, 'threads')}, or OMP_NUM_THREADS={cores}",
    )


def precision(case: Case) -> Iterator[Finding]:
    """Yield the worth of AMP and TF32, which make the device's work shorter: that counts only if
    the device is the limit.

    Where it is proven to be, the report's advice says so. A step can't be shorter than what the
    host computes in it, so if no phase is device-bound, the time that the host is blocked is a
    limit.
    """
    found = case.found
    is_timed = bool((case.run.span_device_ns >= 0).any())
    _, means = found.time_budget.means()
    if not is_timed or not means or any(one.low_ns is None for one in found.advice):
        return
    judged = {one.kind for one in found.bottlenecks(Scope.STEP).values()} - {Bottleneck.UNKNOWN}
    blocked_ns = [one.blocked_ns for one in means.values() if one.blocked_ns is not None]
    if judged and Bottleneck.DEVICE not in judged and len(blocked_ns) == len(means):
        waits = f"the host waits {duration(sum(blocked_ns))} per step for the device"
        worth = Worth(0.0, sum(blocked_ns), case.step_ns)
        yield guidance(_ADVICE, None, *worth, f"no phase is device-bound, and {waits}")
        return
    busy_ns, step_ns = found.savings.busy_ns, found.savings.step_ns
    if found.premises.doubt is not None:
        why = f"when the device looks busy it may be waiting {found.premises.doubt}"
    elif busy_ns is None:
        why = "how long the device was busy is unknown"
    else:
        why = f"the device is proven to be busy for {busy_ns / step_ns:.0%} of the time only"
    yield guidance(_ADVICE, None, *UNKNOWN, why)


def occasional_phases(case: Case) -> Iterator[Finding]:
    """Yield evaluations, checkpoints and the like: their share of the elapsed time, and what half
    as often would save."""
    timeline = case.timeline
    kinds = [
        (_EVALUATE, timeline.evaluations(), EVALUATION_PHASES),
        ("save checkpoints half as often", timeline.checkpoints(), CHECKPOINT_PHASES),
    ]
    for name, occasions in timeline.others(MIN_OCCASIONS_SHARE).items():
        kinds.append((f'run "{name}" half as often', occasions, (name,)))
    for advice, occasions, names in kinds:
        if len(occasions) < MIN_OCCASIONS:
            continue
        if advice == _EVALUATE and timeline.may_be_rollouts():
            where = case.first_called(names) or ""
            yield guidance(advice, None, *UNKNOWN, f"{_MAY_BE_ROLLOUTS}{where and f' ({where})'}")
        else:
            yield _half_as_often(case, advice, occasions, names)


def _half_as_often(
    case: Case, advice: str, occasions: Occasions, names: Collection[str]
) -> Finding:
    if lost := case.found.span_losses.spans:
        return guidance(advice, None, *UNKNOWN, f"{lost:,} spans are missing from the history")
    if not occasions.are_known:
        return guidance(advice, None, *UNKNOWN, "no read that the watch saw ends the device's work")
    elapsed_ns, steps = case.timeline.elapsed_ns, len(case.steps)
    low_ns, high_ns = int(occasions.low_ns.sum()), int(occasions.high_ns.sum())
    # By what the first is longer than usual may come once: a compilation, caches, choosing kernels.
    of_first_ns, *others_ns = occasions.low_ns[np.argsort(occasions.begins_ns)].tolist()
    once_ns = max(0.0, of_first_ns - float(np.median(others_ns)))
    worth = Worth(
        (low_ns - once_ns) / 2 / steps, high_ns / 2 / steps, elapsed_ns / steps, "elapsed time"
    )
    each = " to ".join(
        dict.fromkeys(duration(time_ns / len(occasions)) for time_ns in (low_ns, high_ns))
    )
    evidence = f"{len(occasions):,} times in {steps:,} steps, {each} each"
    return guidance(advice, None, *worth, evidence, case.first_called(names))
