# SPDX-License-Identifier: Apache-2.0
"""Notes when the program's threads wait for operations of torch.distributed, and for how long.

PyTorch's flight recorder says when an operation was asked for, but not whether the host waits for
it, and of Gloo's point-to-point operations nothing. So the functions that wait are hooked:
`Work.wait`, which also the blocking functions of torch.distributed call, and `wait_tensor` of its
functional operations. What waits in C++, as DistributedDataParallel does, is not seen.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import Any

import torch

from pyinstrument_gpu.aspects.collectives.log import wait_item
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching import dynamo
from pyinstrument_gpu.patching import hooks as hooks_module
from pyinstrument_gpu.patching.hooks import Arguments, Hooks, Options, QuickCheck

MOST_WAITS = 65536
"""Between two reads. Of more, the newest are kept."""
_P2P = (12, 13, 14)
"""Send, receive, and receive from any rank, of `OpType` in torch/csrc/distributed/c10d/Work.hpp."""


class HostWaits:
    """The hooks of one recording.

    Attributes:
        since_ns: from when on all waits are there, by the run's clock; -1 if they can't be seen.
    """

    def __init__(self) -> None:
        self.since_ns = -1
        self._items: deque[bytes] = deque(maxlen=MOST_WAITS)
        self._main = threading.main_thread().ident
        self._hooks = Hooks(self._leave)

    def install(self) -> None:
        dynamo.leave_out(sys.modules[__name__], hooks_module)
        functional = torch.ops._c10d_functional.wait_tensor
        self._hooks.function(torch._C._distributed_c10d.Work, "wait", QuickCheck.NEVER, self._enter)
        for owner in (functional, functional.default):
            self._hooks.function(owner, "_op", QuickCheck.NEVER, self._enter)
        if not self._hooks.not_hooked:
            self.since_ns = native.read_clocks()[0]

    def remove(self) -> None:
        self._hooks.remove()

    def take(self) -> bytes:
        """The items of what is new."""
        count = len(self._items)
        if count == MOST_WAITS:
            self.since_ns = native.read_clocks()[0]
        return b"".join(self._items.popleft() for _ in range(count))

    def _enter(self, args: Arguments, kwargs: Options | None) -> int | None:
        # Other threads, such as those that write a checkpoint, wait beside the steps.
        if threading.get_ident() != self._main and torch._C._current_graph_task_id() < 0:
            return None
        return native.read_clocks()[0]

    def _leave(self, began_ns: int, args: Arguments, succeeded: bool) -> None:
        operation: Any = getattr(args[0], "_get_op_type", int)
        is_p2p = operation() in _P2P
        self._items.append(wait_item(began_ns, native.read_clocks()[0], is_p2p))
