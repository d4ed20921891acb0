# SPDX-License-Identifier: Apache-2.0
"""Leaving out of a page who recorded a run, and where.

Paths come up in places that no list has whole: arguments, stacks, notes, messages of errors. So
it is not the run that is changed, but each text on its way into the page. What is known by name
(hosts, users, the folders of the program) is looked for literally, as it may hold spaces; any other
absolute path is known by its shape.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

_HOMES = ("home", "Users")
_NAME = r"[^/\s\"'<>|,:;()\[\]{}&]+"
_PACKAGES = re.compile(rf"(?:\.\.\.)?(?:/{_NAME})*/((?:site|dist)-packages/)")
_FOLDERS = re.compile(rf"(?<![\w.~/-])(?:/{_NAME})+/(?={_NAME})|\.\.\./(?:{_NAME}/)*")
_ABOVE = ".../"
_END = "(?![A-Za-z0-9])"


class Redaction:
    """Shortens the paths in a text to what lies in the project, which is the working directory and
    the folder of the program, and gives hosts and users names that say nothing.

    Args:
        environments: those of the runs that the page shows.
    """

    def __init__(self, environments: Iterable[Mapping[str, Any]]) -> None:
        projects: dict[str, str] = {}
        above: dict[str, str] = {}
        users: dict[str, str] = {}
        hosts: dict[str, str] = {}
        for one in environments:
            own = [one.get("cwd"), one.get("program_folder")]
            projects |= {f"{folder}/": "" for folder in own if folder and folder != "/"}
            for path in map(PurePosixPath, [*filter(None, own), *one.get("command", ())[:1]]):
                above |= {f"{folder}/": _ABOVE for folder in path.parents if folder.name}
                if path.parts[1:2] and path.parts[1] in _HOMES and path.parts[2:]:
                    users[path.parts[2]] = "user"
            if host := one.get("host"):
                alias = hosts.setdefault(host, f"host-{len({*hosts.values()}) + 1}")
                hosts.setdefault(host.partition(".")[0], alias)
        self._places = _Literals(above | projects)
        # A user may be called as a phase is: elsewhere it is a word as any other.
        self._users = _Literals(users, "(?<=[/=~_:])", _END)
        self._hosts = _Literals(hosts, "(?<![A-Za-z0-9])", _END)

    def __call__(self, text: str) -> str:
        text = _PACKAGES.sub(r"\1", self._places.replaced(text))
        return self._hosts.replaced(self._users.replaced(_FOLDERS.sub(_ABOVE, text)))


class _Literals:
    """Words with what stands in their place, as they are and as JSON has them."""

    def __init__(self, words: Mapping[str, str], before: str = "", behind: str = "") -> None:
        self._words = {json.dumps(word)[1:-1]: new for word, new in words.items()} | dict(words)
        longest_first: Sequence[str] = sorted(self._words, key=len, reverse=True)
        any_of = "|".join(map(re.escape, longest_first))
        self._pattern = re.compile(f"{before}(?:{any_of}){behind}") if any_of else None

    def replaced(self, text: str) -> str:
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: self._words[found[0]], text)
