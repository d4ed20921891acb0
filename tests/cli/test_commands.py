# SPDX-License-Identifier: Apache-2.0
"""The command line: what it prints, where, and with which exit code."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

import pyinstrument_gpu
from pyinstrument_gpu.cli import _COMMANDS, main
from pyinstrument_gpu.core.file.framing import FILE_HEADER_BYTES
from pyinstrument_gpu.core.record import OpenPhase, Thread
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SPAN_DTYPE, STEP_DTYPE
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.export import FOLDER, FORMATS
from pyinstrument_gpu.report.document import document_of
from pyinstrument_gpu.report.json_text import json_text
from pyinstrument_gpu.report.one_step import step_document
from tests.helpers.csv_rows import csv_rows
from tests.helpers.made_runs import syncs_of
from tests.helpers.run_writer import save
from tests.helpers.script import run_script
from tests.report.programs import run_of_phases

MS = 1_000_000


def made_run(**changes: Any) -> Run:
    """Two steps of 10 ms with one phase of 4 ms each."""
    steps = [(i, i * 10 * MS, (i + 1) * 10 * MS, 32, 1, True, 0) for i in range(2)]
    spans = [
        (0, 0, i, 0, 0, -1, -1, i * 10 * MS, (i * 10 + 4) * MS, -1, -1, -1, 1) for i in range(2)
    ]
    parts: dict[str, Any] = {
        "names": ["über"],
        "path_parents": [-1],
        "path_names": [0],
        "threads": [Thread(11, "MainThread")],
        "spans": np.array(spans, SPAN_DTYPE),
        "span_self_ns": np.array([4 * MS] * 2),
        "steps": Steps(np.array(steps, STEP_DTYPE)),
        "duration_ns": 21 * MS,
        "environment": {"host": "trainbox", "command": ["train.py"], "gpus": []},
    }
    return Run(**(parts | changes))


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "train.gpurun"
    save(made_run(), path)
    return str(path)


def invoke(*arguments: str, columns: int = 80) -> Result:
    runner = CliRunner(env={"COLUMNS": str(columns)})
    return runner.invoke(main, arguments, prog_name="pyinstrument-gpu")


def command(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    root = Path(pyinstrument_gpu.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root), **options.pop("env", {})}
    return subprocess.Popen(
        [sys.executable, "-m", "pyinstrument_gpu", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,  # a terminal's width would be that of the report
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def test_version_and_help() -> None:
    assert invoke("--version").output == f"pyinstrument-gpu {pyinstrument_gpu.__version__}\n"
    for arguments in (["--help"], ["-h"]):
        result = invoke(*arguments)
        assert result.exit_code == 0
        for name in ("run", "why", "report", "export", "compare", "gate", "info"):
            assert f"\n  {name} " in result.output
            assert f"Usage: pyinstrument-gpu {name} " in invoke(name, *arguments).output


def test_help_of_run_begins_with_itself_and_what_most_people_need() -> None:
    text = invoke("run", "--help").output
    options = re.findall(r"^  (-.*?)(?:  |$)", text, re.M)
    assert options[:4] == ["-h, --help", "-m", "-o, --output RUN", "--overwrite"]
    assert text.index("-q, --quiet") < text.index("What is recorded:") < text.index("--warmup N")


def test_commands_are_listed_without_being_imported() -> None:
    script = """
import sys
from pyinstrument_gpu.cli import main
try:
    main(["--help"])
finally:
    assert not {"numpy", "rich", "pyinstrument_gpu.cli.report"} & set(sys.modules)
