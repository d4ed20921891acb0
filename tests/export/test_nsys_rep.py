# SPDX-License-Identifier: Apache-2.0
"""Reports of Nsight Systems: made by its own programs, and what happens where they fail."""

import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from pyinstrument_gpu.cli import main
from pyinstrument_gpu.core.record import OpenPhase
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import STEP_DTYPE
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.errors import ExportError, MissingDependencyError
from pyinstrument_gpu.export import export, nsys_rep, nvtxt
from pyinstrument_gpu.export.labels import color_of
from tests.helpers.made_runs import ANCHOR, rank, run_of, steps_on_streams, written
from tests.helpers.nsight import exported, needs_nsight, nvtx_sum, profile, read_nvtxt
from tests.helpers.run_writer import save

SPANS = [
    (1, 1, 0, 1, 0, 0, 7, 15, 20, 100, 130, -1, 1),
    (0, 0, 0, 0, 0, 0, 13, 10, 30, 101, 101, -1, 1),
    (0, 0, -1, 0, 1, -1, -1, 12, 12, -1, -1, -1, 0),
]
RUN = run_of(SPANS, environment={"pid": 3, "anchor": ANCHOR})

# Logs how it was called, then does what ImportNvtxt does: prints, writes, and exits with 0.
FAKE_IMPORT = """#!/bin/sh
echo "$@" >> "$FAKE_LOG"
echo "libraries $LD_LIBRARY_PATH" >> "$FAKE_LOG"
for argument; do
    [ "$previous" = -o ] && output=$argument
    previous=$argument
done
[ "$FAKE_EVENTS" = 0 ] || echo report > "$output"
echo "  $FAKE_EVENTS events imported"
"""
FAKE_NSYS = """#!/bin/sh
case $1 in
--version) echo "NVIDIA Nsight Systems version $FAKE_VERSION" ;;
profile)
    for argument; do
        case $argument in --output=*) echo empty > "${argument#--output=}.nsys-rep" ;; esac
    done ;;
esac
"""


@pytest.fixture
def no_nsight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Nsight Systems; returns a folder on its PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}")
    monkeypatch.setattr(nsys_rep, "_PLACES", ())
    return folder


