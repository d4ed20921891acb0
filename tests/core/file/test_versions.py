# SPDX-License-Identifier: Apache-2.0
"""Run files of every format that was ever written: 2.x is read for good, others are refused, once
for all files and by an exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pyinstrument_gpu.cli import main
from pyinstrument_gpu.core.run import Run
from tests.helpers.forged_file import with_block, with_format
from tests.helpers.job_files import rank_run
from tests.helpers.made_runs import run_of
from tests.helpers.run_writer import encode

FILES = Path(__file__).parent / "versions"
MS = 1_000_000
REFUSED = "the run file has format 1.1; this version of pyinstrument_gpu reads 2.x"
NEWER = (
    "a newer version of pyinstrument_gpu wrote this file: blocks of 2 kinds that this version does "
    "not know were left out"
)


def numbers(run: Run) -> dict[str, Any]:
    """What a run says, as it is listed beside each file."""
    return {
        "complete": run.complete,
        "notes": [*run.notes],
        "duration_ns": run.duration_ns,
        "steps": run.steps_ended,
        "steps_ns": run.step_totals.duration.total_ns,
        "threads": [thread.name for thread in run.threads],
        "spans": len(run.spans),
        "phases": {
            path: [phase.count, phase.host.total_ns]
            for path, phase in run.phases.items()
            if phase.host is not None
        },
        "modules": {
            name: [times.forward.count, times.forward.total_ns]
            for name, times in run.modules.items()
            if times.forward is not None
        },
        "lines_that_wait": [
            [Path(site.file).name, site.line, site.kind.name] for site in run.syncs.sites
        ],
    }


@pytest.mark.parametrize("file", sorted(FILES.glob("*.gpurun")), ids=lambda path: path.stem)
def test_a_file_of_each_version_has_the_numbers_beside_it(file: Path) -> None:
    assert numbers(Run.load(file)) == json.loads(file.with_suffix(".json").read_text())


def test_of_a_newer_minor_version_what_is_not_known_is_left_out_and_said() -> None:
    data = bytes(encode(rank_run(0, {"forward": [10 * MS] * 3})))
    known = Run.from_bytes(data)
    later = with_block(with_block(with_format(data, 2, 9), 15, b"document"), 99, b"log")

    run = Run.from_bytes(later)

    assert np.array_equal(run.spans, known.spans)
    assert run.phases == known.phases
    assert run.notes == (*known.notes, NEWER)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two runs of a format that is not read any more, and one that is."""
    for name in ("a", "b", "c"):
        data = bytes(encode(run_of([], duration_ns=5 * MS)))
        (tmp_path / f"{name}.gpurun").write_bytes(data if name == "b" else with_format(data, 1, 1))
    return tmp_path


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)], prog_name="pyinstrument-gpu")


def test_report_of_a_folder_prints_the_others_and_says_once_what_is_left_out(folder: Path) -> None:
    done = call("report", folder)

    assert done.exit_code == 0
    assert f"=== {folder / 'b.gpurun'}" in done.stdout
    files = f"{folder / 'a.gpurun'}, {folder / 'c.gpurun'}"
    assert done.stderr.startswith(f"left out: 2 run files: {files}: {REFUSED}")
    assert done.stderr.count("\n") == 1


def test_report_of_a_file_of_an_earlier_format_is_an_error(folder: Path) -> None:
    done = call("report", folder / "a.gpurun", folder / "b.gpurun")

    assert done.exit_code == 1
    assert f"=== {folder / 'b.gpurun'}" in done.stdout
    assert done.stderr.startswith(f"Error: {folder / 'a.gpurun'}: {REFUSED}")


def test_why_of_a_folder_says_it_once(folder: Path) -> None:
    (folder / "b.gpurun").unlink()
    ranks = [folder / f"train.rank{rank}.gpurun" for rank in range(2)]
    for path in ranks:
        path.write_bytes((folder / "a.gpurun").read_bytes())

    done = call("why", folder)

    assert done.exit_code == 1
    assert done.stderr.count(REFUSED) == 2
    assert f"left out: 2 run files: {folder / 'a.gpurun'}, {folder / 'c.gpurun'}: " in done.stderr
    assert f"ranks 0-1: {REFUSED}" in done.stderr


def test_watch_json_says_it_once_and_ends(folder: Path) -> None:
    (folder / "b.gpurun").unlink()

    done = call("watch", "--json", folder)

    assert done.exit_code == 1
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["runs"][0]["reason"].startswith(REFUSED)
    assert done.stderr.count(REFUSED) == 1
