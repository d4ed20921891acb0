# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu overhead`: measure what a phase costs on this machine.

As each command, it is a file of its own, which is imported when it is used.
"""

from __future__ import annotations

import json

import click

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.recording import environment
from pyinstrument_gpu.recording.phase_cost import ROUNDS, measure_phase_costs
from pyinstrument_gpu.report.overhead import RunStep, overhead_facts, overhead_report


@click.command()
@click.argument("path", metavar="[RUN]", required=False)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=ROUNDS,
    show_default=True,
    metavar="N",
    help="Stop after N rounds of measurement, or after six seconds.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def overhead(path: str | None, rounds: int, as_json: bool) -> None:
    """Measure what a phase costs on this machine.

    The cost is shown next to that of contextlib.nullcontext and, if PyTorch is installed, of
    torch.profiler.record_function. With RUN, it is also shown as a share of that run's steps.
    """
    # First, so that an error in the file is seen before the measurement.
    step = None
    if path is not None:
        try:
            step = RunStep.of(Run.load(path))
        except ValueError as error:
            raise click.ClickException(f"{click.format_filename(path)}: {error}") from error
    costs = measure_phase_costs(rounds)
    if as_json:
        facts = {"environment": environment.gather(), **overhead_facts(costs, step)}
        print(json.dumps(facts, indent=2))
    else:
        print(overhead_report(costs, step))
