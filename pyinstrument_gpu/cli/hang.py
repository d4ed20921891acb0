# SPDX-License-Identifier: Apache-2.0
"""The program that the watchdog starts when nothing happens: `why`, in a process of its own.

It leaves its text beside the runs, and calls what the user has named with its JSON. Of the ranks
that hang, the lowest does that for all, as far as the files say which these are. Nobody waits for
it, and it ends after five minutes whatever it does.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import closing, suppress
from pathlib import Path

from pyinstrument_gpu.atomic_file import atomic_write
from pyinstrument_gpu.recording.hang_program import is_url
from pyinstrument_gpu.recording.secrets import masked_call

MOST_S = 300
GATHER_S = 10.0
"""Until then the watchdogs of other ranks have noticed, too, and written down what they saw."""
_CALL_S = 60.0
_MOST_RANKS = 100_000
"""Of those that are asked. How many there are is a number in a file."""


def text_beside(file: Path) -> Path:
    """Return the path for the text of `why`: "job.why.txt" for "job.rank3.gpurun"."""
    stem = re.sub(r"[._-]?rank[-_=.]?\d+", "", file.stem, flags=re.IGNORECASE)
    return file.with_name(f"{stem or file.stem}.why.txt")


def look_into(file: Path, call: str | None) -> None:
    """Say why the job of a run hangs, unless it goes on, or another rank does."""
    from pyinstrument_gpu.cli.why import look
    from pyinstrument_gpu.core.run import Run
    from pyinstrument_gpu.job.ending_report import ending_report, job_ending
    from pyinstrument_gpu.report.json_text import json_text
    from pyinstrument_gpu.watch.run_files import run_files_beside

    rank = Run.load(file).environment.get("rank", 0)
    lower = (_of_rank(file, rank, other) for other in range(min(rank, _MOST_RANKS)))
    if not _hangs(file) or any(map(_hangs, lower)):
        return
    job, observations = look([str(path) for path in run_files_beside(file)])
    document = job_ending(job, observations)
    text = ending_report(document, width=120, color=False)
    beside = text_beside(file)
    _write(beside, text)
    if call is None:
        return
    try:
        _call(call, json_text(document, most_rows=None))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        if isinstance(error, (subprocess.CalledProcessError, subprocess.TimeoutExpired)):
            error.cmd = masked_call(call)
        _write(beside, f"{text}\n\n{masked_call(call)} failed: {error}")


def _hangs(file: Path) -> bool:
    """Return whether the watchdog of a run has seen that nothing happens, and nothing has since."""
    from pyinstrument_gpu.core.file.follower import RunFollower
    from pyinstrument_gpu.core.run import Run
    from pyinstrument_gpu.errors import RunFileError

    with suppress(OSError, RunFileError), closing(RunFollower(file)) as follower:
        stalls = Run.from_blocks(follower.look(most_blocks=1)).stalls
        return bool(stalls) and stalls[-1].ended_ns is None
    return False


def _of_rank(file: Path, rank: int, other: int) -> Path:
    name = re.sub(rf"(rank[-_=.]?)0*{rank}(?!\d)", rf"\g<1>{other}", file.name, flags=re.IGNORECASE)
    return file.with_name(name)


def _write(path: Path, text: str) -> None:
    with atomic_write(path, follow_links=False) as file:
        file.write(f"{text}\n".encode())


def _call(call: str, document: str) -> None:
    """Give the JSON to a program, or to a URL.

    Raises:
        OSError, ValueError, subprocess.SubprocessError: it failed.
    """
    if is_url(call):
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(call, document.encode(), headers, method="POST")
        with urllib.request.urlopen(request, timeout=_CALL_S):
            return
    subprocess.run(
        shlex.split(call),
        input=document.encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_CALL_S,
        check=True,
    )


def main() -> None:
    if os.fork():
        os._exit(0)  # who started us waits no longer
    os.setsid()
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # connections of the program end with it
    signal.alarm(MOST_S)
    time.sleep(GATHER_S)
    file, *call = sys.argv[1:]
    try:
        look_into(Path(file), call[0] if call else None)
    except Exception as error:  # nobody else would see it
        _write(text_beside(Path(file)), f"why failed: {error!r}")
