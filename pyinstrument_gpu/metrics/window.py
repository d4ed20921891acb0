# SPDX-License-Identifier: Apache-2.0
"""What an accumulator has added since a reading."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pyinstrument_gpu.metrics.state_snapshot import StateSnapshot
from pyinstrument_gpu.metrics.values import Reading


class Window:
    """What was added to an accumulator since the window's previous reading, as `window()` returns
    it. The first reading is of all since the window was made.

    The accumulator does not change, so there may be several windows, and each has readings of its
    own. If the accumulator was reset since the previous reading, a reading is of all since then.

    Sums, counts, means and ratios are those of the new updates. `loss_last`, `NAME_last` and moving
    averages tell of the present, as elsewhere. Extremes of a window are not known, and left out:
    `loss_min`, `loss_max`, `NAME_min` and `NAME_max`, and `first_nonfinite_update`.
    """

    def __init__(
        self,
        before: StateSnapshot | None,
        arrived: Callable[[], StateSnapshot | None],
        current: Callable[[], StateSnapshot],
        reading_of: Callable[[StateSnapshot, StateSnapshot | None], Reading],
    ) -> None:
        self._before = before
        self._loaded: StateSnapshot | None = None
        self._arrived = arrived
        self._current = current
        self._reading_of = reading_of
        self._lock = threading.Lock()

    def latest(self) -> Reading | None:
        """Return the newest values that have arrived, without waiting; None if nothing was added
        since the previous reading, or none of it has arrived."""
        return self._latest(least_updates=1)

    def compute(self) -> dict[str, Any]:
        """Return the values of all new updates. This waits for them.

        Of a confusion matrix with more than 16 classes, and of the bins of a `BinaryAccumulator` on
        a GPU, the values are known if the previous reading was made by `compute()` as well.
        """
        with self._lock:
            return self._read(self._after_load(self._current())).values

    def _latest(self, least_updates: int) -> Reading | None:
        """None as well if there are less new updates."""
        with self._lock:
            now = self._arrived()
            if now is None or self._after_load(now).updates_since(self._before) < least_updates:
                return None
            return self._read(now)

    def _rest(self) -> Reading | None:
        """All new updates, which are waited for; None if there are none."""
        with self._lock:
            now = self._after_load(self._current())
            return self._read(now) if now.updates_since(self._before) > 0 else None

    def _begin_at(self, loaded: StateSnapshot) -> None:
        """The state is about to be replaced by another one. This waits for no reading, which may
        itself wait for the replacement."""
        self._loaded = loaded

    def _after_load(self, now: StateSnapshot) -> StateSnapshot:
        """Have the window begin at the state that was loaded, if this one is of after that."""
        loaded = self._loaded
        if loaded is not None and now.state.resets >= loaded.state.resets:
            self._before = loaded
            if self._loaded is loaded:  # and not yet another one
                self._loaded = None
        return now

    def _read(self, now: StateSnapshot) -> Reading:
        reading = self._reading_of(now, self._before)
        self._before = now
        return reading
