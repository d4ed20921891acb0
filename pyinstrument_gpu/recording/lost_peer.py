# SPDX-License-Identifier: Apache-2.0
"""Recognising exceptions that say that another rank did not answer.

The run file has no texts of exceptions, which may hold anything. So this is judged where the
exception is.
"""

from __future__ import annotations

import re
from typing import Any

_MOST_CHARACTERS = 10_000
_MOST_EXCEPTIONS = 8
"""So many are followed from one to the one that it came of."""
_LOST_PEER = re.compile(
    r"gloo.*(Connection (closed|reset) by peer|Broken pipe|[Tt]imed out|timeout|Connection refused)"
    r"|Timed out waiting \d+ms for (recv|send) operation"
    r"|ncclRemoteError|remote process exited"
    r"|(NCCL|ProcessGroup|TCPStore).*([Tt]imed out|[Tt]imeout|[Cc]onnection (was|reset|closed))"
    r"|^wait timeout after \d+ ?ms|[Ff]ailed to recv, got \d+ bytes"
    r"|Timed out after \d+ seconds waiting for clients",
    re.DOTALL,
)
"""What gloo, NCCL and the store of torch.distributed say."""


def exception_facts(error: BaseException) -> dict[str, Any]:
    """Return what the run file says of an exception: the name of its type, as its text may be
    anything, and whether another rank did not answer."""
    return {"exception": type(error).__name__, **lost_peer_facts(error)}


def lost_peer_facts(error: BaseException) -> dict[str, Any]:
    """Return what the run file says if another rank did not answer; nothing otherwise."""
    return {"lost_peer": True} if has_lost_peer(error) else {}


def has_lost_peer(error: BaseException) -> bool:
    """Return whether the exception is one of torch.distributed for another rank that did not
    answer, or was raised from such a one or while it was handled. Raises nothing."""
    found: BaseException | None = error
    for _ in range(_MOST_EXCEPTIONS):
        if found is None:
            break
        if _is_of_lost_peer(found):
            return True
        found = found.__cause__ or found.__context__
    return False


def _is_of_lost_peer(error: BaseException) -> bool:
    try:
        if not isinstance(error, RuntimeError):  # DistError and what is derived from it are
            return False
        return _LOST_PEER.search(str(error)[:_MOST_CHARACTERS]) is not None
    except Exception:  # its __str__ is the program's
        return False
