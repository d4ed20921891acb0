# SPDX-License-Identifier: Apache-2.0
"""The fixture `training_benchmark` in test suites of other people."""

import re
import shutil
import sys
from pathlib import Path

import pytest

# What the suites below import is imported before: pytester forgets the modules that a suite was the
# first to import, and numpy and scipy can't be imported twice.
import scipy.stats  # noqa: F401

import pyinstrument_gpu
from pyinstrument_gpu import native
from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.gate import gate, sides  # noqa: F401
from tests.helpers import timed_runs  # noqa: F401

aspects()
pytest_plugins = ["pytester"]

ROOT = Path(pyinstrument_gpu.__file__).parents[1]
NAME = "pytest_pyinstrument_gpu"
# Times that are known: a function returns those of its steps in ms, and nothing is measured.
KNOWN_TIMES = """
    import pytest
    from pyinstrument_gpu.gate.sides import CallSide
    from tests.helpers.timed_runs import MS, made_run

    spread = [1.0, 1.002, 0.998, 1.001, 0.999]

    @pytest.fixture(autouse=True)
    def known_times(monkeypatch):
        def record(self, name, folder):
            of_run = spread[int(name.rpartition("-")[2]) % len(spread)]
            return made_run([self._function() * of_run * MS] * 12)
        monkeypatch.setattr(CallSide, "record", record)
    """


