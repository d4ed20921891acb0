# SPDX-License-Identifier: Apache-2.0
"""`watch_syncs`: what waits, at which line, for how long. Without a GPU: some tensors are declared
to lie on a device, and reading them takes time on a clock that the test moves."""

import math
import os
import pickle
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pyinstrument_gpu as pig
from pyinstrument_gpu.aspects.syncs import watching
from pyinstrument_gpu.core.record import SourceLine
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.sync_kind import SyncKind
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching import tensor_device
from pyinstrument_gpu.report.document import document_of
from tests.helpers.clock import fake_clock
from tests.helpers.programs import Programs
from tests.helpers.run_writer import save

MS = 1_000_000
WAIT_NS = 5 * MS


SLOW = ("item", "tolist", "cpu", "copy_", "__float__", "__bool__", "nonzero")


class OnDevice(torch.Tensor):
    """A tensor that is taken for one on a device. What is computed from it is not."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl


class Slow(OnDevice):
    """One for which reading it takes time."""

    on_wait: Callable[[int], None] = lambda ns: None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in SLOW:
            Slow.on_wait(WAIT_NS)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def on_device(
    *values: float, dtype: torch.dtype = torch.float32, kind: type = Slow
) -> torch.Tensor:
    tensor: Any = torch.tensor(values if len(values) != 1 else values[0], dtype=dtype)
    result: torch.Tensor = tensor.as_subclass(kind)
    return result


@pytest.fixture
def advance(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Moves the clock. Reading a tensor of the device takes WAIT_NS."""
    monkeypatch.setattr(tensor_device, "is_on_device", lambda tensor: isinstance(tensor, OnDevice))
    monkeypatch.setattr(
        tensor_device, "is_on_host", lambda tensor: not isinstance(tensor, OnDevice)
    )
    with fake_clock() as advance:
        monkeypatch.setattr(Slow, "on_wait", staticmethod(advance))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: advance(WAIT_NS))
        yield advance


def watched(body: Callable[[], object], **options: bool) -> Run:
    with pig.record() as recording, pig.watch_syncs(**options):
        body()
    return recording.run


def kinds(run: Run) -> dict[SyncKind, int]:
    counts: Counter[SyncKind] = Counter()
    for site in run.syncs.sites:
        if site.totals.count:
            counts[site.kind] += site.totals.count
    return counts


# What waits, and where

