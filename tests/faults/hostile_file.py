# SPDX-License-Identifier: Apache-2.0
"""Run files whose checksums are right, and which say what no recording does."""

import contextlib
import copy
import io
import json
import random
import resource
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner
from rich.console import Console

from pyinstrument_gpu.analysis.compare import compare
from pyinstrument_gpu.aspects.collectives.data import COLLECTIVE_DTYPE, Collectives, ProcessGroup
from pyinstrument_gpu.aspects.stalls.data import GroupProgress, Stall
from pyinstrument_gpu.cli import main
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.framing import read_blocks
from pyinstrument_gpu.core.record import OpenPhase
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE, STEP_DTYPE
from pyinstrument_gpu.core.steps import Step, Steps
from pyinstrument_gpu.errors import PyinstrumentGpuError
from pyinstrument_gpu.export import FORMATS, export
from pyinstrument_gpu.job.gather import job_of, rank_data
from pyinstrument_gpu.job.report import job_document_of, job_report
from pyinstrument_gpu.parts.choice import Choice
from pyinstrument_gpu.report.comparison import comparison_facts, comparison_report
from pyinstrument_gpu.report.document import document_of
from pyinstrument_gpu.report.json_text import json_text
from pyinstrument_gpu.watch.live_run import LiveRun
from pyinstrument_gpu.watch.process import MachineClocks
from pyinstrument_gpu.watch.views import VIEWS, heading
from pyinstrument_gpu.watch.watch import Watch, facts
from tests.faults.fault import FaultGroup, Trial
from tests.helpers.forged_file import (
    all_places,
    forge,
    with_block,
    with_journal,
    with_modules,
    with_payload,
)
from tests.helpers.made_runs import run_of, syncs_of
from tests.helpers.run_writer import encode
from tests.helpers.whole_documents import DEVICE, DOCUMENTS, with_document

FAULTS = FaultGroup("hostile file")

_MS = 1_000_000
_ANCHOR = {
    "run_ns": 0,
    "monotonic_ns": 10**12,
    "monotonic_raw_ns": 10**12,
    "realtime_ns": 1_700_000_000_000_000_000,
}
ENVIRONMENT: dict[str, Any] = {
    "host": "box",
    "rank": 0,
    "world_size": 2,
    "local_rank": 0,
    "job": "7",
    "restarts": 0,
    "pid": 11,
    "python": "3.12.1",
    "platform": "Linux-6.1-x86_64-with-glibc2.36",
    "cores": 8,
    "torch": "2.9.0+cu128",
    "cuda": "12.8",
    "gpus": ["NVIDIA H200"],
    "gpus_error": "not\nready",
    "command": ["python", "train.py"],
    "arguments": ["train.py"],
    "cwd": "/home/a",
    "program_folder": "/home/a",
    "boot_id": "01234567-89ab-cdef-0123-456789abcdef",
    "asleep_ns": 5,
    "started": "2026-01-02T03:04:05.678+00:00",
    "version": "0.1.0",
    "revision": "0123456789abcdef" * 2,
    "uncommitted": {"hash": "0123456789abcdef", "files": ["train.py"]},
    "driver": "550.54.14",
    "packages": {"numpy": "2.4.6"},
    "variables": {"OMP_NUM_THREADS": "4"},
    "run_id": "00000000000000ff",
    "clock": {"kind": "tsc", "frequency_hz": 2.6e9},
    "anchor": _ANCHOR,
    "overhead": {"phase_ns": 86.5, "step_ns": 660.6},
    "limits": {"history_spans": 1_000_000, "max_bytes": 1 << 30},
    "device_timing": {"mode": "auto", "budget": 0.001, "share_boundaries_ns": 1000},
    "children_cpu_s": 1.5,
    "optimizer_seen": True,
    "framework": "lightning 2.6.6",
    "framework_steps": 12,
    "copies_to_device": [{"pinned": True, "non_blocking": False, "count": 3, "bytes": 12}],
    "phase_lines": [{"phase": "forward", "file": "/home/me/train.py", "line": 12}],
    "program_facts": {
        "loader_workers": 2,
        "loader_pins": True,
        "loader_prefetch": 4,
        "loader_persistent": False,
        "other_streams": True,
        "ranks": 2,
    },
}
"""Every field that a recording writes."""

_COMMANDS = (
    "info",
    "info --json",
    "report",
    "report --json",
    "report --html",
    "report --step 1",
    "export -o -",
    "why",
    "why --json",
)
"""Each of a run file."""

_THEN = (
    "Then four of all reports, pages, exports, comparisons and commands are made of it, drawn by "
    "chance."
)
_REFUSED_OR_USED = (
    "The file is refused with a `RunFileError`, or each of them gives output or an error of this "
    "package."
)

_COUNTS = (0, 1, 2**31, 2**61, 2**62, 2**63 - 1)

VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2**31, 2**63, 10**30, -(10**30)),
    *(0.5, -1e308, float("nan"), float("inf")),
    *("", "x", "../../x", "/../x", "a/b\0c", "\x1b[31m", "\ud800", "9" * 5000),
    *([], [None], ["\ud800", 3], [[[]]], {}, {"a": {"b": 1}}),
    *({"run_ns": "x", "realtime_ns": []}, {"run_ns": 0, "realtime_ns": 2**62}),
    *({"run_ns": 2**61, "realtime_ns": 0}, {"phase_ns": float("nan"), "step_ns": -5}),
)


@FAULTS.fault(
    done="A field of what a file says of its machine and program has a value of another type, "
    f"out of range, or made to be a path. {_THEN}",
    holds="It is left out, and `Run.notes` name it. Each of them gives output or an error of this "
    "package, and writes nowhere but where it was told to.",
    times=6,
    thorough_times=12,
    slow_times=4482,
)
def environment_of_other_values(trial: Trial) -> None:
    environment = _with_another_value(ENVIRONMENT, trial.random)
    run = Run.from_bytes(_file(environment))
    assert _fits(run.environment, ENVIRONMENT), run.environment
    left_out = [name for name in environment if name not in run.environment]
    assert all(any(name in note for note in run.notes) for name in left_out)
    _use(trial, environment)


@FAULTS.fault(
    done="A field of what a file says of the state of its recording has a value of another type or "
    f"out of range. {_THEN}",
    holds=_REFUSED_OR_USED,
    times=4,
    thorough_times=10,
    slow_times=1486,
)
def state_of_other_values(trial: Trial) -> None:
    run = _made(ENVIRONMENT)
    name = trial.random.choice(("duration_ns", "anchor", "dropped", "phases_recorded"))
    value = trial.random.choice(trial.random.choice((VALUES, _COUNTS)))
    if name == "dropped":
        value = {trial.random.choice(("ring_full", "\x1b[31m", "\ud800")): value}
    if name == "anchor":
        value = {"run_ns": 0, "realtime_ns": 0} | {trial.random.choice(list(_ANCHOR)): value}
        del run.environment["anchor"]
    setattr(run, name, value)
    _use(trial, run.environment, bytes(encode(run)))


@FAULTS.fault(
    done="A field of what a file says of profiled operations, memory, energy or the state of its "
    f"recording is missing or has another value, at any depth. {_THEN}",
    holds=_REFUSED_OR_USED,
    times=8,
    thorough_times=12,
    slow_times=2980,
)
def documents_of_other_values(trial: Trial) -> None:
    data = _file(ENVIRONMENT)
    state = json.loads(read_blocks(data).documents[BlockType.STATE])
    documents = {**DOCUMENTS, BlockType.STATE: {**state, "device": DEVICE}}
    for block_type, document in documents.items():
        data = with_document(data, block_type, document)
    block_type = trial.random.choice(list(documents))
    changed = copy.deepcopy(documents[block_type])
    inside, place = trial.random.choice([*all_places(changed)])
    if trial.random.random() < 0.3:
        del inside[place]
    else:
        inside[place] = copy.deepcopy(trial.random.choice(VALUES + _COUNTS))
    _use(trial, ENVIRONMENT, with_document(data, block_type, changed))


@FAULTS.fault(
    done="A time of a span, step, metric, sync or of the whole run is one that no clock gets to. "
    f"{_THEN}",
    holds="What follows is left out, or the file is refused with a `RunFileError`, and each of "
    "them gives output or an error of this package.",
    times=4,
    thorough_times=10,
    slow_times=1486,
)
def impossible_times(trial: Trial) -> None:
    anchor = {**_ANCHOR, "realtime_ns": 2**62 - 1}  # far from that of the other ranks
    run = _made({**ENVIRONMENT, "anchor": anchor})
    run.metric_names = ("loss",)
    run.metrics = np.array([(number, 0, 5, 0, 0.5) for number in range(3)], METRIC_DTYPE)
    time_ns = trial.random.choice((2**61, 2**62, 2**63 - 1))
    arrays = (run.spans, run.steps.array, run.metrics, run.syncs.events)
    table = trial.random.choice((None, *arrays))
    if table is None:
        run.duration_ns = time_ns
    else:
        columns = [name for name in table.dtype.names or () if name.endswith("_ns")]
        table[trial.random.choice(columns)][-1] = time_ns
    _use(trial, run.environment, bytes(encode(run)))


@FAULTS.fault(
    done="A file has fields that this version does not know, some with the names of others' facts.",
    holds="They are ignored.",
)
def unknown_fields(trial: Trial) -> None:
    unknown = {"complete": True, "file": "/etc/passwd", "\x1b[31m": "\x1b[31m", "\ud800": [[]]}
    run = Run.from_bytes(_file({**ENVIRONMENT, **unknown}))
    assert run.environment == ENVIRONMENT
    assert run.notes == Run.from_bytes(_file(ENVIRONMENT)).notes


