# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu mcp`: serve the runs below a folder to agents, by the Model Context Protocol.

Each tool is a command of this program in a process of its own: an agent reads what a person would,
and nothing but the protocol is on standard output.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Any

import click

from pyinstrument_gpu.core.file.run_files import below
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import PyinstrumentGpuError, needed_for
from pyinstrument_gpu.parts.words import counted, duration, printable

if TYPE_CHECKING:
    from mcp.server import MCPServer

MOST_BYTES = 4096
_MOST_RUNS = 30
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_CUT = "\n... cut at 4 KiB. Ask for less: a section, or a phase."
_INSTRUCTIONS = """\
Record a training program: `pyinstrument-gpu run -q -o NAME.gpurun train.py`. It is not changed.
Begin with `list_runs`, then `report`. A dash means "not known", never zero. Prove a change by
`compare`, with three runs of each side or more, recorded in turn."""


class _Folder:
    """What an agent may ask of the runs below a folder. It reads the message of an `error`."""

    def __init__(self, root: Path, error: type[Exception]) -> None:
        self.root = root.resolve()
        self.error = error

    async def list_runs(self) -> str:
        """List the run files below the folder, newest first: path, program, steps, duration."""
        return _within_limit(await asyncio.to_thread(self._listed))

    async def report(self, run: str, section: str | None = None, phase: str | None = None) -> str:
        """Report where the time of a training step goes, which line is to blame, and what a change
        could save. `run` is a path from `list_runs`, or a folder of ranks. A `section` (phases,
        savings, findings, startup, syncs, ...) or a `phase` gives that part as JSON."""
        parts = [("section", section), ("phase", phase)]
        wanted = [f"--{name}={part}" for name, part in parts if part]
        return await self._told("report", *(wanted and ["--json", *wanted]), self._path(run))

    async def compare(self, before: list[str], after: list[str]) -> str:
        """Tell whether training became faster or slower between two sets of runs, and in which
        phases. Three runs of each side, recorded in turn, are the least that can prove it."""
        sides = [[self._path(one) for one in side] for side in (before, after)]
        return await self._told("compare", "--before", *sides[0], "--after", *sides[1])

    async def why(self, run: str) -> str:
        """Say why a job hangs, or how it ended. `run` is a run file, or a folder of ranks."""
        return await self._told("why", self._path(run))

    async def try_edits(
        self, program: str, arguments: list[str] | None = None, minutes: float = 5
    ) -> str:
        """Run a program with one edit after the other, such as other loader workers or threads,
        and say which made it faster, by how much. The edits that won are in try.diff."""
        inside = os.path.relpath(self._path(program), self.root)  # as in a copy of the folder
        command = [os.path.join(".", inside), *(arguments or ())]
        return await self._told("try", f"--minutes={minutes}", *command)

    def _path(self, given: str) -> str:
        path = Path(self.root, given).resolve()
        if not path.is_relative_to(self.root) or not path.exists():
            raise self.error(
                f"there is no {given!r} below {self.root}; list_runs has what there is"
            )
        return str(path)

    def _listed(self) -> str:
        times = {path: path.stat().st_mtime for path in below(self.root) if path.is_file()}
        newest = sorted(times, key=times.__getitem__, reverse=True)
        more = [f"and {len(newest) - _MOST_RUNS:,} older ones"] if newest[_MOST_RUNS:] else []
        return "\n".join([*map(self._line, newest[:_MOST_RUNS]), *more]) or "There is no run file."

    def _line(self, path: Path) -> str:
        name = os.fspath(path.relative_to(self.root))
        try:
            run = Run.load(path)
        except (OSError, PyinstrumentGpuError) as error:
            return printable(f"{name}: {error}")
        program = " ".join(map(str, run.environment.get("arguments") or ()))
        size = f"{counted(run.steps_ended, 'step')} in {duration(run.duration_ns)}"
        begin, end = run.environment.get("started"), "complete" if run.complete else "incomplete"
        return printable(f"{name}: {program}, {size}, started {begin}, {end}")

    async def _told(self, *arguments: str) -> str:
        """Return what the command prints. If the client no longer waits for it, it is ended."""
        command = [sys.executable, "-m", "pyinstrument_gpu", *arguments]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, cwd=self.root
        )
        try:
            printed, error = await process.communicate()
        finally:
            if process.returncode is None:
                process.terminate()  # at which `try` ends the program that it runs
        if process.returncode != 0:
            raise self.error(_within_limit(error.decode(errors="replace").strip()))
        return _within_limit(printed.decode(errors="replace").rstrip())


def _within_limit(text: str) -> str:
    encoded = text.encode()
    if len(encoded) <= MOST_BYTES:
        return text
    kept = encoded[: MOST_BYTES - len(_CUT)].decode(errors="ignore")
    return (kept.rpartition("\n")[0] or kept) + _CUT


def server_of(folder: Path, allow_try: bool) -> MCPServer[Any]:
    """Return the server of the runs below a folder. It needs the package `mcp`."""
    with needed_for("`pyinstrument-gpu mcp`", "'mcp>=2'"):
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ToolAnnotations

    tools = _Folder(folder, ToolError)
    served = MCPServer("pyinstrument-gpu", instructions=_INSTRUCTIONS, log_level="WARNING")
    named: list[Callable[..., Any]] = [tools.list_runs, tools.report, tools.compare, tools.why]
    for tool in [*named, tools.try_edits] if allow_try else named:
        text = " ".join(str(tool.__doc__).split())
        hints = ToolAnnotations(read_only_hint=tool in named)
        served.add_tool(tool, description=text, annotations=hints, structured_output=False)
    return served


@click.command()
@click.argument("folder", type=_FOLDER, default=".")
@click.option("--allow-try", is_flag=True, help="Also let agents try edits of FOLDER's programs.")
def mcp(folder: Path, allow_try: bool) -> None:
    """Serve the runs below a folder to agents (Model Context Protocol).

    Tools: list_runs, report, compare, why and, with --allow-try, try_edits. Each answer has at most
    4 KiB. FOLDER is the working directory by default; nothing outside of it can be named.
    """
    server_of(folder, allow_try).run("stdio")
