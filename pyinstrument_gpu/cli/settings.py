# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu info --config`: the options that the environment and pyproject.toml set."""

from __future__ import annotations

import json

from pyinstrument_gpu.cli.run import ELSEWHERE, run, run_options
from pyinstrument_gpu.parts.words import printable
from pyinstrument_gpu.recording.configuration import (
    PREFIX,
    Setting,
    file_settings,
    record_settings,
)
from pyinstrument_gpu.recording.options import SETTABLE

_DEFAULT = "default"
_ANY_PROGRAM = "program"


def show_settings(as_json: bool) -> None:
    """Each option with its value, and where that stands."""
    record = {
        name: record_settings(SETTABLE).get(name, Setting(default, _DEFAULT))
        for name, default in SETTABLE.items()
    }
    found = {"run": _run_settings(), "record": record}
    if as_json:
        rows = {
            command: {name: one._asdict() for name, one in settings.items()}
            for command, settings in found.items()
        }
        print(json.dumps(rows, indent=2, default=str))
        return
    names = [f"{command}.{name}" for command, settings in found.items() for name in settings]
    width = max(map(len, names))
    settings = [one for of_command in found.values() for one in of_command.values()]
    for name, one in zip(names, settings, strict=True):
        value = json.dumps(one.value, ensure_ascii=False, default=str)
        print(f"{name:{width}}  {printable(value)}  ({printable(one.source)})")


def _run_settings() -> dict[str, Setting]:
    """Those of `run`, by the very parser that it uses."""
    options = run_options()
    in_file = file_settings("run", options)
    context = run.make_context(
        "run",
        [_ANY_PROGRAM],
        auto_envvar_prefix=f"{PREFIX}_RUN",
        default_map={name: one.value for name, one in in_file.items()},
    )
    settings = {}
    for name in options:
        told = ELSEWHERE.get(context.get_parameter_source(name))
        settings[name] = Setting(context.params[name], _DEFAULT if told is None else told(name))
    return settings
