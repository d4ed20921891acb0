# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the package, as one small tree.

PyinstrumentGpuError
├── PhaseNameError (ValueError)            a name that cannot name a phase
├── RecordingError (RuntimeError)
│   ├── RecordingActiveError               a recording is already active in this process
│   └── RunPathError                       the run file cannot be created or written
├── RunFileError
│   ├── JobError                           the runs are not the ranks of one job
│   ├── RunFileDamagedError                not a run file, or damaged beyond reading
│   └── RunFileVersionError                written by a newer, incompatible version
├── ExportError                            a run cannot be written in the format asked for
├── SinkError (RuntimeError)               a live sink cannot be opened
├── ConfigurationError (ValueError)        a setting in pyproject.toml or the environment is wrong
├── GateError (RuntimeError)               what a gate runs fails, or can't be compared
├── TrialError (RuntimeError)              what is tried fails, or can't be tried
└── MissingDependencyError (ImportError)   an optional package is not installed

NonFiniteError (BaseException)             values are not finite, and the program was to stop

Errors of the operating system while reading (no such file, no permission) stay `OSError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class PyinstrumentGpuError(Exception):
    """Base of every error that this package raises on purpose."""


class PhaseNameError(PyinstrumentGpuError, ValueError):
    """A phase name is empty, or there are too many names."""


class RecordingError(PyinstrumentGpuError, RuntimeError):
    """A recording cannot be started, used or stopped."""


class RecordingActiveError(RecordingError):
    """A recording is already active; a process has at most one."""


class RunPathError(RecordingError):
    """A run file already exists, or its path cannot be written."""


class RunFileError(PyinstrumentGpuError):
    """A run file cannot be read."""


class JobError(RunFileError):
    """Runs that should be the ranks of one job are not; the message says which, and what to do."""


class RunFileDamagedError(RunFileError):
    """The bytes are not a run file, or are damaged so that nothing true can be read from them."""


class RunFileVersionError(RunFileError):
    """The run file has a format that this version does not know."""


class ExportError(PyinstrumentGpuError):
    """A run cannot be exported as asked."""


class SinkError(PyinstrumentGpuError, RuntimeError):
    """A live sink cannot be opened."""


class ConfigurationError(PyinstrumentGpuError, ValueError):
    """A setting in pyproject.toml or in the environment is wrong; the message says where."""


class GateError(PyinstrumentGpuError, RuntimeError):
    """A gate or a blame has no result: what it runs failed, or can't be compared."""


class NonFiniteError(BaseException):
    """A recording was asked to end the program where values are not finite; the message says which
    module made the first. No `Exception`, so that a loop which passes over what fails ends too."""


class TrialError(PyinstrumentGpuError, RuntimeError):
    """A program can't be tried: it fails, has no steps, or its directory can't be copied."""


class MissingDependencyError(PyinstrumentGpuError, ImportError):
    """An optional package is needed and not installed; the message has the command for it."""


@contextmanager
def needed_for(what: str, package: str) -> Iterator[None]:
    """Have an ImportError in the block say what needs the package, and how to install it.

    Raises:
        MissingDependencyError: the package is missing.
    """
    try:
        yield
    except ImportError as error:
        raise MissingDependencyError(f"{what} needs {package}: pip install {package}") from error
