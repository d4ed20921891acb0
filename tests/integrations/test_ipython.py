# SPDX-License-Identifier: Apache-2.0
"""The magic `%%gpu_phases`, and cells that are run again, in a shell of IPython in this process."""

import os
import shutil
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.core.run import Run

pytest.importorskip("IPython", reason="IPython is not installed")

LOOP = """\
from pyinstrument_gpu import gpu_phase, gpu_steps
for _ in gpu_steps(range(3)):
    with gpu_phase("forward"):
        pass
"""


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # the shell has its own
    monkeypatch.chdir(tmp_path)
    without_history = Config({"HistoryManager": {"enabled": False}})
    shell = InteractiveShell.instance(config=without_history, colors="nocolor")
    run(shell, "%load_ext pyinstrument_gpu")
    yield shell
    InteractiveShell.clear_instance()


def run(shell: Any, cell: str) -> Any:
    """The result of a cell, as one that is typed in."""
    return shell.run_cell(cell, store_history=True)


def of(shell: Any, name: str = "run") -> Run:
    found = shell.user_ns[name]
    assert isinstance(found, Run)
    return found


def test_a_cell_is_recorded_and_shown(shell: Any) -> None:
    from IPython.utils.capture import capture_output

    with capture_output() as captured:
        result = run(shell, f"%%gpu_phases run --page\n{LOOP}40 + 2")

    assert result.success and result.result == 42
    assert of(shell).step_totals.count == 3
    assert of(shell).phases["forward"].count == 3
    report, page = [output.data for output in captured.outputs if "text/html" in output.data]
    assert report["text/plain"] == of(shell).report(width=100, color=False)
    assert "<code>run.page()</code>" in report["text/html"]
    assert page["text/html"].startswith("<iframe sandbox='allow-scripts' ")


def test_without_a_name_the_run_has_one_and_quiet_shows_nothing(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run(shell, f"%%gpu_phases --quiet\n{LOOP}")
    assert of(shell, "_run").step_totals.count == 3
    assert capsys.readouterr() == ("", "")


def test_an_exception_of_the_cell_stays_as_it_is(shell: Any) -> None:
    result = run(shell, f"error = KeyError('mine')\n\n{LOOP}")
    result = run(shell, f"%%gpu_phases run\n{LOOP}\nraise error")

    assert result.error_in_exec is shell.user_ns["error"]
    (*_, last) = traceback.extract_tb(result.error_in_exec.__traceback__)
    assert (last.lineno, last.line) == (7, "raise error")  # with the line of the magic
    assert shell.compile.format_code_name(last.filename) == ("Cell", "In[3]")
    assert of(shell).step_totals.count == 3
    assert of(shell).environment["program_end"] == {"exception": "KeyError"}


def test_what_cannot_be_recorded_does_not_run(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def says(cell: str) -> str:
        result = run(shell, cell)
        assert type(result.error_in_exec).__name__ == "UsageError"
        assert "ran" not in shell.user_ns
        return capsys.readouterr().err.strip()

    assert says("%%gpu_phases 3x\nran = 1") == (
        "UsageError: %%gpu_phases: '3x' is no name of a variable"
    )
    Path("there.gpurun").write_text("somebody's")
    assert says("%%gpu_phases -o there.gpurun\nran = 1").endswith(
        "there.gpurun already exists: choose another path or pass --overwrite"
    )
    assert Path("there.gpurun").read_text() == "somebody's"
    with pig.record():
        assert "a recording is already active" in says("%%gpu_phases\nran = 1")
    assert isinstance(run(shell, "%%gpu_phases bad\nran = (").error_in_exec, SyntaxError)
    assert "bad" not in shell.user_ns


@pytest.mark.parametrize(
    "cell",
    ["%%gpu_phases run -qo a.gpurun\npass", "with pig.record('a.gpurun') as r: pass\nrun = r.run"],
)
def test_a_cell_that_is_run_again_replaces_its_own_file(shell: Any, cell: str) -> None:
    run(shell, "import pyinstrument_gpu as pig")
    assert run(shell, cell).success
    first = of(shell)
    assert run(shell, cell).success
    assert of(shell).environment["run_id"] == Run.load("a.gpurun").environment["run_id"]
    assert first.environment["run_id"] != of(shell).environment["run_id"]  # it can still be read


def test_files_of_others_are_not_replaced(
    shell: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = "with pig.record('a.gpurun'): pass\n"
    run(shell, "import pyinstrument_gpu as pig")

    def fails(cell: str) -> bool:
        return isinstance(run(shell, cell).error_in_exec, pig.RunPathError)

    assert fails(cell + cell)  # as a loop does that forgot the number
    shutil.copy("a.gpurun", "b.gpurun")
    assert not fails(cell)
    shutil.move("b.gpurun", "a.gpurun")
    assert fails(cell)  # another run has come to lie there
    assert not fails("with pig.record('a.gpurun', overwrite=True): pass")
    process = os.getpid()
    monkeypatch.setattr("pyinstrument_gpu.recording.interactive.os.getpid", lambda: process + 1)
    assert fails(cell)  # of the process that this one is a fork of
    capsys.readouterr()


def test_a_run_of_before_the_kernel_was_started_is_numbered(
    shell: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pig.record("a.gpurun"):
        pass
    earlier = Run.load("a.gpurun").environment["run_id"]
    monkeypatch.setattr("pyinstrument_gpu.recording.interactive._written", {})
    monkeypatch.setattr(sys, "argv", ["ipykernel_launcher.py"])
    cell = "%%gpu_phases run -qo a.gpurun\npass"
    assert not run(shell, cell).success
    os.utime("a.gpurun", (0, 0))  # nobody writes into it any more
    capsys.readouterr()
    for _ in range(2):
        assert run(shell, cell).success
    assert "a.gpurun was recorded before this kernel: it is " in capsys.readouterr().err
    assert Run.load("a.1.gpurun").environment["run_id"] == earlier
    assert Run.load("a.gpurun").environment["run_id"] == of(shell).environment["run_id"]
    assert not Path("a.2.gpurun").exists()


def test_a_recording_of_the_cell_ends_that_of_the_magic(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    own = "import pyinstrument_gpu as pig\nwith pig.record() as own:\n" + indent(LOOP, "    ")
    assert run(shell, f"%%gpu_phases run -q\n{LOOP}{own}").success
    assert of(shell).step_totals.count == shell.user_ns["own"].run.step_totals.count == 3
    assert "started a recording of its own" in capsys.readouterr().err


def test_the_extension_can_be_loaded_again(shell: Any) -> None:
    for again in ("load", "reload"):
        assert run(shell, f"%{again}_ext pyinstrument_gpu").success
        assert run(shell, f"%%gpu_phases run -q\n{LOOP}").success
        assert of(shell).step_totals.count == 3
