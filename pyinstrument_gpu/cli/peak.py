# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu peak`: measure how many floating-point operations a second a device can do."""

from __future__ import annotations

import json

import click
from msgspec import to_builtins

from pyinstrument_gpu.errors import MissingDependencyError
from pyinstrument_gpu.parts.words import flops_text

_DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16")


@click.command()
@click.option(
    "--dtype",
    "dtypes",
    type=click.Choice(_DTYPES),
    multiple=True,
    help="The type of numbers; may be given more than once.  [default: float32 and bfloat16]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def peak(dtypes: tuple[str, ...], as_json: bool) -> None:
    """Measure how many floating-point operations a second this device can do.

    Times products of large matrices on the GPU that torch would use, or on the processor with as
    many threads as torch would use. Reports need that for devices that aren't in their table, as
    processors are: what is measured is kept for this user, and later recordings with --flops find
    it. Run it while nothing else uses the device.
    """
    try:
        from pyinstrument_gpu.aspects.operations.flops import peaks
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "peak needs PyTorch 2.10 or newer: pip install torch"
        ) from error
    measured = [peaks.measure(dtype) for dtype in dtypes or ("float32", "bfloat16")]
    device = peaks.device_name()
    peaks.keep(device, measured)
    if as_json:
        print(json.dumps({"device": device, "peaks": to_builtins(measured)}, indent=2))
        return
    print(device)
    for one in measured:
        print(f"{one.dtype}: {flops_text(one.flops_per_second)}/s, {one.source}")
