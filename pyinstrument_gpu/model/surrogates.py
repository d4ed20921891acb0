# SPDX-License-Identifier: Apache-2.0
"""Lone surrogates: a name may hold them, UTF-8 can't."""

from __future__ import annotations

import re

_SURROGATE = re.compile("[\ud800-\udfff]")


def without_surrogates(text: str) -> str:
    """The text as UTF-8 can hold it: a lone surrogate becomes U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)
