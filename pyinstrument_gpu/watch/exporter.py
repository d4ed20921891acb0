# SPDX-License-Identifier: Apache-2.0
"""Serves to Prometheus how each rank is, as `watch` sees it: also one that has died or hangs, and
could not answer itself. docs/exporters/data.md lists the metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinstrument_gpu.core.condition import Condition
from pyinstrument_gpu.core.paths import without_surrogates
from pyinstrument_gpu.errors import JobError, RunFileError
from pyinstrument_gpu.watch.live_run import LiveRun
from pyinstrument_gpu.watch.process import MachineClocks
from pyinstrument_gpu.watch.watch import Watch

if TYPE_CHECKING:
    from prometheus_client import Metric

_MAX_PATHS = 32
_PREFIX = "pyinstrument_gpu_rank"


class RankExporter:
    """Serves what it saw when it looked last.

    Args:
        find: gives the function that names the files of the newest job there is, as `run_files`
            does. It is asked again when all of a job's ranks have ended: another may have begun.
        port: to listen on; 0 picks a free one.
        host: the address to listen on.

    Raises:
        SinkError: the port is taken, or there is no such address.
        MissingDependencyError: prometheus_client is not installed.
    """

    def __init__(self, find: Callable[[], Callable[[], list[Path]]], port: int, host: str) -> None:
        from pyinstrument_gpu.sinks.scrape_server import serve

        self._find = find
        self._files: list[Path] = []
        self._watch: Watch | None = None
        self._families: Iterable[Metric] = ()
        self._server = serve(self, host, port, "watch --prometheus")

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_port)

    def look(self, clocks: MachineClocks) -> None:
        """Have a look at the files; the next scrapes get what they say."""
        runs = [] if self._watch is None else self._seen(clocks)
        if all(_has_ended(run) for run in runs) and self._go_to_newest():
            runs = self._seen(clocks)
        self._families = [*families(runs)]

    def collect(self) -> Iterable[Metric]:
        """Collect the metrics for prometheus_client, which calls this on a thread of its own."""
        return self._families

    def close(self) -> None:
        """Stop listening."""
        self._server.close()
        if self._watch is not None:
            self._watch.close()

    def _seen(self, clocks: MachineClocks) -> list[LiveRun]:
        assert self._watch is not None
        return [run for run in self._watch.look(clocks) if isinstance(run, LiveRun)]

    def _go_to_newest(self) -> bool:
        """Go to the newest job; return whether it is another than before."""
        try:
            find = self._find()
            files = find()
        except JobError:
            if self._watch is None:
                raise
            return False
        except (OSError, RunFileError):  # there is none yet, or no more
            return False
        if self._watch is not None:
            if not set(files).isdisjoint(self._files):
                return False
            self._watch.close()
        self._files, self._watch = files, Watch(find)
        return True


def _has_ended(run: LiveRun) -> bool:
    condition = run.heartbeat.condition
    return condition.is_final or condition is Condition.LOST


def families(runs: Iterable[LiveRun]) -> Iterator[Metric]:
    """The metrics of ranks. What is not known of one is left out."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    found: dict[str, Any] = {
        name: GaugeMetricFamily(f"{_PREFIX}_{name}", what, labels=["rank", "host", *more])
        for name, what, *more in (
            ("condition", "1 for the condition of the rank that watch shows.", "condition"),
            ("silent_seconds", "Age of the last heartbeat of the rank."),
            ("recorded_seconds", "Duration of the recording at its last heartbeat."),
            ("steps", "Steps that ended."),
            ("step_seconds", "Mean time of the steps of the last 30 seconds."),
            ("phase_seconds", "Time per step in a phase, in the same steps.", "path"),
        )
    }
    slow = "Time that slow steps took beyond others of their kind, since the watch began, by cause."
    found["slow_step_seconds"] = CounterMetricFamily(
        f"{_PREFIX}_slow_step_seconds", slow, labels=["rank", "host", "cause"]
    )
    for run in runs:
        labels = ["" if run.rank is None else str(run.rank), run.host or ""]

        def add(name: str, value: float | None, *more: str, labels: list[str] = labels) -> None:
            if value is not None:
                found[name].add_metric([*labels, *more], value)

        sign, steps = run.heartbeat, run.steps
        add("condition", 1, sign.condition.value)
        add("silent_seconds", _seconds(sign.age_ns))
        add("recorded_seconds", _seconds(run.duration_ns))
        add("steps", steps.count)
        for cause, excess_ns in steps.slow_ns.items():
            add("slow_step_seconds", _seconds(excess_ns), cause)
        if sign.condition is not Condition.RUNNING:
            continue  # what its last steps took says nothing of now
        add("step_seconds", _seconds(steps.window_mean_ns))
        for phase in run.phases[:_MAX_PATHS]:
            add("phase_seconds", _seconds(phase.window_per_step_ns), without_surrogates(phase.path))
    yield from found.values()


def _seconds(time_ns: float | None) -> float | None:
    return None if time_ns is None else time_ns / 1e9