LINES = {
    "x.item()": SyncKind.ITEM,
    "float(x)": SyncKind.FLOAT,
    "int(x)": SyncKind.INT,
    "bool(x)": SyncKind.BOOL,
    "complex(x)": SyncKind.COMPLEX,
    "range(5)[number]": SyncKind.INT,
    "x.tolist()": SyncKind.TOLIST,
    "x.numpy()": SyncKind.NUMPY,
    "x.cpu()": SyncKind.CPU,
    "x.to('cpu')": SyncKind.TO_CPU,
    "x.to(device='cpu', dtype=torch.float64)": SyncKind.TO_CPU,
    "repr(x)": SyncKind.PRINT,
    "str(x)": SyncKind.PRINT,
    "f'{x}'": SyncKind.FORMAT,
    "'%s' % x": SyncKind.PRINT,
    "1.0 in y": SyncKind.COMPARE,
    "y.nonzero()": SyncKind.DATA_DEPENDENT_SHAPE,
    "torch.nonzero(y)": SyncKind.DATA_DEPENDENT_SHAPE,
    "torch.argwhere(y)": SyncKind.DATA_DEPENDENT_SHAPE,
    "torch.where(mask)": SyncKind.DATA_DEPENDENT_SHAPE,
    "y.unique()": SyncKind.DATA_DEPENDENT_SHAPE,
    "torch.unique(y)": SyncKind.DATA_DEPENDENT_SHAPE,
    "torch.unique_consecutive(y)": SyncKind.DATA_DEPENDENT_SHAPE,
    "y.masked_select(mask)": SyncKind.DATA_DEPENDENT_SHAPE,
    "torch.bincount(y)": SyncKind.DATA_DEPENDENT_SHAPE,
    "torch.repeat_interleave(y, y)": SyncKind.DATA_DEPENDENT_SHAPE,
    "y[mask]": SyncKind.BOOLEAN_INDEX,
    "host[mask]": SyncKind.BOOLEAN_INDEX,
    "y.unsqueeze(0)[0, mask]": SyncKind.BOOLEAN_INDEX,
    "y[mask] = y[:2].clone()": SyncKind.BOOLEAN_INDEX,
    "y.__setitem__(mask, y[:2].clone())": SyncKind.BOOLEAN_INDEX,
    "y[mask] = number": SyncKind.BOOLEAN_INDEX,
    "y[mask] = number.reshape(1).as_subclass(type(y))": SyncKind.BOOLEAN_INDEX,
    "y.__setitem__(mask, number)": SyncKind.BOOLEAN_INDEX,
    "y.outer(y)[mask, mask] = 1": SyncKind.BOOLEAN_INDEX,
    "y.outer(y)[mask, [1]] = 1": SyncKind.BOOLEAN_INDEX,
    "y.outer(y)[True, mask] = 1": SyncKind.BOOLEAN_INDEX,
    "y[mask.any().as_subclass(type(y))] = 1": SyncKind.BOOLEAN_INDEX,
    "y[x.long().as_subclass(type(y))]": SyncKind.INT,
    "y[x.long().as_subclass(type(y))] = 1": SyncKind.INT,
    "y.outer(y)[:, x.long().as_subclass(type(y))]": SyncKind.INT,
    "torch.equal(y, y)": SyncKind.COMPARE,
    "torch.allclose(y, y)": SyncKind.COMPARE,
    "y.copy_(host)": SyncKind.H2D_PAGEABLE,
    "host.copy_(y)": SyncKind.CPU,
    "torch.cuda.synchronize()": SyncKind.SYNCHRONIZE,
}
QUIET = [
    "host.sum().item()",
    "host.tolist()",
    "host.to('cpu')",
    "repr(host)",
    "host.nonzero()",
    "host[host > 1]",
    "host.numpy()",
    "x.sum()",
    "x + 1",
    "x.to(torch.float64)",
    "x.shape",
    "y[0]",
    "y[..., None]",
    "y[:2]",
    "y[x.long().reshape(1).as_subclass(type(y))]",
    "y[x.long().reshape(1).as_subclass(type(y))] = 1",
    "y[mask] = 1",
    "y[mask] = torch.tensor(1)",
    "y[mask] = host[:1]",
    "y.outer(y)[mask, 1:] = 1",
    "y.outer(y)[0, mask] = 1",
    "y.__setitem__(mask, 1)",
    "torch.where(mask, y, y)",
    "torch.repeat_interleave(y, 2)",
    "x.detach()",
    "host.copy_(host)",
]


def run_lines(lines: list[str], file: Path) -> Run:
    """Runs the lines as a program of one line each, from its second line on."""
    file.write_text("import torch\n" + "\n".join(lines) + "\n")
    code = compile(file.read_text(), str(file), "exec")
    space = {
        "x": on_device(2.0, kind=OnDevice),
        "number": on_device(3, dtype=torch.int64, kind=OnDevice),
        "y": on_device(1, 0, 2, dtype=torch.int64, kind=OnDevice),
        "mask": on_device(1, 0, 1, dtype=torch.bool, kind=OnDevice),
        "host": torch.tensor([1, 0, 2]),
    }
    return watched(lambda: exec(code, space))


