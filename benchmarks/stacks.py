# SPDX-License-Identifier: Apache-2.0
"""What samples of stacks cost, and what they find, beside py-spy and pyinstrument.

    python -m benchmarks.stacks PYTHON

PYTHON is an interpreter that has the peers, beside whose file `py-spy` lies. It runs a program of
seven functions alone, under each of the peers at a hundred samples a second, and under ours at its
own rate, in turn. Cost is the processor time that a tool adds, its own process included, as a share
of what the program takes alone: other programs on the machine disturb that less than they do
elapsed time, which is shown too. Ours is what samples add to a recording. Each is the median over
rounds, of which every one has a run of all, with an interval that holds the true median with 96 %
certainty: from the second least to the second greatest of nine. Both may be lost in the noise. So
there is also what was counted of them: the processor time of our thread, and the walks by the main
thread; and that of py-spy's process, without the time for which it stops the program.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROUNDS = 9
_ROOT = Path(__file__).parents[1]
_FUNCTIONS = {"words": 2, "table": 3, "digits": 4, "copies": 5, "squares": 8, "roots": 6, "idle": 4}
"""How much each does of the whole, about."""
_PROGRAM = """
import contextlib, copy, json, os, sys, time

def words(): return sorted(str(n) for n in range(4400))
def table(): return json.loads(json.dumps([list(range(40)) for _ in range(90)]))
def digits():
    found = 0
    for n in range(22_000):
        found += len(repr(n))
    return found
def copies(): return copy.deepcopy([[n] for n in range(900)])
def squares():
    total = 0
    for n in range(90_000):
        total += n * n
    return total
def roots():
    total = 0.0
    for n in range(70_000):
        total += n ** 0.5
    return total
def idle(): time.sleep(0.003)

def main():
    for _ in range(150):
        for function in (words, table, digits, copies, squares, roots, idle):
            function()

watch = contextlib.nullcontext()
if sys.argv[1] in ("record", "stacks"):
    import pyinstrument_gpu as pig
    watch = pig.record(sys.argv[2], stacks=sys.argv[1] == "stacks", watchdog_s=None)
elif sys.argv[1] == "pyinstrument":
    import pyinstrument
    watch = pyinstrument.Profiler(interval=0.01)
with watch as found:
    wall, cpu = time.perf_counter(), time.process_time()
    main()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    own = 0.0
    if sys.argv[1] == "stacks":
        from pyinstrument_gpu.native import native
        own = native.stacks()["stopped_ns"] / 1e9
        for task in os.scandir("/proc/self/task"):
            if open(task.path + "/comm").read().strip() == "pig-stacks":
                own += int(open(task.path + "/schedstat").read().split()[0]) / 1e9
if sys.argv[1] == "pyinstrument":
    from pyinstrument.renderers import JSONRenderer
    open(sys.argv[2], "w").write(found.output(JSONRenderer()))
