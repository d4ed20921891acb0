# SPDX-License-Identifier: Apache-2.0
"""What importing the package does, and what it leaves alone."""

import pydoc
import re
import struct
from pathlib import Path
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.native import _C as native
from tests.helpers.script import run_script

PT_TLS = 7


def test_import_loads_no_heavy_module() -> None:
    script = """
import sys
import pyinstrument_gpu
heavy = {"numpy", "msgspec", "torch", "rich", "click", "asyncio", "multiprocessing"}
# A third of the time otherwise.
heavy |= {"inspect", "dataclasses", "tempfile", "statistics", "ctypes", "pickle"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    run_script(script, is_fresh=True)


def test_recording_loads_no_heavy_module_either(tmp_path: Path) -> None:
    script = """
import sys
import pyinstrument_gpu as pig
with pig.record(sys.argv[1]):
    for _ in pig.gpu_steps([1, 2]):
        with pig.gpu_phase("a"):
            pass
heavy = {"numpy", "msgspec", "torch", "rich", "click"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    run_script(script, tmp_path / "a.gpurun", is_fresh=True)


def test_report_loads_no_masked_arrays() -> None:
    # numpy.ma would be a twentieth of the time of `report`.
    script = """
import sys
import numpy
if "numpy.ma" in sys.modules:
    sys.exit()  # an older version, of which it is a part
import pyinstrument_gpu as pig
with pig.record() as recording:
    for _ in pig.gpu_steps(range(9)):
        with pig.gpu_phase("a"):
            pass
    with pig.gpu_phase("eval"):
        pass
recording.run.report(verbose=True)
assert "numpy.ma" not in sys.modules
"""
    run_script(script, is_fresh=True)


def test_report_of_one_run_loads_nothing_of_jobs(tmp_path: Path) -> None:
    # A tenth of its time.
    script = """
import sys
import pyinstrument_gpu as pig
from pyinstrument_gpu.cli import main
with pig.record(sys.argv[1]):
    for _ in pig.gpu_steps(range(9)):
        with pig.gpu_phase("a"):
            pass
sys.argv = ["pyinstrument-gpu", "report", sys.argv[1]]
try:
    main()
except SystemExit as end:
    assert not end.code
of_jobs = {"pyinstrument_gpu.job.job", "pyinstrument_gpu.job.analysis"}
assert not of_jobs & set(sys.modules)
"""
    run_script(script, tmp_path / "a.gpurun", is_fresh=True)


def test_beside_torch_neither_dynamo_nor_cuda_is_started() -> None:
    pytest.importorskip("torch")
    script = """
import sys
import torch
import pyinstrument_gpu as pig

with pig.record() as recording, pig.gpu_step(), pig.gpu_phase("a"):
    torch.ones(2).sum()
assert "torch._dynamo" not in sys.modules
assert not torch.cuda.is_initialized()
environment = recording.run.environment
assert environment["torch"] == torch.__version__
assert environment.get("gpus") == (None if torch.accelerator.current_accelerator() else [])
"""
    run_script(script, is_fresh=True)


def test_every_public_name_is_there() -> None:
    pytest.importorskip("torch")
    assert [name for name in pig.__all__ if not hasattr(pig, name)] == []


def test_dir_has_the_public_names_and_no_others() -> None:
    script = """
import pyinstrument_gpu as pig
import pyinstrument_gpu.export, pyinstrument_gpu.core.run
names = dir(pig)
assert names == sorted(names)
assert {name for name in names if not name.startswith("__")} == set(pig.__all__) - {"__version__"}
assert {"__all__", "__doc__", "__name__", "__version__"} <= set(names)
"""
    run_script(script, is_fresh=True)


def test_docs_list_the_public_names() -> None:
    text = (Path(pig.__file__).parents[1] / "docs" / "api.md").read_text()
    assert sorted(re.findall(r"^\| `(\w+)", text, re.M)) == sorted(pig.__all__)


def test_help_shows_the_texts_of_phases() -> None:
    assert 'with gpu_phase("forward"):' in pydoc.render_doc(pig.gpu_phase)
    assert "gpu_phase(name, /)" in pydoc.plain(pydoc.render_doc(pig.gpu_phase))
    for handle in (pig.gpu_phase("x"), pig.gpu_phase.scope, pig.gpu_phase.scope("x")):
        assert "context manager" in pydoc.render_doc(handle)


@pytest.mark.parametrize("arguments, keywords", [((), {"name": "x"}), ((), {}), (("x", 1), {})])
def test_wrong_call_of_gpu_phase_names_the_right_one(
    arguments: tuple[Any, ...], keywords: dict[str, str]
) -> None:
    with pytest.raises(TypeError, match=r'the name, by position: gpu_phase\("forward"\)'):
        pig.gpu_phase(*arguments, **keywords)


@pytest.mark.parametrize(
    "value, is_off",
    [
        ("0", True),
        ("1", False),
        *(
            pytest.param(value, value.lower() in ("off", "false", "no"), marks=pytest.mark.thorough)
            for value in ("off", "OFF", "false", "False", "no", "", "on", "True", "yes")
        ),
    ],
)
def test_switch_in_the_environment(value: str, is_off: bool) -> None:
    script = f"""
import pyinstrument_gpu as pig
with pig.record() as recording, pig.gpu_step():
    pass
assert recording.run.step_totals.count == {int(not is_off)}
"""
    done = run_script(script, environment={"PYINSTRUMENT_GPU": value})
    assert done.stderr == ""


def test_unknown_value_of_the_switch_is_named_once_and_ignored() -> None:
    script = """
import pyinstrument_gpu as pig
with pig.record() as recording, pig.gpu_step():
    pass
assert recording.run.step_totals.count == 1
"""
    done = run_script(script, environment={"PYINSTRUMENT_GPU": "flase"})
    assert done.stderr.count("RuntimeWarning: PYINSTRUMENT_GPU='flase' in the environment") == 1


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'gpu_stage'"):
        _ = pig.gpu_stage


def test_little_of_the_room_for_thread_local_variables_is_taken() -> None:
    """Libraries that are loaded later share it, scikit-learn's OpenMP among them."""
    data = Path(native.__file__).read_bytes()
    (begin,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    headers = [struct.unpack_from("<II6Q", data, begin + i * size) for i in range(count)]

    assert sum(header[6] for header in headers if header[0] == PT_TLS) <= 256
