# SPDX-License-Identifier: Apache-2.0
"""The search in the values of a step for the one that was the first that is not finite.

A step went wrong if its loss, or a gradient of weights, is not finite. Only then the first value
that is not finite is its origin: programs also make infinite values that do no harm. Such are what
is added to the scores that a mask leaves out, infinite buffers, and what was infinite in a step
that went well. Gradients of a scaled loss overflow now and then, which its GradScaler expects: with
one, a gradient is an origin only if it is NaN before any is infinite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyinstrument_gpu.aspects.nonfinite import MOST_TEXT, MOST_WAY
from pyinstrument_gpu.aspects.nonfinite.data import Magnitude, Origin
from pyinstrument_gpu.aspects.nonfinite.extremes import Extremes, Place
from pyinstrument_gpu.aspects.nonfinite.step_check import Call, Event, StepCheck

_Habit = tuple[str, str, str]
_Bad = tuple[int, Event, Extremes]


class OriginSearch:
    """Judges the steps of a program one after the other.

    Attributes:
        origin: of the first step that went wrong.
        scaled_overflows: steps with gradients that a GradScaler skips.
    """

    def __init__(self) -> None:
        self.origin: Origin | None = None
        self.scaled_overflows = 0
        self._habits: set[_Habit] = set()
        self._finite_step: int | None = None  # the last one whose loss was finite
        self._whole_step: int | None = None  # and all of whose gradients were

    def judge(self, check: StepCheck, values: Mapping[Place, Extremes]) -> None:
        """Look at a step, whose values have arrived, unless the origin is known."""
        if self.origin is not None and self.origin.where != "unchecked":
            return
        known = [(event, values[event.place]) for event in check.events if event.place in values]
        bad = [
            (number, event, found)
            for number, (event, found) in enumerate(known)
            if self._is_bad(event, found)
        ]
        has_loss = any(event.kind == "loss" for event, _ in known)
        decisive = [one for one in bad if one[1].kind == "loss" or one[1].is_leaf]
        if not has_loss:  # the program may have looked at it, and left it at that
            decisive = [one for one in bad if one[0] == len(known) - 1]
        first = bad[0] if bad else None
        if decisive and check.is_scaled:
            forward = [one for one in bad if one[1].kind not in ("loss", "gradient")]
            later = next((one for one in bad if one[1].kind in ("loss", "gradient")), None)
            if not forward and later is not None and not later[2].is_nan:
                self.scaled_overflows += 1
                return
        if decisive and first is not None:
            made = self._origin(check, first, known)
            if self.origin is None or made.where != "unchecked":
                self.origin = made
            return
        if has_loss:
            self._finite_step = check.index
            if check.is_whole:
                self._whole_step = check.index
        for event, found in known:
            if not found.is_finite and event.call is not None:
                self._habits.add(_habit(event, event.call))

    def _is_bad(self, event: Event, found: Extremes) -> bool:
        if found.is_finite or (event.kind not in ("loss", "gradient") and found.is_mask):
            return False
        if event.call is not None and _habit(event, event.call) in self._habits:
            return False
        return found.is_nan or event.kind != "buffer"

    def _origin(
        self, check: StepCheck, first: _Bad, known: Sequence[tuple[Event, Extremes]]
    ) -> Origin:
        number, event, found = first

        def made(where: str, by: Call | None, detail: str = "") -> Origin:
            return Origin(
                step=check.index,
                where=where,  # type: ignore[arg-type]  # one of the literals below
                module="" if by is None else by.module[:MOST_TEXT],
                module_class="" if by is None else by.module_class[:MOST_TEXT],
                detail=detail[:MOST_TEXT],
                value="nan" if found.is_nan else "inf",
                way=_way(known[:number], event, check.calls),
                dtype=str(event.place[0].values.dtype).removeprefix("torch."),
                finite_step=self._finite_step,
                update_step=self._whole_step if self._whole_step == check.index - 1 else None,
            )

        if not check.is_whole:
            return made("unchecked", None)
        if event.kind in ("weights", "buffer"):
            return made("weights", event.call, event.detail)
        if event.kind == "gradient":
            return made("backward", _call_of(event, check.calls), event.detail)
        if event.kind != "input":
            return made("forward", event.call)
        if event.around is None and not event.is_computed:
            return made("input", event.call)
        return made("forward", event.around, "" if event.call is None else event.call.module)


def _habit(event: Event, call: Call) -> _Habit:
    return event.kind, call.module, event.detail


def _call_of(event: Event, calls: Mapping[int, Sequence[Call]]) -> Call | None:
    """The innermost call in which a node was made."""
    thread, number = event.node
    around = [call for call in calls.get(thread, ()) if call.begin <= number < call.end]
    return min(around, key=lambda call: call.end - call.begin, default=None)


def _way(
    known: Sequence[tuple[Event, Extremes]], origin: Event, calls: Mapping[int, Sequence[Call]]
) -> tuple[Magnitude, ...]:
    """The largest magnitudes before the origin, module by module, and those of its own weights."""
    shown = "gradient" if origin.kind == "gradient" else "output"
    find: Callable[[Event], Call | None] = (
        (lambda event: _call_of(event, calls)) if shown == "gradient" else lambda event: event.call
    )
    way: list[tuple[str, float]] = []
    for event, found in reversed(known):
        is_own_weight = event.kind == "weights" and event.call == origin.call
        if not (event.kind == shown or is_own_weight) or not found.is_finite:
            continue
        call = find(event)
        module = call.module if call is not None else "outside of modules"
        module = (f"{module}.{event.detail}" if is_own_weight else module)[:MOST_TEXT]
        if way and way[-1][0] == module:
            way[-1] = module, max(way[-1][1], found.magnitude)
        elif len(way) < MOST_WAY:
            way.append((module, found.magnitude))
        else:
            break
    return tuple(Magnitude(*each) for each in reversed(way))
