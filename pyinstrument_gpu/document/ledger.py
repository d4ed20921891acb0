# SPDX-License-Identifier: Apache-2.0
"""The section that accounts for a step twice: for the host and for the device."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass, replace

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.ledger import MeanEntry
from pyinstrument_gpu.core.paths import in_tree_order
from pyinstrument_gpu.core.run import Run


@dataclass(frozen=True)
class LedgerEntry:
    """What a phase was per step. The first two add up to the host's time, where they are known;
    the others to the device's, which is the same over all entries.

    Attributes:
        path: the phase, without those inside; without one it is what lies outside phases.
        host_ns: the host's own time, where its parts are not known.
        computing_ns, blocked_ns: these parts: at work, and waiting for the device.
        busy_ns: the device worked, on what the phase enqueued; or may have waited, see `doubt`.
        data_wait_ns, host_blocked_ns, host_late_ns: it was idle because the host waited for data,
            because the host waited for it, or because the host was late.
        unattributed_ns: it was busy or idle: events can't tell.
    """

    path: str | None
    host_ns: float | None
    computing_ns: float | None
    blocked_ns: float | None
    busy_ns: float | None
    data_wait_ns: float | None
    host_blocked_ns: float | None
    host_late_ns: float | None
    unattributed_ns: float | None


@dataclass(frozen=True)
class Ledger:
    """Means per step. Both sides add up to the step.

    Attributes:
        steps: over how many.
        doubt: what the stream may wait for where it looks busy.
        entries: by phase.
    """

    steps: int
    doubt: str | None
    entries: tuple[LedgerEntry, ...]

    @property
    def total(self) -> LedgerEntry:
        """The sum of the entries, unknown where one of them is."""
        columns = zip(*(astuple(entry)[1:] for entry in self.entries), strict=True)
        sums = [None if None in column else sum(column) for column in columns]
        total = LedgerEntry(None, *sums)
        return total if total.computing_ns is not None else replace(total, host_ns=self.step_ns)

    @property
    def step_ns(self) -> float:
        """The mean time of these steps."""
        return sum(_host_ns(entry) for entry in self.entries)


def ledger(run: Run) -> Ledger | None:
    """None where it would add nothing to the times of the phases."""
    found = analysis.of(run)
    if not found.knows_waits or not len(found.ledger.entries):
        return None
    steps, means = found.ledger.means()
    in_phases = in_tree_order(run.path_parents, (path for path in means if path >= 0))
    paths: dict[int, str | None] = {path: run.paths[path] for path in in_phases}
    if -1 in means:
        paths[-1] = None
    return Ledger(
        steps=steps,
        doubt=found.premises.doubt,
        entries=tuple(_entry(path, means[number]) for number, path in paths.items()),
    )


def _entry(path: str | None, mean: MeanEntry) -> LedgerEntry:
    fields = asdict(mean)
    if mean.computing_ns is not None and mean.blocked_ns is not None:
        fields["host_ns"] = None
    return LedgerEntry(path=path, **fields)


def _host_ns(entry: LedgerEntry) -> float:
    if entry.host_ns is not None:
        return entry.host_ns
    return (entry.computing_ns or 0.0) + (entry.blocked_ns or 0.0)
