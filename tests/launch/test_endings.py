# SPDX-License-Identifier: Apache-2.0
"""Programs that leave little of a process behind: the report comes, and they end as without us."""

import re
import textwrap
from pathlib import Path

import pytest

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.report.document import document_of
from tests.helpers.launched import errors_of, launched, plain, write

A_PHASE = """\
import pyinstrument_gpu
with pyinstrument_gpu.gpu_phase("work"):
    pass
"""
"""Without one, a line takes the place of the report."""
ENDINGS = {
    "deleted directory": """
        import os, shutil, tempfile
        folder = tempfile.mkdtemp()
        os.chdir(folder)
        shutil.rmtree(folder)
        """,
    "recursion limit": "import sys; sys.setrecursionlimit(40)",
    "no free descriptor": """
        import os, resource
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        try:
            while True:
                os.dup(0)
        except OSError as error:
            print(error)
        """,
    "descriptors forbidden": """
        import resource
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )
        """,
    "no path": "import sys; sys.path.clear()",
    "another path": "import sys; sys.path[:] = ['/nowhere']; sys.path_importer_cache.clear()",
    "path that is none": "import sys; sys.path = None",
    "modules replaced": """
        import sys
        for name in ("rich", "numpy", "json", "datetime", "textwrap"):
            sys.modules[name] = object()
        sys.modules["shlex"] = None
        """,
    "modules removed": """
        import json, sys
        for name in set(sys.modules) - {"sys", "builtins", "__main__"}:
            del sys.modules[name]
        """,
    "numpy removed, which can't be loaded twice": """
        import numpy, sys
        for name in list(sys.modules):
            if name.partition(".")[0] == "numpy":
                del sys.modules[name]
        """,
    "import of the report that warns": """
        import sys, warnings
        class Finder:
            def find_spec(self, name, path, target=None):
                if name == "pyinstrument_gpu.report.overview":
                    warnings.warn(name)
        sys.meta_path.insert(0, Finder())
        """,
    "locale": """
        import locale
        locale.setlocale(locale.LC_ALL, "C")
        """,
    "empty environment": "import os; os.environ.clear()",
    "daemon thread that waits for data": """
        import collections, os, sys, threading
        from torch.utils.data import DataLoader

        class Batch(collections.UserDict):
            def values(self):
                waiting.set()
                os.read(reader, 1)
                return super().values()

        reader, writer = os.pipe()
        waiting = threading.Event()
        loader = DataLoader(range(1), collate_fn=lambda items: Batch(x=items))
        thread = threading.Thread(target=lambda: list(loader), daemon=True)
        thread.start()
        waiting.wait(20)

        class Last:  # goes when the modules have gone
            def __del__(
                self, write=os.write, exists=os.access, to=writer,
                task=f"/proc/self/task/{thread.native_id}",
            ):
                write(to, b"x")
                while exists(task, 0):
                    pass

        sys.last = Last()
        """,
    "standard output closed": "import sys; sys.stdout.close()",
    "daemon thread": """
        import threading
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        """,
    "thread": """
        import threading
        def work():
            threading.main_thread().join()
            print("after the main thread")
        threading.Thread(target=work).start()
        """,
    "exit function that fails": """
        import atexit
        atexit.register(int, "no number")
        """,
}


# The one that ends once its thread has ended waits for the scheduler, which may take minutes.
SLOW = "daemon thread that waits for data"
# Further samples of what is missing or in the way as the report is made.
THOROUGH = (
    *("deleted directory", "recursion limit", "another path", "path that is none"),
    *("import of the report that warns", "locale", "empty environment"),
)


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param(
            name,
            marks=[pytest.mark.slow] * (name == SLOW) + [pytest.mark.thorough] * (name in THOROUGH),
        )
        for name in ENDINGS
    ],
)
def test_report_comes_and_the_exit_code_is_the_programs(tmp_path: Path, ending: str) -> None:
    write(tmp_path, "end.py", A_PHASE + textwrap.dedent(ENDINGS[ending]))
    with (tmp_path / "end.py").open("a") as file:
        file.write("\nraise SystemExit('said')\n")
    # What has been imported makes a difference to the endings that concern modules.
    is_of_modules = re.search("module|path|warns|removed", ending)
    # A fork of a server with torch does not end as torch's own process: its modules stay.
    imported = "nothing" if is_of_modules or "torch" in ENDINGS[ending] else "libraries"
    without, with_us = (way(tmp_path, "end.py", imported=imported) for way in (plain, launched))
    assert (with_us.returncode, with_us.stdout) == (1, without.stdout)
    assert errors_of(with_us) == without.stderr
    assert "said" in without.stderr
    assert "0 steps in" in with_us.stderr
    assert f"Run file: {tmp_path / 'run.gpurun'}" in with_us.stderr
    assert Run.load(tmp_path / "run.gpurun").complete