"""
    run_script(script, is_fresh=True)
    context = click.Context(main)
    for name, what in _COMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None and command.help is not None
        assert " ".join(command.help.partition("\n\n")[0].split()) == what


def test_help_of_export_has_every_format() -> None:
    text = invoke("export", "--help").output
    for name, exporter in FORMATS.items():
        assert re.search(rf"[\[|]{name}[\]|]", text)
        for suffix in exporter.suffixes:
            assert f"\n    {'OUT/' if suffix == FOLDER else suffix} " in text


def test_report_prints_what_run_report_says(file: str) -> None:
    for options, verbose in (([], False), (["-v"], True)):
        result = invoke("report", file, *options, columns=90)
        assert (result.exit_code, result.stderr) == (0, "")
        report = Run.load(file).report(verbose=verbose, file=file, width=90, color=False)
        assert result.stdout == report + "\n"
        assert ("trainbox" in result.stdout) == verbose


def test_report_of_one_step(file: str) -> None:
    result = invoke("report", file, "--step", "1")
    assert result.exit_code == 0
    assert "outside phases  0.006000 s  (60.0%)" in result.stdout


def test_report_of_several_files_has_headings(file: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other.gpurun")
    save(made_run(environment={"host": "elsewhere"}), other)
    output = invoke("report", "-v", file, other).stdout
    assert output.startswith(f"=== {file}\n")
    assert f"\n\n=== {other}\n" in output
    assert output.index("trainbox") < output.index("elsewhere")


def test_report_as_json_has_a_line_for_each_run(file: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other.gpurun")
    save(made_run(environment={"host": "elsewhere"}), other)
    result = invoke("report", file, other, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        json_text(document_of(Run.load(path), path)) for path in (file, other)
    ]
    result = invoke("report", file, other, "--json", "--step", "1")
    assert result.stdout.splitlines() == [
        json_text(step_document(Run.load(path), 1, path)) for path in (file, other)
    ]


def test_json_has_all_rows_if_asked(tmp_path: Path) -> None:
    many = str(tmp_path / "many.gpurun")
    save(run_of_phases(30), many)
    rows = {
        option: len(json.loads(invoke("report", many, "--json", *option).stdout)[_WITHOUT_STEPS])
        for option in [(), ("--all-rows",)]
    }
    assert rows == {(): 10, ("--all-rows",): 30}


def test_all_rows_is_for_json(file: str) -> None:
    result = invoke("report", file, "--all-rows")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--all-rows is for --json" in result.stderr


_WITHOUT_STEPS = "phases_without_steps"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_unknown_step_is_an_error(file: str, options: list[str]) -> None:
    result = invoke("report", file, "--step", "9", *options)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {file}: no step 9: the run holds steps 0 to 1\n"


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    path = str(tmp_path / "none.gpurun")
    for arguments in (["report", path], ["info", path], ["export", path, "-"]):
        result = invoke(*arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == f"Error: {path}: No such file or directory\n"


def test_file_that_is_no_run_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "text.gpurun"
    path.write_text("not a run\n" * 1000)
    result = invoke("info", str(path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["nonsense.py"],
        ["report", "FILE", "--step", "one"],
        ["export"],
        ["export", "FILE"],
        ["export", "FILE", "out.xyz"],
        ["export", "FILE", "out.csv", "--format", "xyz"],
        ["export", "FILE", "out.json", "--summary"],
        ["export", "FILE", "-", "--format", "parquet"],
        ["export", "FILE", "-", "--format", "parquet-folder"],
        ["info", "FILE", "--yaml"],
    ],
)
def test_wrong_usage(file: str, arguments: list[str]) -> None:
    result = invoke(*(file if argument == "FILE" else argument for argument in arguments))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage: pyinstrument-gpu" in result.stderr


def test_a_mistyped_command_names_the_one_that_was_meant() -> None:
    assert "there is no command 'reports'. Did you mean 'report'?" in invoke("reports").stderr


def test_an_option_of_the_program_goes_behind_it() -> None:
    result = invoke("run", "--epochs", "3", "gpt.py")
    assert (result.exit_code, result.stdout) == (2, "")
    told = " ".join(result.stderr.split())
    assert "run has no option --epochs. Options of the program go behind it" in told
    assert "pyinstrument-gpu run gpt.py --epochs" in told


@pytest.mark.parametrize(
    "arguments", [["PROGRAM"], ["run", "PROGRAM"], ["run", "-q", "/usr/bin/python3.12", "PROGRAM"]]
)
def test_a_program_is_run_as_people_type_it(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "gpt.py"
    program.touch()
    launched = []

    class Launched:
        def __init__(self, program: object, options: object) -> None:
            self.program = program

        def run(self) -> None:
            launched.append(self.program)

    monkeypatch.setattr("pyinstrument_gpu.launch.launch.Launch", Launched)
    monkeypatch.setattr("pyinstrument_gpu.launch.program.Program", lambda *given: given)
    given = [str(program) if one == "PROGRAM" else one for one in arguments]
    assert invoke(*given, "-u", "3").exit_code == 0
    assert launched == [(str(program), ("-u", "3"), False)]


def test_without_a_run_the_newest_is_reported(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    newer = tmp_path / "gpt-20260101-000000.gpurun"
    save(made_run(environment={"host": "elsewhere"}), newer)
    os.utime(file, ns=(1, 1))
    assert "elsewhere" in invoke("report", "-v").stdout
    assert "elsewhere" in invoke("report", "-v", "gpt.py").stdout
    result = invoke("report", "other.py")
    assert result.exit_code == 1
    assert "there is no run of the program (other-*.gpurun)" in result.stderr


def test_two_runs_are_compared_without_options(file: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other.gpurun")
    save(made_run(), other)
    named = invoke("compare", "--before", file, "--after", other).stdout
    assert named and invoke("compare", file, other).stdout == named


def test_unknown_format_names_the_known(file: str) -> None:
    assert "known: .csv/.csv.gz (csv)" in " ".join(invoke("export", file, "out.xyz").stderr.split())
    errors = invoke("export", file, "-o", "out", "--format", "xyz").stderr
    assert "'xyz' is not one of 'csv', 'perfetto'," in errors


@pytest.mark.parametrize("last", ["FILE", "typo.gpurun", None])
def test_export_without_an_output_says_what_is_missing(file: str, last: str | None) -> None:
    rest = [] if last is None else [file if last == "FILE" else last]
    result = invoke("export", file, *rest, "--format", "csv")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no output: say -o OUT, for example -o trace.json" in result.stderr


@pytest.mark.parametrize("option", ["-o", "--output"])
def test_output_as_an_option_and_as_the_last_argument(
    file: str, tmp_path: Path, option: str
) -> None:
    expected = invoke("export", file, "-").stdout_bytes
    assert invoke("export", option, "-", file).stdout_bytes == expected
    output = tmp_path / "out.csv"
    for arguments in (
        (file, option, str(output)),
        (option, str(output), file),
        (file, str(output)),
    ):
        assert invoke("export", *arguments).exit_code == 0
        assert output.read_bytes() == expected
        output.write_text("replaced")


def test_export_to_a_file_and_to_standard_output(file: str, tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    for options in ([], ["--summary"]):
        result = invoke("export", file, str(output), *options)
        assert (result.exit_code, result.output) == (0, f"Wrote {output}\n")
        assert invoke("export", file, "-", *options).stdout_bytes == output.read_bytes()
    assert output.read_text().startswith("phase,path,count,host_count,host_total_ns,")
    assert invoke("export", file, str(tmp_path / "odd.txt"), "--format", "csv").exit_code == 0


def test_a_file_of_which_nothing_can_be_read_is_an_error(file: str, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gpurun"
    cut.write_bytes(Path(file).read_bytes()[:FILE_HEADER_BYTES])
    result = invoke("report", str(cut))
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{cut}: cut off or damaged: nothing that was recorded" in result.stderr


def test_run_file_is_never_the_output(file: str, tmp_path: Path) -> None:
    other = tmp_path / "other.gpurun"
    save(made_run(), other)
    before = other.read_bytes()
    for input_ in (str(other), file):
        result = invoke("export", input_, "-o", str(other), "--format", "csv")
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{str(other)!r} is a run file and would be replaced" in result.stderr
    assert other.read_bytes() == before


def test_export_to_standard_output_by_its_path(file: str) -> None:
    output, errors = command("export", file, "/dev/stdout", "--format", "csv").communicate()
    assert (output, errors) == (invoke("export", file, "-").stdout_bytes, b"Wrote /dev/stdout\n")


def test_export_of_several_ranks_is_one_output(tmp_path: Path) -> None:
    paths = []
    for rank in (0, 1):
        anchor = {"run_ns": 0, "monotonic_ns": 0, "realtime_ns": 1_000 * rank}
        paths.append(str(tmp_path / f"train.rank{rank}.gpurun"))
        save(made_run(environment={"rank": rank, "anchor": anchor}), paths[-1])
    result = invoke("export", *paths, "-")
    assert result.exit_code == 0
    rows = list(csv.DictReader(io.StringIO(result.stdout_bytes.decode(), newline="")))
    assert [(row["rank"], row["host_begin_ns"]) for row in rows] == [
        *(("0", "0"), ("0", str(10 * MS))),
        *(("1", "1000"), ("1", str(10 * MS + 1000))),
    ]
    for output in ("out.csv", "out.json", "out.parquet", "out/"):
        result = invoke("export", *paths, f"{tmp_path}/{output}")
        assert (result.exit_code, result.output) == (0, f"Wrote {tmp_path}/{output}\n")
    assert sorted(os.listdir(tmp_path / "out")) == ["rank=0", "rank=1"]


def test_export_names_runs_that_lack_something(file: str, tmp_path: Path) -> None:
    lossy, cut = str(tmp_path / "lossy.gpurun"), str(tmp_path / "cut.gpurun")
    drops = {"ring_full": 3, "depth": 0, "no_memory": 1}
    anchor = {"run_ns": 0, "realtime_ns": 1}
    environment = {"anchor": anchor}
    save(made_run(phases_recorded=5, dropped=drops, environment=environment), lossy)
    save(made_run(complete=False, environment=environment), cut)
    output = str(tmp_path / "out.csv")

    save(made_run(environment=environment), file)
    result = invoke("export", file, lossy, cut, "-o", output)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.splitlines() == [
        f"Wrote {output}",
        f"Warning: {lossy}: 3 of 5 spans are missing; dropped: ring_full 3, no_memory 1. "
        "Sums of what was exported may be too low",
        f"Warning: {cut}: the recording was not stopped, and ends at 0.021 s. "
        "Sums of what was exported may be too low",
    ]
    metadata = json.loads(Path(f"{output}-metadata.json").read_text())
    assert metadata["url"] == "out.csv"
    assert [run["complete"] for run in metadata["notes"]] == [True, True, False]
    assert [run["spans_recorded"] for run in metadata["notes"]] == [2, 5, 2]
    assert metadata["notes"][1]["dropped"] == {"ring_full": 3, "no_memory": 1}


def test_export_names_the_run_without_a_start_time(file: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other.gpurun")
    save(made_run(environment={"anchor": {"run_ns": 0, "realtime_ns": 1}}), other)
    for output in ("-", str(tmp_path / "out.csv")):
        result = invoke("export", other, file, "-o", output)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith(f"Error: {file} has no start time, so it cannot be placed")


def test_summary_lacks_no_span_that_only_the_history_lost(tmp_path: Path) -> None:
    lossy = str(tmp_path / "lossy.gpurun")
    run = made_run()
    drops = {"span_history": 1, "depth": 4}
    kept: dict[str, Any] = {"spans": run.spans[1:], "span_self_ns": run.span_self_ns[1:]}
    save(made_run(dropped=drops, statistics=run.statistics, **kept), lossy)
    output = str(tmp_path / "out.csv")
    assert (
        "1 of 2 spans are missing; dropped: span_history 1"
        in invoke("export", lossy, output).stderr
    )
    assert invoke("export", lossy, output, "--summary").stderr == (
        f"Wrote {output}\n"
        f"Warning: {lossy}: dropped: depth 4. Sums of what was exported may be too low\n"
    )


def test_export_names_runs_that_lack_waits(tmp_path: Path) -> None:
    lossy, output = str(tmp_path / "lossy.gpurun"), str(tmp_path / "out.csv")
    syncs = syncs_of(made_run())
    # Not those of the second thread, which this run lacks.
    save(made_run(syncs=replace(syncs, events=syncs.events[:3], dropped=7)), lossy)
    assert invoke("export", lossy, output, "--summary").stderr == f"Wrote {output}\n"
    assert invoke("export", lossy, output, "--syncs").stderr == (
        f"Wrote {output}\n"
        f"Warning: {lossy}: dropped: syncs 7. Sums of what was exported may be too low\n"
    )
    metadata = json.loads(Path(f"{output}-metadata.json").read_text())
    assert metadata["notes"][0]["dropped"] == {"syncs": 7}


def test_export_of_a_trace_to_standard_output(file: str) -> None:
    result = invoke("export", file, "-", "--format", "perfetto")
    events = json.loads(result.stdout_bytes)["traceEvents"]
    assert [event["name"] for event in events if event.get("cat") == "phase"] == ["über"] * 2


def test_option_of_another_format_is_named(file: str) -> None:
    errors = " ".join(invoke("export", file, "x.json", "--summary").stderr.split())
    assert "perfetto has no option --summary; it is for csv, parquet, parquet-folder" in errors


def test_long_export_shows_its_progress_on_a_terminal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyinstrument_gpu.cli.export._LONG_SPANS", 2)
    path = str(tmp_path / "train.gpurun")
    save(made_run(), path)
    arguments = ("export", path, str(tmp_path / "out.csv"))
    assert invoke(*arguments).stderr == f"Wrote {arguments[-1]}\n"
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes standard error for a terminal
    monkeypatch.setenv("TERM", "xterm")
    assert "100%" in invoke(*arguments).stderr
    monkeypatch.setattr("pyinstrument_gpu.cli.export._LONG_SPANS", 3)
    assert "%" not in invoke(*arguments).stderr


def test_info(file: str) -> None:
    lines = dict(line.split(None, 1) for line in invoke("info", file).stdout.splitlines())
    assert lines["file"] == file
    assert lines["file_bytes"] == str(os.path.getsize(file))
    assert lines["host"] == "trainbox"
    assert lines["complete"] == "true"
    assert lines["steps"] == "2"
    assert lines["duration_ns"] == str(21 * MS)


def test_info_of_a_killed_run_as_json(tmp_path: Path) -> None:
    path = str(tmp_path / "killed.gpurun")
    run = made_run(
        complete=False,
        open_phases=[OpenPhase("über", 0, 20 * MS, -1, 0)],
        dropped={"ring_full": 3, "names": 0},
    )
    save(run, path)
    facts = json.loads(invoke("info", path, "--json").stdout)
    assert facts["complete"] is False
    assert facts["open_phases"] == [
        {"path": "über", "thread": 0, "begin_ns": 20 * MS, "step": -1, "depth": 0}
    ]
    assert facts["dropped"] == {"ring_full": 3}
    assert (facts["spans"], facts["spans_kept"], facts["steps"], facts["steps_kept"]) == (
        2,
        2,
        2,
        2,
    )
    assert facts["threads"] == ["MainThread"]
    assert facts["environment"]["host"] == "trainbox"
    assert facts["notes"] == list(Run.load(path).notes)


def test_run_with_modules(tmp_path: Path) -> None:
    path = str(tmp_path / "train.gpurun")
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    with pyinstrument_gpu.watch_modules(model, every=1), pyinstrument_gpu.record(path):
        for _ in range(5):
            with pyinstrument_gpu.gpu_step():
                model(torch.ones(4, 2)).sum().backward()

    facts = json.loads(invoke("info", path, "--json").stdout)
    assert (facts["modules"], facts["passes"], facts["passes_kept"]) == (2, 20, 20)
    (module,) = json.loads(invoke("report", path, "--json").stdout)["modules"]["rows"]
    assert (module["name"], module["modules"], module["calls"]) == ("*", 2, 2.0)
    rows = csv_rows(invoke("export", path, "-o", "-", "--modules").stdout)
    assert sorted((row["step"], row["module"], row["kind"]) for row in rows) == [
        (str(step), module, kind)
        for step in range(5)
        for module in "01"
        for kind in ("backward", "forward")
    ]


def test_module_runs_as_the_command_and_pipes_plain_text(file: str) -> None:
    """A name that the output can't encode is escaped."""
    environment = {"TERM": "xterm", "PYTHONIOENCODING": "ascii"}
    output, errors = command("report", "--verbose", file, env=environment).communicate()
    assert errors == b""
    report = Run.load(file).report(verbose=True, width=80, color=False) + "\n"
    assert output == report.encode("ascii", "backslashreplace")
    assert rb"\xfcber" in output


