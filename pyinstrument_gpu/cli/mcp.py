# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu mcp`: serve the runs below a folder to agents, by the Model Context Protocol.

Each tool is a command of this program in a process of its own: an agent reads what a person would,
and nothing but the protocol is on standard output. Nothing is imported from the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
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
_PREFIX_BYTES = 64  # the SDK puts the tool's name in front of an error
_MOST_RUNS = 30
_DEADLINE_S = 120
_PATIENCE_S = 10
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_CUT = "\n... cut at 4 KiB"
_COMMAND = """\
import os, sys
here = os.getcwd()  # the folder, in which a module may be called as one of ours
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
from pyinstrument_gpu.cli import main
main(prog_name="pyinstrument-gpu")"""
_INSTRUCTIONS = """\
Record a training program: `pyinstrument-gpu run -q -o NAME.gpurun train.py`. It is not changed.
Begin with `list_runs`, then `report`. A dash means "not known", never zero. Prove a change by
`compare`, with three runs of each side or more, recorded in turn."""


class _Folder:
    """What an agent may ask of the runs below a folder. It reads the message of an `error`."""

    def __init__(self, root: Path, error: type[Exception]) -> None:
        self.root = root.resolve()
        self.error = error
        self.children: set[asyncio.subprocess.Process] = set()
        self._trying = asyncio.Lock()

    async def list_runs(self, folder: str = "") -> str:
        """List the run files below the folder, or one inside it, newest first: path, program,
        steps, duration."""
        lines = self._listed(Path(self._path(folder, with_files=False)))
        return _within_limit("\n".join(lines) or "There is no run file.")

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
        and say which made it faster, by how much, and in which file the winners are as a patch."""
        inside = os.path.relpath(self._path(program), self.root)  # as in a copy of the folder
        command = [os.path.join(".", inside), *(arguments or ())]
        async with self._trying:  # two at once would measure each other
            names = (f"try-{number}.diff" for number in itertools.count(1))
            patch = next(name for name in names if not Path(self.root, name).exists())
            options = f"--minutes={minutes}", f"--patch={patch}"
            return await self._told("try", *options, *command, deadline_s=90 * minutes + 600)

    def _path(self, given: str, with_files: bool = True) -> str:
        """Return the path; raise unless it lies below the root, and so do the files of a folder."""
        try:
            path = Path(self.root, given).resolve(strict=True)
            files = [*below(path)] if path.is_dir() and with_files else [path]
            outside = [file for file in (path, *files) if not self._is_inside(file)]
            if not outside:
                return str(path)
            of_folder = [file.name for file in outside if file != path]
        except (OSError, ValueError):
            of_folder = []
        shown = printable("/".join([given, *of_folder[:1]])[:200])
        raise self.error(f"there is no {shown!r} below {self.root}; list_runs has what there is")

    def _is_inside(self, path: Path) -> bool:
        is_there = path.is_file() or path.is_dir()
        return is_there and path.resolve().is_relative_to(self.root)

    def _listed(self, folder: Path) -> Iterator[str]:
        times = {path: _modified(path) for path in below(folder) if self._is_inside(path)}
        newest = sorted(times, key=times.__getitem__, reverse=True)
        yield from map(self._line, newest[:_MOST_RUNS])
        if newest[_MOST_RUNS:]:
            yield f"and {len(newest) - _MOST_RUNS:,} older ones: name a folder"

    def _line(self, path: Path) -> str:
        name = os.fspath(path.relative_to(self.root))
        try:
            run = Run.load(path)
        except (OSError, ValueError, PyinstrumentGpuError) as error:
            return printable(f"{name}: {error}")
        program = " ".join(map(str, run.environment.get("arguments") or ()))
        size = f"{counted(run.steps_ended, 'step')} in {duration(run.duration_ns)}"
        begin, end = run.environment.get("started"), "complete" if run.complete else "incomplete"
        return printable(f"{name}: {program}, {size}, started {begin}, {end}")

    async def _told(self, *arguments: str, deadline_s: float = _DEADLINE_S) -> str:
        """Return what the command prints. If the client no longer waits for it, it is ended."""
        plain = {"NO_COLOR": "1", "COLUMNS": "100"}
        kept = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
        command = [sys.executable, "-c", _COMMAND, *arguments]
        pipes: dict[str, Any] = {"stdin": DEVNULL, "stdout": PIPE, "stderr": PIPE}
        try:
            process = await asyncio.create_subprocess_exec(
                *command, **pipes, cwd=self.root, env=kept | plain
            )
        except (OSError, ValueError) as error:
            raise self.error(f"it can't be run: {error}"[:200]) from error
        self.children.add(process)
        try:
            printed, said = await asyncio.wait_for(process.communicate(), deadline_s)
        except asyncio.TimeoutError:
            raise self.error(f"it did not end within {deadline_s:.0f} seconds") from None
        finally:
            await asyncio.shield(self._ended(process))
        texts = [text.decode(errors="replace").strip() for text in (printed, said)]
        if process.returncode != 0:
            ended = texts[1] or f"it ended with exit code {process.returncode}"
            raise self.error(_within_limit(ended))
        return _within_limit("\n".join(filter(None, texts)))

    async def _ended(self, process: asyncio.subprocess.Process) -> None:
        """Have a process end, at which `try` ends the program that it runs."""
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _PATIENCE_S)
            except asyncio.TimeoutError:
                process.kill()
        self.children.discard(process)

    def end(self, number: int, _: object) -> None:
        """End at a signal, with what runs: the SDK would wait for standard input."""
        for process in self.children:
            process.terminate()
        os._exit(128 + number)


def _modified(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _within_limit(text: str) -> str:
    encoded = text.encode()
    if len(encoded) <= MOST_BYTES - _PREFIX_BYTES:
        return text
    return encoded[: MOST_BYTES - _PREFIX_BYTES - len(_CUT)].decode(errors="ignore") + _CUT


def server_of(folder: Path, allow_try: bool) -> tuple[MCPServer[Any], _Folder]:
    """Return the server of the runs below a folder, and its tools. It needs the package `mcp`."""
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
    return served, tools


@click.command()
@click.argument("folder", type=_FOLDER, default=".")
@click.option("--allow-try", is_flag=True, help="Also let agents try edits of FOLDER's programs.")
def mcp(folder: Path, allow_try: bool) -> None:
    """Serve the runs below a folder to agents (Model Context Protocol).

    Tools: list_runs, report, compare, why and, with --allow-try, try_edits. Each answer has at most
    4 KiB. FOLDER is the working directory by default; nothing outside of it can be named.
    """
    served, tools = server_of(folder, allow_try)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, tools.end)
    served.run("stdio")
