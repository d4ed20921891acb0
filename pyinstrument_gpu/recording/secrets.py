# SPDX-License-Identifier: Apache-2.0
"""Secrets in command lines and environment variables, which are masked before they are recorded.

A secret is known by the name of its argument (`--api-key=...`, `--password ...`, `hub.token=...`),
by its place in a URL, or by its look. One that neither its name nor its look gives away is not
found, so what is recorded leaves as much aside as it can.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pyinstrument_gpu.core.program_facts import MASK

# Of names in lower case, with an underscore between their words.
_NAME_OF_SECRET = (
    r"secret|passw|passphrase|credential|authent|authori[sz]ation|bearer|signature"
    r"|auth(?:_|$)|(?:^|_)(?:pass|pwd|sig)(?:_|$)"
)
_NAME_OF_KEY = r"(?:key|token)s?(?:_|$)"
# A program that trains counts tokens, and has heads for keys.
_NO_KEY = r"(?i)[+-]?[\d_.,]{1,15}(?:e[+-]?\d+)?[kmbgt]?|true|false|none|null|"

_USER_OF_URL = r"""(?<=://)(?:[^\s/?#"']*|[^\s/:@"']*:(?!\d{1,5}(?:[/?#]|$))[^\s"']*)@"""
_HOOK = r"""(?i)(?<=://)(?=\S*hook)([^\s/?#"']+)[/?#][^\s"']*"""
_PATH_OF_URL = r"""(?<=://)([^\s/?#"']+)[/?#][^\s"']*"""
_TOKEN = (
    r"(?<![A-Za-z0-9])(?:sk-[\w-]{8,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|hf_[A-Za-z0-9]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{12,}|(?:xox[a-z]|xapp)-[\w-]{8,}|glpat-[\w-]{8,}|AIza[\w-]{20,}"
    r"|npm_\w{20,}|pypi-[\w-]{20,}|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)"
    r"|(?i:(?<=bearer )[^\s\"']+)|(?s:-----BEGIN [A-Z ]*PRIVATE KEY.*)"
)
# As in JSON, headers and the queries of URLs. A run of letters is looked at only from its begin.
_PAIR = (
    r"""(?<![\w.-])([\w.-]+)["']?\s*[=:]\s*"""
    r"""("[^"]*"?|'[^']*'?|(?:(?:[Bb]earer|[Bb]asic|[Tt]oken)\s+)?[^\s"',;&}\])]+)"""
)


def masked(text: str) -> str:
    """Return a text without the secrets in it. It may have a command line in it."""
    text = re.sub(_USER_OF_URL, f"{MASK}@", text)
    text = re.sub(_HOOK, rf"\1/{MASK}", text)
    text = re.sub(_TOKEN, MASK, text)
    parts = re.split(r"(\s+)", _with_masked_pairs(text))
    if len(parts) > 1:
        parts[::2] = masked_words(parts[::2])
    return "".join(parts)


def masked_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line without the secrets in them."""
    return list(_masked_words(words))


def masked_call(call: str) -> str:
    """Return a command, or a URL without its path: whoever knows that of a webhook may use it."""
    return masked(re.sub(_PATH_OF_URL, rf"\1/{MASK}", call))


def _masked_words(words: Sequence[str]) -> Iterator[str]:
    option = ""  # the one whose value comes next
    for word in words:
        is_option = word.startswith("--") or re.fullmatch("-[A-Za-z]", word) is not None
        if option and not is_option:
            yield _masked_value(option, word)
            option = ""
            continue
        name, equals, value = word.partition("=")
        option = word if re.fullmatch(r"-[\w.-]+", word) else ""
        if equals and re.fullmatch(r"[\w.+~@/-]+", name):
            yield f"{name}={_masked_value(name, value)}"
        else:
            yield masked(word)


def _masked_value(name: str, value: str) -> str:
    if _is_secret(name, value):
        return MASK
    return masked_call(value) if name.endswith("on-hang") else masked(value)


def _with_masked_pairs(text: str) -> str:
    pair = re.compile(_PAIR)
    parts = []
    begin = at = 0
    while found := pair.search(text, at):
        at = found.start(2)  # the value may have further pairs in it
        if _is_secret(found[1], found[2].strip("\"'")):
            parts += [text[begin:at], MASK]
            begin = at = found.end()
    return "".join([*parts, text[begin:]])


def _is_secret(name: str, value: str) -> bool:
    words = re.sub("(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", name).lower()
    if re.search(_NAME_OF_SECRET, words):
        return bool(value)
    return bool(re.search(_NAME_OF_KEY, words)) and not re.fullmatch(_NO_KEY, value)