@pytest.fixture
def fake_nsight(no_nsight: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with programs that do as Nsight Systems' do; returns the log of their calls."""
    for name, source in (("ImportNvtxt", FAKE_IMPORT), ("nsys", FAKE_NSYS)):
        (no_nsight / name).write_text(source)
        (no_nsight / name).chmod(0o755)
    log = no_nsight / "log"
    monkeypatch.setenv("FAKE_LOG", str(log))
    monkeypatch.setenv("FAKE_EVENTS", "10")
    monkeypatch.setenv("FAKE_VERSION", "2023.4.4.54-x")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    return log


def made(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name != "bin")


def test_without_nsight_the_text_is_left_with_the_command(tmp_path: Path, no_nsight: Path) -> None:
    with pytest.raises(MissingDependencyError) as raised:
        RUN.export(tmp_path / "x.nsys-rep")
    assert str(tmp_path / "x.nvtxt") in str(raised.value)
    assert "ImportNvtxt --cmd create -n x.nvtxt -o x.nsys-rep" in str(raised.value)
    assert made(tmp_path) == ["x.nvtxt"]
    assert (tmp_path / "x.nvtxt").read_bytes() == written(nvtxt.write, RUN)


def test_writes_text_and_database_beside_the_report(tmp_path: Path, fake_nsight: Path) -> None:
    RUN.export(tmp_path / "x.nsys-rep")
    assert made(tmp_path) == ["x.nsys-rep", "x.nvtxt", "x.sqlite"]
    assert (tmp_path / "x.nsys-rep").read_text() == "report\n"
    assert (tmp_path / "x.nvtxt").read_bytes() == written(nvtxt.write, RUN)
    assert (tmp_path / "x.sqlite").read_bytes().startswith(b"SQLite format 3")
    report, database = ((tmp_path / f"x.{end}").stat() for end in ("nsys-rep", "sqlite"))
    assert report.st_mtime_ns <= database.st_mtime_ns
    call, libraries = fake_nsight.read_text().splitlines()
    assert call.startswith("--cmd create -n ")
    assert libraries == f"libraries {fake_nsight.parent}"
    assert "LD_LIBRARY_PATH" not in os.environ


def test_progress_counts_the_report_and_the_database_too(
    tmp_path: Path, fake_nsight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = [(0, 0, 0, 0, 0, -1, -1, 10 * i, 10 * i + 9, -1, -1, -1, 1) for i in range(100)]
    monkeypatch.setenv("FAKE_EVENTS", "200")
    done: list[int] = []
    export([run_of(spans)], tmp_path / "x.nsys-rep", advance=done.append)

    assert done[0] == 20  # the text
    assert done[1] == 50  # the report
    assert sum(done) == 100


def test_release_that_cannot_show_created_reports_merges(
    tmp_path: Path, fake_nsight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VERSION", "2022.4.2.1-df9881f")
    RUN.export(tmp_path / "x.nsys-rep")
    call = fake_nsight.read_text().splitlines()[0].split()
    assert call[:2] == ["--cmd", "merge"]
    assert "--update_report_time" in call
    # Its window shows the name of the report that was merged into.
    assert Path(call[call.index("-i") + 1]).name == "x.nsys-rep"
    assert made(tmp_path) == ["x.nsys-rep", "x.nvtxt", "x.sqlite"]


@pytest.mark.parametrize("events", ["0", "9", "none"])
def test_exit_code_is_not_trusted(
    tmp_path: Path, fake_nsight: Path, monkeypatch: pytest.MonkeyPatch, events: str
) -> None:
    monkeypatch.setenv("FAKE_EVENTS", events)
    (tmp_path / "x.nsys-rep").write_text("old")
    with pytest.raises(ExportError, match=f"It printed: {events} events imported"):
        RUN.export(tmp_path / "x.nsys-rep")
    assert made(tmp_path) == ["x.nsys-rep"]
    assert (tmp_path / "x.nsys-rep").read_text() == "old"


def test_program_of_another_machine_is_an_error(tmp_path: Path, fake_nsight: Path) -> None:
    (fake_nsight.parent / "ImportNvtxt").write_bytes(b"\x7fELF")
    with pytest.raises(ExportError, match="Exec format error"):
        RUN.export(tmp_path / "x.nsys-rep")
    assert made(tmp_path) == []


def test_empty_run_is_an_error(tmp_path: Path, fake_nsight: Path) -> None:
    with pytest.raises(ExportError, match="no spans and no steps"):
        Run().export(tmp_path / "x.nsys-rep")
    assert made(tmp_path) == []


def test_merging_needs_a_report_and_nsys(tmp_path: Path, no_nsight: Path) -> None:
    with pytest.raises(ExportError, match=r"no report .*r\.nsys-rep"):
        RUN.export(tmp_path / "x.nsys-rep", merge_into=tmp_path / "r.nsys-rep")
    (tmp_path / "r.nsys-rep").touch()
    with pytest.raises(MissingDependencyError, match="where Nsight Systems is installed"):
        RUN.export(tmp_path / "x.nsys-rep", merge_into=tmp_path / "r.nsys-rep")
    assert made(tmp_path) == ["r.nsys-rep"]


@pytest.mark.parametrize("name", ["pipe", "folder.nsys-rep"])
def test_what_is_no_file_is_not_replaced(tmp_path: Path, fake_nsight: Path, name: str) -> None:
    (tmp_path / "folder.nsys-rep").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ExportError, match=f"{name}' is not a file"):
        RUN.export(tmp_path / name, "nsys")
    assert made(tmp_path) == ["folder.nsys-rep", "pipe"]


@pytest.mark.parametrize("there", [True, False])
def test_link_stays_and_all_is_written_where_it_leads(
    tmp_path: Path, fake_nsight: Path, there: bool
) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    target = folder / "real.nsys-rep"
    if there:
        target.write_text("old")
    link = tmp_path / "x.nsys-rep"
    link.symlink_to(Path("reports/real.nsys-rep"))

    RUN.export(link)

    assert link.is_symlink()
    assert target.read_text() == "report\n"
    assert made(folder) == ["real.nsys-rep", "real.nvtxt", "real.sqlite"]
    assert made(tmp_path) == ["reports", "x.nsys-rep"]


def test_report_that_is_merged_into_is_not_replaced(tmp_path: Path, fake_nsight: Path) -> None:
    report = tmp_path / "r.nsys-rep"
    report.write_text("events")
    with pytest.raises(
        ExportError, match=r"r\.nsys-rep' is read by this export and would be replaced"
    ):
        RUN.export(report, merge_into=report)
    save(RUN, tmp_path / "run.gpurun")
    arguments = ["export", str(tmp_path / "run.gpurun"), str(report), "--merge-into", str(report)]
    assert CliRunner().invoke(main, arguments).exit_code == 2
    assert report.read_text() == "events"


def test_merging_into_what_is_no_report_is_an_error(tmp_path: Path, fake_nsight: Path) -> None:
    (tmp_path / "r.nsys-rep").touch()
    with pytest.raises(ExportError, match="does not say when"):
        RUN.export(tmp_path / "x.nsys-rep", merge_into=tmp_path / "r.nsys-rep")
    assert made(tmp_path) == ["r.nsys-rep"]


def test_newest_release_in_the_usual_places(
    tmp_path: Path, no_nsight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for release in ("2023.4.4", "2024.10.1", "2024.9.2"):
        host = tmp_path / release / "host-linux-x64"
        host.mkdir(parents=True)
        (host / "ImportNvtxt").touch(0o755)
    monkeypatch.setattr(nsys_rep, "_PLACES", (f"{tmp_path}/*/host-linux-x64",))
    tools = nsys_rep.NsightTools.find()
    assert tools is not None
    assert tools.host == tmp_path / "2024.10.1" / "host-linux-x64"
    assert (tools.nsys, tools.version()) == (None, None)


@needs_nsight
def test_report_equals_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Nsight Systems has in the report is what a plain reader finds in the text of it."""
    monkeypatch.setenv("SECRET_TOKEN", "not-for-the-report")
    generator = np.random.default_rng(0)
    names = ("forward", 'it\'s "it"', "a, b # c \\", "two\nlines", "🚀" * 256, "zero")
    spans = [(0, 0, 0, 0, 0, -1, -1, 0, 10**9, -1, -1, -1, 1)]
    for i, begin in enumerate(np.cumsum(generator.integers(1, 10**6, 2_000)).tolist()):
        end = begin + int(generator.integers(0, 10**6)) * (i % 6 != 5)
        device = (0, i % 3, begin, end, begin + 10**5, end + 10**6) if i % 2 else ()
        where = device or (-1, -1, begin, end, -1, -1)
        spans.append((i % 6, i % 6, i // 10, 0, i % 2, *where, -1, 1))
    steps = [(i, i * 10**7, i * 10**7 + 10**7, 1, 1, True, 0) for i in range(100)]
    run = run_of(
        spans,
        names,
        path_parents=[-1] * len(names),
        steps=Steps(np.array(steps, STEP_DTYPE)),
        open_phases=[OpenPhase("forward", 1, 5, -1, 0)],
        duration_ns=2 * 10**9,
        environment={"pid": (1 << 24) + 5, "command": ["train.py"]},
    )
    run.export(tmp_path / "x.nsys-rep")

    found = exported(tmp_path / "x.nsys-rep")
    expected = read_nvtxt((tmp_path / "x.nvtxt").read_bytes())
    on_streams = steps_on_streams(run)
    assert len(found.imported) == len(expected.ranges) == 2_001 + 1_000 + 100 + 1 + len(on_streams)
    assert found.imported == expected.ranges
    assert (found.processes, found.rows) == (expected.processes, expected.rows)
    # The text itself has tests of its own; ends move by 1 ns where a span has no length.
    ends = sorted(
        [
            max(begin_ns + 1, end_ns)
            for clock in ("host", "device")
            for begin_ns, end_ns in run.spans[[f"{clock}_begin_ns", f"{clock}_end_ns"]].tolist()
            if begin_ns >= 0
        ]
        + [step.end_ns for step in run.steps]
        + [end_ns for _, _, end_ns in on_streams]
        + [run.duration_ns]
    )
    assert sorted(each.end_ns for each in found.imported) == ends
    events = (tmp_path / "x.events").read_text(encoding="utf-8")
    assert "SECRET_TOKEN" not in events

    # `nsys stats` takes the database beside the report.
    printed = nvtx_sum(tmp_path / "x.nsys-rep")
    assert re.search(r",100,.*,pyinstrument_gpu:step$", printed, re.MULTILINE)


@needs_nsight
@pytest.mark.thorough
def test_ranks_keep_the_names_of_their_rows(tmp_path: Path) -> None:
    """ImportNvtxt names one row of each name."""
    ranks = [rank(number, 0, SPANS) for number in range(3)]
    export(ranks, tmp_path / "x.nsys-rep")

    found = exported(tmp_path / "x.nsys-rep")
    names = ("MainThread", "thread 12", "GPU 0 stream 7", "GPU 0 stream 13")
    assert Counter(name.rstrip() for name in found.rows.values()) == dict.fromkeys(names, 3)
    assert {name.rstrip() for name in found.processes.values()} == {
        f"rank {number}: process" for number in range(3)
    }


STEP_NS = 1_500_000
"""At least, of these steps."""
TRAINING = """
import sys, time
import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_steps

with pig.record(sys.argv[1]):
    for _ in gpu_steps(range(200)):
        with gpu_phase("forward"):
            with gpu_phase("über 🚀"):
                time.sleep(0.0005)
        with gpu_phase("backward"):
            time.sleep(0.001)
"""


@needs_nsight
def test_merged_report_is_aligned_with_live_ranges(tmp_path: Path) -> None:
    live = tmp_path / "live.nsys-rep"
    profile(live, TRAINING, tmp_path / "run.gpurun")
    run = Run.load(tmp_path / "run.gpurun")
    run.export(tmp_path / "merged.nsys-rep", merge_into=live)

    found = exported(tmp_path / "merged.nsys-rep")
    assert found.live == exported(live).live
    for name in ("data", "forward", "über 🚀", "backward"):
        ours = [each for each in found.imported if each.text == name]
        theirs = [each for each in found.live if each.text == name]
        assert len(ours) == len(theirs) == 200
        assert {each.color for each in (*ours, *theirs)} == {color_of(name)}
        begins = [a.begin_ns - b.begin_ns for a, b in zip(ours, theirs, strict=True)]
        ends = [a.end_ns - b.end_ns for a, b in zip(ours, theirs, strict=True)]
        # The live range is first at both ends. On a busy machine ours may come much later, and the
        # clocks may have been read apart, but not by a step each time.
        assert -STEP_NS < min(begins) < STEP_NS
        assert -STEP_NS < min(ends) < STEP_NS
    # `nsys stats` would take it for what stands in the report, and it lacks the live ranges.
    assert not (tmp_path / "merged.sqlite").exists()


@needs_nsight
@pytest.mark.thorough
def test_reports_of_another_time_are_not_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile(tmp_path / "live.nsys-rep", "")
    monkeypatch.chdir(tmp_path)  # relative paths will do
    with pytest.raises(ExportError, match="not recorded together"):
        RUN.export("merged.nsys-rep", merge_into="live.nsys-rep")
    assert not list(tmp_path.glob("merged.*"))
