# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu run`: a program runs as it does without, here without torch.

Each program runs twice, by `python` and by `pyinstrument-gpu run`; all that can be seen of the two
from outside must be equal.
"""

import re
import signal
import textwrap
from pathlib import Path

import pytest

from pyinstrument_gpu.core.file import MAGIC
from pyinstrument_gpu.core.run import Run
from tests.helpers.launched import (
    check_same,
    errors_of,
    launched,
    plain,
    python,
    write,
)

SHOW = """
    import os, sys
    main = sys.modules["__main__"]
    assert vars(main) is globals()
    print(sys.argv, __name__, __file__, __package__, __doc__, sys.path[:2], os.getcwd())
    print(__spec__ and (__spec__.name, __spec__.origin), type(__loader__).__name__)
    print(sorted(set(vars(main)) - {"__warningregistry__"}))
"""


def test_script_sees_what_it_sees_without(tmp_path: Path) -> None:
    write(tmp_path, "show.py", SHOW)
    arguments = ("--epochs", "3", "-o", "x", "--", "--help", "-m")
    done = check_same(tmp_path, "show.py", *arguments, imported="nothing")
    assert "['show.py', '--epochs', '3', '-o', 'x', '--', '--help', '-m'] __main__" in done.stdout


def test_script_by_another_path(tmp_path: Path) -> None:
    write(tmp_path, "inner/show.py", SHOW + "    import beside\n")
    write(tmp_path, "inner/beside.py", "print('found')")
    (tmp_path / "link.py").symlink_to("inner/show.py")
    paths = ("inner/show.py", "inner/../inner/show.py", "link.py")
    for path in (*paths, str(tmp_path / "inner" / "show.py")):
        assert "found" in check_same(tmp_path, path, "x").stdout


def test_module_and_package(tmp_path: Path) -> None:
    write(tmp_path, "package/__init__.py", "print('package')")
    write(tmp_path, "package/__main__.py", SHOW + "    from . import other")
    write(
        tmp_path, "package/other.py", SHOW.replace('main = sys.modules["__main__"]', "return_ = 0")
    )
    write(tmp_path, "single.py", SHOW)
    for name in ("single", "package"):
        without = plain(tmp_path, "-m", name, "--lr", "1")
        with_us = launched(tmp_path, "-m", name, "--lr", "1")
        assert with_us.stdout.splitlines()[:2] == without.stdout.splitlines()[:2]
    write(tmp_path, "package/__main__.py", SHOW)
    check_same(tmp_path, "-m", "package", "--lr", "1")
    check_same(tmp_path, "-m", "single")


def test_folder_with_a_main(tmp_path: Path) -> None:
    write(tmp_path, "app/__main__.py", "import sys, beside; print(sys.argv, sys.path[0])")
    write(tmp_path, "app/beside.py", "print('found')")
    assert "found" in check_same(tmp_path, "app", "1").stdout


@pytest.mark.parametrize(
    "arguments, exit_code",
    [
        (("none.py",), 2),
        (("inner/../none.py", "-v"), 2),
        (("empty",), 1),
        (("-m", "no_such_module"), 1),
        (("-m", "package.no_such_module"), 1),
        (("-m", "package"), 1),
        (("-m", "broken"), 1),
        (("broken.py",), 1),
    ],
)
def test_program_that_cannot_be_loaded_leaves_no_file(
    tmp_path: Path, arguments: tuple[str, ...], exit_code: int
) -> None:
    write(tmp_path, "package/__init__.py", "print('package')")
    write(tmp_path, "broken.py", "this is no python")
    (tmp_path / "empty").mkdir()
    (tmp_path / "run.gpurun").write_bytes(MAGIC)
    without, with_us = plain(tmp_path, *arguments), launched(tmp_path, *arguments)
    assert (with_us.returncode, without.returncode) == (exit_code, exit_code)
    assert with_us.stdout == without.stdout
    if arguments == ("-m", "broken"):  # under python the traceback has more frames of runpy
        assert with_us.stderr.splitlines()[-4:] == without.stderr.splitlines()[-4:]
    else:
        assert with_us.stderr == without.stderr
    assert (tmp_path / "run.gpurun").read_bytes() == MAGIC
    assert python(tmp_path, "-m", "pyinstrument_gpu", "run", *arguments).returncode == exit_code
    assert not list(tmp_path.glob("*-*.gpurun"))


def test_package_that_fails_as_it_is_imported(tmp_path: Path) -> None:
    write(tmp_path, "package/__init__.py", "import no_such_module")
    write(tmp_path, "package/train.py", "")
    without, with_us = (way(tmp_path, "-m", "package.train") for way in (plain, launched))
    assert (with_us.returncode, with_us.stdout) == (1, "")
    assert with_us.stderr.splitlines()[-1] == without.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "source",
    [
        "import sys; sys.exit(7)",
        "import sys; sys.exit('a message')",
        "import sys; sys.exit(None)",
        "import sys; sys.exit(True)",
        "raise SystemExit",
        "import os; os._exit(5)",
        "def f():\n    raise ValueError('a\\nb')\nf()",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError(1) from e",
        "raise KeyboardInterrupt",
        "raise EOFError",
        "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\n1 / 0",
        "import sys\nsys.excepthook = None\n1 / 0",
        "import sys\ndef hook(*a):\n    raise KeyError('hook')\nsys.excepthook = hook\n1 / 0",
        "import sys\nsys.excepthook = lambda *a: sys.exit(9)\n1 / 0",
        "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    ],
)
def test_end_of_the_program(tmp_path: Path, source: str) -> None:
    write(tmp_path, "end.py", source)
    # One that is interrupted dies of the signal, at the very end of its process.
    imported = "nothing" if source == "raise KeyboardInterrupt" else "libraries"
    without, with_us = plain(tmp_path, "end.py"), launched(tmp_path, "end.py", imported=imported)
    assert with_us.returncode == without.returncode
    assert (with_us.returncode == -signal.SIGINT) is ("Interrupt" in source or "SIGINT" in source)
    assert with_us.stdout == without.stdout
    assert errors_of(with_us) == without.stderr
    reported = "_exit" not in source and "SIGTERM" not in source
    assert ("Run file: " in with_us.stderr) is reported
    assert Run.load(tmp_path / "run.gpurun").complete is reported


def test_standard_input(tmp_path: Path) -> None:
    write(tmp_path, "echo.py", "import sys; print(input(), sys.stdin.read())")
    assert check_same(tmp_path, "echo.py", stdin="1\n2\n3").stdout == "1 2\n3\n"


def test_standard_output_is_not_changed(tmp_path: Path) -> None:
    write(tmp_path, "encode.py", "import sys; print(sys.stdout.errors); print('\\u20ac')")
    done = check_same(tmp_path, "encode.py", environment={"PYTHONIOENCODING": "ascii"})
    assert "UnicodeEncodeError" in done.stderr


def test_atexit_comes_in_the_same_order_and_before_the_report(tmp_path: Path) -> None:
    write(
        tmp_path,
        "last.py",
        """
        import atexit, sys, threading
        import pyinstrument_gpu as pig
        def last():
            with pig.gpu_phase("at exit"):
                print("last", file=sys.stderr)
        atexit.register(last)
        atexit.register(lambda: print("first", file=sys.stderr))
        def wait():
            threading.main_thread().join()
            print("thread", file=sys.stderr)
        threading.Thread(target=wait).start()
        raise RuntimeError
        """,
    )
    check_same(tmp_path, "last.py")
    assert Run.load(tmp_path / "run.gpurun").phases["at exit"].count == 1


def test_program_with_a_command_line_of_its_own_by_click(tmp_path: Path) -> None:
    write(
        tmp_path,
        "command.py",
        """
        import click
        print(click.get_current_context(silent=True))
        @click.command()
        @click.option("--fail", is_flag=True)
        def main(fail):
            if fail:
                raise click.ClickException("no")
            raise KeyboardInterrupt
        main()
        """,
    )
    check_same(tmp_path, "command.py")
    check_same(tmp_path, "command.py", "--fail")
    check_same(tmp_path, "command.py", "--help")


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_multiprocessing(tmp_path: Path, method: str) -> None:
    write(
        tmp_path,
        "parallel.py",
        """
        import multiprocessing, sys
        print("imported as", __name__, flush=True)
        class Task:
            def __call__(self, x):
                print("child of", __name__, sys.argv, flush=True)
                return x * x
        if __name__ == "__main__":
            context = multiprocessing.get_context(sys.argv[1])
            with context.Pool(1) as pool:
                print(pool.map(Task(), [1, 2]), flush=True)
            process = context.Process(target=Task(), args=(3,))
            process.start()
            process.join()
            sys.exit(process.exitcode + 4)
        """,
    )
    without, with_us = (way(tmp_path, "parallel.py", method) for way in (plain, launched))
    assert with_us.stdout == without.stdout
    assert (with_us.returncode, without.returncode) == (4, 4)
    assert with_us.stderr.count("Run file: ") == 1


def test_program_imports_neither_numpy_nor_torch_because_of_us(tmp_path: Path) -> None:
    write(tmp_path, "show.py", "import sys; print(*({'numpy', 'torch'} & set(sys.modules)))")
    assert check_same(tmp_path, "show.py", imported="nothing").stdout == "\n"


def test_default_run_file_is_always_a_new_one(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "")
    for count in (1, 2, 3):
        done = python(tmp_path, "-m", "pyinstrument_gpu", "run", "train.py")
        files = sorted(tmp_path.glob("train-*.gpurun"))
        assert len(files) == count
        named = re.search(r"Run file: (.*)$", done.stderr, re.M)
        assert named is not None and Path(named[1]) in files
        assert Run.load(named[1]).environment["command"][-1] == "train.py"


def test_run_file_that_exists_is_an_error_before_the_program(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "print('ran')")
    command = ("-m", "pyinstrument_gpu", "run", "-o", "run.gpurun")
    assert python(tmp_path, *command, "train.py").returncode == 0
    for options in ((), ("--warmup", "3")):
        done = python(tmp_path, *command, *options, "train.py")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.count("\n") == 1
        assert "already exists: choose another path or pass --overwrite" in done.stderr
    assert python(tmp_path, *command, "--overwrite", "train.py").returncode == 0


@pytest.mark.parametrize("options", [("-o", "job.gpurun"), ()], ids=["named", "default"])
def test_each_attempt_of_a_restarted_job_has_its_own_file(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    write(tmp_path, "train.py", "import os; os._exit(0)")
    for restarts in range(2):
        done = python(
            tmp_path,
            *("-m", "pyinstrument_gpu", "run", *options, "train.py"),
            environment={"TORCHELASTIC_RESTART_COUNT": str(restarts)},
        )
        assert (done.returncode, done.stderr) == (0, "")
    first, second = sorted(tmp_path.glob("*.gpurun"))
    if options:
        assert (first.name, second.name) == ("job.gpurun", "job.restart1.gpurun")
    assert second.name.endswith(".restart1.gpurun")
    assert [Run.load(one).environment["restarts"] for one in (first, second)] == [0, 1]


def test_switched_off_by_the_environment(tmp_path: Path) -> None:
    write(tmp_path, "show.py", SHOW)
    off = {"PYINSTRUMENT_GPU": "off"}
    without = plain(tmp_path, "show.py", environment=off)
    with_us = launched(tmp_path, "show.py", environment=off)
    assert (with_us.stdout, with_us.stderr) == (without.stdout, "")
    assert not (tmp_path / "run.gpurun").exists()


def test_a_file_that_is_the_programs_or_may_say_something_is_kept(tmp_path: Path) -> None:
    body = textwrap.indent(textwrap.dedent(OWN), "    ")
    same = "import pyinstrument_gpu as pig\nwith pig.record('run.gpurun', overwrite=True):\n" + body
    write(tmp_path, "same.py", same)
    launched(tmp_path, "same.py")
    assert Run.load(tmp_path / "run.gpurun").step_totals.count == 5
    (tmp_path / "run.gpurun").unlink()
    failing = "import pyinstrument_gpu as pig\npig.record('nosuch/own.gpurun').__enter__()\n"
    write(tmp_path, "failing.py", failing)
    assert launched(tmp_path, "failing.py").returncode == 1
    assert Run.load(tmp_path / "run.gpurun").step_totals.count == 0


def test_the_files_of_ranks_stay_whatever_they_hold(tmp_path: Path) -> None:
    write(tmp_path, "own.py", "import pyinstrument_gpu as pig\nwith pig.record():\n    pass\n")
    for rank in ("0", "1"):
        here = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"}
        launched(tmp_path, "own.py", environment=here)
        assert (tmp_path / f"run.rank{rank}.gpurun").exists()


OWN = """
    import pyinstrument_gpu as pig
    for batch in pig.gpu_steps(range(5)):
        with pig.gpu_phase("work"):
            pass
