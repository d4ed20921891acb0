# SPDX-License-Identifier: Apache-2.0
"""Throughput as an aspect of a run: tokens per second, and how much of its peak a device reaches.

It records nothing: tokens are readings of steps, and floating-point operations are counted where
torch's profiler looks at a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from pyinstrument_gpu.aspects.throughput.utilization import (
    FlopRow,
    Utilization,
    are_of_means,
    utilization,
)
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.aspect import Aspect, ReportedRun
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.step_values import TOKENS, WITHOUT_PADDING, values_of_steps
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import (
    UNKNOWN,
    counted,
    flops_text,
    printable,
    rate,
    small_percent,
)


@dataclass(frozen=True)
class TokenRate:
    """Tokens of the steps in the history of which they are known, without those that were
    profiled or cut short.

    Attributes:
        steps: how many.
        per_step, per_second: padding included, of step time.
        padding: the share of them that is padding; unknown where it is in one of these steps.
    """

    steps: int
    per_step: float
    per_second: float
    padding: float | None


@dataclass(frozen=True)
class ThroughputSection:
    """The throughput of the run.

    Attributes:
        tokens: of language models.
        utilization: of the device, if floating-point operations were counted.
    """

    tokens: TokenRate | None
    utilization: Utilization | None


class ThroughputAspect(Aspect[Run, ThroughputSection]):
    """Tokens per second, and the utilization of the device."""

    name = "throughput"
    comes_first = True
    section_type = ThroughputSection | None
    about = "tokens per second, and how much of its peak the device reaches."
    in_preview = False

    def section(self, run: Run) -> ThroughputSection | None:
        """Return the section; None where neither is known."""
        tokens, used = _tokens(run), utilization(run)
        return None if tokens is None and used is None else ThroughputSection(tokens, used)

    def summary(self, section: ThroughputSection, document: ReportedRun) -> Iterable[Part]:
        texts = []
        if section.tokens is not None:
            padding = section.tokens.padding
            of_them = "" if not padding else f" ({small_percent(padding, 1)} padding)"
            texts.append(f"{rate(section.tokens.per_second)} tokens/s{of_them}")
        used = section.utilization
        if used is not None:
            if used.model_flops_per_second is not None:
                texts.append(f"{flops_text(used.model_flops_per_second)}/s")
            texts.append("MFU unknown" if used.mfu is None else f"MFU {_range(used)}")
        yield Sentence(printable(f"Throughput: {', '.join(texts)}"))

    def parts(self, section: ThroughputSection, document: ReportedRun) -> Iterable[Part]:
        """Tokens, then utilization by phase, and what is unknown."""
        yield Sentence()
        yield Sentence("Throughput", "title")
        tokens = section.tokens
        if tokens is not None:
            text = f"{rate(tokens.per_second)} tokens/s of step time"
            if tokens.padding is not None:
                text += f", {small_percent(tokens.padding, 1)} of which are padding"
            yield Sentence(f"{text} (known of {counted(tokens.steps, 'step')})")
        if section.utilization is not None:
            yield from _utilization_parts(section.utilization)

    def unknown(self, run: Run) -> Iterator[str]:
        # Of a run without any profile the operations say it.
        if run.operations is not None and run.operations.flops is None:
            yield "FLOPs and MFU: they were not counted (run --flops)."


def _tokens(run: Run) -> TokenRate | None:
    steps = run.steps.closed
    steps = steps[are_of_means(run, steps)]
    tokens = values_of_steps(run, TOKENS, steps)
    without = values_of_steps(run, WITHOUT_PADDING, steps)[~np.isnan(tokens)]
    steps, tokens = steps[~np.isnan(tokens)], tokens[~np.isnan(tokens)]
    total, total_ns = float(tokens.sum()), int(durations_ns_of(steps).sum())
    if not total or not total_ns:
        return None
    real = float(without.sum())  # NaN where one is unknown
    return TokenRate(
        steps=len(steps),
        per_step=total / len(steps),
        per_second=total / total_ns * 1e9,
        padding=1 - real / total if 0 <= real <= total else None,
    )


def _range(used: Utilization) -> str:
    """Return what operators with a formula reach, and what all may reach at most."""
    assert used.mfu is not None
    low = small_percent(used.mfu, 1)
    if used.mfu_at_most is None:
        return f"at least {low}"
    high = small_percent(used.mfu_at_most, 1)
    return low if low == high else f"{low} to {high}"


_MOST_ROWS = 15
_MOST_UNKNOWN = 5


def _utilization_parts(used: Utilization) -> Iterator[Part]:
    steps = f"step {used.first_step}"
    if used.first_step != used.last_step:
        steps = f"steps {used.first_step}-{used.last_step}"
    again = used.hardware_flops - used.model_flops
    text = f"{flops_text(used.model_flops)} of the model per step, as counted in {steps}"
    if again:
        text += f", and {flops_text(again)} more, done again or by the optimizer"
    if used.scale != 1:
        text += f"; times {used.scale:.4g}, as other steps have more or fewer tokens"
    yield Sentence(text)
    if used.mfu is not None and used.hfu is not None and used.model_flops_per_second is not None:
        peaks = " and ".join(f"{flops_text(rate)}/s in {name}" for name, rate in used.peaks.items())
        yield Sentence(
            f"{flops_text(used.model_flops_per_second)}/s: MFU {_range(used)}, HFU at least "
            f"{small_percent(used.hfu, 1)}, of {peaks}"
        )
        yield Sentence(printable(f"Peak of {used.device}: {'; '.join(used.sources)}"), "note")
    else:
        yield Sentence(printable(f"MFU is unknown: {used.why_unknown}"), "warn")
    if any(row.name is not None for row in used.phases):
        yield Sentence()
        yield from _table(used.phases)
    if used.unknown_share:
        names = ", ".join(
            f"{one.name or 'others'} {small_percent(one.share, 1)}"
            for one in used.unknown[:_MOST_UNKNOWN]
        )
        yield Sentence()
        yield Sentence(
            printable(
                f"Operators without a formula took {small_percent(used.unknown_share, 1)} of "
                f"{steps}, and are not in the table: {names}"
            )
        )


def _table(rows: tuple[FlopRow, ...]) -> Iterator[Part]:
    columns = [
        column
        for column in ("forward", "backward", "recompute", "optimizer")
        if any(getattr(row, column) for row in rows)
    ]
    is_timed = any(row.per_second is not None for row in rows)
    is_more = any(row.hardware_flops != row.model_flops for row in rows)
    shares = [*(["mfu"] if is_timed else []), *(["hfu"] if is_timed and is_more else [])]
    shown = [
        Row(
            row.name or "(no phase)",
            [
                *(_number(getattr(row, column)) for column in columns),
                *([UNKNOWN if row.per_second is None else _number(row.per_second)] * is_timed),
                *(_percent(getattr(row, share)) for share in shares),
            ],
        )
        for row in rows[:_MOST_ROWS]
    ]
    heads = [*(["FLOP/s"] * is_timed), *(f"{share.upper()} %" for share in shares)]
    yield table(["FLOP per step, phase", *columns, *heads], [shown])
    if len(rows) > _MOST_ROWS:
        yield Sentence(f"... and {counted(len(rows) - _MOST_ROWS, 'more phase')}", "warn")


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.1f}"


def _number(flops: float) -> str:
    return flops_text(flops).removesuffix("FLOP").strip()


ASPECT = ThroughputAspect()
