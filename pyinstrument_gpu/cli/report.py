# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu report`: print runs as tables."""

from __future__ import annotations

import json

import click

from pyinstrument_gpu.report.facts import report_facts
from pyinstrument_gpu.run import Run


@click.command()
@click.argument("paths", metavar="RUN...", nargs=-1, required=True)
@click.option("--step", type=int, metavar="N", help="Show only the step with index N.")
@click.option(
    "--width",
    type=click.IntRange(min=20),
    metavar="COLUMNS",
    help="Format for this many columns.  [default: the width of the terminal]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per RUN, not tables.")
def report(paths: tuple[str, ...], step: int | None, width: int | None, as_json: bool) -> None:
    """Show where the time of each step went."""
    file_of_run: dict[str, str] = {}
    for i, path in enumerate(paths):
        shown = click.format_filename(path)
        run = Run.load(path)
        run_id = run.environment.get("run_id", f"unknown {i}")
        if run_id in file_of_run:
            raise click.ClickException(
                f"{file_of_run[run_id]} and {shown} are the same run: give it once"
            )
        file_of_run[run_id] = shown
        try:
            if as_json:
                text = json.dumps({"file": shown, **report_facts(run, step)})
            else:
                text = run.report(step=step, width=width)
        except KeyError as error:
            raise click.ClickException(f"{shown}: {error.args[0]}") from error
        if len(paths) > 1 and not as_json:
            print(f"=== {shown}" if i == 0 else f"\n=== {shown}")
        print(text)