def test_each_kind_has_its_line(advance: Callable[[int], None], tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    run = run_lines(list(LINES), file)
    found = {site.line: site for site in run.syncs.sites if site.totals.count}
    for line, (source, kind) in enumerate(LINES.items(), 2):
        assert line in found, source
        site = found[line]
        assert (site.kind, site.file, site.function) == (kind, str(file), "<module>"), source
        assert site.totals.count == 1, source
    assert len(found) == len(LINES)


def test_what_does_not_wait_is_not_counted(advance: Callable[[int], None], tmp_path: Path) -> None:
    assert kinds(run_lines(QUIET, tmp_path / "program.py")) == {}


def test_an_index_that_is_read_has_its_own_size(
    advance: Callable[[int], None], tmp_path: Path
) -> None:
    lines = [f"y.outer(y)[{index}]" for index in ("number - 1", "0, number - 1", "number - 1, :")]
    lines = [line.replace("number - 1", "(number - 1).as_subclass(type(y))") for line in lines]
    run = run_lines(lines, tmp_path / "program.py")
    totals = [site.totals for site in run.syncs.sites if site.totals.count]
    assert [(of_site.count, of_site.bytes) for of_site in totals] == [(1, 8)] * 3


def test_line_of_the_program_not_of_the_library(
    advance: Callable[[int], None], tmp_path: Path
) -> None:
    library = tmp_path / "site-packages" / "library.py"
    library.parent.mkdir()
    source = "def read(x):\n    return read_inside(x)\ndef read_inside(x):\n    return x.item()\n"
    space: dict[str, Any] = {}
    exec(compile(source, str(library), "exec"), space)
    program = tmp_path / "program.py"
    code = compile("def step():\n\n    return read(x)\nstep()\n", str(program), "exec")
    run = watched(lambda: exec(code, {"read": space["read"], "x": on_device(1.0)}))
    (site,) = [site for site in run.syncs.sites if site.totals.count]
    assert (site.file, site.line, site.function) == (str(program), 3, "step")
    assert site.library == SourceLine(str(library), 4, "read_inside")
    save(run, tmp_path / "saved.gpurun")
    assert Run.load(tmp_path / "saved.gpurun").syncs.sites == run.syncs.sites
    rows = [line.split() for line in run.report(verbose=True, width=100).splitlines()]
    row = next(i for i, cells in enumerate(rows) if cells[:1] == [f"{program}:3"])
    assert rows[row][-1] == "step"
    assert rows[row + 1] == ["library.py:4", "read_inside"]


def test_generated_code_and_the_call_itself_are_no_library(
    advance: Callable[[int], None], tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    generated: dict[str, Any] = {"__name__": "library"}
    exec(compile("def read(x): return x.item()", "<string>", "exec"), generated)
    code = compile("read(x)\ntorch.unique(x)\n", str(program), "exec")
    space = {"x": on_device(1.0, kind=OnDevice), "torch": torch, "read": generated["read"]}
    run = watched(lambda: exec(code, space))
    sites = [site for site in run.syncs.sites if site.totals.count]
    assert [(site.file, site.line, site.library) for site in sites] == [
        (str(program), line, None) for line in (1, 2)
    ]


@pytest.mark.parametrize("has_shell", [True, False])
def test_lines_of_a_notebook_have_the_names_of_its_cells(
    advance: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, has_shell: bool
) -> None:
    file = f"/tmp/ipykernel_7/{has_shell}.py"

    def format_code_name(name: str) -> tuple[str, str] | None:
        return ("Cell", "In[2]") if name == file else None

    compiler = types.SimpleNamespace(format_code_name=format_code_name)
    shell = types.SimpleNamespace(compile=compiler) if has_shell else None
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    code = compile("\n\nx.item()\n", file, "exec")
    run = watched(lambda: exec(code, {"x": on_device(1.0)}))
    (site,) = [site for site in run.syncs.sites if site.totals.count]
    name = "Cell In[2], line 3" if has_shell else f"{file}:3"
    assert run.name_of_line(site.program) == name
    assert name in run.report(verbose=True, width=100)


def test_library_alone_is_better_than_nothing(advance: Callable[[int], None]) -> None:
    seen = []

    def target(file: str) -> None:
        space: dict[str, Any] = {"x": on_device(1.0)}
        exec(compile("def f():\n    x.item()\n", file, "exec"), space)
        thread = threading.Thread(target=space["f"])
        thread.start()
        thread.join()

    run = watched(lambda: target("/somewhere/site-packages/library.py"))
    seen = [(site.file, site.line) for site in run.syncs.sites if site.totals.count]
    assert seen == [("/somewhere/site-packages/library.py", 2)]


# Prices


def test_times_are_exact_and_fill_the_spans(advance: Callable[[int], None]) -> None:
    x = on_device(1.0)

    def body() -> None:
        for _ in pig.gpu_steps(range(3), samples=1):
            with pig.gpu_phase("forward"):
                advance(2 * MS)
            with pig.gpu_phase("metrics"):
                with pig.gpu_phase("inner"):
                    x.item()
                advance(1 * MS)
                float(x)

    run = watched(body)
    spans = run.spans
    blocked = {
        run.paths[path]: set(spans["blocked_ns"][spans["path"] == path].tolist())
        for path in range(len(run.paths))
    }
    assert blocked == {
        "data": {0},
        "forward": {0},
        "metrics": {2 * WAIT_NS},
        "metrics/inner": {WAIT_NS},
    }
    totals = {path: phase.blocked.total_ns for path, phase in run.phases.items() if phase.blocked}
    assert totals == {
        "data": 0,
        "forward": 0,
        "metrics": 6 * WAIT_NS,
        "metrics/inner": 3 * WAIT_NS,
    }
    assert [site.blocked_ns for site in run.syncs.sites if site.totals.count] == [3 * WAIT_NS] * 2
    events = run.syncs.events
    assert events["duration_ns"].tolist() == [WAIT_NS] * 6
    assert events["step"].tolist() == [0, 0, 1, 1, 2, 2]
    assert [run.paths[path] for path in events["path"]] == ["metrics/inner", "metrics"] * 3
    assert set(events["bytes"].tolist()) == {4}
    assert run.syncs.total.blocked_ns == 6 * WAIT_NS


def test_a_copy_to_the_host_has_a_price(advance: Callable[[int], None]) -> None:
    x, host = on_device(1.0), torch.zeros(())
    run = watched(lambda: host.copy_(x))
    assert run.syncs.total.blocked_ns == WAIT_NS


def test_blocked_time_is_unknown_where_nobody_watched(advance: Callable[[int], None]) -> None:
    x = on_device(1.0)

    def phase() -> None:
        with pig.gpu_phase("metrics"):
            x.item()

    with pig.record() as recording:
        phase()
        with pig.watch_syncs():
            phase()
            advance(MS)
        with pig.gpu_phase("across"):
            advance(MS)
            with pig.watch_syncs():
                phase()
        phase()
    assert recording.run.spans["blocked_ns"].tolist() == [-1, WAIT_NS, WAIT_NS, -1, -1]
    never = pig.start()
    phase()
    run = never.stop()
    assert not run.syncs.was_watched
    assert run.spans["blocked_ns"].tolist() == [-1]


def test_outermost_call_counts_alone(advance: Callable[[int], None]) -> None:
    run = watched(lambda: print(on_device(1.0, 2.0)))  # it reads the values one by one
    assert kinds(run) == {SyncKind.PRINT: 1}


def test_call_that_fails_is_no_wait(advance: Callable[[int], None]) -> None:
    def body() -> None:
        with pytest.raises(RuntimeError):
            on_device(1.0, 2.0).item()
        with pytest.raises(TypeError):
            on_device(1.0).to(3, 4, 5, 6)  # type: ignore[call-overload]

    assert kinds(watched(body)) == {}


def test_allowed_regions_count_as_blocked_and_are_not_listed(
    advance: Callable[[int], None],
) -> None:
    x = on_device(1.0)

    def body() -> None:
        with pig.gpu_phase("metrics"), pig.allow_sync():
            x.item()
        x.item()

    run = watched(body)
    assert [site.is_allowed for site in run.syncs.sites if site.totals.count] == [True, False]
    assert run.syncs.total.count == 1
    assert run.spans["blocked_ns"].tolist() == [WAIT_NS]
    assert run.syncs.is_allowed(run.syncs.events).tolist() == [True, False]
    assert "In allow_sync regions: 1 sync" in run.report(verbose=True, width=100)


def test_threads_are_kept_apart(advance: Callable[[int], None]) -> None:
    def body() -> None:
        def read() -> None:
            with pig.gpu_phase("other"):
                on_device(1.0).item()

        with pig.gpu_phase("main"):
            thread = threading.Thread(target=read)
            thread.start()
            thread.join()

    run = watched(body)
    rows = run.spans[["path", "blocked_ns"]].tolist()
    assert {run.paths[path]: blocked_ns for path, blocked_ns in rows} == {
        "other": WAIT_NS,
        "main": 0,
    }


def test_more_waits_than_the_buffer_holds_are_in_the_statistics(
    advance: Callable[[int], None],
) -> None:
    x = on_device(1.0)
    count = 40_000

    def body() -> None:
        for _ in range(count):
            x.item()

    run = watched(body)
    assert run.syncs.total.count == count
    assert run.syncs.total.blocked_ns == count * WAIT_NS
    assert len(run.syncs.events) + run.syncs.dropped == count


# The run file and the report


@pytest.mark.parametrize("in_file", [False, True])
def test_max_bytes_drops_the_oldest_waits(
    advance: Callable[[int], None], tmp_path: Path, in_file: bool
) -> None:
    x = on_device(1.0)
    path = tmp_path / "a.gpurun" if in_file else None
    chunks, chunk = 12, 4_000
    with pig.record(path, max_bytes=1 << 20) as recording, pig.watch_syncs():
        for _ in range(chunks):
            for _ in range(chunk):
                x.item()
            recording.snapshot()

    run = recording.run if path is None else Run.load(path)
    waits = chunks * chunk
    kept = len(run.syncs.events)
    assert path is None or path.stat().st_size <= 1 << 20
    assert 15_000 < kept < waits
    begins_ns = run.syncs.events["begin_ns"]
    assert begins_ns.tolist() == [i * WAIT_NS for i in range(waits - kept, waits)]
    assert run.syncs.dropped == waits - kept
    assert (run.syncs.total.count, run.syncs.total.blocked_ns) == (waits, waits * WAIT_NS)
    assert f"unknown: {waits - kept:,} waits were not kept" in run.report(verbose=True, width=120)


def test_two_recordings_have_their_own(advance: Callable[[int], None]) -> None:
    x = on_device(1.0)

    def body() -> None:
        x.item()

    for _ in range(2):
        run = watched(body)
        assert run.syncs.total.count == len(run.syncs.events) == 1


def test_report_lists_the_dearest_first(advance: Callable[[int], None]) -> None:
    x = on_device(1.0)

    def body() -> None:
        for i in pig.gpu_steps(range(4)):
            x.item()
            if i % 2:
                x.tolist(), x.tolist(), x.tolist()

    text = watched(body).report(verbose=True, width=120, color=False)
    section = text.partition("Syncs: where the host waits for the device\n")[2].splitlines()
    assert section[0].split() == [
        *("line", "what", "count", "per", "step", "ms", "per", "step", "outside", "steps"),
        *("total", "ms", "bytes"),
    ]
    name = os.path.relpath(__file__)
    first, second = (line.split() for line in section[2:4])
    assert first[0].startswith(f"{name}:") and second[0].startswith(f"{name}:")
    assert first[1:8] == [".tolist()", "6", "1.50", "7.500", "0", "30.000", "24"]
    assert second[1:8] == [".item()", "4", "1.00", "5.000", "0", "20.000", "16"]


def test_waits_outside_steps_are_none_per_step(advance: Callable[[int], None]) -> None:
    x = on_device(1.0)

    def read() -> None:
        x.item()

    def body() -> None:
        for _ in pig.gpu_steps(range(4)):
            read()
        for _ in range(100):
            read()

    run = watched(body)
    section = run.report(verbose=True, width=120).partition("Syncs: where the host waits")[2]
    (row,) = [line for line in section.splitlines() if ".item()" in line]
    assert row.split()[1:8] == [".item()", "104", "1.00", "5.000", "100", "520.000", "416"]
    found = document_of(run).sections["syncs"]
    assert found is not None
    (site,) = found.sites
    assert (site.count, site.count_outside) == (104, 100)
    assert (site.count_per_step, site.blocked_ns_per_step) == (1, WAIT_NS)


def test_line_is_in_one_piece_however_narrow_the_report(
    advance: Callable[[int], None], tmp_path: Path
) -> None:
    program = tmp_path / ("a folder with a long name " * 4) / "program.py"
    code = compile("for _ in steps:\n    x.item()\n", str(program), "exec")

    def body() -> None:
        exec(code, {"x": on_device(1.0), "steps": pig.gpu_steps(range(6))})

    assert f"{program}:2 " in watched(body).report(verbose=True, width=40)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("/home/me/project/train.py", "train.py:7"),
        ("/home/me/project/models/gpt.py", "models/gpt.py:7"),
        ("/home/me/projects/train.py", "/home/me/projects/train.py:7"),
        ("/home/me/scripts/fit.py", "fit.py:7"),
        ("/home/me/project/.venv/lib/python3.11/site-packages/hf/trainer.py", "hf/trainer.py:7"),
        ("/usr/lib/python3/dist-packages/hf/trainer.py", "hf/trainer.py:7"),
        ("/usr/lib/python3.11/statistics.py", "statistics.py:7"),
        ("/home/me/lib/site-packages.py", "/home/me/lib/site-packages.py:7"),
        ("Cell In[2]", "Cell In[2], line 7"),
    ],
)
def test_name_of_a_line(file: str, name: str) -> None:
    folders = {"cwd": "/home/me/project", "program_folder": "/home/me/scripts"}
    assert Run(environment=folders).name_of_line(SourceLine(file, 7, "f")) == name


