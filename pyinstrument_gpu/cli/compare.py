# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu compare`: tell whether a change made training faster or slower."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from pyinstrument_gpu.analysis.compare import DEFAULT_MARGIN_PERCENT, Verdict
from pyinstrument_gpu.analysis.compare import compare as compare_runs
from pyinstrument_gpu.cli.run_paths import by_job, found_runs, say_what_is_left_out
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.report.comparison import comparison_facts, comparison_report

EXIT_SLOWER = 4
_F = TypeVar("_F", bound=Callable[..., Any])


class _ManyRuns(click.Command):
    """A command whose options --before and --after take every argument up to the next option. Two
    arguments in front of all options are one run of each side."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        sides = [one for one in args[:2] if not one.startswith("-")]
        if len(sides) == 2 and not {"--before", "--after"}.intersection(args):
            args = ["--before", sides[0], "--after", sides[1], *args[2:]]
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


def percent_option(*names: str, min_open: bool = False, **settings: Any) -> Callable[[_F], _F]:
    """An option that takes a percentage from 0 on."""
    kind = click.FloatRange(min=0, min_open=min_open)
    return click.option(*names, type=kind, metavar="PCT", **settings)


price_option = click.option(
    "--price-per-hour",
    type=click.FloatRange(min=0, min_open=True),
    metavar="PRICE",
    help="Cost per hour of everything a run uses, in any currency: also show what a million "
    "tokens cost, or samples or steps where tokens are not known.",
)


@click.command(cls=_ManyRuns, options_metavar="--before RUN... --after RUN... [OPTIONS]")
@click.option(
    "--before", metavar="RUN...", multiple=True, required=True, help="Runs without the change."
)
@click.option(
    "--after", metavar="RUN...", multiple=True, required=True, help="Runs with the change."
)
@percent_option(
    "--noise",
    "noise_percent",
    min_open=True,
    help="Assume at least this standard deviation between runs of the same program, in percent of "
    "their step time. Needed for a verdict if there are fewer than six runs.",
)
@percent_option(
    "--margin",
    "margin_percent",
    default=DEFAULT_MARGIN_PERCENT,
    show_default=True,
    help="Call step times the same if they differ by PCT percent or less.",
)
@percent_option(
    "--fail-if-slower",
    "fail_percent",
    help="Exit with code 4 if the verdict is SLOWER and the change is more than PCT percent.",
)
@price_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option(
    "--html",
    "as_html",
    is_flag=True,
    help="Also write an HTML page, which opens without a network.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="The file that --html writes.  [default: comparison.html in the working directory]",
)
@click.pass_context
def compare(
    context: click.Context,
    /,
    before: tuple[str, ...],
    after: tuple[str, ...],
    fail_percent: float | None,
    as_json: bool,
    as_html: bool,
    output: str | None,
    **options: Any,
) -> None:
    """Tell whether a change made training faster or slower.

    The verdict is on the elapsed time per step, which holds validation, checkpoints and gaps, too.
    Also shows which phases changed, and how much time only moved from one phase to another. Give
    three or more runs per side, recorded in turn: fewer cannot separate the change from noise,
    however many steps they have.

    `compare BEFORE AFTER` takes one run per side. A RUN may also be a folder, which stands for the
    run files in it. The ranks of one job count as one run together.
    """
    if output is not None and not as_html:
        raise click.UsageError("--output is for --html")
    found = [found_runs(side) for side in (before, after)]
    files = [paths for paths, _ in found]
    say_what_is_left_out([path for _, earlier in found for path in earlier])
    runs = [[Run.load(file) for file in side] for side in files]
    try:
        comparison = compare_runs(*map(by_job, runs), **options)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        print(json.dumps(comparison_facts(comparison), indent=2))
    else:
        print(comparison_report(comparison))
    if as_html:
        from pyinstrument_gpu.page.page import check_page, comparison_page, write_page

        page = check_page(Path("comparison.html")) if output is None else Path(output)
        names = [click.format_filename(file) for side in files for file in side]
        write_page(comparison_page(comparison, runs[0], runs[1], names), page)
        print(f"Page: {click.format_filename(page)}", file=sys.stderr if as_json else None)
    is_slower = comparison.verdict is Verdict.SLOWER
    if fail_percent is not None and is_slower and 100 * comparison.elapsed.change > fail_percent:
        context.exit(EXIT_SLOWER)
