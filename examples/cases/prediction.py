# SPDX-License-Identifier: Apache-2.0
"""What an edit would save, told from a run without it.

An edit takes something out of the loop: waits for the device, waits for the loader, evaluations, or
work of the host that no phase covers. Of each kind the run's analysis says what is known of it; an
edit that takes out several saves no more than all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.rules import findings
from pyinstrument_gpu.analysis.run_sample import run_samples
from pyinstrument_gpu.analysis.savings import Change, ReplayedSaving
from pyinstrument_gpu.core.run import Run

_OUTSIDE_PHASES = -1


@dataclass(frozen=True)
class Prediction:
    """What would be saved, in ns per step.

    Attributes:
        low_ns, high_ns: the range. `high_ns` is None where the run holds no limit.
        likely_ns: None where the run does not say.
        elapsed_ns: the whole: the elapsed time per step of the run.
        because: what it rests on.
    """

    low_ns: float
    likely_ns: float | None
    high_ns: float | None
    elapsed_ns: float
    because: str

    def __add__(self, other: Prediction) -> Prediction:
        """That of an edit which takes out both."""
        return Prediction(
            self.low_ns,
            _sum(self.likely_ns, other.likely_ns),
            _sum(self.high_ns, other.high_ns),
            self.elapsed_ns,
            f"{self.because}; {other.because}",
        )


def without_reads(run: Run) -> Prediction:
    """Of no longer waiting for values of the device, in the steps."""
    return _without_waits(run, [Change.ALL_SYNCS, Change.SYNC], "values that are read")


def without_copies(run: Run) -> Prediction:
    """Of copies to the device that no longer make the host wait, in the steps."""
    return _without_waits(run, [Change.COPIES], "copies in the steps")


def without_copies_in_evaluation(run: Run) -> Prediction:
    """Of copies to the device that no longer make the host wait, outside of the steps."""
    return _without_waits(run, [Change.COPIES], "copies in the evaluation", is_inside=False)


def with_more_workers(run: Run) -> Prediction:
    """Of more loader workers. They deliver more if there are cores for them, and then the host may
    wait no longer."""
    saving = _saving(run, Change.DATA_WAIT, is_inside=True)
    if saving is None:
        return Prediction(0, None, None, _elapsed_ns(run), "no wait for data was seen")
    workers, cores = run.program_facts.loader_workers, run.environment.get("cores")
    likely_ns: float | None
    if workers is None or cores is None:
        likely_ns, why = None, "whether there are cores for more workers is unknown"
    elif workers + 1 >= cores:
        likely_ns, why = 0, f"{cores} cores have enough to do with {workers} workers and the loop"
    else:
        likely_ns, why = saving.likely_ns, f"there are {cores} cores"
    because = f"at most what the host waits for data; {why}"
    return Prediction(0, likely_ns, saving.high_ns, _elapsed_ns(run), because)


def with_half_the_evaluations(run: Run) -> Prediction:
    """Of evaluating half as often."""
    for finding in findings(run):
        if finding.about == "evaluate half as often" and finding.low_ns is not None:
            assert finding.of_ns is not None
            because = "half of what evaluations take"
            return Prediction(finding.low_ns, None, finding.high_ns, finding.of_ns, because)
    return Prediction(0, None, None, _elapsed_ns(run), "no evaluations have a known time")


def without_work_outside_phases(run: Run) -> Prediction:
    """Of less work of the host that no phase covers: formatting, logging, metrics."""
    _, means = analysis.of(run).time_budget.means()
    outside = means.get(_OUTSIDE_PHASES)
    if outside is None or outside.computing_ns is None:
        return Prediction(0, None, None, _elapsed_ns(run), "the host's own work is unknown")
    because = "the host's own work is at most what no phase covers"
    return Prediction(0, None, outside.computing_ns, _elapsed_ns(run), because)


def _without_waits(
    run: Run, changes: Sequence[Change], what: str, *, is_inside: bool = True
) -> Prediction:
    if not run.syncs.are_priced:
        return Prediction(0, None, None, _elapsed_ns(run), "no wait has a known time")
    found = [_saving(run, change, is_inside) for change in changes]
    saving = next((one for one in found if one is not None), None)
    if saving is None:
        return Prediction(0, 0, 0, _elapsed_ns(run), f"{what} wait for no device")
    return _of_saving(run, saving, f"{what}, by a replay without their waits")


def _of_saving(run: Run, saving: ReplayedSaving, because: str) -> Prediction:
    elapsed_ns = _elapsed_ns(run)
    return Prediction(saving.low_ns, saving.likely_ns, saving.high_ns, elapsed_ns, because)


def _saving(run: Run, change: Change, is_inside: bool) -> ReplayedSaving | None:
    """The run's saving of a change; of several, that of what takes most."""
    rows = [
        row
        for row in analysis.of(run).savings.rows
        if row.change is change and row.is_inside is is_inside
    ]
    return max(rows, key=lambda row: row.time_ns, default=None)


def _elapsed_ns(run: Run) -> float:
    """As `compare` has it."""
    return run_samples([run])[0].elapsed_ns


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
