# SPDX-License-Identifier: Apache-2.0
"""Options that stand in the environment or in a project's pyproject.toml.

    [tool.pyinstrument_gpu.record]
    memory = "exact"

    [tool.pyinstrument_gpu.run]
    modules = "coarse"

What a call or a command line says comes first, then the environment
(`PYINSTRUMENT_GPU_RECORD_MEMORY=exact`), then the file, which is the nearest pyproject.toml that
has such a table: in the working directory or above it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyinstrument_gpu.errors import ConfigurationError
from pyinstrument_gpu.patching.own_imports import OwnImports

PREFIX = "PYINSTRUMENT_GPU"
FILE = "pyproject.toml"
_TABLE = "pyinstrument_gpu"
_MARK = b"tool.pyinstrument_gpu"
_TABLES = ("record", "run")
_WORDS: dict[str, object] = {
    **dict.fromkeys(("true", "on", "yes"), True),
    **dict.fromkeys(("false", "off", "no"), False),
    "none": None,
}


class Setting(NamedTuple):
    """The value of an option, and where it stands.

    Attributes:
        value: as the option takes it.
        source: the name of the variable, or the path of the file.
    """

    value: Any
    source: str


def variable(command: str, option: str) -> str:
    """The environment variable of an option, as click makes it."""
    return f"{PREFIX}_{command}_{option}".upper().replace("-", "_")


def record_settings(options: Mapping[str, object]) -> dict[str, Setting]:
    """The options of `record` that the environment or the file sets.

    Args:
        options: those that there are, with their defaults.

    Raises:
        ConfigurationError: the file can't be read as TOML, or sets what there is not.
    """
    settings = dict(file_settings("record", options))
    for option in options:
        name = variable("record", option)
        text = os.environ.get(name)
        if text:
            settings[option] = Setting(_value_of(text), name)
    return settings


def file_settings(command: str, options: Mapping[str, object]) -> dict[str, Setting]:
    """The options of a command that the file sets, under their names in Python.

    Args:
        command: `record` or `run`.
        options: those that there are, by name.

    Raises:
        ConfigurationError: the file can't be read as TOML, or sets what there is not.
    """
    found = _nearest()
    if found is None:
        return {}
    path, tables = found
    table = tables.get(command, {})
    if not isinstance(table, dict):
        raise ConfigurationError(f"{path}: [tool.{_TABLE}.{command}] must be a table")
    settings = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in options:
            raise ConfigurationError(
                f"{path}: [tool.{_TABLE}.{command}] sets {key!r}, which is no option of {command}; "
                f"there are {', '.join(sorted(options))}"
            )
        settings[name] = Setting(value, str(path))
    return settings


def _nearest() -> tuple[Path, dict[str, Any]] | None:
    """The nearest file with our table, and that table."""
    try:
        folder = Path.cwd()
    except OSError:  # it was removed
        return None
    for place in (folder, *folder.parents):
        path = place / FILE
        try:
            content = path.read_bytes()
        except OSError:
            continue
        # To read TOML takes a library, and most files have nothing for us.
        if _MARK in content.replace(b" ", b"").replace(b'"', b""):
            tables = _tables(path, content)
            if tables is not None:
                return path, tables
    return None


def _tables(path: Path, content: bytes) -> dict[str, Any] | None:
    try:
        document = _parsed(content)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is no TOML: {error}") from None
    tool = document.get("tool", {})
    tables = tool.get(_TABLE) if isinstance(tool, dict) else None
    if tables is None:
        return None
    if not isinstance(tables, dict) or not tables.keys() <= set(_TABLES):
        unknown = sorted(set(tables) - set(_TABLES)) if isinstance(tables, dict) else []
        raise ConfigurationError(
            f"{path}: [tool.{_TABLE}] holds the tables {' and '.join(_TABLES)}"
            + (f", and not {', '.join(map(repr, unknown))}" if unknown else "")
        )
    return tables


def _parsed(content: bytes) -> dict[str, Any]:
    with OwnImports():
        if sys.version_info >= (3, 11):
            from tomllib import loads
        else:
            from tomli import loads
    document: dict[str, Any] = loads(content.decode())
    return document


def _value_of(text: str) -> object:
    """A value of the environment: a word for true, false or none, a number, or a text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
