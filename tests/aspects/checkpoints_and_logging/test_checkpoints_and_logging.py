# SPDX-License-Identifier: Apache-2.0
"""Calls that write checkpoints and logs, of libraries that are built as the real ones are."""

import contextlib
import logging
import os
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_step
from pyinstrument_gpu.aspects.checkpoints_and_logging import CHECKPOINT_KIND, LOGGING_KIND
from pyinstrument_gpu.aspects.checkpoints_and_logging.aspect import ASPECT
from pyinstrument_gpu.aspects.checkpoints_and_logging.watch import CALLS, OutputWatch, _Calls
from pyinstrument_gpu.core.cause import Cause

MS = 1_000_000


class Library:
    """A library with a clock, whose functions take as long as they are told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 0
        module: Any = types.ModuleType("made_library")

        def save(state: object, f: object, ms: float = 50) -> str:
            self.now_ns += round(ms * MS)
            if isinstance(f, Path):
                f.write_bytes(b"x" * 1000)
            return "saved"

        outer = self

        class Writer:
            def add_scalar(self, tag: str, ms: float) -> None:
                outer.now_ns += round(ms * MS)

            def add_all(self, ms: float) -> None:
                self.add_scalar("a", ms)
                self.add_scalar("b", ms)

        module.save, module.Writer = save, Writer
        monkeypatch.setitem(sys.modules, "made_library", module)
        self.module = module

    def recording(self) -> pig.Recording:
        calls = (
            _Calls(CHECKPOINT_KIND, "made_library", "", ("save", "missing"), "made", (1, "f")),
            _Calls(LOGGING_KIND, "made_library", "Writer", ("add_scalar", "add_all"), "Writer"),
        )
        recording = pig.record()
        recording.watchers["checkpoints_and_logging"] = OutputWatch(lambda: self.now_ns, calls)
        return recording


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    return Library(monkeypatch)


def causes_of(recording: pig.Recording) -> dict[str, Cause]:
    assert not recording.run.notes
    return {cause.name: cause for cause in ASPECT.causes(recording.run)}


def times_ms(cause: Cause) -> list[tuple[float, float]]:
    return [
        (one["begin_ns"] / MS, (one["end_ns"] - one["begin_ns"]) / MS) for one in cause.intervals
    ]


def test_a_checkpoint_has_its_time_line_and_size(library: Library, tmp_path: Path) -> None:
    with library.recording() as recording:
        for _ in range(2):
            with gpu_step():
                library.now_ns += 5 * MS
                assert library.module.save({}, tmp_path / "a.pt") == "saved"
        library.module.save({}, f=tmp_path / "a.pt", ms=7)
    cause = causes_of(recording)["checkpoint"]
    assert times_ms(cause) == [(5, 50), (60, 50), (110, 7)]
    assert not len(cause.amounts)
    assert [note.partition(" at ")[0] for note in cause.notes] == ["made.save", "made.save"]
    assert "test_checkpoints_and_logging.py:" in cause.notes[0]
    assert cause.notes[0].endswith(", 1000 bytes")


def test_a_forked_child_writes_as_ever() -> None:
    """Its hooks are those of the parent's recording; it has none of its own."""
    with pig.record():
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                logging.getLogger("forked").warning("its own")
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0


def test_what_another_thread_writes_is_only_known_to_go_on_meanwhile(library: Library) -> None:
    with library.recording() as recording, ThreadPoolExecutor(1) as pool, gpu_step():
        pool.submit(library.module.save, {}, None).result()
        pool.submit(library.module.Writer().add_scalar, "loss", 3).result()
    causes = causes_of(recording)
    assert times_ms(causes["checkpoint"]) == times_ms(causes["logging"]) == []
    assert times_ms(causes["checkpoint_meanwhile"]) == [(0, 50)]
    assert causes["checkpoint_meanwhile"].intervals["thread"].tolist() == [-1]


def test_short_calls_add_up_and_only_outermost_ones_count(library: Library) -> None:
    writer = library.module.Writer()
    with library.recording() as recording:
        with gpu_step():
            for _ in range(5):
                writer.add_scalar("loss", 0.01)
        with gpu_step():
            writer.add_all(0.2)
            with pytest.raises(TypeError):
                writer.add_scalar("loss", None)
            writer.add_scalar("loss", 0.03)
    writer.add_scalar("loss", 1)  # nobody watches any more
    cause = causes_of(recording)["logging"]
    assert times_ms(cause) == [(0.05, 0.4)]
    assert [(one["step"], one["time_ns"]) for one in cause.amounts] == [(0, 50_000), (1, 30_000)]
    assert "Writer.add_all at " in cause.notes[int(cause.intervals["note"][0])]


def test_what_cannot_be_hooked_leaves_it_unknown(library: Library) -> None:
    library.module.save = type("Callable", (), {"__call__": lambda self: None})()
    with library.recording() as recording:
        library.module.save()
    assert not causes_of(recording)
    assert "made.save could not be watched" in next(iter(ASPECT.unknown(recording.run)))


@pytest.mark.thorough
def test_the_real_functions_are_there_and_can_be_hooked() -> None:
    """In the versions that are installed."""
    import importlib

    pytest.importorskip("torch")

    recording = pig.record()
    found = set()
    for calls in CALLS:
        try:
            module: Any = importlib.import_module(calls.module)
        except ImportError:
            continue
        owner = getattr(module, calls.owner) if calls.owner else module
        found |= {f"{calls.module}.{name}" for name in calls.names if name in vars(owner)}
    with recording:
        pass
    known = recording.run.checkpoints_and_logging
    assert known is not None
    assert not known.not_watched
    assert {"torch.save", "torch.distributed.checkpoint.state_dict_saver.async_save"} <= found
