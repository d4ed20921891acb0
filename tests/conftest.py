# SPDX-License-Identifier: Apache-2.0
"""What holds for every test."""

import compileall
import gc
import importlib.util
import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The rows of the table of faults are functions beside the test that runs them: their assertions say
# as much as those of a test.
pytest.register_assert_rewrite("tests.faults")

# How long an example takes is no fault of the code on a busy machine.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples every time; others with --hypothesis-profile=search, as `make test-all` has it.
settings.register_profile("same", _UNTIMED, derandomize=True)
settings.register_profile("search", _UNTIMED)
settings.load_profile("same")

# What a shell, a launcher or a CI service may have set for its own ends.
_OF_OTHERS = (
    *("PYINSTRUMENT_GPU", "PYINSTRUMENT_GPU_RECORD", "NVTX_DISABLE", "CUDA_DEVICE_MAX_CONNECTIONS"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    *("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"),
    *("PYTHONWARNINGS", "PYTHONIOENCODING"),
    *("http_proxy", "HTTP_PROXY"),  # the servers that tests ask are on this machine
)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """The environment changes nothing that tests see, here and in the programs that they start.
    After pytest itself has read it, and before modules that do so are imported."""
    for variable in _OF_OTHERS:
        os.environ.pop(variable, None)
    # How busy the machine is: unknown. Where it matters, a test makes the files of it.
    os.environ["PYINSTRUMENT_GPU_PROC"] = os.devnull
    # A socket of multiprocessing lies there, and the path of one has at most 107 characters.
    if len(tempfile.gettempdir()) > 60:
        tempfile.tempdir = os.environ["TMPDIR"] = "/tmp"
    # For the programs that tests start, also where the environment has Python write nothing: to
    # compile the package takes as long as such a program.
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(Path(__file__).parents[1] / "pyinstrument_gpu", quiet=2)
        if config.getoption("numprocesses", None) and not sys.dont_write_bytecode:
            _rewrite_tests(config)


def _rewrite_tests(config: pytest.Config) -> None:
    """As pytest does when it imports them. All processes that run tests import them at the same
    time, and each would rewrite all of them, for a quarter of a minute."""
    from _pytest.assertion import rewrite  # not public: what does this has no other name

    here = Path(__file__).parent
    for file in (*here.rglob("test_*.py"), *here.rglob("conftest.py"), *here.glob("faults/*.py")):
        pyc = rewrite.get_cache_dir(file) / (file.stem + rewrite.PYC_TAIL)
        if rewrite._read_pyc(file, pyc) is None:
            version, code = rewrite._rewrite_test(file, config)
            pyc.parent.mkdir(exist_ok=True)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, version, pyc)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected is no garbage: it is not looked at meanwhile, nor when a test
    collects garbage or asks for all objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


# Folders all of whose tests need torch, their conftest.py too. It can't say that it is skipped.
if importlib.util.find_spec("torch") is None:
    collect_ignore = ["aspects/graphs", "gpu", "patching"]


class TestFile(pytest.Module):
    """A file of tests, which is skipped where it needs torch and there is none: a new Python has no
    wheels of torch for a while."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            missing = error.__cause__
            if isinstance(missing, ModuleNotFoundError) and missing.name == "torch":
                pytest.skip("torch is not installed", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return TestFile.from_parent(parent, path=module_path)


@pytest.fixture
def verdicts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons don't ask what made steps slow: it has no say in a verdict, and takes five times
    as long as one."""
    run_sample = "pyinstrument_gpu.analysis.run_sample"
    monkeypatch.setattr(f"{run_sample}._slow_ns", lambda run, steps: 0.0)
    monkeypatch.setattr(f"{run_sample}._cause_ns", lambda run, steps: {})


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> None:
    """Ctrl-C works in this process and those that tests start, also where the tests run in the
    background of a shell, which has such processes ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_recording_left_active() -> Iterator[None]:
    """Fails a test that leaves a recording active, and stops it, so that the next can start one."""
    yield
    # Only what has been imported can be recording; most tests need no native module.
    recording = sys.modules.get("pyinstrument_gpu.recording.recording")
    active = recording and recording.active()
    if active is not None:
        active.stop()
        pytest.fail("the test left a recording active: stop it, or use `with pig.record(...)`")