def test_report_without_a_sync_says_so() -> None:
    assert "Syncs: no watched call made the host wait" in watched(lambda: None).report(
        verbose=True, width=100
    )


# Runs of a preview; what it finds is tested in test_preview.py


def test_without_a_preview_the_host_waits_for_nothing() -> None:
    x = torch.tensor(1.0)
    assert kinds(watched(lambda: [x.item(), float(x), print(x), x.cpu()])) == {}


def test_watch_that_begins_later_is_known_at_once(tmp_path: Path) -> None:
    # Statistics go to the file once a second: with the first snapshot, then not with the second.
    parameter = nn.Parameter(torch.tensor(1.0))
    for path in (tmp_path / "run.gpurun", None):
        with pig.record(path) as recording:
            assert not recording.snapshot().syncs.was_watched
            with pig.watch_syncs(as_if_cuda=True):
                parameter.item()
                syncs = recording.snapshot().syncs
                assert syncs.was_watched and syncs.is_as_if and syncs.total.count == 1
                assert not recording.snapshot().complete
                parameter.item()
                assert recording.snapshot().syncs.total.count == 2
            ((begin_ns, end_ns),) = recording.snapshot().syncs.watched_ns
            assert begin_ns < end_ns < recording.snapshot().duration_ns
        assert recording.run.syncs.watched_ns == ((begin_ns, end_ns),)


