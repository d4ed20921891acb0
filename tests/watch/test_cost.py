# SPDX-License-Identifier: Apache-2.0
"""What a viewer costs the process that trains: no system call."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pyinstrument_gpu

ROOT = Path(pyinstrument_gpu.__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
STRACE = ["strace", "-f", "-s", "64", "-o"]
# A call counts where it begins: strace writes a second line, "<... write resumed>", where another
# thread's call came between.
CALL = re.compile(r"^(\d+) +(\w+)(.*)$", re.MULTILINE)

# Its locks, its memory, and its clock on a machine where reading that takes a call.
OF_THE_INTERPRETER = {"futex", "getpid", "brk", "mmap", "munmap", "madvise", "clock_gettime"}

PROGRAM = """
import os, sys
import pyinstrument_gpu as pig
with pig.record(sys.argv[1], memory=False):
    for _ in range(1000):
        with pig.gpu_step(), pig.gpu_phase("forward"):
            pass
    os.write(1, b"it waits\\n")
    os.read(0, 1)
    os.write(1, b"it goes on\\n")
"""


def can_trace() -> bool:
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not can_trace(), reason="there is no strace, or it may not trace")
def test_a_viewer_costs_the_training_no_system_call(tmp_path: Path) -> None:
    path, program_log, viewer_log = (tmp_path / name for name in ("a.gpurun", "program", "viewer"))
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [*STRACE, str(program_log), sys.executable, "-c", PROGRAM, str(path)]
    # Outside of a repository, about which git would be asked.
    with subprocess.Popen(command, env=ENVIRONMENT, cwd=tmp_path, **pipes) as program:
        assert program.stdin is not None and program.stdout is not None
        assert program.stdout.readline() == b"it waits\n"
        watch = [sys.executable, "-m", "pyinstrument_gpu", "watch", "--json", str(path)]
        viewers = [
            subprocess.Popen([*before, *watch], env=ENVIRONMENT, stdout=subprocess.PIPE)
            for before in ([*STRACE, str(viewer_log)], [])
        ]
        for viewer in viewers:
            assert viewer.stdout is not None
            for _ in range(2):
                (run,) = json.loads(viewer.stdout.readline())["runs"]
                assert run["steps"]["count"] == 1000
        program.communicate(b"x")
        assert program.returncode == 0
        for viewer in viewers:  # they end with the run
            viewer.communicate()
            assert viewer.returncode == 0

    # While it was watched, the thread that trains made the one call that it waited in, beside those
    # of the interpreter, and the recorder those two on its file that it makes in any case.
    log = program_log.read_text()
    descriptor = re.search(r"fcntl\(\d+, F_DUPFD_CLOEXEC, \d+\) += (\d+)", log)
    assert descriptor is not None
    watched = log[log.index('"it waits') : log.index('"it goes on')]
    calls = CALL.findall(watched[watched.index("\n") : watched.rindex("\n")])
    thread = re.findall(r"^(\d+) ", log, re.MULTILINE)[0]
    of_thread = {name for number, name, _ in calls if number == thread}
    assert of_thread - OF_THE_INTERPRETER == {"read"}
    on_file = {name for _, name, rest in calls if rest.startswith(f"({descriptor[1]},")}
    assert on_file - {"fstat", "newfstatat", "statx"} == {"pwrite64"}

    # And a viewer only reads: it has opened no file to write, and has locked or signalled nothing.
    opened = [rest for _, name, rest in CALL.findall(viewer_log.read_text()) if name == "openat"]
    of_run = [rest for rest in opened if path.name in rest]
    assert of_run and all("O_RDONLY" in rest for rest in of_run)
    assert not [rest for rest in opened if re.search("O_WRONLY|O_RDWR|O_CREAT", rest)]
    names = {name for _, name, _ in CALL.findall(viewer_log.read_text())}
    assert not names & {"flock", "kill", "tgkill", "ptrace", "inotify_add_watch", "pwrite64"}
