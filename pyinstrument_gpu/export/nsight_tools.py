# SPDX-License-Identifier: Apache-2.0
"""The programs of an installed Nsight Systems: where they are and how to run them.

Their exit codes prove nothing, so a run of one returns its output, and whoever runs it looks at
what it made.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_PLACES = (
    "/usr/lib/nsight-systems/host-linux-x64",  # Debian
    "/opt/nvidia/nsight-systems/*/host-linux-x64",
    "/usr/local/cuda*/nsight-systems-*/host-linux-x64",
)

_PROFILE_NOTHING = ("--trace=none", "--sample=none", "--cpuctxsw=none")

# nsys keeps the environment of every process that it may look at, secrets and all. Where the
# system lets us, it sees none but its own.
_ISOLATIONS = (("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"), ())


@dataclass(frozen=True)
class NsightTools:
    """An installation of Nsight Systems.

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