"""


def test_program_with_its_own_phases_and_steps(tmp_path: Path) -> None:
    write(tmp_path, "own.py", OWN)
    check_same(tmp_path, "own.py")
    run = Run.load(tmp_path / "run.gpurun")
    assert run.step_totals.count == 5
    assert {path: phase.count for path, phase in run.phases.items()} == {"data": 5, "work": 5}


def test_program_with_its_own_recording_keeps_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        "own.py",
        "import pyinstrument_gpu as pig\n"
        "with pig.record('own.gpurun', overwrite=True) as recording:\n"
        + textwrap.indent(textwrap.dedent(OWN), "    ")
        + "print(recording.run.step_totals.count, list(recording.run.phases))\n",
    )
    without, with_us = plain(tmp_path, "own.py"), launched(tmp_path, "own.py")
    assert with_us.stdout == without.stdout == "5 ['data', 'work']\n"
    # Of the empty recording nothing else is said.
    assert with_us.stderr.strip() == (
        "pyinstrument-gpu: the program started a recording of its own, so this one ended there\n"
        f"pyinstrument-gpu: {tmp_path}/run.gpurun was empty, and is removed"
    )
    assert Run.load(tmp_path / "own.gpurun").step_totals.count == 5
    assert not (tmp_path / "run.gpurun").exists()


def test_the_end_says_how_to_look_at_the_run(tmp_path: Path) -> None:
    write(tmp_path, "train.py", OWN)
    done = python(tmp_path, "-m", "pyinstrument_gpu", "run", "-o", "runs/a b.gpurun", "train.py")
    path = tmp_path / "runs" / "a b.gpurun"
    report, end = done.stderr.split("\n\nRun file: ")
    assert " ".join(report.split()).endswith(f" report -v '{path}', or --html for a page")
    assert end == f"{path}\n"


def test_of_several_ranks_the_job_comes_first(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "")
    here = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    done = launched(tmp_path, "train.py", environment=here)
    texts = ["1 of 2 ranks", "Rank 0 by itself", "No step ended", "Run file: "]
    places = [done.stderr.find(text) for text in texts]
    assert -1 not in places and places == sorted(places), done.stderr
    assert done.stderr.count("1 of 2 ranks") == 1


def test_recursion_goes_as_deep_as_without(tmp_path: Path) -> None:
    source = """
        import sys

        def depth(n):
            try:
                return depth(n + 1)
            except RecursionError:
                return n

        print(depth(1))
        sys.setrecursionlimit(700)
    """
    write(tmp_path, "deep.py", source)
    assert 900 < int(check_same(tmp_path, "deep.py", imported="nothing").stdout) < 1000


def test_quiet_is_quiet(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "")
    for option in ("-q", "--quiet", "--no-report"):
        done = launched(tmp_path, option, "train.py")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not Run.load(tmp_path / "run.gpurun").step_totals.count


def test_page_of_the_run(tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="jinja2 is not installed")
    write(tmp_path, "train.py", "import os; os.mkdir('else'); os.chdir('else')")
    command = ("-m", "pyinstrument_gpu", "run", "--html", "--no-report", "-o", "run.gpurun")
    done = python(tmp_path, *command, "train.py")
    page = tmp_path / "run.html"
    assert done.stderr.startswith(f"\n\nRun file: {tmp_path / 'run.gpurun'}\nPage: {page}\n")
    assert "No step ended" in page.read_text("utf-8")


def test_where_no_page_can_be_written_the_run_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="jinja2 is not installed")
    write(tmp_path, "train.py", "")
    (tmp_path / "run.html").write_text("mine")
    command = ("-m", "pyinstrument_gpu", "run", "--html", "-o", "run.gpurun")
    done = python(tmp_path, *command, "train.py")
    assert done.returncode == 0
    assert "no page was written" in done.stderr
    assert (tmp_path / "run.html").read_text() == "mine"
    assert Run.load(tmp_path / "run.gpurun").complete


def test_options_behind_the_program_are_named_where_it_refuses_them(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "import sys; sys.exit(int(sys.argv[2]))")
    hint = "if --modules was meant for `run`, write it before the program"
    for code, is_told in (("2", True), ("1", False), ("0", False)):
        for option in ("--modules", "--modules=all", "--mine"):
            done = launched(tmp_path, "train.py", option, code)
            assert done.returncode == int(code)
            assert (hint in done.stderr) is (is_told and option != "--mine")
