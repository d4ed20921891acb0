# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu watch`: look at a recording while it goes on."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial

import click

from pyinstrument_gpu.core.file.run_files import SUFFIX
from pyinstrument_gpu.errors import MissingDependencyError
from pyinstrument_gpu.watch.process import MachineClocks
from pyinstrument_gpu.watch.run_files import run_files
from pyinstrument_gpu.watch.watch import Watch

_INTERVAL_S = 1.0


@click.command()
@click.argument("target", metavar="[FILE|DIR|PID]", required=False)
@click.option(
    "--json", "as_json", is_flag=True, help="Print an object a second, and end with the run."
)
@click.option(
    "--prometheus",
    "port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve how each rank is to Prometheus, until this is ended. 0 picks a free port.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="With --prometheus: the address to listen on.",
)
def watch(target: str | None, as_json: bool, port: int | None, host: str) -> None:
    """Look at a recording while it goes on.

    FILE is a run file, DIR a folder of them, of which the newest run is taken with all ranks of its
    job, and PID a process that records. Without any, it is the newest run below the working
    directory. A FILE that is not there yet is waited for. The file is only read.
    """
    if port is not None and as_json:
        raise click.UsageError("--prometheus can't be combined with --json")
    # Now: a screen that can't be shown is not waited for.
    show = None if as_json or port is not None else _show()
    if show is not None and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("the screen needs a terminal; watch --json does not")
    if target is not None and target.endswith(SUFFIX) and not os.path.exists(target):
        print(f"waiting for {target}", file=sys.stderr)
        while not os.path.exists(target):
            _wait_for_next_second()
    if port is not None:
        _serve(target, port, host)
        return
    watched = Watch(run_files(target))
    if show is not None:
        show(watched)
        return
    from pyinstrument_gpu.watch.watch import stream

    try:
        stream(watched, partial(print, flush=True), _wait_for_next_second, MachineClocks.now)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # Otherwise the interpreter, when it ends, tries to write the rest and fails.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show() -> Callable[[Watch], None]:
    try:
        from pyinstrument_gpu.watch.app import show
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise MissingDependencyError(
            "watch needs textual: pip install textual. `watch --json` does not"
        ) from error
    return show


def _serve(target: str | None, port: int, host: str) -> None:
    # Not above: it needs a web server.
    from pyinstrument_gpu.watch.exporter import RankExporter

    exporter = RankExporter(partial(run_files, target), port, host)
    print(f"http://{host}:{exporter.port}/metrics", flush=True)
    try:
        while True:
            exporter.look(MachineClocks.now())
            _wait_for_next_second()
    except KeyboardInterrupt:
        exporter.close()


def _wait_for_next_second() -> None:
    time.sleep(_INTERVAL_S - time.monotonic() % _INTERVAL_S)
