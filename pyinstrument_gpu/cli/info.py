# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu info`: show what a run file contains, or how options are set."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import click

from pyinstrument_gpu.cli.run import ELSEWHERE, run, run_options
from pyinstrument_gpu.core.run import Run
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


@click.command()
@click.argument("path", metavar="[RUN]", required=False)
@click.option(
    "--config",
    is_flag=True,
    allow_from_autoenv=False,
    help="Show the options of `run` and of pig.record() instead, as the environment and "
    "pyproject.toml set them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def info(path: str | None, config: bool, as_json: bool) -> None:
    """Show what a run file contains and what is missing."""
    if config == (path is not None):
        raise click.UsageError("give either RUN or --config")
    if path is None:
        show_settings(as_json)
        return
    _show(_facts(path), as_json)


def _facts(path: str) -> dict[str, Any]:
    run = Run.load(path)
    return {
        "file": os.fspath(click.format_filename(path)),
        "file_bytes": os.path.getsize(path),
        "complete": run.complete,
        "duration_ns": run.duration_ns,
        "steps": run.steps_ended,
        "steps_kept": len(run.steps),
        "spans": run.phases_recorded,
        "spans_kept": len(run.spans),
        "phases": len(run.phases),
        "modules": sum(times.modules for times in run.modules.values()),
        "passes": run.modules.passes,
        "passes_kept": len(run.module_spans),
        "threads": [thread.name for thread in run.threads],
        "open_phases": [dataclasses.asdict(phase) for phase in run.open_phases],
        "open_step": dataclasses.asdict(run.open_step) if run.open_step is not None else None,
        "dropped": {cause: count for cause, count in run.dropped.items() if count},
        "notes": list(run.notes),
        "environment": run.environment,
    }


def _show(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    facts.update(facts.pop("environment"))
    width = max(map(len, facts))
    for key, value in facts.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        print(f"{printable(key):{width}}  {printable(text)}")


def show_settings(as_json: bool) -> None:
    """Print each option with its value, and where that is set."""
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
    """Return the settings of `run`, by the parser that it uses itself."""
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
