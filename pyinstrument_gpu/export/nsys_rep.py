# SPDX-License-Identifier: Apache-2.0
"""A report that the window of Nsight Systems opens, made by its own ImportNvtxt.

docs/exporters/viewers.md says why x.nvtxt and x.sqlite stand beside x.nsys-rep. The database is
made last: `nsys stats` takes none that is older than the report. All is made in a folder of its own
and then moved to its place: an open window locks its report, and writing over that would empty it.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import ExportError, MissingDependencyError
from pyinstrument_gpu.export import nsys_sqlite, nvtxt
from pyinstrument_gpu.export.atomic_file import check_replaceable
from pyinstrument_gpu.export.nsight_process import NsightProcess, processes_of

OPTIONS = {
    "merge_into": ("merge into an existing Nsight Systems report (OUT is a new one)", "REPORT")
}

# The window of 2022.4 crashes on every report that ImportNvtxt has created, but not on one that it
# has merged into another. That of 2023.4 shows both.
_SHOWS_CREATED_REPORTS = (2023,)

_PRINTED_CHARACTERS = 500

_PLACES = (
    "/usr/lib/nsight-systems/host-linux-x64",  # Debian
    "/opt/nvidia/nsight-systems/*/host-linux-x64",
    "/usr/local/cuda*/nsight-systems-*/host-linux-x64",
)

_PROFILE_NOTHING = ("--trace=none", "--sample=none", "--cpuctxsw=none")

# nsys keeps the environment of every process that it may look at, secrets and all. Where the
# system lets us, it sees none but its own.
_ISOLATIONS = (("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"), ())


def write(
    runs: Sequence[Run],
    path: Path,
    *,
    advance: Callable[[int], None],
    merge_into: str | os.PathLike[str] | None = None,
) -> None:
    """Write runs as a report of Nsight Systems.

    Writes x.nvtxt and x.sqlite beside it; with `merge_into` no x.sqlite, because the other report's
    events would be missing in it.

    Args:
        path: the report, x.nsys-rep. A link stays a link: all is written where it leads.
        merge_into: a report of `nsys profile` of the same time; ours holds its events too.

    Raises:
        MissingDependencyError: Nsight Systems is not installed. Without `merge_into` x.nvtxt was
            written; the message has the command that makes the report of it elsewhere.
        ExportError: Nsight Systems made no report; `merge_into` is of another time, or is `path`.
    """
    check_replaceable(path, merge_into)
    if path.exists() and not path.is_file():  # to move a report there would replace the device
        raise ExportError(f"{os.fspath(path)!r} is not a file")
    path = Path(os.path.realpath(path))
    tools = NsightTools.find()
    text_path = path.with_suffix(".nvtxt")
    base = None if merge_into is None else Path(merge_into)
    with tempfile.TemporaryDirectory(prefix=".nsys-rep-", dir=path.parent) as name:
        folder = Path(name).resolve()
        # Of the time that an export takes the text is a fifth, and the report a half.
        processes = processes_of(runs, lambda spans: advance(spans // 5))
        if base is not None:
            utc_ns, end_ns = _session_of(base, tools, folder)
            processes = [_placed(process, utc_ns, end_ns) for process in processes]

        text = folder / "new.nvtxt"
        with text.open("xb") as sink:
            events = nvtxt.write_processes(processes, sink)
        if not events:
            raise ExportError("the runs have no spans and no steps: there is nothing to show")
        if tools is None:
            os.replace(text, text_path)
            command = ("ImportNvtxt", "--cmd", "create", "-n", text_path.name, "-o", path.name)
            raise MissingDependencyError(
                f"ImportNvtxt was not found, so only {text_path} was written. Where Nsight Systems "
                f"is installed, run: {shlex.join(command)}"
            )

        report = folder / "new.nsys-rep"
        _import(tools, text, report, base or _empty_report(tools, folder, path.name), events)
        advance(sum(len(run.spans) for run in runs) // 2)
        if base is None:
            database = folder / "new.sqlite"
            with database.open("xb") as sink:
                nsys_sqlite.write(runs, sink, advance=lambda spans: advance(spans * 3 // 10))
            os.replace(database, path.with_suffix(".sqlite"))
        os.replace(text, text_path)
        os.replace(report, path)


def _empty_report(tools: NsightTools, folder: Path, name: str) -> Path | None:
    """A report without events, where the window needs one to merge into.

    The window calls a merged report by the name of what it was merged into.
    """
    version = tools.version()
    if version is None or version >= _SHOWS_CREATED_REPORTS:
        return None
    path = folder / "empty" / name
    path.parent.mkdir()
    printed = tools.profile_nothing(path)
    if not path.exists():
        raise ExportError(
            f"nsys failed to create an empty report. It printed: {_shortened(printed)}"
        )
    return path


def _import(tools: NsightTools, text: Path, report: Path, base: Path | None, events: int) -> None:
    """Make a report of NVTXT: a new one, or one that has the events of `base` too."""
    arguments = ("-n", text, "-o", report)
    if base is None:
        printed = tools.import_nvtxt("--cmd", "create", *arguments)
    else:
        # Without the last option what lies outside the time of the other would be left out.
        more = ("-i", base, "--update_report_time")
        printed = tools.import_nvtxt("--cmd", "merge", *arguments, *more)
    imported = re.search(r"(\d+) events imported", printed)
    if imported is None or int(imported[1]) != events or not report.exists():
        raise ExportError(
            f"ImportNvtxt failed to create the report. It printed: {_shortened(printed)}"
        )


def _session_of(report: Path, tools: NsightTools | None, folder: Path) -> tuple[int, int]:
    """When `nsys profile` recorded: the wall clock at the report's zero, and its end from there,
    in ns."""
    if not report.is_file():
        raise ExportError(f"there is no report {os.fspath(report)!r} to merge into")
    if tools is None or tools.nsys is None:
        raise MissingDependencyError(
            "merging needs nsys and ImportNvtxt: export where Nsight Systems is installed, in a "
            "release that is not older than the one that recorded the report"
        )
    database = folder / "session.sqlite"
    printed = tools.export_sqlite(report, database)
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            utc_ns, end_ns = connection.execute(
                "SELECT utcEpochNs, stopTime FROM TARGET_INFO_SESSION_START_TIME, ANALYSIS_DETAILS"
            ).fetchone()
            return utc_ns, end_ns
    except (sqlite3.Error, TypeError) as error:
        raise ExportError(
            f"nsys does not say when {os.fspath(report)!r} was recorded. "
            f"It printed: {_shortened(printed)}"
        ) from error


def _placed(process: NsightProcess, utc_ns: int, end_ns: int) -> NsightProcess:
    """The process on the time axis of a report, which follows the wall clock's rate."""
    run = process.timeline.run
    if run.began_realtime_ns is None:
        raise ExportError("a run has no start time: it cannot be merged")
    start_ns = run.began_realtime_ns - utc_ns
    first, last = run.environment.get("anchor", {}), run.anchor
    rate = 1.0
    if all({"run_ns", "monotonic_ns"} <= anchor.keys() for anchor in (first, last)):
        # CLOCK_MONOTONIC has the wall clock's rate, and does not jump.
        elapsed_ns = last["run_ns"] - first["run_ns"]
        monotonic_ns = last["monotonic_ns"] - first["monotonic_ns"]
        if elapsed_ns > 0 and monotonic_ns > 0:
            rate = monotonic_ns / elapsed_ns
    if not 0 <= start_ns <= end_ns:
        raise ExportError(
            f"the run began {start_ns / 1e9:.3f} s after the report, which lasts "
            f"{end_ns / 1e9:.3f} s: they were not recorded together"
        )
    return replace(process, timeline=replace(process.timeline, start_ns=start_ns, rate=rate))


