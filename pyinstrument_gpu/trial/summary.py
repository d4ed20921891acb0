# SPDX-License-Identifier: Apache-2.0
"""The result of trials, for the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyinstrument_gpu.analysis.contention import CONTENTION, waited_for_processor
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import counted, duration, time_text
from pyinstrument_gpu.trial.edits.edit import Changes
from pyinstrument_gpu.trial.patch import Patch
from pyinstrument_gpu.trial.results import Same
from pyinstrument_gpu.trial.search import MARGIN, Candidate, RelativeChange, SearchOutcome

_CLEAR = 0.05
"""How far an interval may reach for what is said to make no difference."""


def parts(
    outcome: SearchOutcome, verdict: str, patch: Patch, file: str, place: Callable[[Candidate], str]
) -> Iterator[Part]:
    """Yield the result.

    Args:
        verdict: what a recorded run says of the program.
        file: the name of the patch, if one was written.
        place: where in the user's code an edit is made, in words.
    """
    yield Sentence(verdict)
    yield Sentence(f"Baseline of the trials: {duration(outcome.baseline_ns)} a step.")
    yield Sentence()
    rows = [
        Row(one.text, [_time(outcome, one), _results(outcome, one)], note=place(one))
        for one in _in_order(outcome)
    ]
    if rows:
        yield table(("tried", "time per step", "results"), [rows], whole_names=True)
        yield Sentence()
    yield from map(Sentence, _conclusions(outcome))
    for sentence in _warnings(outcome):
        yield Sentence(sentence, "warn")
    if patch.diff:
        left = [one.text for one in outcome.best if one.edit.name not in patch.made]
        rest = f", but for {' and '.join(left)}" if left else ""
        what = "these edits" if len(outcome.best) > 1 else "this edit"
        yield Sentence(f"A patch with {what}{rest}: {file}  (git apply {file})")
    elif outcome.best:
        yield Sentence("There is no patch: no call in your files could be rewritten for it.")


def _in_order(outcome: SearchOutcome) -> list[Candidate]:
    """Winners first, then what makes no difference, then what is slower, then what failed."""

    def key(one: Candidate) -> tuple[bool, bool, float]:
        change = outcome.change(one)
        is_winner = one in outcome.winners
        return not is_winner, bool(one.problem), change.share if change else one.mean

    return sorted(outcome.candidates, key=key)


def _time(outcome: SearchOutcome, one: Candidate) -> str:
    change = outcome.change(one)
    if change is None and one.problem:
        return f"failed: {one.problem}"
    is_confirmed = change is not None
    if change is None:
        if not one.ratios:
            return "not tried: no time"
        change = RelativeChange.of(one.ratios, 0.95)
    interval = _interval(change)
    if change.is_faster and is_confirmed:
        return f"{_percent(change.share)}{interval}"
    if change.share < -MARGIN and not is_confirmed:  # another variant, or four others, were faster
        return f"about {_percent(change.share)}, not confirmed"
    if change.low is None or change.high is None:
        # A single trial, which was enough to see that it can't win.
        return "slower" if change.share > MARGIN else "no gain"
    if change.low > 0:
        return f"slower: {_percent(change.share)}{interval}"
    if max(-change.low, change.high) > _CLEAR:
        return f"can't be told here{interval}"
    return f"no difference{interval}"


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _interval(change: RelativeChange) -> str:
    if change.low is None or change.high is None:
        return ""
    return f" ({100 * change.low:+.0f} to {100 * change.high:+.0f})"


def _results(outcome: SearchOutcome, one: Candidate) -> str:
    if one.same is Same.DIFFERENT and outcome.is_deterministic is False:
        return "not deterministic"
    if one.same is Same.DIFFERENT and one.edit.changes is Changes.DRAWS:
        return "other random draws"
    return "" if one.same is Same.UNKNOWN else one.same.words


def _conclusions(outcome: SearchOutcome) -> Iterator[str]:
    runs = (
        f"{counted(outcome.rounds, 'fresh run')} of each side, {counted(outcome.steps, 'step')} "
        f"each; {time_text(int(outcome.duration_s * 1e9))} in all"
    )
    best, at_once = outcome.best, [side for side in outcome.confirmed if len(side) > 1]
    if best:
        change = outcome.confirmed[best]
        what = "Together" if len(best) > 1 else f"Best: {best[0].text},"
        yield f"{what} {_percent(change.share)}{_interval(change)}. {runs}."
        if len(best) == 1 and at_once:
            change = outcome.confirmed[at_once[0]]
            texts = " and ".join(one.text for one in at_once[0])
            alike = ", with other results" if outcome.together is Same.DIFFERENT else ""
            yield f"Not better: {texts} together, {_percent(change.share)}{alike}."
    elif outcome.rounds == 1:
        yield "There was no time to confirm what seemed faster. Give more --minutes, or --only."
    elif outcome.candidates:
        yield (
            "Nothing that was tried makes it faster for certain; "
            f"{time_text(int(outcome.duration_s * 1e9))} in all."
        )
    else:
        yield "There is nothing to try: no edit that is known here fits this program."


def _warnings(outcome: SearchOutcome) -> Iterator[str]:
    if outcome.problem:
        yield f"Ended early ({outcome.problem}): this is what was known by then."
    if outcome.is_contended:
        waited = waited_for_processor(outcome.waiting_share, who="the loop")
        yield (
            f"{CONTENTION}: {waited}. What can't be told here may be told with more --minutes, or "
            "when nothing else runs."
        )
    if outcome.is_deterministic is False:
        yield (
            "The program has other results in each run, so it can't be told whether an edit "
            "changes them."
        )
    for one in outcome.candidates:
        if one.is_refused and one.mean < -MARGIN:
            yield (
                f"{one.text} is faster and changes the results, by more than rounding would. "
                "`--allow results` tries such edits, too."
            )
    for one in outcome.winners:
        if one.edit.name == "compile" and one.startup_ns:
            yield f"{one.text} takes {duration(max(one.startup_ns))} longer to start."
    if outcome.not_tried:
        names = ", ".join(one.text for one in outcome.not_tried)
        yield f"There was no time for: {names}. Give more --minutes, or --only."


def facts(outcome: SearchOutcome, verdict: str, patch: Patch) -> dict[str, Any]:
    """Return the result for JSON."""

    def change(one: RelativeChange | None) -> dict[str, float | None] | None:
        return None if one is None else {"share": one.share, "low": one.low, "high": one.high}

    return {
        "verdict": verdict,
        "baseline_ns": outcome.baseline_ns,
        "steps": outcome.steps,
        "rounds": outcome.rounds,
        "duration_s": outcome.duration_s,
        "waiting_share": outcome.waiting_share,
        "is_deterministic": outcome.is_deterministic,
        "problem": outcome.problem or None,
        "tried": [
            {
                "name": one.edit.name,
                "group": one.edit.group,
                "value": one.made.value,
                "text": one.text,
                "is_winner": one in outcome.winners,
                "confirmed": change(outcome.change(one)),
                "explored": change(RelativeChange.of(one.ratios, 0.95)) if one.ratios else None,
                "results": one.same.words,
                "problem": one.problem or None,
                "places": [[place.file, place.line] for place in one.places],
            }
            for one in _in_order(outcome)
        ],
        "together": [
            {"edits": [one.text for one in side], "change": change(found)}
            for side, found in outcome.confirmed.items()
            if len(side) > 1
        ],
        "best": [one.text for one in outcome.best],
        "not_tried": [one.text for one in outcome.not_tried],
        "patch": patch.diff.decode() or None,
    }
