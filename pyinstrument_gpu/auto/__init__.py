# SPDX-License-Identifier: Apache-2.0
"""Phases and steps placed automatically in a program that knows nothing of them.

The functions of torch that a training loop calls are hooked (calls.py, h2d.py), and what their
calls mean is decided in csrc/auto.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyinstrument_gpu.native import IMPORT_ERROR, native
from pyinstrument_gpu.patching.import_hook import when_imported
from pyinstrument_gpu.patching.problems import not_seen, warn_of
from pyinstrument_gpu.recording import loader_use, native_callbacks

if TYPE_CHECKING:
    import torch

_active: AutoPhases | None = None


def installed() -> AutoPhases | None:
    """The automatic phases that the process has now."""
    return _active


class AutoPhases:
    """The automatic phases of the process; at most one is installed.

    Args:
        on_step_end: called after each step that was placed automatically.
        on_own_step: called before each step that the program opens itself.

    Attributes:
        copies: number and bytes of the copies to a device, by whether the memory was pinned and the
            copy `non_blocking`.
        lines: by phase the line of the program that called it first: its file and its number.
        error: what went wrong on our side, or None.
        is_hooked: whether torch was there to be hooked.
        not_hooked: functions of torch that are not built as expected.
    """

    def __init__(
        self,
        on_step_end: Callable[[], None] | None = None,
        on_own_step: Callable[[], None] | None = None,
    ) -> None:
        self.copies: dict[tuple[bool, bool], list[int]] = {}
        self.lines: dict[str, tuple[str, int]] = {}
        self.error: Exception | None = None
        self.is_hooked = False
        self.not_hooked: list[str] = []
        self._on_step_end = on_step_end
        self._on_own_step = on_own_step
        self._withdraw: Callable[[], None] | None = None
        self._hooks = contextlib.ExitStack()

    def install(self) -> None:
        """Hook torch, now or when it is imported. Nothing where another is installed."""
        global _active
        if _active is None and IMPORT_ERROR is None:
            _active = self
            self._withdraw = when_imported("torch", self._hook)

    def remove(self) -> None:
        """Take the hooks back, and end the step that is open. Calling it again does nothing."""
        global _active
        if _active is not self:
            return
        _active = None
        if self._withdraw is not None:
            self._withdraw()
        if not self.is_hooked:
            return
        native.set_before_step(None)
        self._hooks.close()
        if native.loop_has_failed() and self.error is None:
            self.error = MemoryError()

    def end_open_step(self) -> None:
        """End the open step, as the main code of the program is over, if this thread is the one
        that trains; another may go on."""
        if _active is self and self.is_hooked:
            self.tell(native.end_open_step)

    @property
    def optimizer_seen(self) -> bool | None:
        """Return whether an optimizer has stepped; None where there was no update at all."""
        return native.optimizer_seen() if self.is_hooked else None

    def facts(self) -> dict[str, Any]:
        """Return the fields of the run's environment on phases; empty where torch was not there."""
        if not self.is_hooked:
            return {}
        return {
            "copies_to_device": [
                {"pinned": pinned, "non_blocking": non_blocking, "count": count, "bytes": size}
                for (pinned, non_blocking), (count, size) in sorted(self.copies.items())
            ],
            "optimizer_seen": self.optimizer_seen,
            "phase_lines": [
                {"phase": phase, "file": file, "line": line}
                for phase, (file, line) in self.lines.items()
            ],
        }

    def when_removed(self, function: Callable[[], None]) -> None:
        """Have a function called when the hooks are taken back."""
        self._hooks.callback(function)

    def tell(self, what: Callable[..., None], *arguments: object) -> None:
        """Call a function that must not raise into the program."""
        try:
            what(*arguments)
        except Exception as error:
            self.error = error

    def problems(self) -> Iterator[str]:
        """Yield sentences about what went wrong."""
        if self.error is not None:
            yield f"automatic phases and steps ended early, because of an error: {self.error!r}"
        if self.not_hooked:
            yield not_seen("phases", self.not_hooked)

    def _hook(self) -> None:
        self.is_hooked = True
        try:
            self._hook_torch()
        except Exception as error:
            self.error = error
            self._hooks.close()  # nothing stays half hooked

    def _hook_torch(self) -> None:
        # Here, as torch is needed to import them.
        from pyinstrument_gpu.auto import batches, calls, h2d
        from pyinstrument_gpu.patching import dynamo, hooks, program_frames, tensor_device

        self.when_removed(when_imported("torchmetrics", lambda: self.tell(_note_metrics)))
        on_step_end = self._on_step_end
        calls.begin_loop(
            threading.main_thread().ident or 0,
            None if on_step_end is None else lambda: self.tell(on_step_end),
            lambda phase: self.tell(calls.note_line, self.lines, phase),
        )
        self.when_removed(native.end_loop)
        ours = (native_callbacks, h2d, hooks, tensor_device, calls, batches, loader_use)
        dynamo.leave_out(*ours, program_frames)
        self.when_removed(calls.install(self.not_hooked))
        copying = h2d.install(lambda *copy: self.tell(self._count_copy, *copy))
        self.not_hooked += copying.not_hooked
        self.when_removed(copying.remove)
        native.set_before_step(self._before_own_step)

    def _count_copy(self, tensor: torch.Tensor, non_blocking: bool) -> None:
        count_and_bytes = self.copies.setdefault((tensor.is_pinned(), non_blocking), [0, 0])
        count_and_bytes[0] += 1
        count_and_bytes[1] += tensor.numel() * tensor.element_size()

    def _before_own_step(self) -> None:
        self.tell(native.leave_steps_alone)
        if self._on_own_step is not None:
            self.tell(self._on_own_step)


def _note_metrics() -> None:
    """Have torchmetrics' metrics be a phase of their own: modules that no loop trains."""
    for name in ("Metric", "MetricCollection"):
        found = getattr(sys.modules["torchmetrics"], name, None)
        if isinstance(found, type):
            native.note_metric_type(found)


@contextlib.contextmanager
def auto_phases() -> Iterator[None]:
    """Place phases and steps automatically while the block runs: data, data start, data end, h2d,
    forward, loss, metrics, backward, zero_grad, clip, optimizer, scheduler, checkpoint, eval,
    no_grad, and "compiled NAME" for calls of functions that torch.compile has made.

    They are recorded like any others while a recording is active. Phases that the program places
    itself nest with them. If the program opens steps itself (`gpu_steps`, `gpu_step`), only phases
    are placed. Inside another `auto_phases`, and under `pyinstrument-gpu run`, nothing is done
    twice.

    torch is hooked when it is imported, or now if it already is. Its functions stay the objects
    that they are (docs/phases.md).

    Cost: docs/reliability.md has figures. In a loop, none of our Python code runs, but for copies
    to a device. Never synchronises.
    """
    phases = AutoPhases()
    try:
        phases.install()
        yield
    finally:
        phases.remove()
        warn_of(*phases.problems())
