# SPDX-License-Identifier: Apache-2.0
"""What the screen of `watch` shows, and its keys."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textual", reason="textual is not installed: pip install '.[watch]'")

from textual.pilot import Pilot

from pyinstrument_gpu.core.condition import ProcessState
from pyinstrument_gpu.watch import watch as watch_module
from pyinstrument_gpu.watch.app import WatchApp
from pyinstrument_gpu.watch.process import MachineClocks
from pyinstrument_gpu.watch.watch import Watch, WatchedRun
from tests.helpers.run_writer import save
from tests.helpers.watched import MS, S, clocks_at, replace_file, running, watched

Script = Callable[["Screen"], Awaitable[None]]


@pytest.fixture(autouse=True)
def alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the processes of made-up runs it is said that they live."""

    def made(path: Path) -> WatchedRun:
        return watched(path, ProcessState.ALIVE)

    monkeypatch.setattr(watch_module, "WatchedRun", made)


class Screen:
    """The app in a terminal of the test's."""

    def __init__(self, app: WatchApp, pilot: "Pilot[None]") -> None:
        self.app, self.pilot = app, pilot

    @property
    def lines(self) -> list[str]:
        strips = self.app.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip).rstrip() for strip in strips]

    @property
    def table(self) -> list[str]:
        """The rows between the tabs and the keys that are not empty."""
        return [line for line in self.lines[5:-1] if line]

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def look(self) -> None:
        await self.app.look()
        await self.pilot.pause()


def on_screen(
    script: Script, *paths: Path, later_ns: int = 0, size: tuple[int, int] = (80, 24)
) -> None:
    def clocks() -> MachineClocks:
        return clocks_at(610 * MS + later_ns)

    async def run() -> None:
        watch = Watch(lambda: list(paths))
        app = WatchApp(watch, clocks, interval_s=None)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await script(Screen(app, pilot))
        watch.close()

    asyncio.run(run())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "train.gpurun"
    save(running(), path)
    return path


PHASES = """\
● running  train.gpurun  box, process 4242
running in backward/allreduce, step 5
5 steps  10.0/s  100.000 ms a step  (run: p50 100.000, p99 100.000)  320 sample…
▇▇▇▇▇  recorder 1.0 % of a core
[1 Phases] 2 Waits  3 Metrics  4 Steps  5 Modules  6 Ranks  7 Recorder
  ms per step     now  % step     run  change  calls/s
-------------  ------  ------  ------  ------  -------
  load              -       -       -       -     0.00
  forward      36.000  36.0 %  36.000     0 %     10.0  ▄▄▄▄▇
▶ backward     50.000  50.0 %  50.000     0 %     10.0  ▇▇▇▇▇
  ▶ allreduce  20.000  20.0 %  20.000     0 %     10.0  ▇▇▇▇▇












s sort: tree  / filter  space pause  ? help  q quit"""


def test_phases(path: Path) -> None:
    async def script(screen: Screen) -> None:
        assert "\n".join(screen.lines) == PHASES

    on_screen(script, path)


def test_the_other_tables(path: Path) -> None:
    async def script(screen: Screen) -> None:
        await screen.press("2")
        assert screen.table == [
            "line         ms/step  total s  waits  window",
            "-----------  -------  -------  -----  ------",
            "train.py:57   10.000     0.05      5      +5  ▇▇▇▇▇  .item()",
        ]
        await screen.press("3")
        assert screen.table[2] == "loss      nan     5  0 s  ▇▅▄▃▁"
        await screen.press("tab")
        assert screen.lines[4].endswith("[4 Steps] 5 Modules  6 Ranks  7 Recorder")
        assert screen.table[2:4] == [f"{step}     100.000  " + "█" * 42 for step in (4, 3)]
        await screen.press("5")
        assert screen.table == ["modules are not watched: `pyinstrument-gpu run --modules`"]
        await screen.press("7")
        # The file stands above, in as many lines as its path is long.
        assert screen.table[-4:] == [
            "command: python train.py",
            "recorded for 1 s",
            "its thread used 1.00 % of one core",
            "nothing dropped",
        ]

    on_screen(script, path)


def test_a_wide_terminal_has_more_columns(path: Path) -> None:
    async def script(screen: Screen) -> None:
        assert screen.table[3].split() == [
            *("forward", "36.000", "36.0", "%", "36.000", "0", "%", "10.0"),
            *("36.000", "60.000", "-", "5", "▄▄▄▄▇"),
        ]

    on_screen(script, path, size=(120, 30))


def test_sorting(path: Path) -> None:
    def names(screen: Screen) -> list[str]:
        return [line.replace("▶", " ").split()[0] for line in screen.table[2:]]

    async def script(screen: Screen) -> None:
        await screen.press("s")
        assert screen.lines[-1].startswith("s sort: time")
        assert names(screen) == ["backward", "forward", "backward/allreduce", "load"]
        await screen.press("s", "s", "s")
        assert names(screen) == ["backward", "backward/allreduce", "forward", "load"]
        await screen.press("s")
        assert names(screen) == ["load", "forward", "backward", "allreduce"]

    on_screen(script, path)


