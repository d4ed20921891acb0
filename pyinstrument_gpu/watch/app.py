# SPDX-License-Identifier: Apache-2.0
"""The screen of `watch`, made with textual."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Input, Static

from pyinstrument_gpu.parts.choice import Choice
from pyinstrument_gpu.watch.live_run import LiveRun
from pyinstrument_gpu.watch.process import MachineClocks
from pyinstrument_gpu.watch.views import VIEWS, heading
from pyinstrument_gpu.watch.watch import Unreadable, Watch

_INTERVAL_S = 1.0
# Of its own time, at most this share goes to looking.
_MOST_OF_THE_TIME = 0.25
_RANKS = next(place for place, view in enumerate(VIEWS) if view.name == "Ranks")

_HELP = f"""\
1 - {len(VIEWS)}, tab   choose a table
s            sort it by something else
/            show only rows with a text in their name; escape shows all
up, down     scroll; also page up, page down, home, end
left, right  the previous and the next rank
space        pause, and go on
?            this help
q            quit; the training does not notice

now, window  the steps of the last 30 seconds, at least three
run, change  the whole run, and how now differs from it
▂▅▃▇         along the window, from zero; metrics: from lowest to highest
▶            is being executed
"""


class WatchApp(App[None]):
    """Shows what a `Watch` sees.

    Args:
        watch: the runs.
        clocks: read at each look.
        interval_s: between looks; None looks only when `look` is called.
    """

    CSS = """
    #heading { height: auto; }
    #tabs, #keys { height: 1; }
    #keys { dock: bottom; background: $surface; }
    #filter { dock: bottom; height: 1; border: none; padding: 0; display: none; }
    #body { height: 1fr; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("s", "sort", "sort"),
        Binding("slash", "filter", "filter"),
        Binding("escape", "show_all", "show all", priority=True),
        Binding("space", "pause", "pause", priority=False),
        Binding("question_mark", "help", "help"),
        Binding("tab", "next_view", "next", priority=True),
        Binding("left", "rank(-1)", "previous rank"),
        Binding("right", "rank(1)", "next rank"),
        *(Binding(str(place + 1), f"view({place})", view.name) for place, view in enumerate(VIEWS)),
    ]

    def __init__(
        self,
        watch: Watch,
        clocks: Callable[[], MachineClocks] = MachineClocks.now,
        interval_s: float | None = _INTERVAL_S,
    ) -> None:
        super().__init__()
        self._watch = watch
        self._clocks = clocks
        self._interval_s = interval_s
        self._looks: list[LiveRun | Unreadable] = []
        self._view: int | None = None
        self._choices = [Choice(view.sorts[0]) for view in VIEWS]
        self._rank = 0
        self._is_paused = False
        self._has_help = False

    def compose(self) -> ComposeResult:
        yield Static(id="heading")
        yield Static(id="tabs")
        with VerticalScroll(id="body"):
            yield Static(id="table")
        yield Static(id="keys")
        yield Input(placeholder="text in the name; enter to go on, escape for all", id="filter")

    async def on_mount(self) -> None:
        self.query_one("#body").focus()
        await self.look()
        if self._interval_s is not None:
            self.run_worker(self._go_on(self._interval_s))

    def on_resize(self) -> None:
        self._show()

    async def look(self) -> None:
        """Look again, and show it."""
        self._looks = await asyncio.to_thread(self._watch.look, self._clocks())
        if self._view is None:
            self._view = _RANKS if len(self._looks) > 1 else 0
        self._show()

    async def _go_on(self, interval_s: float) -> None:
        cost_s = 0.0
        while True:
            await asyncio.sleep(max(interval_s, cost_s / _MOST_OF_THE_TIME))
            if not self._is_paused:
                began_s = time.monotonic()
                await self.look()
                cost_s = time.monotonic() - began_s

    # What is shown

    def _show(self) -> None:
        if not self._looks or self._view is None:
            return
        width = self.size.width
        run = self._looks[self._rank]
        self.query_one("#heading", Static).update(heading(run, width))
        self.query_one("#tabs", Static).update(self._tabs(width))
        self.query_one("#table", Static).update(self._table(run, width))
        self.query_one("#keys", Static).update(self._keys(width))

    def _tabs(self, width: int) -> Text:
        tabs = Text()
        for place, view in enumerate(VIEWS):
            chosen = place == self._view and not self._has_help
            text = f"{place + 1} {view.name}"
            tabs.append(f"[{text}]" if chosen else f" {text} ", "reverse" if chosen else "")
        tabs.truncate(width)
        return tabs

    def _table(self, run: LiveRun | Unreadable, width: int) -> RenderableType:
        if self._has_help:
            return Text(_HELP)
        assert self._view is not None
        if isinstance(run, Unreadable):
            return Text("")
        # One column is the scroll bar's.
        return VIEWS[self._view].render(run, self._looks, self._choice, width - 2)

    @property
    def _choice(self) -> Choice:
        return self._choices[self._view or 0]

    def _keys(self, width: int) -> Text:
        parts = ["PAUSED (space)"] if self._is_paused else []
        parts += [f"s sort: {self._choice.sort}"]
        parts += [f"/ filter: {self._choice.filter}" if self._choice.filter else "/ filter"]
        parts += [] if self._is_paused else ["space pause"]
        parts += ["? help", "q quit"]
        keys = Text("  ".join(parts))
        keys.truncate(width, overflow="ellipsis")
        return keys

    # Keys

    def action_view(self, place: int) -> None:
        self._view, self._has_help = place, False
        self.query_one("#body").scroll_home(animate=False)
        self._show()

    def action_next_view(self) -> None:
        self.action_view(((self._view or 0) + 1) % len(VIEWS))

    def action_sort(self) -> None:
        sorts = VIEWS[self._view or 0].sorts
        following = sorts[(sorts.index(self._choice.sort) + 1) % len(sorts)]
        self._choose(replace(self._choice, sort=following))

    def _choose(self, choice: Choice) -> None:
        self._choices[self._view or 0] = choice
        self._show()

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.value = self._choice.filter
        field.styles.display = "block"
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._choose(replace(self._choice, filter=event.value))

    def on_input_submitted(self) -> None:
        self._leave_filter()

    def action_show_all(self) -> None:
        self._has_help = False
        self.query_one("#filter", Input).value = ""
        self._leave_filter()
        self._choose(replace(self._choice, filter=""))

    def _leave_filter(self) -> None:
        self.query_one("#filter", Input).styles.display = "none"
        self.query_one("#body").focus()

    def action_pause(self) -> None:
        self._is_paused = not self._is_paused
        self._show()

    def action_rank(self, by: int) -> None:
        self._rank = (self._rank + by) % max(1, len(self._looks))
        self._show()

    def action_help(self) -> None:
        self._has_help = not self._has_help
        self._show()


def show(watch: Watch) -> None:
    """Show a watch until the user leaves."""
    try:
        WatchApp(watch).run()
    finally:
        watch.close()