def test_page_that_the_program_keeps_from_being_written_is_said(tmp_path: Path) -> None:
    write(tmp_path, "end.py", A_PHASE + "import sys; sys.modules['jinja2'] = object()")
    done = launched(tmp_path, "--html", "end.py")
    assert "0 steps in" in done.stderr
    assert "no page was written: AttributeError" in done.stderr
    assert not (tmp_path / "run.html").exists()


def test_without_a_report_the_program_has_the_last_word(tmp_path: Path) -> None:
    source = """
        from pyinstrument_gpu import gpu_steps
        for _ in gpu_steps(range(3)):
            pass
        raise ValueError("its own")
        """
    write(tmp_path, "end.py", source)
    without, with_us = plain(tmp_path, "end.py"), launched(tmp_path, "--no-report", "end.py")
    assert (with_us.returncode, with_us.stderr) == (1, without.stderr)
    assert Run.load(tmp_path / "run.gpurun").step_totals.count == 3
    write(tmp_path, "end.py", "pass")
    assert launched(tmp_path, "end.py").stderr.startswith("\npyinstrument-gpu: no steps: ")
    assert launched(tmp_path, "--no-report", "end.py").stderr == ""


def test_report_that_no_process_can_write_names_the_run_file(tmp_path: Path) -> None:
    write(
        tmp_path,
        "end.py",
        """
        import resource, sys
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
        sys.exit(5)
        """,
    )
    without, with_us = plain(tmp_path, "end.py"), launched(tmp_path, "end.py")
    assert with_us.returncode == without.returncode == 5
    assert "the report failed: " in with_us.stderr
    assert f"Run file: {tmp_path / 'run.gpurun'}" in with_us.stderr
    assert Run.load(tmp_path / "run.gpurun").complete


def no_steps(folder: Path) -> str:
    done = launched(folder, "main.py")
    (found,) = re.findall(r"^pyinstrument-gpu: no steps: (.*)\. Run file: ", done.stderr, re.M)
    # With a report, that is its verdict.
    verdict = document_of(Run.load(folder / "run.gpurun")).verdict
    assert verdict == f"No step ended: {found}."
    return str(found)


def test_program_without_steps_is_told_what_was_seen(tmp_path: Path) -> None:
    write(tmp_path, "main.py", "")
    assert no_steps(tmp_path) == "this process did not import torch"


def test_program_that_works_in_its_children_is_told_so(tmp_path: Path) -> None:
    write(
        tmp_path,
        "main.py",
        """
        import subprocess, sys
        work = "import time\\nwhile time.process_time() < 0.2: pass"
        subprocess.run([sys.executable, "-c", work])
        """,
    )
    assert re.fullmatch(
        r"this process did not import torch; "
        r"its child processes, which are not recorded, used [0-9.]+ s of CPU time",
        no_steps(tmp_path),
    )


def test_module_whose_package_knows_of_processes_ends_as_others_do(tmp_path: Path) -> None:
    """multiprocessing is there before the recording begins, and has an end of its own."""
    write(tmp_path, "package/__init__.py", "import multiprocessing.util")
    write(tmp_path, "package/train.py", "import sys; sys.exit(5)")
    assert launched(tmp_path, "--no-report", "-m", "package.train").returncode == 5
    environment = Run.load(tmp_path / "run.gpurun").environment
    assert environment["program_end"]["exit_code"] == 5
