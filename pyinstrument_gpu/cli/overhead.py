# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu overhead`: measure what a phase costs on this machine."""

from __future__ import annotations

import json

import click

from pyinstrument_gpu.analysis.run_step import RunStep
from pyinstrument_gpu.recording import environment
from pyinstrument_gpu.recording.phase_cost import ROUNDS, measure_phase_costs
from pyinstrument_gpu.report.overhead import overhead_facts, overhead_report
from pyinstrument_gpu.run import Run


@click.command()
@click.argument("file", metavar="[RUN]", required=False)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    metavar="N",
    help="Measure each so many times at most; a few seconds long by default.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def overhead(file: str | None, rounds: int | None, as_json: bool) -> None:
    """Measure what a phase costs on this machine.

    Beside it stand contextlib.nullcontext and, where PyTorch is installed, record_function.

    With RUN, also print which share of that run's step its phases would take.
    """
    # First: a file that can't be read is no reason to wait.
    step = None
    if file is not None:
        try:
            step = RunStep.of(Run.load(file))
        except ValueError as error:
            raise click.ClickException(f"{click.format_filename(file)}: {error}") from error
    costs = measure_phase_costs(ROUNDS if rounds is None else rounds)
    if as_json:
        facts = {"environment": environment.gather(), **overhead_facts(costs, step)}
        print(json.dumps(facts, indent=2))
    else:
        print(overhead_report(costs, step))
