# SPDX-License-Identifier: Apache-2.0
"""What an accumulator was made with, to be compared with another one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import Tensor


def described(options: Any) -> dict[str, Any]:
    """The options of an accumulator as JSON can hold them; of a tensor what tells it from others.

    Args:
        options: a dataclass, as `MetricOptions`.
    """
    given = {
        each.name: _plain(getattr(options, each.name)) for each in fields(options) if each.compare
    }
    return {"task": options.task, **given}


def differences(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Where two descriptions differ, as in "topk=[1] instead of [1, 5]"; empty where they don't."""
    return ", ".join(
        f"{name}={given.get(name)!r} instead of {wanted.get(name)!r}"
        for name in dict.fromkeys([*wanted, *given])
        if given.get(name) != wanted.get(name)
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        content = value.detach().cpu().double().numpy().tobytes()
        return f"a tensor with SHA-256 {hashlib.sha256(content).hexdigest()[:16]}"
    return list(value) if isinstance(value, tuple) else value
