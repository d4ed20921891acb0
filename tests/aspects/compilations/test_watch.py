# SPDX-License-Identifier: Apache-2.0
"""What is learnt of compilations, from a compiler that is built as Dynamo is."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.aspects.compilations import MOST_COMPILATIONS, MOST_LINES, MOST_TEXT
from pyinstrument_gpu.aspects.compilations.data import Compilations
from pyinstrument_gpu.core.schema import metrics_by_name
from pyinstrument_gpu.report.document import document_of
from tests.helpers.made_dynamo import FORWARD, MS, NAME, MadeDynamo

SIZE = "tensor 'x' size mismatch at index 0. expected {}, actual {}"
LIMIT: dict[str, Any] = {
    "fail_type": "Unsupported",
    "fail_reason": "Dynamo recompile limit exceeded\n  Explanation: Dynamo attempted to recompile "
    "the code object too many times, exceeding the recompile_limit cache size limit (currently set "
    "to 8). Excessive recompilations can degrade performance.",
}


@pytest.fixture
def dynamo(monkeypatch: pytest.MonkeyPatch) -> Iterator[MadeDynamo]:
    for name in (NAME, f"{NAME}.utils"):  # to be restored
        monkeypatch.setitem(sys.modules, name, sys)
        monkeypatch.delitem(sys.modules, name)
    yield MadeDynamo()


def recording_of(dynamo: MadeDynamo) -> pig.Recording:
    """A recording of a program that has imported the compiler."""
    dynamo.load()
    recording = pig.record()
    recording.watchers["compilations"] = dynamo.watch()
    return recording


def found_in(recording: pig.Recording) -> Compilations:
    found = recording.run.compilations
    assert found is not None
    assert not recording.run.notes
    return found


def compile_ms(recording: pig.Recording) -> dict[int, float]:
    """By step its reading of compilation."""
    named = dict(metrics_by_name(recording.run.metric_names, recording.run.metrics))
    readings: Any = named.get("step/compile_ns", [])
    return {int(one["step"]): float(one["value"]) / MS for one in readings}


def test_a_compilation_has_its_place_time_and_reason(dynamo: MadeDynamo) -> None:
    with recording_of(dynamo) as recording:
        with gpu_step():
            dynamo.now_ns = 5 * MS
            with gpu_phase("forward"), gpu_phase("block"):
                dynamo.compiles(300, **FORWARD, inductor_cumulative_compile_time_us=200_000)
            with gpu_phase("backward"):
                dynamo.compiles(40, kind="LAZY_BACKWARD")
        with gpu_step(), gpu_phase("forward"):
            reason = "0/0: " + SIZE.format(32, 31)
            dynamo.compiles(100, "0/1", **FORWARD, recompile_reason=reason)
        dynamo.compiles(7, "1/0", fail_type="Unsupported", fail_reason="a\n b" + 1000 * "c")
    found = found_in(recording)
    assert (found.count, found.total_ns, found.lost) == (4, 447 * MS, 0)
    first, backward, again, failed = found.compilations
    assert (first.begin_ns, first.duration_ns, first.kind) == (5 * MS, 300 * MS, "dynamo")
    assert (first.function, first.file, first.line) == ("forward", "/p/gpt.py", 88)
    assert recording.run.paths[first.path or 0] == "forward/block"
    assert (first.step, first.thread, first.recompiled, first.reason) == (0, 0, False, None)
    assert (first.inductor_ns, first.failure) == (200 * MS, None)
    assert (backward.kind, backward.function, backward.recompiled) == (
        *("lazy_backward", "forward"),
        False,
    )
    assert recording.run.paths[backward.path or 0] == "backward"
    assert (again.step, again.recompiled, again.reason) == (1, True, SIZE.format(32, 31))
    assert (failed.step, failed.path, failed.function) == (None, None, None)
    assert failed.failure == ("Unsupported: a b" + 1000 * "c")[:MOST_TEXT]
    assert compile_ms(recording) == {0: 340, 1: 100}


def test_the_backward_graph_of_a_recompilation_is_one_as_well(dynamo: MadeDynamo) -> None:
    with recording_of(dynamo) as recording:
        dynamo.compiles(1, "3/0", **FORWARD)
        dynamo.compiles(1, "3/1", **FORWARD, recompile_reason="3/0: len(L['x']) == 2")
        dynamo.compiles(1, "3/0", kind="LAZY_BACKWARD")
        dynamo.compiles(1, "3/1", kind="LAZY_BACKWARD")
    recompiled = [one.recompiled for one in found_in(recording).compilations]
    assert recompiled == [False, True, False, True]


def test_what_is_compiled_inside_of_a_compilation_is_part_of_it(dynamo: MadeDynamo) -> None:
    with recording_of(dynamo) as recording, gpu_step(), dynamo.compiling("0/0", **FORWARD):
        dynamo.now_ns += MS
        dynamo.compiles(2, "1/0")
        dynamo.now_ns += MS
    (one,) = found_in(recording).compilations
    assert (one.duration_ns, one.function) == (4 * MS, "forward")
    assert compile_ms(recording) == {0: 4}


def test_time_in_which_several_threads_compile_counts_once(dynamo: MadeDynamo) -> None:
    with ThreadPoolExecutor(1) as pool, recording_of(dynamo) as recording, gpu_step():
        other: Any = dynamo.compiling("1/0")
        with dynamo.compiling("0/0"):
            dynamo.now_ns += 3 * MS
            pool.submit(other.__enter__).result()
            dynamo.now_ns += 5 * MS
        dynamo.now_ns += 2 * MS
        pool.submit(other.__exit__, None, None, None).result()
    found = found_in(recording)
    assert [one.duration_ns for one in found.compilations] == [8 * MS, 7 * MS]
    assert [one.thread for one in found.compilations] == [0, None]  # which opened no phase
    assert found.total_ns == 10 * MS
    assert compile_ms(recording) == {0: 10}


def test_a_child_compiles_that_was_forked_while_another_thread_did(
    dynamo: MadeDynamo, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_lock, goes_on, clocks = threading.Event(), threading.Event(), dynamo.clocks
    parent = os.getpid()

    def halting_clocks() -> tuple[int, int]:
        if os.getpid() == parent and not goes_on.is_set():
            has_lock.set()
            goes_on.wait()
        return clocks()

    monkeypatch.setattr(dynamo, "clocks", halting_clocks)
    with recording_of(dynamo), ThreadPoolExecutor(1) as pool:
        install: Any = dynamo.callback_handler.install_callbacks
        trigger = SimpleNamespace(name="DYNAMO")
        entered = pool.submit(install(trigger, "1/0").__enter__)
        has_lock.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # ends it where it hangs
            with install(trigger, "0/0"):
                pass
            os._exit(0)
        goes_on.set()
        entered.result()
        assert os.waitpid(child, 0)[1] == 0


def test_what_lasts_over_several_steps_is_no_reading_of_one(dynamo: MadeDynamo) -> None:
    with ThreadPoolExecutor(1) as pool, recording_of(dynamo) as recording:
        other: Any = dynamo.compiling("1/0")
        with gpu_step():
            pool.submit(other.__enter__).result()
            dynamo.now_ns += 3 * MS
        with gpu_step():
            dynamo.now_ns += 3 * MS
            dynamo.compiles(4)
        with gpu_step():
            pool.submit(other.__exit__, None, None, None).result()
    assert found_in(recording).total_ns == 10 * MS
    assert compile_ms(recording) == {1: 4}


def test_it_is_bounded_and_totals_go_on(dynamo: MadeDynamo) -> None:
    with recording_of(dynamo) as recording, gpu_step():
        for number in range(MOST_COMPILATIONS + 44):
            dynamo.breaks(f"line {number}", number)
            dynamo.note(f"{number}/8", **LIMIT)
            dynamo.compiles(1, f"{number}/0", **FORWARD)
    found = found_in(recording)
    assert found.count == MOST_COMPILATIONS + 44
    assert len(found.compilations) == MOST_COMPILATIONS
    assert {one.function for one in found.compilations} == {"forward"}
    assert found.total_ns == found.count * MS
    assert (len(found.breaks), len(found.limits)) == (MOST_LINES, MOST_LINES)
    assert found.lost == 2 * (found.count - MOST_LINES)
    report = recording.run.report(verbose=True, width=200)
    assert "Only the time is known of the last 44 compilations" in report


def test_a_function_that_reaches_the_limit_is_named(dynamo: MadeDynamo) -> None:
    with recording_of(dynamo) as recording, gpu_step():
        dynamo.compiles(1, "2/0", **FORWARD)
        dynamo.now_ns += 6 * MS
        dynamo.note("2/8", recompile_reason="2/7: " + SIZE.format(9, 10), **LIMIT)
        dynamo.now_ns += 6 * MS
        text = "recompile_limit reached"  # as torch 2.10 writes it
        dynamo.note("4/8", fail_type="RecompileLimitExceeded", fail_reason=text)
        reason = "2/7: self.n == 7  # gpt.py:9 in f (HINT: make it a tensor.) User\nstack: f"
        dynamo.note("2/9", recompile_reason=reason, **LIMIT)
        dynamo.note("5/0", fail_type="InternalTorchDynamoError", fail_reason="no limit")
    limit, older, hinted = found_in(recording).limits
    assert (limit.function, limit.line, limit.at_ns) == ("forward", 88, 7 * MS)
    assert (limit.limit, limit.reason) == ("recompile_limit (8)", SIZE.format(9, 10))
    assert (older.function, older.limit) == (None, "recompile_limit")
    assert (hinted.reason, hinted.hint) == ("self.n == 7 # gpt.py:9 in f User", "make it a tensor.")


def test_graph_breaks_are_counted_by_line(dynamo: MadeDynamo) -> None:
    dynamo.breaks("of before", 1)
    text = "Failed to trace `print`\n  Explanation: It is a builtin.\n  Hint: None.\n"
    with recording_of(dynamo) as recording:
        for _ in range(3):
            dynamo.breaks(text, 92)
            dynamo.breaks("generic_jump TensorVariable()", 95)
            dynamo.compiles(1)
        dynamo.graph_break_reasons.clear()  # torch._dynamo.reset()
        dynamo.breaks(text, 92)
    by_print, by_value = found_in(recording).breaks
    assert (by_print.file, by_print.line, by_print.count) == ("/p/gpt.py", 92, 4)
    assert by_print.reason == "Failed to trace `print`: It is a builtin."
    assert (by_value.reason, by_value.count) == ("Data-dependent branching", 3)


def test_functions_of_before_are_known_and_not_counted(dynamo: MadeDynamo) -> None:
    dynamo.compiles(5, "7/0", **FORWARD)
    dynamo.note("7/8", **LIMIT)
    with recording_of(dynamo) as recording:
        dynamo.compiles(1, "7/0", kind="LAZY_BACKWARD")
    found = found_in(recording)
    assert [one.function for one in found.compilations] == ["forward"]
    assert (found.total_ns, found.limits) == (MS, ())


def test_callbacks_stay_as_they_are_and_reset_ends_nothing(dynamo: MadeDynamo) -> None:
    handler, called = dynamo.callback_handler, []
    handler.start_callbacks.append(lambda: called.append("begin"))
    handler.end_callbacks.append(lambda: called.append("end"))
    before = dict(vars(handler))
    with recording_of(dynamo) as recording:
        dynamo.compiles(1)
        assert (len(handler.start_callbacks), len(handler.end_callbacks)) == (1, 1)
        handler.clear()
        dynamo.compiles(1)
    assert called == ["begin", "end"]
    assert found_in(recording).count == 2
    assert vars(handler) == before
    dynamo.compiles(1)
    assert found_in(recording).count == 2


def test_what_the_program_raises_comes_out(dynamo: MadeDynamo) -> None:
    with recording_of(dynamo) as recording:
        with pytest.raises(KeyError, match="of the compiler"), dynamo.compiling():
            dynamo.now_ns += MS
            raise KeyError("of the compiler")
        dynamo.callback_handler.start_callbacks.append(lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            dynamo.compiles(1)
        dynamo.callback_handler.clear()
        dynamo.compiles(1)
    assert [one.duration_ns for one in found_in(recording).compilations] == [MS, MS]


def test_what_we_raise_does_not(dynamo: MadeDynamo, monkeypatch: pytest.MonkeyPatch) -> None:
    with recording_of(dynamo) as recording:
        monkeypatch.setattr(dynamo, "get_compilation_metrics", lambda: 1 / 0)
        dynamo.graph_break_reasons = [None]
        dynamo.compiles(1, **FORWARD)
    (one,) = found_in(recording).compilations
    assert (one.duration_ns, one.function, one.recompiled) == (MS, None, None)


def test_before_the_compiler_is_imported_nothing_is_said(dynamo: MadeDynamo) -> None:
    recording = pig.record()
    recording.watchers["compilations"] = dynamo.watch()
    with recording, gpu_step():
        pass
    assert recording.run.compilations is None
    assert "Compilation" not in recording.run.report(verbose=True, width=200)


def test_of_a_compiler_that_is_built_otherwise_nothing_is_known(dynamo: MadeDynamo) -> None:
    dynamo.callback_handler = object()  # type: ignore[assignment]
    with recording_of(dynamo) as recording, gpu_step():
        pass
    found = found_in(recording)
    assert found.unknown is not None
    assert "install_callbacks" in found.unknown
    (unknown,) = (one for one in document_of(recording.run).unknown if "torch.compile" in one)
    assert unknown.startswith("Compilation by torch.compile: this version of torch is not built")
