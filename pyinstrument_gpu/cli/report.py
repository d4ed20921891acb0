# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu report`: print runs as tables."""

from __future__ import annotations

import click

from pyinstrument_gpu.run import Run


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--step", type=int, metavar="N", help="Show one step alone, by its index.")
@click.option("--width", type=click.IntRange(min=20), help="Columns; the terminal's by default.")
def report(files: tuple[str, ...], step: int | None, width: int | None) -> None:
    """Print where the steps of each run went."""
    for i, file in enumerate(files):
        shown = click.format_filename(file)
        try:
            text = Run.load(file).report(step=step, width=width)
        except KeyError as error:
            raise click.ClickException(f"{shown}: {error.args[0]}") from error
        if len(files) > 1:
            print(f"=== {shown}" if i == 0 else f"\n=== {shown}")
        print(text)
