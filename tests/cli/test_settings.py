# SPDX-License-Identifier: Apache-2.0
"""Options in pyproject.toml and in the environment."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import pyinstrument_gpu as pig
from pyinstrument_gpu.cli import main
from pyinstrument_gpu.errors import ConfigurationError
from pyinstrument_gpu.recording.options import SETTABLE

ROOT = Path(pig.__file__).parents[1]
PROGRAM = """
import pyinstrument_gpu as pig
for _ in range(3):
    with pig.gpu_step(), pig.gpu_phase("forward"):
        pass
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, a folder below a project's."""
    folder = tmp_path / "project" / "below"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    yield folder


def write(folder: Path, text: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(text)
    return path


def options_of(recording: Any) -> dict[str, object]:
    return {name: getattr(recording._options, name) for name in SETTABLE}


def test_without_settings_there_are_the_defaults() -> None:
    assert options_of(pig.record()) == SETTABLE


def test_the_call_comes_first_then_the_environment_then_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        folder.parent,
        '[tool.pyinstrument_gpu.record]\nmemory = "exact"\nnvtx = false\nmax-bytes = 2000000\n',
    )
    monkeypatch.setenv("PYINSTRUMENT_GPU_RECORD_NVTX", "yes")
    monkeypatch.setenv("PYINSTRUMENT_GPU_RECORD_HISTORY_SPANS", "17")
    monkeypatch.setenv("PYINSTRUMENT_GPU_RECORD_MEMORY", "off")
    found = options_of(pig.record(memory="sampled"))
    changed = {"nvtx": True, "max_bytes": 2_000_000, "history_spans": 17}
    assert found == {**SETTABLE, **changed}
    assert options_of(pig.record())["memory"] is False


def test_the_nearest_file_with_our_table_counts(folder: Path) -> None:
    write(folder, '[tool.other]\nname = "tool.pyinstrument_gpu"\n')
    write(folder.parent, "[tool.pyinstrument_gpu.record]\nnvtx = false\n")
    write(folder.parent.parent, "[tool.pyinstrument_gpu.record]\nenergy = true\n")
    found = options_of(pig.record())
    assert (found["nvtx"], found["energy"]) == (False, False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.pyinstrument_gpu", "is no TOML"),
        ("[tool]\npyinstrument_gpu = 3\n# tool.pyinstrument_gpu", "holds the tables"),
        ("[tool.pyinstrument_gpu.runs]\n", "and not 'runs'"),
        ("[tool.pyinstrument_gpu]\nrecord = 3\n", "must be a table"),
        ("[tool.pyinstrument_gpu.record]\nnvtz = true\n", "sets 'nvtz', which is no option of"),
        ("[tool.pyinstrument_gpu.record]\npath = 'a'\n", "sets 'path', which is no option of"),
        ("[tool.pyinstrument_gpu.record]\nmemory = 3\n", 'memory must be "sampled"'),
    ],
)
def test_an_error_names_the_file_and_what_is_wrong(folder: Path, text: str, said: str) -> None:
    path = write(folder, text)
    with pytest.raises(ConfigurationError) as caught:
        pig.record()
    assert str(path) in str(caught.value) and said in str(caught.value)


def test_an_error_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYINSTRUMENT_GPU_RECORD_MAX_BYTES", "3")
    with pytest.raises(ConfigurationError, match=r"^PYINSTRUMENT_GPU_RECORD_MAX_BYTES: max_bytes"):
        pig.record()
    assert options_of(pig.record(max_bytes=1 << 21))["max_bytes"] == 1 << 21


def test_a_wrong_argument_is_no_error_of_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYINSTRUMENT_GPU_RECORD_NVTX", "no")
    with pytest.raises(ValueError, match="max_bytes must be") as caught:
        pig.record(max_bytes=3)
    assert not isinstance(caught.value, ConfigurationError)


def test_info_shows_values_and_where_they_stand(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(
        folder,
        '[tool.pyinstrument_gpu.run]\nmodules = "coarse"\nno-report = true\n'
        "[tool.pyinstrument_gpu.record]\nnvtx = false\n",
    )
    monkeypatch.setenv("PYINSTRUMENT_GPU_RUN_STEPS", "7")
    monkeypatch.setenv("PYINSTRUMENT_GPU_RECORD_MEMORY", "exact")
    result = CliRunner().invoke(main, ["info", "--config", "--json"])
    found = json.loads(result.stdout)
    assert found["run"]["modules"] == {"value": "coarse", "source": str(path)}
    assert found["run"]["no_report"] == {"value": True, "source": str(path)}
    assert found["run"]["steps"] == {"value": 7, "source": "PYINSTRUMENT_GPU_RUN_STEPS"}
    assert found["run"]["warmup"] == {"value": 0, "source": "default"}
    assert found["record"]["nvtx"] == {"value": False, "source": str(path)}
    assert found["record"]["memory"]["source"] == "PYINSTRUMENT_GPU_RECORD_MEMORY"
    text = CliRunner().invoke(main, ["info", "--config"]).stdout
    assert f'run.modules                  "coarse"  ({path})' in text


def test_info_takes_a_run_or_settings() -> None:
    for arguments in (["info"], ["info", "a.gpurun", "--config"]):
        assert "give either RUN or --config" in CliRunner().invoke(main, arguments).output


@pytest.mark.parametrize("where", ["file", "environment"])
def test_an_error_of_run_names_its_source(
    where: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "PYINSTRUMENT_GPU_RUN_STEPS"
    if where == "file":
        source = str(write(folder, '[tool.pyinstrument_gpu.run]\nsteps = "many"\n'))
    else:
        monkeypatch.setenv(source, "many")
    result = CliRunner().invoke(main, ["run", "train.py"])
    assert result.exit_code == 2
    assert "'many' is not a valid integer" in result.output and source in result.output


def test_run_takes_them_and_its_program_is_not_touched(folder: Path) -> None:
    write(folder, '[tool.pyinstrument_gpu.run]\noutput = "a.gpurun"\n')
    (folder / "train.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYINSTRUMENT_GPU_RUN_NO_REPORT": "1"}
    command = [sys.executable, "-m", "pyinstrument_gpu", "run", "train.py"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stderr == ""
    assert pig.Run.load(folder / "a.gpurun").steps_ended == 3


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert "pyinstrument-gpu" in result.stdout
    assert "_PYINSTRUMENT_GPU_COMPLETE" in result.stdout


def test_the_script_completes_commands_and_options() -> None:
    words = "pyinstrument-gpu run --profile-"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "COMP_WORDS": words,
        "COMP_CWORD": "2",
        "_PYINSTRUMENT_GPU_COMPLETE": "bash_complete",
    }
    program = "from pyinstrument_gpu.cli import main; main(prog_name='pyinstrument-gpu')"
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.stdout.split() == ["plain,--profile-steps", "plain,--profile-at"]