# The command


@pytest.fixture(scope="module")
def programs() -> Programs:
    return Programs()


def run_program(programs: Programs, tmp_path: Path, source: str, *options: str) -> Any:
    program = tmp_path / "program.py"
    program.write_text("import torch, sys\n" + source)
    return programs.run(
        program, options=["-o", str(tmp_path / "r.gpurun"), "--overwrite", *options]
    )


LOOP = """
p = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([p], lr=0.1)
for i in range(3):
    loss = (p * p).sum()
    loss.backward()
    optimizer.step()
    READ
loss.item()
"""


@pytest.mark.parametrize(
    ("read", "end", "options", "exit_code"),
    [
        ("loss.item()", "", ["--as-if-cuda", "--fail-on-sync"], 3),
        ("loss.item()", "sys.exit(0)", ["--as-if-cuda", "--fail-on-sync"], 3),
        ("loss.item()", "sys.exit(7)", ["--as-if-cuda", "--fail-on-sync"], 7),
        ("loss.item()", "1 / 0", ["--as-if-cuda", "--fail-on-sync"], 1),
        ("loss.item()", "", ["--fail-on-sync"], 0),
        ("loss.item()", "", ["--as-if-cuda"], 0),
        ("pass", "", ["--as-if-cuda", "--fail-on-sync", "--steps", "2"], 0),
        (
            "import pyinstrument_gpu as pig\n    with pig.allow_sync():\n        loss.item()",
            "",
            ["--as-if-cuda", "--fail-on-sync", "--steps", "3"],
            0,
        ),
    ],
)
def test_fail_on_sync(
    programs: Programs, tmp_path: Path, read: str, end: str, options: list[str], exit_code: int
) -> None:
    done = run_program(programs, tmp_path, LOOP.replace("READ", read) + end, *options)
    assert done.exit_code == exit_code, done.errors
    assert ("syncs happened inside steps" in done.errors) is (exit_code == 3)


