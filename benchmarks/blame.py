# SPDX-License-Identifier: Apache-2.0
"""`blame`: how often it names the commit that made training slower, how often another one, and how
many runs that takes.

`python -m benchmarks.blame simulated [--trials 100]`: the times of runs are those of a series that
was recorded on a real machine, in stretches of a minute that are put together at random; a step of
3 % is planted in one of 64 commits, or none. Only what lies between a run's file and its time per
step is left out. Beside it, on the same times, a bisection that makes a fixed number of runs of
each commit and of the good one, in turn, and asks which of both ends the commit is nearer to.

`python -m benchmarks.blame live --examples CLONE`: a repository of 16 commits that is made from
`word_language_model` of pytorch/examples, with 8 % more of a step's CPU time planted in the forward
pass of one of them.

`python -m benchmarks.blame record FILE`: record the series of this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from benchmarks.digits_loop import Training
from benchmarks.gate_errors import share
from benchmarks.gpu.figure import Figure, print_and_write
from pyinstrument_gpu.analysis.compare import _relative, _verdict
from pyinstrument_gpu.analysis.inference import t_quantile, to_one_level
from pyinstrument_gpu.blame.blame import Blame, BlameResult
from pyinstrument_gpu.blame.commits import Commit
from pyinstrument_gpu.blame.journal import Journal, Measured
from pyinstrument_gpu.gate import gate as gate_module

SERIES = Path(__file__).with_name("results") / "2026-11-27-blame-series.json"
_STRETCH = 60
_STEPS = SimpleNamespace(closed={"complete": np.ones(1, bool)})


class Machine:
    """What runs take, one after the other, relative to a machine at rest."""

    def __init__(self, series: NDArray[np.float64], random: np.random.Generator) -> None:
        self._series, self._random = series, random
        self._place, self._left = 0, 0

    def signs(self, count: int) -> NDArray[np.int64]:
        """Which run of a pair was made first, at random."""
        return self._random.choice([-1, 1], count)

    def next_times(self, count: int) -> NDArray[np.float64]:
        places = []
        while count:
            if not self._left:
                self._place, self._left = int(self._random.integers(len(self._series))), _STRETCH
            some = min(count, self._left)
            places.append(np.arange(self._place + 1, self._place + 1 + some))
            self._place, self._left, count = self._place + some, self._left - some, count - some
        found: NDArray[np.float64] = self._series[np.concatenate(places) % len(self._series)]
        return found


class TimedSide:
    """A commit whose runs have no file, but a time."""

    text = "simulated"

    def __init__(self, machine: Machine, factor: float) -> None:
        self._machine, self._factor = machine, factor

    @contextlib.contextmanager
    def begun(self, name: str, folder: Path) -> Iterator[Callable[[], Any]]:
        step_ns = 1e6 * self._factor * float(self._machine.next_times(1)[0])
        run = SimpleNamespace(environment={}, steps=_STEPS, steps_ended=1, step_ns=step_ns)
        yield lambda: [run]


def _comparison(before: Any, after: Any, **options: Any) -> Any:
    """What a gate asks of a comparison, by the functions of `compare`."""
    sides = [np.array([run[0].step_ns for run in side]) for side in (before, after)]
    scales = to_one_level(*sides)
    sides = [side * scales for side in sides]
    order: Any = SimpleNamespace(is_in_turn=True)
    change, interval, _ = _relative(sides, None, order, options["confidence"], True)
    margin = options["margin_percent"] / 100
    elapsed = SimpleNamespace(change=change, interval=interval, verdict=_verdict(interval, margin))
    none = SimpleNamespace(found=())
    return SimpleNamespace(elapsed=elapsed, margin=margin, differences=none, warnings=())


def _measured(_: Blame, commit: Commit, block: int, made: Any) -> Measured:
    return Measured(commit.sha, block, 1, made[0].step_ns)


def simulated(
    machine: Machine, count: int, place: int | None, effect: float, max_runs: int, seed: int
) -> BlameResult:
    """A blame of so many commits, of which the one at the place is slower than those before."""
    commits = [Commit(f"{index:010}", "made up") for index in range(count + 1)]
    slow = range(count + 1, count + 1) if place is None else range(place, count + 1)

    def side_of(commit: Commit) -> TimedSide:
        return TimedSide(machine, 1 + effect * (int(commit.sha) in slow))

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(gate_module, "compare", _comparison),
        mock.patch.object(Blame, "_measured", _measured),
        mock.patch.object(Journal, "save"),
    ):
        random = Random(seed)
        return Blame(commits, side_of, Path(folder), Journal(), max_runs, random=random).result()


def fixed(machine: Machine, count: int, place: int | None, effect: float, pairs: int) -> int | None:
    """The commit that a bisection with so many pairs of runs of each commit names, if any."""

    def change(commit: int) -> tuple[float, float]:
        is_slow = place is not None and commit >= place
        logs = np.log(machine.next_times(2 * pairs)).reshape(pairs, 2)
        changes = (logs[:, 1] - logs[:, 0]) * machine.signs(pairs) + is_slow * math.log1p(effect)
        return float(changes.mean()), float(changes.std(ddof=1)) / math.sqrt(pairs)

    whole, error = change(count)
    if whole < t_quantile(0.975, pairs - 1) * error:
        return None
    good, bad = 0, count
    while bad - good > 1:
        middle = (good + bad) // 2
        if change(middle)[0] > whole / 2:
            bad = middle
        else:
            good = middle
    return bad


def fixed_pairs(series: NDArray[np.float64], count: int, effect: float, trials: int) -> int:
    """The fewest pairs, to a twentieth, with which `fixed` names another commit in at most 2.5 %
    of the trials."""
    pairs = 20
    while True:
        machine = Machine(series, np.random.default_rng(pairs))
        wrong = 0
        for trial in range(trials):
            place = trial % count + 1
            wrong += fixed(machine, count, place, effect, pairs) != place
            if wrong > 0.025 * trials:
                break
        else:
            return pairs
        pairs = math.ceil(1.05 * pairs)


def simulated_figures(trials: int, effect: float, max_runs: int) -> Iterator[Figure]:
    count = 64
    series = np.array(json.loads(SERIES.read_text())["ms"])
    yield Figure("runs of the series", len(series), "", note="one a second, on two shared cores")
    yield Figure("their SD", 100 * float(np.log(series).std()), "%")
    changes = np.diff(np.log(series)) / math.sqrt(2)
    yield Figure("their SD, from one to the next", 100 * float(changes.std()), "%")
    results: dict[str, list[int]] = {"found": [], "wrong": [], "none": []}
    for trial in range(trials):
        place = 1 + trial * 29 % count
        machine = Machine(series, np.random.default_rng([1, trial]))
        found = simulated(machine, count, place, effect, max_runs, trial)
        named = [int(commit.sha) for commit in found.suspects]
        kind = "none" if not named else "found" if named == [place] else "wrong"
        results[kind].append(found.runs)
        print(trial, kind, found.runs, len(found.ends.order), file=sys.stderr, flush=True)
    name = f"{100 * effect:g} % in one of {count} commits"
    for kind, runs in results.items():
        yield share(f"{name}: {kind}", len(runs), trials)
    mean = statistics.mean(run for runs in results.values() for run in runs)
    yield Figure(f"{name}: runs", mean, "")
    blamed, runs = 0, []
    for trial in range(trials):
        machine = Machine(series, np.random.default_rng([2, trial]))
        none = simulated(machine, count, None, effect, max_runs, trial)
        blamed += bool(none.suspects)
        runs.append(none.runs)
    yield share("no change: a commit is named", blamed, trials, goal=2.5)
    yield Figure("no change: runs", statistics.mean(runs), "")
    pairs = fixed_pairs(series, count, effect, 400)
    fixed_runs = 2 * pairs * (1 + int(math.log2(count)))
    yield Figure(
        "fixed bisection of at most 2.5 % wrong: runs", fixed_runs, "", note=f"{pairs} pairs"
    )
    yield Figure(
        "runs, as a share of those of the fixed bisection", 100 * mean / fixed_runs, "%", goal=40
    )


_EXAMPLE = "word_language_model"
_TRAIN = (
    # Threads that wait for each other are no good on processors that others want, too.
    *("OMP_NUM_THREADS=1", sys.executable, "main.py"),
    *("--epochs", "1", "--nlayers", "1", "--dropout", "0"),
    *("--emsize", "32", "--nhid", "32", "--batch_size", "4", "--bptt", "15"),
)
_FORWARD = "    def forward(self, input, hidden):\n"
_PLANTED = """\
    def forward(self, input, hidden):
        import time
        now = time.thread_time()
        end = now + {share} * (now - getattr(self, "_last", now))
        while time.thread_time() < end:
            pass
        self._last = time.thread_time()
