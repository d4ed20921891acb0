# SPDX-License-Identifier: Apache-2.0
"""Leaving out of a page who recorded a run, and where.

Paths come up in places that no list has whole: arguments, stacks, notes, messages of errors. So it
is each text on its way into the page that is changed. What is known by name (hosts, users, the
folders of the program) is looked for literally, as it may hold spaces; any other absolute path is
known by its shape. The facts of a run's environment are changed first, each by itself: there it is
known where a path ends. Names and identifiers of the page are kept: a host that is called as a
phase is replaced only where it is said to be a host.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from pyinstrument_gpu.core.run import Run

_HOMES = frozenset({"home", "Users", "users", "user", "u"})
"""Folders whose folders are called as users."""
_NAME = r"[^/\s\"'<>|,:;()\[\]{}&]+"
_BEGIN = r"(?<![\w.~/-])(?:file://)?"
_HOME = re.compile(rf"{_BEGIN}/(?:[^\s:'\"]*/)?(?:{'|'.join(sorted(_HOMES))})/{_NAME}")
_PACKAGES = re.compile(rf"(?:\.\.\.)?(?:/{_NAME})*/((?:site|dist)-packages/)")
_FOLDERS = re.compile(rf"{_BEGIN}(?:/{_NAME})+/(?={_NAME})|\.\.\./(?:{_NAME}/)*")
_ABOVE = ".../"
_PATH_ARGUMENT = re.compile(r"(?:[\w.-]+=|--?[\w-]+=?)?(?:file://)?/")
_ENDS = "(?![A-Za-z0-9])"


class Redaction:
    """Shortens the paths in a text to what lies in the project, which is the working directory and
    the folder of the program, and gives hosts and users names that say nothing.

    Args:
        environments: those of the runs that the page shows.
    """

    def __init__(self, environments: Iterable[Mapping[str, Any]]) -> None:
        projects: dict[str, str] = {}
        above: dict[str, str] = {}
        users: set[str] = set()
        hosts: dict[str, str] = {}
        for one in environments:
            own = [str(one.get(name) or "") for name in ("cwd", "program_folder")]
            projects |= {f"{folder.rstrip('/')}/": "" for folder in own if folder.strip("/")}
            program = [str(word) for word in one.get("command") or ()][:1]
            for path in map(PurePosixPath, [*own, *program]):
                outer = [folder for folder in path.parents if folder.name not in {"", *_HOMES}]
                above |= {f"{folder}/": _ABOVE for folder in outer}
                places = zip(path.parts, path.parts[1:], strict=False)
                users |= {user for home, user in places if home in _HOMES}
            host = str(one.get("host") or "")
            if host and host not in hosts:
                hosts[host] = f"host-{len({*hosts.values()}) + 1}"
                hosts.setdefault(host.partition(".")[0], hosts[host])
        self._places = _Words(above | projects, _BEGIN)
        named = dict.fromkeys(users, "user")
        self._users = _Words(named, r"(?:(?<=[=~])|(?<=torchinductor_)|(?<=-u ))", _ENDS)
        self._folders = _Words(named, r"(?<=\.\./)", r"(?=$|[/\s:,'\"_-])")
        self._accounts = _Words(named, r"(?<![A-Za-z0-9])", "(?=@)")
        telling = {host: alias for host, alias in hosts.items() if _is_telling(host)}
        self._hosts = _Words(telling, r"(?<![A-Za-z0-9])", _ENDS)
        self._named_hosts = _Words(hosts, r"(?<=\bhost )", _ENDS)
        self._of_host = hosts

    def __call__(self, text: str) -> str:
        text = _HOME.sub("...", self._places.replaced(text))
        text = _FOLDERS.sub(_ABOVE, _PACKAGES.sub(r"\1", text))
        for words in (self._folders, self._users, self._accounts, self._hosts, self._named_hosts):
            text = words.replaced(text)
        return text

    def values(self, data: Any) -> Any:
        """Return data for the page's script, in which texts are changed, and no key or number."""
        if isinstance(data, str):
            return self(data)
        if isinstance(data, Mapping):
            return {key: self.values(value) for key, value in data.items()}
        return [self.values(one) for one in data] if isinstance(data, list | tuple) else data

    def facts(self, environment: Mapping[str, Any]) -> dict[str, Any]:
        """Return the facts of a run's environment: of an argument, and of a folder, all is a path
        that begins as one."""
        changed = {key: self._fact(value) for key, value in environment.items()}
        if "host" in environment:
            changed["host"] = self._of_host.get(str(environment["host"]), "")
        return changed

    def run(self, run: Run) -> Run:
        """Return the run with such facts."""
        changed = copy.copy(run)
        changed.environment = self.facts(run.environment)
        return changed

    def _fact(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self._fact(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self._fact(one) for one in value]
        if not isinstance(value, str):
            return value
        begin = _PATH_ARGUMENT.match(value)
        prefix = value[: begin.end() - 1] if begin is not None else ""
        inside = self._places.replaced(value)
        if _HOME.fullmatch(value[len(prefix) :].rstrip("/")):
            inside = f"{prefix}..."
        elif (begin is not None and inside == value) or _ABOVE in inside:
            inside = f"{prefix}{_ABOVE}{value.rstrip('/').rpartition('/')[2]}"
        return self(inside)


def _is_telling(host: str) -> bool:
    """Return whether a word can be nothing but a host: it is no number, and no plain word."""
    return len(host) > 3 and bool(re.search("[A-Za-z]", host) and re.search("[0-9.-]", host))


class _Words:
    """Words with what stands in their place, whatever their case."""

    def __init__(self, words: Mapping[str, str], before: str, behind: str = "") -> None:
        self._words = {word.lower(): new for word, new in words.items() if word}
        any_of = "|".join(map(re.escape, sorted(self._words, key=len, reverse=True)))
        self._pattern = re.compile(f"{before}({any_of}){behind}", re.IGNORECASE)

    def replaced(self, text: str) -> str:
        if not self._words:
            return text
        return self._pattern.sub(lambda found: self._words[found[1].lower()], text)
