# SPDX-License-Identifier: Apache-2.0
"""Whether an exception says that another rank did not answer.

The run file has no texts of exceptions, which may hold anything. So this is judged where the
exception is.
"""

from __future__ import annotations

import re
from typing import Any

_MOST_CHARACTERS = 10_000
_LOST_PEER = re.compile(
    r"gloo.*(Connection (closed|reset) by peer|Broken pipe|[Tt]imed out|timeout|Connection refused)"
    r"|Timed out waiting \d+ms for (recv|send) operation"
    r"|ncclRemoteError|remote process exited"
    r"|(NCCL|ProcessGroup|TCPStore).*([Tt]imed out|[Tt]imeout|[Cc]onnection (was|reset|closed))",
    re.DOTALL,
)
"""What gloo, NCCL and the store of torch.distributed say."""


def exception_facts(error: BaseException) -> dict[str, Any]:
    """What the run file says of an exception: the name of its type, as its text may be anything,
    and whether another rank did not answer."""
    facts: dict[str, Any] = {"exception": type(error).__name__}
    return {**facts, "lost_peer": True} if has_lost_peer(error) else facts


def has_lost_peer(error: BaseException) -> bool:
    """Whether the exception is one of torch.distributed for another rank that did not answer. It
    raises nothing."""
    try:
        if not isinstance(error, RuntimeError):  # DistError and what is derived from it are
            return False
        return _LOST_PEER.search(str(error)[:_MOST_CHARACTERS]) is not None
    except Exception:  # its __str__ is the program's
        return False
