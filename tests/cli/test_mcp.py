# SPDX-License-Identifier: Apache-2.0
"""The command `mcp`: what an agent's client gets from it, by the client of the official SDK."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.types import TextContent

from pyinstrument_gpu.cli.mcp import MOST_BYTES
from pyinstrument_gpu.cli.mcp import server_of as server_and_tools
from tests.helpers.job_files import rank_run
from tests.helpers.run_writer import save

MS = 1_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three runs, the newest of which is that of a rank, beside a file that none may read."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside.gpurun").write_bytes(b"")
    for age, name in enumerate(("rank0", "b", "a")):
        facts = {"arguments": ["train.py", f"--name={name}"], "started": "2026-11-29T12:00:00Z"}
        file = root / f"{name}.gpurun"
        save(rank_run(0, {"forward": [10 * MS] * 40}, environment=facts, complete=age != 1), file)
        os.utime(file, (1_000_000 - age, 1_000_000 - age))
    return root


def server_of(folder: Path, allow_try: bool) -> Any:
    return server_and_tools(folder, allow_try)[0]


def asked(server: Any, tool: str, **arguments: Any) -> tuple[str, bool]:
    """What a tool answers, and whether that is an error."""

    async def ask() -> tuple[str, bool]:
        async with Client(server) as client:
            answer = await client.call_tool(tool, arguments)
        (part,) = answer.content
        assert answer.structured_content is None  # or all of it would be sent twice
        assert isinstance(part, TextContent)
        return part.text, bool(answer.is_error)

    return asyncio.run(ask())


def tools_of(server: Any) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        async with Client(server) as client:
            return {tool.name: tool for tool in (await client.list_tools()).tools}

    return asyncio.run(ask())


def test_runs_are_listed_from_the_newest_on(folder: Path) -> None:
    (folder / "c.gpurun").write_bytes(b"no run")
    os.utime(folder / "c.gpurun", (0, 0))
    text, is_error = asked(server_of(folder, False), "list_runs")
    lines = text.splitlines()
    assert not is_error
    assert [line.partition(".")[0] for line in lines] == ["rank0", "b", "a", "c"]
    assert "train.py --name=b, 40 steps in " in lines[1] and lines[1].endswith(", incomplete")
    assert lines[2].endswith("started 2026-11-29T12:00:00Z, complete")
    assert "not a run file" in lines[3]


def test_a_report_and_a_part_of_it(folder: Path) -> None:
    server = server_of(folder, False)
    text, is_error = asked(server, "report", run="a.gpurun")
    assert not is_error and "forward" in text and "40 steps" in text
    part, is_error = asked(server, "report", run="a.gpurun", section="phases")
    assert not is_error
    assert [row["path"] for row in json.loads(part)["phases"]] == ["forward"]
    of_phase, _ = asked(server, "report", run="a.gpurun", phase="forward")
    assert json.loads(of_phase)["phases"] == json.loads(part)["phases"]


def test_how_a_run_ended_and_whether_one_is_faster(folder: Path) -> None:
    server = server_of(folder, False)
    text, is_error = asked(server, "why", run="a.gpurun")
    assert not is_error and "The recording was ended" in text and "after step 39" in text
    text, is_error = asked(server, "compare", before=["a.gpurun"], after=["b.gpurun"])
    assert not is_error and "AMBIGUOUS" in text


@pytest.mark.parametrize(
    "given", ["../outside.gpurun", "/etc/passwd", "nosuch.gpurun", "--json", "link.gpurun"]
)
def test_nothing_outside_of_the_folder_is_read(folder: Path, given: str) -> None:
    (folder / "link.gpurun").symlink_to(folder.parent / "outside.gpurun")
    text, is_error = asked(server_of(folder, False), "report", run=given)
    assert is_error and f"there is no {given!r} below " in text


def test_a_folder_that_leads_out_of_it_is_refused_and_a_pipe_is_no_run(folder: Path) -> None:
    (folder / "ranks").mkdir()
    (folder / "ranks" / "b.gpurun").symlink_to(folder.parent / "outside.gpurun")
    os.mkfifo(folder / "pipe.gpurun")
    for tool in ("report", "why", "list_runs"):
        for given in ("ranks", "pipe.gpurun", "a.gpurun\0", "long" * 2_000):
            if tool == "list_runs" and given == "ranks":
                assert asked(server_of(folder, False), tool, folder=given)[0].startswith(
                    "There is no"
                )
                continue
            if tool == "list_runs":
                text, is_error = asked(server_of(folder, False), tool, folder=given)
            else:
                text, is_error = asked(server_of(folder, False), tool, run=given)
            assert is_error and "there is no" in text
            assert len(text.encode()) <= MOST_BYTES


def test_no_module_of_the_folder_is_run(folder: Path) -> None:
    (folder / "pyinstrument_gpu").mkdir()
    for name in ("__init__", "__main__"):
        (folder / "pyinstrument_gpu" / f"{name}.py").write_text("open('was_run', 'w')")
    (folder / "click.py").write_text("open('was_run', 'w')")
    text, is_error = asked(server_of(folder, False), "report", run="a.gpurun")
    assert not is_error and "40 steps" in text
    assert not (folder / "was_run").exists()


def test_an_error_is_told_and_the_server_goes_on(folder: Path) -> None:
    async def ask() -> list[Any]:
        async with Client(server_of(folder, False)) as client:
            wrong = await client.call_tool("report", {"run": "a.gpurun", "section": "nosuch"})
            none = await client.call_tool("compare", {"before": [], "after": []})
            return [wrong, none, await client.call_tool("why", {"run": "a.gpurun"})]

    wrong, none, right = asyncio.run(ask())
    assert wrong.is_error and "there is no section 'nosuch'" in wrong.content[0].text
    assert none.is_error and "--before" in none.content[0].text
    assert not right.is_error


def test_no_answer_is_longer_than_the_limit(folder: Path) -> None:
    for number in range(40):
        shutil.copy(folder / "a.gpurun", folder / f"{'long' * 50}-{number}.gpurun")
    text, _ = asked(server_of(folder, False), "list_runs")
    assert MOST_BYTES - 300 < len(text.encode()) <= MOST_BYTES
    assert "cut at 4 KiB" in text.splitlines()[-1]
    text, is_error = asked(server_of(folder, False), "report", run="a.gpurun", section="é" * 60_000)
    assert is_error and len(text.encode()) <= MOST_BYTES


def test_programs_are_tried_only_where_that_is_allowed(folder: Path) -> None:
    (folder / "train.py").write_text("import sys; sys.exit(f'started in {sys.argv[1:]}')")
    without, allowing = (tools_of(server_of(folder, allow)) for allow in (False, True))
    assert set(without) == {"list_runs", "report", "compare", "why"}
    assert all(tool.annotations.read_only_hint for tool in without.values())
    assert set(allowing) == {*without, "try_edits"}
    assert not allowing["try_edits"].annotations.read_only_hint
    server = server_of(folder, True)
    text, is_error = asked(server, "try_edits", program="train.py", arguments=["-n", "2"])
    assert is_error and "started in ['-n', '2']" in text
    assert sorted(path.suffix for path in folder.iterdir()) == [".gpurun"] * 3 + [".py"]


def test_the_command_serves_on_standard_input_and_output(folder: Path) -> None:
    command = ["-m", "pyinstrument_gpu", "mcp", str(folder)]
    served = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))
    assert asked(served, "list_runs") == asked(server_of(folder, False), "list_runs")