def test_installed_module_is_the_program(programs: Programs, tmp_path: Path) -> None:
    """Of a module that `-m` runs, its own lines are shown, and never one of what started it."""
    packages = tmp_path / "lib" / "site-packages"
    for name, source in {
        "tool/__init__.py": "",
        "tool/train.py": "import tool.loop, torch\nx = torch.ones(1)\n"
        "tool.loop.run(torch.nn.Parameter(x))\n",
        "tool/loop.py": "import library\ndef run(x):\n    x.item()\n    library.read(x)\n",
        "library.py": "def read(x):\n    return x.item()\n",
    }.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(source)
    run_file = tmp_path / "r.gpurun"
    done = programs.run(
        Path("tool.train"),
        options=["--as-if-cuda", "-o", str(run_file)],
        is_module=True,
        working_directory=packages,
    )
    assert done.exit_code == 0, done.errors
    run = Run.load(run_file)
    names = [
        (run.name_of_line(site.program), site.library and run.name_of_line(site.library))
        for site in run.syncs.sites
        if not site.is_allowed
    ]
    assert names == [("tool/loop.py:3", None), ("tool/loop.py:4", "library.py:2")]


def test_watch_can_be_switched_off(programs: Programs, tmp_path: Path) -> None:
    source = LOOP.replace("READ", "loss.item()")
    for options in ([], ["--no-sync-watch"]):
        assert run_program(programs, tmp_path, source, *options).exit_code == 0
        assert pig.Run.load(tmp_path / "r.gpurun").syncs.was_watched == (not options)
    done = run_program(programs, tmp_path, source, "--no-sync-watch", "--as-if-cuda")
    assert done.exit_code == 2


