# SPDX-License-Identifier: Apache-2.0
"""What is noted of a start-up: each import once, and who made what."""

import importlib
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pyinstrument_gpu.aspects.startup import IMPORT, MODEL, MOST_INTERVALS, OPTIMIZER
from pyinstrument_gpu.aspects.startup import log as log_module
from pyinstrument_gpu.aspects.startup.log import StartupLog, process_began_ns
from pyinstrument_gpu.native import native

pytestmark = pytest.mark.skipif(not hasattr(native, "hook_call"), reason="no native module")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[StartupLog]:
    """It keeps short times, too."""
    monkeypatch.setattr(log_module, "_KEPT_IMPORT_NS", 0)
    monkeypatch.setattr(log_module, "_KEPT_NS", 0)
    made = StartupLog()
    made.begin()
    yield made
    made.end()


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path, of which modules are forgotten."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder: Path, **sources: str) -> None:
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    importlib.invalidate_caches()


def imported(log: StartupLog) -> list[tuple[str, str]]:
    """Our modules, and the file whose line imported them."""
    return [
        (one["name"], Path(one["file"]).name)
        for one in log.facts()["intervals"]
        if one["part"] == IMPORT and one["name"].startswith("started")
    ]


def test_imports_by_the_outermost(log: StartupLog, modules: Path) -> None:
    """In a circle, that fail, and on another thread."""
    write(
        modules,
        started_a="import started_b",
        started_b="import started_a",
        started_failing="import started_b\nraise KeyError('its own')",
        started_elsewhere="",
    )
    import_module = importlib.import_module
    import_module("started_a")
    with pytest.raises(KeyError, match="its own"):
        import_module("started_failing")
    with pytest.raises(ModuleNotFoundError):
        import_module("started_missing")
    thread = threading.Thread(target=import_module, args=("started_elsewhere",))
    thread.start()
    thread.join()
    names = ["started_a", "started_failing", "started_missing"]
    assert imported(log) == [(name, "test_log.py") for name in names]
    log.end()
    write(modules, started_late="")
    import_module("started_late")
    assert len(imported(log)) == len(names)


def test_modules_by_the_outermost_constructor(log: StartupLog) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
            self.head = nn.Linear(1, 1)
            nn.init.normal_(self.head.weight)

    net = Net()
    torch.optim.SGD(net.parameters(), lr=0.1)
    made = log.facts()["intervals"]
    of_optimizer = next(one for one in made if one["part"] == OPTIMIZER)
    of_model = next(one for one in made if one["part"] == MODEL)
    assert (of_model["name"], of_optimizer["name"]) == ("Net", "SGD")
    assert of_model["begin_ns"] < of_model["end_ns"] <= of_optimizer["begin_ns"]
    assert Path(of_model["file"]).name == "test_log.py"
    assert of_model["line"] == Net.__init__.__code__.co_firstlineno + 6
    assert type(nn.Module.__init__).__name__ == "function"


def test_variables_of_a_constructor_live_no_longer(log: StartupLog) -> None:
    class Trainer:
        def __init__(self) -> None:
            checkpoint = torch.ones(1)
            self.checkpoint = weakref.ref(checkpoint)
            self.model = nn.Linear(1, 1)
            del checkpoint
            self.is_freed = self.checkpoint() is None

    assert Trainer().is_freed
    assert MODEL in {one["part"] for one in log.facts()["intervals"]}


def test_dynamo_compiles_what_fills_parameters_and_none_of_the_watch(log: StartupLog) -> None:
    import torch._dynamo

    @torch.compile(backend="eager")
    def noisy(x: Any) -> Any:
        nn.init.normal_(x)
        torch._dynamo.graph_break()
        nn.Linear(1, 1)
        return x + 1

    try:
        assert noisy(torch.ones(1)).shape == (1,)
        counts = torch._dynamo.utils.counters["graph_break"]
        assert not [why for why in counts if "monotonic_ns" in why or "getpid" in why]
    finally:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()


def test_what_is_noted_is_bounded(log: StartupLog, modules: Path) -> None:
    names = [f"started_{number}" for number in range(MOST_INTERVALS + 4)]
    write(modules, **dict.fromkeys(names, ""))
    for name in names:
        importlib.import_module(name)
    facts: dict[str, Any] = log.facts()
    assert len(facts["intervals"]) == MOST_INTERVALS
    assert facts["lost"] == 4
    assert facts["short_ns"][IMPORT] > 0
    assert not facts["not_seen"]


def test_process_began_before_now() -> None:
    began_ns = process_began_ns()
    assert began_ns is not None
    assert 0 < began_ns < time.monotonic_ns()
