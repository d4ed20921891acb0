# SPDX-License-Identifier: Apache-2.0
"""What an accumulator has added since a reading."""

from __future__ import annotations

from typing import Any

from pyinstrument_gpu.metrics.accumulated_state import AccumulatedState
from pyinstrument_gpu.metrics.state import StateSnapshot
from pyinstrument_gpu.metrics.torch_modes import never_compiled
from pyinstrument_gpu.metrics.values import Reading


class Window:
    """What was added to an accumulator since the window's previous reading, as `window()` returns
    it. The first reading is of all since the window was made.

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

        Of a confusion matrix with more than 16 classes, and of the bins of a `BinaryAccumulator` on
        a GPU, the values are known if the previous reading was made by `compute()` as well.
        """
        return self._waited_for()[0].values

    def _latest(self, least_updates: int) -> Reading | None:
        """None as well if there are fewer new updates."""
        with self._accumulator._lock:
            now = self._accumulator._newest()
            if now is None or now.updates_since(self._before) < least_updates:
                return None
            return self._read(now)

    def _rest(self) -> Reading | None:
        """All new updates, which are waited for; None if there are none."""
        reading, updates = self._waited_for()
        return reading if updates > 0 else None

    def _waited_for(self) -> tuple[Reading, int]:
        """All new updates, and how many there are."""
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
