# SPDX-License-Identifier: Apache-2.0
"""Windows over an accumulator, and readings that go to a callback.

A thread for each log looks at what has arrived a few times a second. That needs no hook in
`update`, and works where no update is made by the host, as in replays of CUDA graphs.
"""

from __future__ import annotations

import os
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from pyinstrument_gpu.at_exit import call_at_exit
from pyinstrument_gpu.metrics.accumulated_state import AccumulatedState
from pyinstrument_gpu.metrics.addition import never_compiled
from pyinstrument_gpu.metrics.state import StateSnapshot
from pyinstrument_gpu.metrics.values import Reading

_INTERVAL_S = 0.05
_PATIENCE_AT_EXIT_S = 5.0

_open: set[PeriodicLog] = set()
_looking = threading.Lock()
"""Held while one of our threads reads an accumulator. A fork waits for it, because a lock that is
held at that moment would never become free in the child."""


class Window:
    """The additions to an accumulator since the window's previous reading, as `window()` returns
    it. The first reading covers everything since the window was created.

    The accumulator does not change, so there may be several windows, and each has readings of its
    own. If the accumulator was reset since the previous reading, a reading is of all since then.

    Sums, counts, means and ratios are those of the new updates. `loss_last` and `NAME_last` are NaN
    if nothing of the kind was added. Moving averages are those of the whole run. Extremes of a
    window are not known, and left out: `loss_min`, `loss_max`, `NAME_min` and `NAME_max`, and
    `first_nonfinite_update`.
    """

    def __init__(self, accumulator: AccumulatedState, before: StateSnapshot | None) -> None:
        self._accumulator = accumulator
        self._read_before = before

    @property
    def _before(self) -> StateSnapshot | None:
        """The previous reading, or the state that was loaded since. Needs the lock."""
        loaded, read = self._accumulator._loaded, self._read_before
        is_newer = loaded is not None and (read is None or read.state.resets < loaded.state.resets)
        return loaded if is_newer else read

    @never_compiled
    def latest(self) -> Reading | None:
        """Return the newest values that have arrived, without waiting; None if nothing was added
        since the previous reading, or none of it has arrived."""
        return self._latest(least_updates=1)

    @never_compiled
    def compute(self) -> dict[str, Any]:
        """Return the values of all new updates. This waits for them.

        Of a confusion matrix with more than 16 classes the values are known if the previous reading
        was made by `compute()` as well.
        """
        return self._waited_for()[0].values

    def _latest(self, least_updates: int) -> Reading | None:
        """Return the latest reading; None as well if there are fewer new updates."""
        with self._accumulator._lock:
            now = self._accumulator._newest()
            if now is None or now.updates_since(self._before) < least_updates:
                return None
            return self._read(now)

    def _rest(self) -> Reading | None:
        """Return all new updates, which are waited for; None if there are none."""
        reading, updates = self._waited_for()
        return reading if updates > 0 else None

    def _waited_for(self) -> tuple[Reading, int]:
        """Return all new updates, and their number."""
        while True:
            resets = self._accumulator._resets
            now = self._accumulator._current()  # without the lock: it may take long
            with self._accumulator._lock:
                if self._accumulator._resets != resets:
                    continue  # another state may have been loaded, at which the window begins
                updates = now.updates_since(self._before)
                if updates < 0 and self._before is not None:
                    now = self._before  # another thread has read more meanwhile
                return self._read(now), updates

    def _read(self, now: StateSnapshot) -> Reading:
        reading = self._accumulator._reading_of_window(now, self._before)
        self._read_before = now
        return reading


class PeriodicLog:
    """Passes readings on to a callback until it is closed. Made by `log_every`, and a context
    manager that closes it."""

    def __init__(self, window: Window, every: int, callback: Callable[[Reading], Any]) -> None:
        self._window = window
        self._every = every
        self._callback = callback
        self._lock = threading.Lock()
        self._is_open = True
        self._last: Reading | None = None
        self._is_ending = threading.Event()
        # A daemon: a callback that never returns must not keep the program from ending.
        self._thread = threading.Thread(target=self._run, name="pyinstrument_gpu log", daemon=True)
        self._cancel_exit: Callable[[], None] | None = call_at_exit(self._end_at_exit)
        _open.add(self)
        self._thread.start()

    def __enter__(self) -> PeriodicLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Pass on what is left, which this waits for, and call back no more. Returns when the
        callback has returned."""
        if self._end(self._window._rest) and threading.current_thread() is not self._thread:
            self._thread.join()

    def _end(self, rest: Callable[[], Reading | None]) -> bool:
        with self._lock:
            if not self._is_open:
                return False
            self._leave()
            try:
                self._last = rest()
            except Exception:  # the device may be lost; what has arrived is still there
                self._last = self._window.latest()
            self._is_ending.set()
            return True

    def _run(self) -> None:
        try:
            while not self._is_ending.wait(_INTERVAL_S):
                # Between a reading and its callback nothing else may call back: the thread does
                # both. After the end the last one has been read by the one who has ended it.
                with self._lock, _looking:
                    reading = self._window._latest(self._every) if self._is_open else None
                if reading is not None:
                    self._callback(reading)
            if self._last is not None:
                self._callback(self._last)
        except BaseException as raised:
            with self._lock:
                self._leave()
            _warn_of(raised)

    def _leave(self) -> None:
        self._is_open = False
        _open.discard(self)
        if self._cancel_exit is not None:
            self._cancel_exit()
            self._cancel_exit = None  # it holds this log

    def _end_at_exit(self) -> None:
        """End as the interpreter does: nothing that may take forever is waited for."""
        if self._end(self._window.latest):
            self._thread.join(_PATIENCE_AT_EXIT_S)


def tqdm_postfix(bar: Any, *keys: str) -> Callable[[Reading], None]:
    """Return a callback for `log_every` that shows values behind a progress bar of tqdm.

        bar = tqdm(loader)
        with metrics.log_every(10, pig.tqdm_postfix(bar, "loss", "accuracy@1")):
            for x, y in bar:
                ...

    Args:
        bar: a bar of `tqdm`, or anything with its `set_postfix`.
        keys: the values to show, `loss` alone if there are none. One that a reading does not have
            is shown as `?`.

    Raises:
        TypeError: the bar has no `set_postfix`, or a key is not a str.
    """
    if not hasattr(bar, "set_postfix"):
        raise TypeError(f"bar must be a progress bar of tqdm, got {type(bar).__name__}")
    if wrong := [key for key in keys if not isinstance(key, str)]:
        raise TypeError(f"keys must be names of values, as 'loss', got {wrong[0]!r}")
    shown = keys or ("loss",)

    def show(reading: Reading) -> None:
        bar.set_postfix({key: reading.values.get(key, "?") for key in shown})

    return show


def _warn_of(raised: BaseException) -> None:
    """Warn at the callback that raised, which no frame of this thread can tell."""
    frames = traceback.extract_tb(raised.__traceback__)
    origin = frames[min(1, len(frames) - 1)]
    lines = "".join(traceback.format_exception(raised))
    warnings.warn_explicit(
        f"the callback of log_every raised an error, and is not called again:\n{lines}",
        RuntimeWarning,
        origin.filename,
        origin.lineno or 1,
    )


def _forget_all() -> None:
    """Forget all windows: this process is a child by fork, which has none of the threads."""
    _looking.release()
    for log in list(_open):
        log._lock = threading.Lock()
        log._is_open = False
    _open.clear()


os.register_at_fork(
    before=_looking.acquire, after_in_parent=_looking.release, after_in_child=_forget_all
)