@pytest.fixture(autouse=True)
def _environment(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", NAME, *options)


def test_slower_fails_and_the_rest_passes(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(KNOWN_TIMES)
    pytester.makepyfile(
        """
        def test_same(training_benchmark):
            result = training_benchmark(lambda: 100, baseline=lambda: 100)
            assert not result.is_slower
            assert result.slowdown.value == "NOT SLOWER"
            assert abs(result.comparison.elapsed.change) < 0.01

        def test_slow(training_benchmark):
            training_benchmark(lambda: 106, baseline=lambda: 100, runs=3)

        def test_slow_within_limit(training_benchmark):
            training_benchmark(lambda: 106, baseline=lambda: 100, fail_if_slower=8)

        def test_margin(training_benchmark):
            training_benchmark(lambda: 106, baseline=lambda: 100, margin=10)
        """
    )
    done = run(pytester)
    done.assert_outcomes(passed=3, failed=1)
    done.stdout.fnmatch_lines(
        [
            "*### SLOWER: +6.00 % elapsed time per step*",
            "*- training benchmarks: candidate against baseline, per step -*",
            "test *result *change *interval *runs *can show",
            "*::test_same *NOT SLOWER *+0.00 % * 2 x 5  0.47 %",
            "*::test_slow *SLOWER *+6.00 % *+5.03 % to +6.98 % (99.4 %)  2 x 3  1.1 %",
        ]
    )


def test_unclear_fails_where_that_is_asked_for(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(KNOWN_TIMES.replace("[1.0, 1.002,", "[1.5, 1.2,"))
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("strict", [False, True])
        def test_it(training_benchmark, strict):
            training_benchmark(lambda: 100, baseline=lambda: 104, max_runs=5, strict=strict)
        """
    )
    run(pytester).assert_outcomes(passed=1, failed=1)
    done = run(pytester, "--training-benchmark-strict", "--training-benchmark-runs=4")
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines(["*### UNCLEAR: *", "*UNCLEAR *2 x 5 *"])


def test_options_override_what_a_test_says(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(KNOWN_TIMES.replace("[1.0, 1.002,", "[1.5, 1.2,"))
    pytester.makepyfile(
        """
        def test_it(training_benchmark):
            training_benchmark(lambda: 100, baseline=lambda: 104, runs=5, max_runs=5)
        """
    )
    runs, most = "--training-benchmark-runs", "--training-benchmark-max-runs"
    for options, found in (([f"{runs}=7"], 7), ([f"{most}=4"], 4), ([f"{runs}=3", f"{most}=6"], 6)):
        run(pytester, *options).stdout.fnmatch_lines([f"*::test_it *UNCLEAR * 2 x {found} *"])
    for option in (runs, most):
        done = run(pytester, f"{option}=2")
        assert done.ret == pytest.ExitCode.USAGE_ERROR
        done.stderr.fnmatch_lines([f"*{option}: must be 3 or more, got '2'"])


def test_little_can_be_shown_of_times_that_differ_several_times(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(KNOWN_TIMES.replace("[1.0, 1.002,", "[20.0, 0.2,"))
    pytester.makepyfile(
        """
        def test_it(training_benchmark):
            training_benchmark(lambda: 100, baseline=lambda: 100, max_runs=5)
        """
    )
    done = run(pytester)
    done.assert_outcomes(passed=1)
    done.stdout.re_match_lines([r".*::test_it +UNCLEAR .* 2 x 5  4,121 %"])


def test_functions_are_recorded(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from pyinstrument_gpu import gpu_phase, gpu_steps

        calls = []

        def loop():
            for _ in gpu_steps(range(12)):
                with gpu_phase("forward"):
                    sum(range(1000))

        def step():
            calls.append("step")

        def test_loop(training_benchmark):
            options = dict(runs=3, max_runs=3, fail_if_slower=1e6)
            result = training_benchmark(loop, baseline=loop, **options)
            assert result.sides == ("loop", "loop")
            assert "forward" in {phase.path for phase in result.comparison.phases}
            training_benchmark(loop, baseline=loop, **options)

        def test_step(training_benchmark):
            training_benchmark(
                step, baseline=step, steps=9, runs=3, max_runs=3, fail_if_slower=1e6
            )
            assert len(calls) == 2 + 2 * 3 * 9
        """
    )
    done = run(pytester, "--basetemp=kept", "-p", "xdist", "-n1")
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines(["*::test_loop *2 x 3 *", "*::test_loop *2 x 3 *"])
    kept = sorted(pytester.path.glob("kept/**/*.gpurun"))
    assert len(kept) == 3 * 6
    counts = {Run.load(path).step_totals.count for path in kept}
    assert counts == {9, 12}


def test_commands_and_wrong_usage(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        train="""
        import sys
        from pyinstrument_gpu import gpu_steps
        for _ in gpu_steps(range(int(sys.argv[1]))):
            pass
        """,
        test_it="""
        import pathlib, pytest, sys
        from pyinstrument_gpu import GateError

        def test_command(training_benchmark):
            with pytest.raises(GateError, match="steps and .*-01"):
                training_benchmark(
                    [sys.executable, "train.py", "12"], baseline=f"{sys.executable} train.py 11"
                )

        def test_wrong(training_benchmark):
            with pytest.raises(TypeError, match="two functions, or two commands"):
                training_benchmark(lambda: 1, baseline="python old.py")
            with pytest.raises(TypeError, match="`steps` is for functions"):
                training_benchmark("train.py", baseline="old.py", steps=3)
            with pytest.raises(GateError, match="there is no directory"):
                training_benchmark("train.py", baseline=pathlib.Path("nowhere"))
            with pytest.raises(GateError, match="there is no directory nowhere"):
                training_benchmark("train.py", baseline="nowhere")
            with pytest.raises(ValueError, match="at least 3 runs of each side, got 2"):
                training_benchmark("train.py", baseline=".", runs=2)
            with pytest.raises(GateError, match="had no step.* needs `steps`"):
                training_benchmark(lambda: 1, baseline=lambda: 1)
        """,
    )
    run(pytester, "test_it.py").assert_outcomes(passed=2)


def test_skipped(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(
        """
        def test_it(training_benchmark):
            training_benchmark(lambda: 1, baseline=lambda: 1)
        """
    )
    run(pytester, "--training-benchmark-skip").assert_outcomes(skipped=1)
    monkeypatch.setattr(native, "DISABLED", True)
    run(pytester).assert_outcomes(skipped=1)


def test_installed_package_costs_a_suite_nothing_that_does_not_use_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As an installer leaves it, with all files in its record.
    site = pytester.mkdir("site")
    shutil.copy(ROOT / f"{NAME}.py", site)
    (site / "pyinstrument_gpu").symlink_to(ROOT / "pyinstrument_gpu")
    metadata = site / "pyinstrument_gpu-9.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: pyinstrument-gpu\nVersion: 9\n"
    )
    (metadata / "entry_points.txt").write_text(f"[pytest11]\n{NAME} = {NAME}\n")
    files = [f"{NAME}.py", "pyinstrument_gpu/__init__.py", "pyinstrument_gpu/core/run.py"]
    (metadata / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    others = ("randomly", "benchmark", "xdist", "xdist.looponfail", "hypothesispytest", "anyio")
    monkeypatch.setenv("PYTEST_ADDOPTS", " ".join(f"-p no:{name}" for name in others))
    pytester.makepyfile(
        f"""
        import sys

        def test_it(pytestconfig):
            assert pytestconfig.pluginmanager.hasplugin("{NAME}")
            assert ("pyinstrument_gpu" in sys.modules) is ("PLAIN" not in __import__("os").environ)
        """
    )
    monkeypatch.setenv("PLAIN", "1")
    done = pytester.runpytest_subprocess("-W", "error")
    done.assert_outcomes(passed=1)
    assert "training benchmarks" not in done.stdout.str()
    monkeypatch.delenv("PLAIN")
    # Under `run` the package is there before pytest, which wants to rewrite it.
    launch = ("-m", "pyinstrument_gpu", "run", "-o", "suite.gpurun", "-m", "pytest", "-W", "error")
    pytester.run(sys.executable, *launch).assert_outcomes(passed=1)


def test_help_has_the_options(pytester: pytest.Pytester) -> None:
    text = run(pytester, "--help").stdout.str()
    assert re.search(r"--training-benchmark-max-runs=N\n? +run each side up to N times", text)
