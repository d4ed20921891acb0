# SPDX-License-Identifier: Apache-2.0
"""Evaluations, checkpoints and other phases that come only now and then, and what each takes.

An evaluation is what lies between two steps if a phase of evaluation is among it: its loader, its
copies and its losses too. Checkpoints and other phases in between are left out. The time outside of
phases may belong to the evaluation or not, so that it takes from `low_ns` to `high_ns`: what is
between its first and its last phase belongs to it, but for the time behind the last step.

The host begins an evaluation while the device is still at the steps before, and waits for those at
the evaluation's first read. If a program has a device, `low_ns` therefore begins behind that read,
and how long an evaluation takes in which nothing is read is unknown.

Modules in eval mode may also be a teacher or a target network, which run for nearly every update,
or the policy of a rollout, on whose outcome the program trains.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.bottleneck import LEAD_NS
from pyinstrument_gpu.analysis.intervals import interval_at
from pyinstrument_gpu.analysis.time_budget import DATA_PHASES
from pyinstrument_gpu.core.arrays import distinct, durations_ns_of, least_of
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistics import Scope

MAX_SHARE = 0.5
"""The share of the steps from which on a phase in them is a part of the step and no occasion."""
EVALUATION_PHASES = ("eval", "evaluate", "evaluation", "test", "val", "validate", "validation")
CHECKPOINT_PHASES = ("checkpoint", "save", "save_checkpoint")
_AUTOMATIC = "eval"
"""The one among them that may be there because a module was in eval mode."""
_NO_GRADIENTS = ("no_grad",)
"""Modules in training mode without gradients: a sample, a rollout, or an evaluation that forgot to
call `eval()`."""
_LOOP_PHASES = ("h2d", "forward", "loss", *_NO_GRADIENTS, *DATA_PHASES)
"""What a loop of evaluation has as well as one of training."""
_STEP_PHASES = ("backward", "zero_grad", "clip", "scheduler", "optimizer")


@dataclass(frozen=True)
class Occasions:
    """The occasions of one kind, as columns of equal length.

    Attributes:
        begins_ns, ends_ns: the steps, or the times between steps, in which they are.
        low_ns, high_ns: how long each took is between these two.
        are_known: whether that is known of all.
    """

    begins_ns: NDArray[np.int64]
    ends_ns: NDArray[np.int64]
    low_ns: NDArray[np.int64]
    high_ns: NDArray[np.int64]
    are_known: bool = True

    def __len__(self) -> int:
        return len(self.begins_ns)


class OutermostPhases:
    """The outermost phases of a thread from its first step on, each in a step or in the gap behind
    one. Phases around steps, such as epochs, are none of them.

    Attributes:
        elapsed_ns: from the begin of the first step to the end of the last step, phase or read.
    """

    def __init__(
        self, run: Run, thread: int, steps: NDArray[np.void], reads: NDArray[np.void] | None
    ) -> None:
        """`reads` are the thread's waits for results by begin; None if there is no device."""
        spans, scopes = run.spans, span_scopes(run.spans)
        chosen = (spans["thread"] == thread) & (scopes != Scope.OTHER_THREADS)
        chosen &= spans["host_begin_ns"] >= steps["begin_ns"][0]
        begun = np.searchsorted(steps["begin_ns"], spans["host_begin_ns"], "left")
        ended = np.searchsorted(steps["end_ns"], spans["host_end_ns"], "right")
        is_around = ended > begun
        around = distinct(spans["path"][is_around])
        parents = run.path_parents[spans["path"]]
        is_outermost = (parents < 0) | np.isin(parents, around)
        kept = chosen & ~is_around & is_outermost
        self._spans, self._stream_ns = spans[kept], run.span_device_ns[kept]
        self._run = run
        self._spelled = [run.names[name].rstrip("0123456789 ") for name in run.path_names]
        self._names = [name.lower() for name in self._spelled]
        self._steps, self._reads = steps, reads
        end_ns = max(int(self._spans["host_end_ns"].max(initial=-1)), int(steps["end_ns"][-1]))
        if reads is not None and len(reads):
            end_ns = max(end_ns, int((reads["begin_ns"] + reads["duration_ns"]).max()))
        if run.open_step is not None:
            end_ns = max(run.open_step.begin_ns, int(steps["end_ns"][-1]))
        self.elapsed_ns = end_ns - int(steps["begin_ns"][0])
        self._gaps = steps["end_ns"], np.append(steps["begin_ns"][1:], end_ns)
        begins_ns = self._spans["host_begin_ns"]
        self._gap = interval_at(*self._gaps, begins_ns)
        self._step = interval_at(steps["begin_ns"], steps["end_ns"], begins_ns)

    def evaluations(self) -> Occasions:
        """Return the evaluations; None where they come with more than `MAX_SHARE` of the steps."""
        is_evaluation = self._are(self._evaluating())
        steps = distinct(np.maximum(self._step, self._gap)[is_evaluation])
        if np.count_nonzero(steps >= 0) > MAX_SHARE * len(self._steps):
            is_evaluation[:] = False
        return _together(self._in_gaps(is_evaluation), self._in_steps(is_evaluation))

    def may_be_rollouts(self) -> bool:
        """Return whether the evaluations may be something else: modules were in training mode,
        or automatic phases alone show them, and the program has neither a loader nor a loss in
        them."""
        if self._evaluating() == _NO_GRADIENTS:
            return True
        is_evaluation = self._are(EVALUATION_PHASES)
        is_own = bool((is_evaluation & ~self._are((_AUTOMATIC,))).any())
        if is_own or "optimizer_seen" not in self._run.environment or self._are(DATA_PHASES).any():
            return False
        is_loss = self._run.are_named(["loss"])
        in_evaluation = self._run.are_named([_AUTOMATIC])[self._run.path_parents]
        gaps = distinct(self._gap[is_evaluation & (self._gap >= 0)])
        beside = self._are(("loss",)) & np.isin(self._gap, gaps)
        inside = is_loss & in_evaluation & (self._run.path_parents >= 0)
        return not (beside.any() or inside.any())

    def _evaluating(self) -> Collection[str]:
        """The phases that are evaluations, or else may be."""
        return EVALUATION_PHASES if self._are(EVALUATION_PHASES).any() else _NO_GRADIENTS

    def checkpoints(self) -> Occasions:
        return self._of_phases(self._are(CHECKPOINT_PHASES))

    def others(self, min_share: float) -> dict[str, Occasions]:
        """The occasions of all other phases that are part of no loop, by name as the first of them
        spells it: of those that take so much of the elapsed time."""
        spans = self._spans
        host_ns = np.maximum(durations_ns_of(spans, "host_"), 0)
        times_ns = dict.fromkeys(self._names, 0.0)
        for path, sum_ns in enumerate(np.bincount(spans["path"], host_ns)):
            times_ns[self._names[path]] += sum_ns
        usual = {*EVALUATION_PHASES, *CHECKPOINT_PHASES, *_LOOP_PHASES, *_STEP_PHASES}
        return {
            self._spelled[self._names.index(name)]: self._of_phases(self._are((name,)))
            for name, time_ns in times_ns.items()
            if name not in usual and time_ns >= max(1, min_share * self.elapsed_ns)
        }

    def _are(self, names: Collection[str]) -> NDArray[np.bool_]:
        of_paths = np.array([name in names for name in self._names], dtype=bool)
        are: NDArray[np.bool_] = of_paths[self._spans["path"]]
        return are

    def _in_gaps(self, is_evaluation: NDArray[np.bool_]) -> Occasions:
        gaps = distinct(self._gap[is_evaluation & (self._gap >= 0)])
        chosen = np.isin(self._gap, gaps)
        spans, place = self._spans[chosen], np.searchsorted(gaps, self._gap[chosen])
        begins_ns, ends_ns = spans["host_begin_ns"], spans["host_end_ns"]
        is_evaluation = is_evaluation[chosen]
        first_ns = least_of(place[is_evaluation], begins_ns[is_evaluation], len(gaps))
        last_ns = -least_of(place[is_evaluation], -ends_ns[is_evaluation], len(gaps))
        # The loop of training before it comes to the end of its loader, the next one starts it.
        belongs = is_evaluation | self._are(_LOOP_PHASES)[chosen]
        belongs &= ~(self._are(("data end",))[chosen] & (ends_ns <= first_ns[place]))
        belongs &= ~(self._are(("data start",))[chosen] & (begins_ns >= last_ns[place]))
        first_ns = least_of(place[belongs], begins_ns[belongs], len(gaps))
        last_ns = -least_of(place[belongs], -ends_ns[belongs], len(gaps))
        gap_begins_ns, gap_ends_ns = (edges_ns[gaps] for edges_ns in self._gaps)
        are_known = True
        if self._reads is not None:
            read_ns = self._first_read_end_ns(gaps)
            are_known = bool((read_ns >= 0).all())
            first_ns = np.clip(read_ns, first_ns, last_ns)

        def of_phases_ns(
            which: NDArray[np.bool_], since_ns: NDArray[np.int64], until_ns: NDArray[np.int64]
        ) -> NDArray[np.int64]:
            inside_ns = np.minimum(ends_ns, until_ns[place])
            inside_ns = np.maximum(inside_ns - np.maximum(begins_ns, since_ns[place]), 0)
            sums_ns = np.bincount(place, np.where(which, inside_ns, 0), minlength=len(gaps))
            return sums_ns.astype(np.int64)

        low_ns = last_ns - first_ns - of_phases_ns(~belongs, first_ns, last_ns)
        high_ns = gap_ends_ns - gap_begins_ns - of_phases_ns(~belongs, gap_begins_ns, gap_ends_ns)
        # Behind the last step the program may do anything before it predicts something at its end.
        is_behind = gaps == len(self._steps) - 1
        low_ns = np.where(is_behind, of_phases_ns(belongs, first_ns, last_ns), low_ns)
        return Occasions(gap_begins_ns, gap_ends_ns, low_ns, high_ns, are_known)

    def _first_read_end_ns(self, gaps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return when the first read in each gap ended; -1 where there is none."""
        assert self._reads is not None
        begins_ns = np.append(self._reads["begin_ns"], np.iinfo(np.int64).max)
        lengths_ns = np.append(self._reads["duration_ns"], 0)
        first = np.searchsorted(begins_ns, self._gaps[0][gaps])
        is_inside = begins_ns[first] < self._gaps[1][gaps]
        return np.where(is_inside, np.where(is_inside, begins_ns[first], 0) + lengths_ns[first], -1)

    def _in_steps(self, chosen: NDArray[np.bool_]) -> Occasions:
        """The occasions in steps, unless they are in most of them."""
        in_steps = chosen & (self._step >= 0)
        if len(distinct(self._step[in_steps])) > MAX_SHARE * len(self._steps):
            in_steps[:] = False
        edges_ns = self._steps["begin_ns"], self._steps["end_ns"]
        return self._phases_at(in_steps, self._step, edges_ns)

    def _of_phases(self, chosen: NDArray[np.bool_]) -> Occasions:
        """The occasions of phases that take no more than their own time."""
        in_gaps = self._phases_at(chosen & (self._gap >= 0), self._gap, self._gaps)
        return _together(in_gaps, self._in_steps(chosen))

    def _phases_at(
        self,
        chosen: NDArray[np.bool_],
        places: NDArray[np.int64],
        edges_ns: tuple[NDArray[np.int64], NDArray[np.int64]],
    ) -> Occasions:
        """Return the time of some phases at their places, which have these begins and ends. The
        device may do earlier work while they are blocked, or wait for room in the launch queue."""
        wanted = distinct(places[chosen])
        spans, place = self._spans[chosen], np.searchsorted(wanted, places[chosen])
        host_ns = np.maximum(durations_ns_of(spans, "host_"), 0)
        blocked_ns = np.zeros_like(host_ns)
        if self._reads is not None:
            known = spans["blocked_ns"] >= 0
            blocked_ns = np.where(known, np.minimum(spans["blocked_ns"], host_ns), host_ns)
        # Behind a lead that the host has at both ends the device had work all the time, and what
        # the phase launches is part of that.
        stream_ns = self._stream_ns[chosen]
        lead_ns = np.minimum(
            spans["device_begin_ns"] - spans["host_begin_ns"],
            spans["device_end_ns"] - spans["host_end_ns"],
        )
        is_behind = (stream_ns >= 0) & (lead_ns >= LEAD_NS)
        is_behind = np.isin(spans["path"], spans["path"][is_behind])
        longest_ns = np.zeros(len(self._run.paths), np.int64)
        np.maximum.at(longest_ns, spans["path"], stream_ns)
        blocked_ns = np.where(is_behind, host_ns, blocked_ns)
        most_ns = np.where(is_behind, np.maximum(host_ns, longest_ns[spans["path"]]), host_ns)
        low_ns, high_ns = (
            np.bincount(place, times_ns, minlength=len(wanted)).astype(np.int64)
            for times_ns in (host_ns - blocked_ns, most_ns)
        )
        return Occasions(edges_ns[0][wanted], edges_ns[1][wanted], low_ns, high_ns)


def _together(one: Occasions, other: Occasions) -> Occasions:
    names = ("begins_ns", "ends_ns", "low_ns", "high_ns")
    begins_ns, ends_ns, low_ns, high_ns = (
        np.concatenate([getattr(one, name), getattr(other, name)]) for name in names
    )
    are_known = one.are_known and other.are_known
    return Occasions(begins_ns, ends_ns, low_ns, high_ns, are_known)
