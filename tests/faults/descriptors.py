# SPDX-License-Identifier: Apache-2.0
"""What the program does to descriptors, and other programs to the run file."""

import json
import os
from typing import Any

import pytest

import pyinstrument_gpu as pig
from tests.faults.fault import FaultGroup, Trial
from tests.helpers.script import run_script

FAULTS = FaultGroup("descriptors")

PROGRAM = """
import json, os, resource, sys, warnings
import pyinstrument_gpu as pig

# Where shells allow millions, to open them all would take minutes.
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

def steps():
    for _ in range(100):
        with pig.gpu_step(), pig.gpu_phase("forward"):
            pass

def all_descriptors():
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return taken

def close_all():
    os.closerange(3, 1024)

def open_under_all_numbers(file):
    own = os.open(file, os.O_RDWR | os.O_CREAT)
    for number in range(own + 1, 1016):  # the recorder has one from 1000 on; a few are free
        os.dup2(own, number)

warnings.simplefilter("always")
path = None if sys.argv[1] == "memory" else sys.argv[1]
recording = pig.start(path)
steps()
recording.flush()
{fault}
steps()
run = recording.stop()
print(json.dumps({{
    "complete": run.complete,
    "counts": {{name: phase.count for name, phase in run.phases.items()}},
    "spans": len(run.spans),
    "notes": run.notes,
}}))
"""
WHOLE = {"forward": 200}


def run_program(path: object, fault: str) -> tuple[dict[str, Any], str]:
    """What the program's run says, and its standard error."""
    done = run_script(PROGRAM.format(fault=fault), path)
    return json.loads(done.stdout), done.stderr


def assert_history_ends(facts: dict[str, Any], stderr: str, reason: str) -> None:
    assert stderr.count(f"the run file can no longer be written ({reason})") == 1
    assert f"the history ends early: {reason}" in facts["notes"]
    assert facts["complete"]
    assert facts["counts"] == WHOLE


@FAULTS.fault(
    done="A program closes all its descriptors but the first three, and opens files of its own in "
    "their place.",
    holds="Nothing of the recording gets into its files. There is one warning, the statistics are "
    "complete, and the history is what the file had until then.",
)
def all_closed(trial: Trial) -> None:
    own = trial.directory / "own"
    own.mkdir()
    fault = f"close_all(); open_under_all_numbers({str(own / 'file')!r})"
    facts, stderr = run_program(trial.path, fault)

    assert_history_ends(facts, stderr, "the program has closed its file descriptor")
    assert facts["spans"] == 100
    assert (own / "file").read_bytes() == b""


@FAULTS.fault(
    done="A program deletes the run file, closes all its descriptors, and opens a longer file of "
    "its own under each of their numbers.",
    holds="Nothing of the recording gets into its file. There is one warning that the file can no "
    "longer be written, and the statistics are complete.",
)
def file_replaced(trial: Trial) -> None:
    own = trial.directory / "own"
    content = b"own" * 1_000_000
    fault = f"""
os.unlink(path)
close_all()
with open({str(own)!r}, "wb") as file:
    file.write({content[:3]!r} * 1_000_000)
open_under_all_numbers({str(own)!r})
"""
    facts, stderr = run_program(trial.path, fault)

    assert_history_ends(facts, stderr, "the program has closed its file descriptor")
    assert facts["spans"] == 0
    assert own.read_bytes() == content


@FAULTS.fault(
    done="Another program makes the run file shorter, to 0, 5,000 and 70,000 bytes.",
    holds="The file is left as it is. There is one warning, and the statistics are complete.",
    times=3,
)
def made_shorter(trial: Trial) -> None:
    length = (0, 5000, 70_000)[trial.number]
    reason = "the file was made shorter by another program"
    with pytest.warns(RuntimeWarning) as caught:
        with pig.record(trial.path) as recording:
            for _ in range(2):
                for _ in range(100):
                    with pig.gpu_phase("forward"):
                        pass
                recording.flush()
                os.truncate(trial.path, length)
        run = recording.run
        assert run.complete  # it is read by now
    text = f"the run file can no longer be written ({reason})"
    assert [text in str(warning.message) for warning in caught].count(True) == 1
    assert f"the history ends early: {reason}" in run.notes
    assert run.phases["forward"].count == 200
    assert trial.path.stat().st_size == length


@FAULTS.fault(
    done="A program has used up its descriptors when it calls `stop()`, of a recording in a file "
    "and in memory.",
    holds="It gets its run, which is complete.",
    times=2,
)
def none_free(trial: Trial) -> None:
    path = (trial.path, "memory")[trial.number]
    facts, stderr = run_program(path, "kept = all_descriptors()")

    assert stderr == ""
    assert facts == {"complete": True, "counts": WHOLE, "spans": 200, "notes": []}


@FAULTS.fault(
    done="While a recording goes on its file is deleted, renamed, replaced by a text, another run "
    "or a pipe, or overwritten with zeros.",
    holds="The training goes on. The statistics are complete, with a warning that the history in "
    "the file could not be read back. A renamed file has the whole run.",
    times=6,
)
def another_file(trial: Trial) -> None:
    path, aside = trial.path, trial.directory / "aside"
    with pig.record(trial.directory / "other.gpurun"), pig.gpu_phase("theirs"):
        pass
    with pig.record(path) as recording:
        with pig.gpu_phase("mine"):
            pass
        recording.flush()
        if trial.number == 4:  # overwritten
            with path.open("r+b") as file:
                file.write(bytes(path.stat().st_size))
        elif trial.number == 0:
            path.unlink()
        else:
            path.rename(aside)
        if trial.number == 2:
            path.write_text("text")
        elif trial.number == 3:
            (trial.directory / "other.gpurun").rename(path)
        elif trial.number == 5:
            os.mkfifo(path)
        with pig.gpu_phase("mine"):
            pass

    with pytest.warns(RuntimeWarning, match="the history is lost"):
        run = recording.run
    assert {path: phase.count for path, phase in run.phases.items()} == {"mine": 2}
    assert len(run.spans) == 0
    assert run.complete
    assert "the history is lost" in run.notes[-1]
    if aside.exists():
        assert len(pig.Run.load(aside).spans) == 2


@FAULTS.fault(
    done="Another program overwrites the run file with zeros, but for its first 64 bytes.",
    holds="The statistics are complete, with a warning that the history in the file could not be "
    "read back.",
)
def all_but_the_header(trial: Trial) -> None:
    names = [f"{number:0200}" for number in range(200)]  # more than a block, which is written once

    def phases() -> None:
        for name in names:
            with pig.gpu_phase(name):
                pass

    with pig.record(trial.path) as recording:
        phases()
        recording.flush()
        with trial.path.open("r+b") as file:
            file.seek(64)
            file.write(bytes(trial.path.stat().st_size - 64))
        phases()

    run = recording.run
    with pytest.warns(RuntimeWarning, match="the history is lost: .* a part of it was overwritten"):
        assert run.complete  # it is read by now
    assert {path: phase.count for path, phase in run.phases.items()} == dict.fromkeys(names, 2)
    assert len(run.spans) == 0
    assert run.complete
