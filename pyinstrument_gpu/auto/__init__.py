# SPDX-License-Identifier: Apache-2.0
"""Phases and steps placed automatically in a program that knows nothing of them.

Each module here is one noun: it patches what torch does under that name. `AutoPhases` puts the
patches in place once torch is imported and takes them back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyinstrument_gpu.patching.import_hook import when_imported

if TYPE_CHECKING:
    from pyinstrument_gpu.auto.session import Session

_active: AutoPhases | None = None


class AutoPhases:
    """The automatic phases of the process; at most one is installed.

    Args:
        on_step_end: called after each step that was placed automatically.
        on_own_step: called before each step that the program opens itself.
    """

    def __init__(
        self,
        on_step_end: Callable[[], None] | None = None,
        on_own_step: Callable[[], None] | None = None,
    ) -> None:
        self.session: Session | None = None
        self._on_step_end = on_step_end
        self._on_own_step = on_own_step
        self._withdraw: Callable[[], None] | None = None

    def install(self) -> None:
        """Patch torch, now or when it is imported. Nothing where another is installed."""
        global _active
        if _active is None:
            _active = self
            self._withdraw = when_imported("torch", self._patch)

    def remove(self) -> None:
        """Put back what was there, and end the step that is open. Again: nothing."""
        global _active
        if _active is not self:
            return
        _active = None
        if self._withdraw is not None:
            self._withdraw()
        if self.session is not None:
            self.session.remove()

    def _patch(self) -> None:
        # Here, as torch is needed to import them.
        from pyinstrument_gpu.auto import (
            backward,
            data,
            forward,
            h2d,
            optimizer,
            session,
            timed_calls,
        )
        from pyinstrument_gpu.patching import dynamo, hooks, tensor_device

        nouns = (data, h2d, forward, backward, optimizer, timed_calls)
        self.session = session.Session(self._on_step_end, self._on_own_step)
        self.session.patches.on_remove(dynamo.leave_out(session, hooks, tensor_device, *nouns))
        for noun in nouns:
            self.session.tell(noun.install, self.session)


@contextlib.contextmanager
def auto_phases() -> Iterator[None]:
    """Place phases and steps automatically while the block runs: data, data start, data end, h2d,
    forward, loss, backward, zero_grad, clip, optimizer, scheduler, checkpoint and eval.

    They are recorded like any others while a recording is active. Phases that the program places
    itself nest with them. If the program opens steps itself (`gpu_steps`, `gpu_step`), only phases
    are placed. Inside another `auto_phases`, and under `pyinstrument-gpu run`, nothing is done
    twice.

    torch is patched when it is imported, or now if it already is. At the end of the block, the
    exact objects that were there before are restored.

    Cost: half a microsecond per phase in a loop that does nothing else, several microseconds
    between kernels, and about 20 ns per call of a submodule (docs/honest-time.md has figures).
    Never synchronises.
    """
    phases = AutoPhases()
    phases.install()
    try:
        yield
    finally:
        phases.remove()