print(wall, cpu, time.process_time(), own, flush=True)
os._exit(0)
"""


def main(python: str) -> None:
    """Run all of them and print what they cost and have found."""
    walls: dict[str, list[float]] = {}
    cpus: dict[str, list[float]] = {}
    tops: dict[str, list[str]] = {}
    counted: list[float] = []
    counted_of_peer: list[float] = []
    ways = ("alone", "record", "stacks", "pyinstrument", "py-spy")
    load_before = os.getloadavg()[0]
    for _ in range(ROUNDS):
        for way in ways:
            with tempfile.TemporaryDirectory() as folder:
                wall, cpu, own, top = _run(python, way, Path(folder))
            if way == "stacks":
                counted.append(own / (cpu - own))
            elif way == "py-spy":
                counted_of_peer.append(own / (cpu - own))
            walls.setdefault(way, []).append(wall)
            cpus.setdefault(way, []).append(cpu)
            tops[way] = top
    print(f"load average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after; {ROUNDS} rounds")
    costs = {}
    for way in ways[2:]:
        bare = "record" if way == "stacks" else "alone"
        added = _added(cpus, way, bare)
        costs[way] = statistics.median(added)
        print(
            f"{way:13} processor {_text(added)}, elapsed {_text(_added(walls, way, bare))}; "
            f"{', '.join(tops[way])}"
        )
    print(f"our thread and its walks, as counted: {_text(counted)}")
    print(f"the process of py-spy, as counted: {_text(counted_of_peer)}")
    usual = statistics.median(counted)
    peers = {"pyinstrument": costs["pyinstrument"], "py-spy": statistics.median(counted_of_peer)}
    for way, cost in peers.items():
        same = len({*tops["stacks"]} & {*tops[way]})
        print(f"ours is {usual / cost:.3f} of the cost of {way}; {same} of 5 the same")


def _added(times: dict[str, list[float]], way: str, bare: str) -> list[float]:
    pairs = zip(times[way], times[bare], strict=True)
    return [one / other - 1 for one, other in pairs]


def _text(shares: list[float]) -> str:
    """The median, and from the second least to the second greatest."""
    ordered = sorted(shares)
    return f"{statistics.median(shares):+.2%} ({ordered[1]:+.2%} to {ordered[-2]:+.2%})"


def _run(python: str, way: str, folder: Path) -> tuple[float, float, float, list[str]]:
    """The elapsed time of the program's loop, the processor time of the loop and of the tool, what
    of it is counted to be the tool's, and the five functions with most time."""
    (folder / "program.py").write_text(_PROGRAM)
    out = folder / ("out.gpurun" if way in ("record", "stacks") else "out")
    command = [python, str(folder / "program.py"), way, str(out)]
    if way == "py-spy":
        spy = str(Path(python).parent / "py-spy")
        command = [
            spy,
            "record",
            "-r",
            "100",
            "--idle",
            "-f",
            "raw",
            "-o",
            str(out),
            "--",
            *command,
        ]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        words = re.findall(r"^[\d.]+ [\d.]+ [\d.]+ [\d.e-]+$", process.stdout.read(), re.MULTILINE)[
            0
        ].split()
        _, _, use = os.wait4(process.pid, 0)
        process.returncode = 0
    wall, cpu, whole_cpu, own = map(float, words)
    if way == "py-spy":
        own = use.ru_utime + use.ru_stime - whole_cpu
        cpu += own
    return wall, cpu, own, _top_five(way, out)


def _top_five(way: str, out: Path) -> list[str]:
    if way in ("alone", "record"):
        return []
    times: Counter[str] = Counter()
    if way == "pyinstrument":
        for names, time_s in _frames(json.loads(out.read_text())["root_frame"], ()):
            _count(times, names, time_s)
    else:
        text = out.read_text() if way == "py-spy" else _collapsed(out)
        for line in text.splitlines():
            stack, _, weight = line.rpartition(" ")
            _count(times, (frame.partition(" (")[0] for frame in stack.split(";")), float(weight))
    return [name for name, _ in times.most_common(5)]


def _count(times: Counter[str], names: Iterable[str], weight: float) -> None:
    """For the function of the program that is at work."""
    for name in names:
        if name in _FUNCTIONS:
            times[name] += weight  # type: ignore[assignment]  # seconds
            return


def _frames(
    frame: dict[str, Any], around: tuple[str, ...]
) -> Iterable[tuple[tuple[str, ...], float]]:
    names = (*around, frame["function"])
    inside = 0.0
    for child in frame["children"]:
        inside += child["time"]
        yield from _frames(child, names)
    yield names, frame["time"] - inside


def _collapsed(run: Path) -> str:
    from pyinstrument_gpu.core.run import Run

    Run.load(run).export(run.with_suffix(".collapsed"))
    return run.with_suffix(".collapsed").read_text()


if __name__ == "__main__":
    main(sys.argv[1])