def test_reader_that_has_had_enough_is_no_error(tmp_path: Path) -> None:
    path = str(tmp_path / "long.gpurun")
    spans = np.repeat(made_run().spans, 4_000)
    save(made_run(spans=spans, span_self_ns=np.zeros(len(spans), np.int64)), path)
    process = command("export", path, "-")
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(5) == b"phase"
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 1


def test_report_as_a_page(file: str, tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="jinja2 is not installed")
    beside = invoke("report", "--html", file)
    assert (beside.exit_code, beside.output) == (0, f"Page: {tmp_path / 'train.html'}\n")
    assert "über" in (tmp_path / "train.html").read_text("utf-8")

    chosen = invoke("report", "--html", file, "-o", str(tmp_path / "page.html"))
    assert (chosen.exit_code, chosen.output) == (0, f"Page: {tmp_path / 'page.html'}\n")
    assert (tmp_path / "page.html").read_bytes() == (tmp_path / "train.html").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "x.html"), "--output is for --html"),
        (("--html", "--json"), "--html can't be combined with --json or --step"),
        (("--html", "--step", "1"), "--html can't be combined with --json or --step"),
    ],
)
def test_what_makes_no_sense_with_a_page(
    file: str, arguments: tuple[str, ...], message: str
) -> None:
    result = invoke("report", file, *arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_gate_without_scipy_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "scipy", None)
    result = invoke("gate", "--baseline", "old.py", "-o", "runs", "--", "new.py")
    assert result.exit_code == 1
    assert "pip install scipy" in result.output
    assert not Path("runs").exists()


def test_comparison_as_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jinja2", reason="jinja2 is not installed")
    pytest.importorskip("scipy", reason="scipy is not installed")
    monkeypatch.chdir(tmp_path)
    for name in ("a.gpurun", "b.gpurun"):
        save(made_run(), tmp_path / name)
    arguments = ("compare", "--before", "a.gpurun", "--after", "b.gpurun")
    result = invoke(*arguments, "--html")
    assert result.exit_code == 0
    assert result.output == invoke(*arguments).output + "Page: comparison.html\n"
    assert "AMBIGUOUS" in (tmp_path / "comparison.html").read_text("utf-8")
    assert invoke(*arguments, "-o", "x.html").exit_code == 2