def test_filter(path: Path) -> None:
    async def script(screen: Screen) -> None:
        await screen.press("slash", *"REDUCE", "enter")
        assert [line.split()[0] for line in screen.table[2:]] == ["▶", "▶"]
        assert "/ filter: REDUCE" in screen.lines[-1]
        await screen.press("slash", *"s2?q", "enter")  # letters here, not keys
        assert screen.table == ["nothing has 's2?q' in its name"]
        await screen.press("2")  # each table has its own
        assert len(screen.table) == 3
        await screen.press("1", "escape")
        assert len(screen.table) == 6

    on_screen(script, path)


def test_pause_and_looks(path: Path) -> None:
    async def script(screen: Screen) -> None:
        await screen.press("space")
        assert screen.lines[-1].startswith("PAUSED (space)")
        await screen.press("space")
        assert "PAUSED" not in screen.lines[-1]
        replace_file(running(6), path)
        await screen.look()
        assert screen.lines[1] == "running in backward/allreduce, step 6"

    on_screen(script, path)


def test_help_and_the_end(path: Path) -> None:
    async def script(screen: Screen) -> None:
        await screen.press("question_mark")
        assert len(screen.table) <= 17  # without scrolling
        assert screen.table[0] == "1 - 7, tab   choose a table"
        await screen.press("question_mark")
        assert screen.table[0].startswith("  ms per step")
        await screen.press("q")
        assert screen.app._exit

    on_screen(script, path)


def test_ranks_side_by_side(tmp_path: Path) -> None:
    paths = [tmp_path / f"train.rank{number}.gpurun" for number in range(3)]
    for number, path in enumerate(paths):
        environment = {"rank": number, "world_size": 3}
        save(running(scale=1 + number / 3, environment=environment), path)
    paths.append(tmp_path / "train.rank3.gpurun")

    async def script(screen: Screen) -> None:
        assert screen.lines[0].startswith("● running  train.rank0.gpurun  rank 0 of 3")
        assert [line.split() for line in screen.table[:10]] == [
            ["spread", ">rank", "0", "rank", "1", "rank", "2"],
            screen.table[1].split(),
            ["is", *["●", "running"] * 3],
            ["step", "5", "5", "5"],
            ["steps/s", "10.0", "10.0", "10.0"],
            ["ms", "a", "step", "0.0", "%", "100.000", "100.000", "100.000"],
            ["memory", "-", "-", "-"],
            screen.table[1].split(),
            ["forward", "66.7", "%", "36.000", "48.000", "60.000"],
            ["backward", "0.0", "%", "50.000", "50.000", "50.000"],
        ]
        assert " ".join(screen.table[-2:]).endswith("No such file or directory")
        await screen.press("right", "1")
        assert screen.lines[0].startswith("● running  train.rank1.gpurun  rank 1 of 3")
        assert "48.000" in screen.table[3]
        await screen.press("left", "left")
        assert screen.lines[0].startswith(f"■ {tmp_path}"[:70])
        assert screen.lines[1] == "No such file or directory"

    on_screen(script, *paths)


@pytest.mark.parametrize("state", ProcessState)
def test_a_process_that_writes_no_more(
    path: Path, monkeypatch: pytest.MonkeyPatch, state: ProcessState
) -> None:
    monkeypatch.setattr(watch_module, "WatchedRun", lambda path: watched(path, state))
    signs = {
        ProcessState.GONE: "■ cut off",
        ProcessState.ALIVE: "▲ silent",
        ProcessState.STOPPED: "▲ stopped",
        ProcessState.UNKNOWN: "? lost",
    }

    async def script(screen: Screen) -> None:
        assert screen.lines[0] == f"{signs[state]}  train.gpurun  box, process 4242"
        assert "12 s" in screen.lines[1]
        assert "backward/allreduce, step 5" in screen.lines[1]

    on_screen(script, path, later_ns=12 * S)


def test_a_run_of_which_nothing_is_there_yet(tmp_path: Path) -> None:
    path = tmp_path / "train.gpurun"
    nothing: dict[str, Any] = dict(open_step=None, open_phases=(), syncs=None, metrics=None)
    save(running(0, spans=None, steps=None, metric_names=(), **nothing), path)

    async def script(screen: Screen) -> None:
        assert screen.lines[2] == "no steps so far"
        texts = []
        for key in "12345":
            await screen.press(key)
            texts.append(screen.table[0].partition(":")[0])
        assert texts == [
            "no phase has been recorded yet",
            "nobody watches for waits here",
            "no metric has been read so far",
            "no step has ended yet",
            "modules are not watched",
        ]

    on_screen(script, path)


def test_names_that_do_not_print(tmp_path: Path) -> None:
    path = tmp_path / "train.gpurun"
    names = ["[red]load[/red]", "a\x1b[31m\n", "x" * 90, "字/%"]
    save(running(names=names, open_phases=()), path)

    async def script(screen: Screen) -> None:
        text = "\n".join(screen.lines)
        assert "[red]load[/red]" in text
        assert r"a\x1b[31m\n" in text
        assert "字/%" in text
        assert all(len(line) <= 80 for line in screen.lines)

    on_screen(script, path)