"""


def live_repository(examples: Path, folder: Path, count: int, place: int, effect: float) -> None:
    """So many commits on the example with a part of its text, of which one makes each step longer
    by a share of its own CPU time, in the forward pass; the others change comments."""

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=benchmark", "-c", "user.email=benchmark@example.org")
        subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)

    def shown(name: str) -> str:
        command = ["git", "-C", str(examples), "show", f"HEAD:{_EXAMPLE}/{name}"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    git("init", "--quiet")
    text = shown("data/wikitext-2/test.txt")
    files = {name: shown(name) for name in ("main.py", "model.py", "data.py")}
    # ONNX takes as long to import as torch, and is not used.
    files["main.py"] = files["main.py"].replace("import torch.onnx\n", "")
    (folder / "data" / "wikitext-2").mkdir(parents=True)
    for name, size in (("train", 90_000), ("valid", 3_000), ("test", 3_000)):
        files[f"data/wikitext-2/{name}.txt"] = text[:size]
    for number in range(count + 1):
        if number == place:
            head, found, rest = files["model.py"].partition(
                "    def forward(self, input, hidden):\n"
            )
            assert found
            files["model.py"] = head + _PLANTED.format(share=effect) + rest
        else:
            files["main.py"] += f"# Reviewed for the {number}th time.\n"
        for name, content in files.items():
            (folder / name).write_text(content)
        git("add", ".")
        git("commit", "--quiet", "-m", f"Change {number}")


def live_figures(
    examples: Path, trials: int, count: int, effect: float, max_runs: int
) -> Iterator[Figure]:
    found = phases = wrong = 0
    runs, took = [], []
    random = Random(1)
    for trial in range(trials):
        place = random.randint(1, count)
        with tempfile.TemporaryDirectory() as name:
            folder, json_file = Path(name, "repository"), Path(name, "result.json")
            folder.mkdir()
            live_repository(examples, folder, count, place, effect)
            began_s = time.monotonic()
            subprocess.run(
                [
                    *(sys.executable, "-m", "pyinstrument_gpu", "blame", f"HEAD~{count}..HEAD"),
                    *("--at-once", "--max-runs", str(max_runs), "--json", str(json_file)),
                    *("--", *_TRAIN),
                ],
                cwd=folder,
                stdout=sys.stderr,
            )
            took.append(time.monotonic() - began_s)
            facts = json.loads(json_file.read_text())
        named = [suspect["subject"] for suspect in facts["suspects"]]
        is_found = named == [f"Change {place}"]
        found += is_found
        wrong += bool(named) and not is_found
        phases += is_found and facts["phase"] == "forward"
        runs.append(facts["runs"])
        print(f"trial {trial}: planted {place}, named {named}", file=sys.stderr, flush=True)
    name = f"live, {100 * effect:g} % in one of {count} commits"
    yield share(f"{name}: found", found, trials)
    yield share(f"{name}: another commit named", wrong, trials, goal=2.5)
    yield share(f"{name}: found, with its phase", phases, trials)
    yield Figure(f"{name}: runs", statistics.mean(runs), "")
    yield Figure(f"{name}: time of a blame", statistics.mean(took) / 60, "min")


def record(path: Path, seconds: int) -> None:
    """The mean step time of each second of one training, as JSON."""
    training = Training()
    times_ms: list[float] = []
    end_s = time.monotonic() + seconds
    while (begin_s := time.monotonic()) < end_s:
        steps = 0
        while (now_s := time.monotonic()) < begin_s + 1:
            training.epoch()
            steps += training.batches
        times_ms.append(round(1e3 * (now_s - begin_s) / steps, 3))
    what = "mean step time in ms of each second of one training"
    path.write_text(json.dumps({"what": what, "ms": times_ms}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["simulated", "live", "record"])
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--percent", type=float, default=None, help="3, and live 8")
    parser.add_argument("--max-runs", type=int, default=None, help="10000, and live 200")
    parser.add_argument("--examples", type=Path, help="a clone of pytorch/examples")
    parser.add_argument("--series", type=Path, default=SERIES, help="to record")
    parser.add_argument("--results", type=Path, metavar="FILE", help="write all figures as JSON")
    options = parser.parse_args()
    if options.kind == "record":
        record(options.series, 420)
        return
    if options.kind == "live":
        if options.examples is None:
            parser.error("live needs --examples")
        effect = (options.percent or 8) / 100
        figures = live_figures(
            options.examples.resolve(), options.trials, 16, effect, options.max_runs or 200
        )
    else:
        figures = simulated_figures(
            options.trials, (options.percent or 3) / 100, options.max_runs or 10_000
        )
    print_and_write(figures, options.results)


if __name__ == "__main__":
    main()
