# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu compare`: say whether a change made training faster or slower."""

from __future__ import annotations

import json
from typing import Any

import click

from pyinstrument_gpu.analysis.compare import Verdict
from pyinstrument_gpu.analysis.compare import compare as compare_runs
from pyinstrument_gpu.report.comparison import comparison_facts, comparison_report
from pyinstrument_gpu.run import Run

_EXIT_SLOWER = 4


class _ManyFiles(click.Command):
    """A command whose options --before and --after take all that follows them, up to the next
    option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        side: str | None = None
        for argument in args:
            if argument in ("--before", "--after"):
                side = argument
            elif argument.startswith("-") or side is None:
                side = None
                spread.append(argument)
            else:
                spread += [side, argument]
        return super().parse_args(ctx, spread)


@click.command(cls=_ManyFiles)
@click.option(
    "--before", metavar="RUN...", multiple=True, required=True, help="Without the change."
)
@click.option("--after", metavar="RUN...", multiple=True, required=True, help="With the change.")
@click.option(
    "--noise",
    "noise_percent",
    type=click.FloatRange(min=0, min_open=True),
    metavar="PCT",
    help="By how much runs differ by themselves, as a standard deviation: a floor.",
)
@click.option(
    "--margin",
    "margin_percent",
    type=click.FloatRange(min=0),
    default=1.0,
    metavar="PCT",
    help="Up to which difference times are called the same; 1 by default.",
)
@click.option(
    "--fail-if-slower",
    "fail_percent",
    type=click.FloatRange(min=0),
    metavar="PCT",
    help="Exit with 4 if the verdict is SLOWER, by more than that.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.pass_context
def compare(
    context: click.Context,
    /,
    before: tuple[str, ...],
    after: tuple[str, ...],
    fail_percent: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Say whether a change made training faster, slower or neither, and what only moved.

    Give several runs a side: the steps of one run are one observation.
    """
    try:
        comparison = compare_runs(
            *([Run.load(f) for f in side] for side in (before, after)), **options
        )
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        print(json.dumps(comparison_facts(comparison), indent=2))
    else:
        print(comparison_report(comparison))
    is_slower = comparison.verdict is Verdict.SLOWER
    if fail_percent is not None and is_slower and 100 * comparison.change > fail_percent:
        context.exit(_EXIT_SLOWER)