def _shortened(printed: str) -> str:
    text = " ".join(printed.split())
    return text[-_PRINTED_CHARACTERS:] or "nothing"


@dataclass(frozen=True)
class NsightTools:
    """An installation of Nsight Systems: where its programs are and how to run them.

    Their exit codes prove nothing, so a run of one returns its output, and whoever runs it looks at
    what it made.

    Attributes:
        host: the folder of ImportNvtxt, its libraries and QdstrmImporter.
        nsys: the command line tool, or None.
    """

    host: Path
    nsys: Path | None

    @classmethod
    def find(cls) -> NsightTools | None:
        """The installation on PATH, or else the newest in a usual place, that has ImportNvtxt."""
        on_path = shutil.which("ImportNvtxt")
        hosts = [] if on_path is None else [Path(on_path).resolve().parent]
        for place in _PLACES:
            hosts += sorted(map(Path, glob.glob(place)), key=_version_in, reverse=True)
        host = next((each for each in hosts if os.access(each / "ImportNvtxt", os.X_OK)), None)
        if host is None:
            return None
        # A report of one release is not read by an older one: its own nsys goes before others.
        own = [host.parent / "bin" / "nsys", *sorted(host.parent.glob("target-linux-*/nsys"))]
        nsys = next((str(each) for each in own if os.access(each, os.X_OK)), shutil.which("nsys"))
        return cls(host, None if nsys is None else Path(nsys))

    def version(self) -> tuple[int, ...] | None:
        """The release, (2022, 4, 2) for example; None when it is not known."""
        if self.nsys is None:
            return None
        found = re.search(r"version (\d+)\.(\d+)\.(\d+)", _output([str(self.nsys), "--version"]))
        return None if found is None else tuple(map(int, found.groups()))

    def import_nvtxt(self, *arguments: str | Path) -> str:
        return self._run_host("ImportNvtxt", *arguments)

    def export_sqlite(self, report: Path, database: Path) -> str:
        if self.nsys is None:
            return ""
        options = ("--quiet=true", "--type=sqlite", f"--output={database}")
        return _output([str(self.nsys), "export", *options, str(report)])

    def profile_nothing(self, report: Path) -> str:
        """Make a report that holds no events; returns what was printed."""
        if self.nsys is None:
            return ""
        raw = report.with_suffix(".qdstrm")
        output = f"--output={report.with_suffix('')}"
        profile = [str(self.nsys), "profile", *_PROFILE_NOTHING, output, "true"]
        printed = ""
        for isolation in _ISOLATIONS:
            printed += _output([*isolation, *profile], {"PATH": os.environ.get("PATH", os.defpath)})
            if raw.exists():  # Debian's nsys does not find its importer
                printed += self._run_host("QdstrmImporter", "-i", raw, "-o", report)
            if report.exists():
                break
        return printed

    def _run_host(self, program: str, *arguments: str | Path) -> str:
        # Only these need the libraries, and others would break with them.
        environment = {**os.environ, "LD_LIBRARY_PATH": str(self.host)}
        return _output([str(self.host / program), *map(str, arguments)], environment)


def _output(command: list[str], environment: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:  # it is not there, or is of another kind of machine
        return f"{command[0]}: {error.strerror}\n"
    return done.stdout


def _version_in(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(path))]