@pytest.mark.parametrize(
    "call",
    [
        "torch.ones(2, 3).item()",
        "torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 3))(torch.ones(1, 5))",
        *(
            pytest.param(call, marks=pytest.mark.thorough)
            for call in (
                "torch.ones(3).to(other=1)",
                "b = torch.nn.Linear(2, 3); b.compile(backend='eager')\n"
                "torch.nn.Sequential(b)(b.weight.T)",
                "b = torch.nn.Linear(2, 3); b._compiled_call_impl = 5\n"
                "torch.nn.Sequential(b)(b.weight)",
                "b = torch.nn.Flatten(); b.forward = lambda x: b.__class__.__call__(3, x)\nb(1)",
                "try: torch.nn.Sequential(torch.nn.Linear(2, 3))(torch.ones(1, 5))\n"
                "except Exception as error: raise ExceptionGroup('all', [error]) from None",
            )
        ),
    ],
)
def test_uncaught_error_has_none_of_our_frames(
    programs: Programs, tmp_path: Path, call: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import torch\n{call}\n")
    without = programs.run(program)
    with_us = programs.run(program, options=["-o", str(tmp_path / "r.gpurun")])
    assert with_us.exit_code == without.exit_code == 1
    assert "Traceback" in without.errors and with_us.errors.startswith(without.errors)


# What is put back, and what survives


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_functions() -> None:
    with pig.watch_syncs(as_if_cuda=True):

        @torch.compile(fullgraph=True, backend="eager")
        def step(x: torch.Tensor) -> torch.Tensor:
            return (x.to(torch.float64)[0] + torch.where(x > 0, x, -x).sum()).to("cpu")

        assert step(torch.ones(3)).item() == 4.0


@pytest.mark.parametrize(
    "function, call",
    [
        (math.sqrt, lambda: math.sqrt(4.0)),
        (math.hypot, lambda: math.hypot(3.0, 4.0)),
        (sorted, lambda: sorted([2, 1])),
    ],
)
def test_functions_that_the_interpreter_calls_without_asking(
    function: Any, call: Callable[[], object]
) -> None:
    heard = []

    def hears(*_: object) -> None:
        heard.append(1)

    known = {function: "as before"}
    # So often that the interpreter has specialised the call.
    before = [call() for _ in range(50)]
    assert native.hook_call(function, 0, enter=hears, leave=hears)
    assert [call() for _ in range(50)] == before
    assert len(heard) == 50
    with pytest.raises(TypeError):
        function.__call__(None)
    assert len(heard) == 51
    assert known[function] == "as before"
    assert pickle.loads(pickle.dumps(function)) is function
    native.unhook(hears)
    assert [call() for _ in range(50)] == before
    assert len(heard) == 51


def test_interrupted_while_hooking(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(native, "hook_subscripts", interrupt)
        with pig.watch_syncs():
            pass
    assert watching._active is None


def test_torch_that_is_built_otherwise_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    hook_call = native.hook_call
    item = vars(torch._C.TensorBase)["item"]
    monkeypatch.setattr(
        native,
        "hook_call",
        lambda f, *rest, **how: f is not item and hook_call(f, *rest, **how),
    )
    with (
        pytest.warns(RuntimeWarning, match="waits of torch.Tensor.item are not seen"),
        pig.watch_syncs(),
    ):
        assert torch.ones(1).item() == 1
