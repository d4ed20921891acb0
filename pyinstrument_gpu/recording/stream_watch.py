# SPDX-License-Identifier: Apache-2.0
"""Watching whether a program uses streams beside its devices' default ones, by its calls of torch.

A stream has an effect on the others only where work is put on it, for which torch has to make it
the current one, or where one waits for another. All of torch's ways to do either in Python lead
through the functions that are hooked here, and so does making a stream. The first such call says
all there is to say: then the hooks are taken back.

What C++ code does is not seen. In torch itself, that is the backends of process groups
(process_groups.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching import tensor_device
from pyinstrument_gpu.patching.hooks import Arguments, Enter, Options, QuickCheck

_DEFAULT_STREAM = 0
"""Its `stream_id`."""


class StreamWatch:
    """The hooks of one recording.

    Args:
        tell: called when the first stream is seen.

    Attributes:
        seen: whether one was.
        not_hooked: functions that are not built as the hooks expect. Their calls are not seen.
    """

    def __init__(self, tell: Callable[[], object]) -> None:
        self._tell = tell
        self._leave = lambda *_: (
            None
        )  # no call has a token, but this one tells whose hooks they are
        self.seen = False
        self.not_hooked: list[str] = []

    def install(self) -> None:
        self.seen = _is_on_side_stream()
        if self.seen:
            return
        functions = torch._C
        for owner, name, enter in (
            (functions.Stream, "__enter__", self._enters),
            (functions.Stream, "wait_event", self._waits),
            (functions.Stream, "wait_stream", self._waits),
            (functions.Event, "wait", self._waits),
            (functions._CudaEventBase, "wait", self._waits),
        ):
            self._hook(vars(owner).get(name), name, enter)
        set_stream = getattr(functions, "_cuda_setStream", None)
        self._hook(set_stream, "torch.cuda.set_stream", self._sets)
        self._hook(torch.accelerator.set_stream, "torch.accelerator.set_stream", self._enters)
        new = torch.cuda.Stream.__new__
        self._hook(new, "torch.cuda.Stream", self._makes, from_c=True)

    def remove(self) -> None:
        """Take all hooks back. Calling it again does nothing."""
        native.unhook(self._leave)

    def _hook(self, function: Any, name: str, enter: Enter, **how: bool) -> None:
        if function is None and not torch.backends.cuda.is_built():
            return
        if function is None or not native.hook_call(
            function, int(QuickCheck.NEVER), enter=enter, leave=self._leave, **how
        ):
            self.not_hooked.append(name)

    def _note(self) -> None:
        if not self.seen:
            self.seen = True
            self.remove()
            self._tell()

    # What is called at the begin of a call

    def _enters(self, args: Arguments, kwargs: Options | None) -> None:
        """Note that a stream, of this class or of `torch.cuda.Stream`, becomes the current one."""
        stream = args[0] if args else (kwargs or {}).get("stream")
        if getattr(stream, "stream_id", _DEFAULT_STREAM) != _DEFAULT_STREAM:
            self._note()

    def _sets(self, args: Arguments, kwargs: Options | None) -> None:
        """Note that the stream with a number becomes the current one."""
        number = args[0] if args else (kwargs or {}).get("stream_id", _DEFAULT_STREAM)
        if number != _DEFAULT_STREAM:
            self._note()

    def _waits(self, args: Arguments, kwargs: Options | None) -> None:
        self._note()

    def _makes(self, args: Arguments, kwargs: Options | None) -> None:
        """Note that a stream is made, or an object for one that exists, as for the current one."""
        if (kwargs or {}).get("stream_id") is None:
            self._note()


def _is_on_side_stream() -> bool:
    """Return whether the calling thread's current stream is another than the default one."""
    if tensor_device.accelerator_type() != "cuda" or not torch.cuda.is_initialized():
        return False
    number: int = torch._C._cuda_getCurrentStream(torch.cuda.current_device())[0]
    return number != _DEFAULT_STREAM
