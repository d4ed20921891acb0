# SPDX-License-Identifier: Apache-2.0
"""The first value that was not finite, as a report tells of it."""

from __future__ import annotations

from collections.abc import Iterator

from pyinstrument_gpu.analysis.advice import Finding, unpriced
from pyinstrument_gpu.aspects.nonfinite import NAME
from pyinstrument_gpu.aspects.nonfinite.data import Nonfinite, Origin
from pyinstrument_gpu.core.aspect import DocumentAspect, ReportedRun
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import capitalised, counted, printable

_EVERY = "pyinstrument-gpu run --nonfinite=1 PROGRAM"
_MORE = "pyinstrument-gpu report -v RUN"
_FLOAT16 = "In float16, what is above 65,504 is infinite"


class NonfiniteAspect(DocumentAspect[Run, Nonfinite]):
    """The place where values first stopped being finite."""

    name = NAME
    document = Nonfinite
    noted = "values that are not finite"
    heading = "First value that is not finite"
    comes_first = True
    section_type = Nonfinite | None
    about = "which module made the first NaN or infinite value."

    def section(self, run: Run) -> Nonfinite | None:
        known: Nonfinite | None = run.nonfinite
        return known

    def summary(self, found: Nonfinite, document: ReportedRun) -> Iterator[Part]:
        """Yield that there is none; where there is one, the verdict says so."""
        if found.checked_steps and found.origin is None:
            steps = counted(found.checked_steps, "checked step")
            yield Sentence(f"NaN and infinite values: none in {steps}")

    def parts(self, found: Nonfinite, document: ReportedRun) -> Iterator[Part]:
        """Yield what was found, the magnitudes on the way there, and what was checked."""
        if found.why_unknown:
            return
        yield Sentence()
        yield Sentence(self.heading, "title")
        origin = found.origin
        if origin is None:
            yield Sentence(f"None in {counted(found.checked_steps, 'checked step')}")
        else:
            yield Sentence(printable(capitalised(origin.text)), "failure")
            if since := _since(origin):
                yield Sentence(capitalised(since), "note")
            rows = [Row(printable(one.module), [f"{one.largest:.4g}"]) for one in origin.way]
            if rows:
                of = "gradients" if origin.where == "backward" else "outputs and weights"
                yield table([f"{of} before, in order", "largest magnitude"], [rows])
                if origin.dtype == "float16":
                    yield Sentence(_FLOAT16, "note")
        if found.scaled_overflows:
            steps = counted(found.scaled_overflows, "checked step")
            yield Sentence(f"Scaled gradients overflowed in {steps}: GradScaler skips them", "note")
        if found.lost_steps:
            lost = counted(found.lost_steps, "more step")
            yield Sentence(f"The values of {lost} did not arrive", "note")
        if found.unknown_values:
            unknown = counted(found.unknown_values, "tensor")
            yield Sentence(f"{unknown} of checked steps could not be looked at", "note")

    def failures(self, run: Run) -> Iterator[Finding]:
        found: Nonfinite | None = run.nonfinite
        origin = None if found is None else found.origin
        if origin is None:
            return
        before = ", ".join(f"{one.module} {one.largest:.3g}" for one in origin.way[-3:])
        evidence = "; ".join(
            each
            for each in (f"largest magnitudes before: {before}" if before else "", _since(origin))
            if each
        )
        is_known = origin.where not in ("weights", "unchecked") or origin.update_step is not None
        yield unpriced(
            "failure",
            printable(origin.text),
            printable(evidence),
            None,
            _MORE if is_known else _EVERY,
        )

    def unknown(self, run: Run) -> Iterator[str]:
        found: Nonfinite | None = run.nonfinite
        if found is None:
            return
        if found.why_unknown:
            yield f"Values that are not finite: {printable(found.why_unknown)}."
        if found.lost_steps:
            steps = counted(found.lost_steps, "step")
            yield f"Values that are not finite: those of {steps} did not arrive."


def _since(origin: Origin) -> str:
    """Return what is known of when it began, where that was earlier than the step."""
    if origin.where not in ("weights", "unchecked"):
        return ""
    if origin.where == "weights" and origin.update_step is not None:
        return f"the update of step {origin.update_step}, whose gradients were finite, made it"
    if origin.finite_step is None:
        return "no earlier step was seen to be finite"
    return f"it began after step {origin.finite_step}, the last whose loss was seen to be finite"


ASPECT = NonfiniteAspect()