def _with_another_value(document: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The document with one of its values replaced, at any depth."""
    changed = copy.deepcopy(document)
    inside, name = rng.choice([*_places(changed)])
    inside[name] = copy.deepcopy(rng.choice(VALUES))
    return changed


def _places(document: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    for name, value in document.items():
        yield document, name
        if isinstance(value, dict):
            yield from _places(value)


def _fits(value: Any, example: Any) -> bool:
    """Whether a value is of the type of the example; of an object, each that is there."""
    if isinstance(example, dict) and isinstance(value, dict):
        return all(name in example and _fits(one, example[name]) for name, one in value.items())
    if isinstance(example, list) and isinstance(value, list):
        return all(type(one) is type(example[0]) for one in value)
    is_number = type(example) in (int, float) and type(value) in (int, float)
    return value is None or is_number or type(value) is type(example)


def _made(
    environment: dict[str, Any],
    names: tuple[str, ...] = ("forward", "attention"),
    parents: tuple[int, ...] = (-1, 0),
) -> Run:
    """A run of four steps, and in each of them a span of each path within that of the one
    before."""
    steps = [(i, i * 10 * _MS, (i + 1) * 10 * _MS, 32, 1, True, 0) for i in range(4)]
    spans = [
        (j, j, i, j, 0, 0, 0, *_times(i, j), _times(i, j)[0] + 1, _times(i, j)[1] + 1, -1, 3)
        for i in range(4)
        for j in reversed(range(len(names)))
    ]
    closed = Steps(np.array(steps, STEP_DTYPE))
    run = run_of(spans, names, path_parents=parents, steps=closed, duration_ns=50 * _MS)
    run.span_self_ns = np.array([_MS] * len(spans))
    run.environment = dict(environment)
    run.anchor = {clock: ns + 50 * _MS for clock, ns in _ANCHOR.items()}
    run.syncs = syncs_of(run)
    events = np.zeros(3, COLLECTIVE_DTYPE)
    events["created_ns"] = 5 * _MS, 15 * _MS, 25 * _MS
    events["sequence"] = range(3)
    groups = (ProcessGroup("0", "default_pg", (0, 1), "gloo"),)
    run.collectives = Collectives(groups, ("all_reduce",), events, was_read=True)
    progress = (GroupProgress("0", 2, None, 1, "all_reduce"),)
    stacks = (("MainThread", 'File "train.py", line 3 in load'),)
    paths = ((0, run.paths[0]),)
    stall = Stall(
        since_ns=30 * _MS,
        noticed_ns=45 * _MS,
        limit_ns=10 * _MS,
        step=-1,
        paths=paths,
        stacks=stacks,
        groups=progress,
    )
    run.stalls = (stall,)
    return run


def _times(step: int, depth: int) -> tuple[int, int]:
    return (step * 10 + depth) * _MS, (step * 10 + 8 - depth) * _MS


def _file(environment: dict[str, Any]) -> bytes:
    return bytes(encode(_made(environment)))


def _use(
    trial: Trial, environment: dict[str, Any], data: bytes | None = None, most: int = 4
) -> str:
    """Read the file, and do with it so much of what can be done with a file, drawn by chance.
    Returns whether it was "read" or "refused"."""
    data = _file(environment) if data is None else data
    # Deep, so that a path of several "..", still inside, can be told.
    folder = trial.directory / "a" / "b" / "c" / "d"
    folder.mkdir(parents=True)
    file = folder / "x.gpurun"
    file.write_bytes(data)
    uses = _uses(folder, file)
    try:
        run = Run.load(file)
    except PyinstrumentGpuError:
        _watch(file)
        return "refused"
    for use in trial.random.sample(uses, most):
        use(run)
    written = [path for path in trial.directory.rglob("*") if path.is_file()]
    assert all(folder in path.parents for path in written), written
    return "read"


def _uses(folder: Path, file: Path) -> list[Callable[[Run], object]]:
    """All that can be done with a run and its file."""
    uses: list[Callable[[Run], object]] = [
        lambda run: _watch(file),
        lambda run: run.report(verbose=True, width=100).encode("utf-8", "surrogatepass"),
        lambda run: json_text(document_of(run), None),
        _use_as_rank,
        _compare,
    ]
    exports: list[tuple[str, str, dict[str, Any]]] = [
        *((name, name, {}) for name in FORMATS),
        ("summary.csv", "csv", {"summary": True}),
        ("syncs.csv", "csv", {"syncs": True}),
        ("modules.csv", "csv", {"modules": True}),
        ("steps.csv", "csv", {"steps": True}),
        ("metrics.csv", "csv", {"metrics": True}),
        ("summary.parquet", "parquet", {"summary": True}),
    ]
    for name, form, options in sorted(exports, key=str):
        uses.append(partial(_export, folder / f"1-{name}", form, options, []))
        uses.append(partial(_export, folder / f"2-{name}", form, options, [_another(0)]))
    uses += [partial(_call, command, file) for command in _COMMANDS]
    return uses


def _use_as_rank(run: Run) -> None:
    with contextlib.suppress(PyinstrumentGpuError, ValueError):
        job = job_document_of(job_of([rank_data(run), rank_data(_another(0))]))
        job_report(job, width=100).encode("utf-8", "surrogatepass")
        json_text(job, None)


def _compare(run: Run) -> None:
    try:
        comparison = compare([run, _another(0), _another(1)], [_another(2), _another(3)])
        comparison_report(comparison)
        json.dumps(comparison_facts(comparison), allow_nan=False)
    except (PyinstrumentGpuError, ValueError) as error:
        assert "run" in str(error)


def _call(command: str, file: Path, run: Run) -> None:
    done = CliRunner().invoke(main, [*command.split(), str(file)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert "\x1b" not in done.output


def _watch(file: Path) -> None:
    now = MachineClocks(
        "box", 10**12 + 60 * _MS, 10**12 + 60 * _MS, _ANCHOR["realtime_ns"] + 60 * _MS
    )
    watch = Watch(lambda: [file])
    for _ in range(2):
        looks = watch.look(now)
        json.dumps(facts(looks, now), allow_nan=False)
    watch.close()
    console = Console(file=io.StringIO(), width=80)
    console.print(heading(looks[0], 80))
    for view in VIEWS:
        if isinstance(looks[0], LiveRun):
            for sort in view.sorts:
                console.print(view.render(looks[0], looks, Choice(sort), 80))
    assert isinstance(console.file, io.StringIO)
    assert "\x1b" not in console.file.getvalue()


@cache
def _another(number: int) -> Run:
    """An ordinary run to put beside it: the other rank of its job, or that of another job."""
    environment = {**ENVIRONMENT, "run_id": f"{number:016x}", "rank": 1 if number == 0 else 0}
    return Run.from_bytes(_file(environment))


def _export(path: Path, form: str, options: dict[str, Any], others: list[Run], run: Run) -> None:
    with contextlib.suppress(PyinstrumentGpuError):
        export([*others, run], path, form, **options)


@FAULTS.fault(
    done="One to three blocks of a file, of every kind that there is, say something else: values, "
    "numbers and bits of theirs are others, they end early or are of another kind. Their "
    "checksums are right. Then two of all reports, pages, exports, comparisons and commands are "
    "made of it, drawn by chance.",
    holds="The file is refused with a `RunFileError`, or each of them gives output or an error of "
    "this package. None takes 512 MiB.",
    times=4,
    thorough_times=16,
    slow_times=19_980,
    at_least={"read": 0.5},
)
def forged_blocks(trial: Trial) -> str:
    data = trial.random.choice(_whole_files())
    for _ in range(trial.random.choice((1, 1, 3))):
        data = forge(data, trial.random, VALUES)
    with _memory_bounded(512 << 20):
        return _use(trial, ENVIRONMENT, data, most=2)


@cache
def _whole_files() -> list[bytes]:
    """Files with blocks of every kind: of a run that ended, and of one that goes on."""
    ended = _of_all_kinds(complete=True)
    return [ended, with_journal(_of_all_kinds(complete=False))]


def _of_all_kinds(complete: bool) -> bytes:
    modules = "net.fc", "net.act"
    run = _made(ENVIRONMENT, names=("forward", "attention", *modules), parents=(-1, 0, 0, 1))
    run.complete = complete
    run.metric_names = ("loss",)
    run.metrics = np.array([(number, 0, 5 * _MS, 0, 0.5) for number in range(3)], METRIC_DTYPE)
    run.dropped = {"step_history": 0, "ring_full": 3}
    if not complete:
        run.open_step = Step(4, 40 * _MS, -1, None, 1, False, 0)
        run.open_phases = (OpenPhase("forward", 0, 41 * _MS, 4, 0),)
    data = bytes(encode(run))
    state = json.loads(read_blocks(data).documents[BlockType.STATE])
    data = with_payload(data, BlockType.STATE, json.dumps({**state, "device": DEVICE}).encode())
    for block_type, document in DOCUMENTS.items():
        data = with_document(data, block_type, document)
    data = with_block(data, BlockType.DROPPED_STEPS, (9).to_bytes(4, "little"))
    return with_modules(data, (2, 3))


@contextlib.contextmanager
def _memory_bounded(more: int) -> Iterator[None]:
    """Fails with a MemoryError where a block needs so many bytes more than there are now."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
