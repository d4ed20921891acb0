# SPDX-License-Identifier: Apache-2.0
"""What is learnt of torch's own compiler, from a program of which the truth is known."""

from pathlib import Path

import pytest

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import metrics_by_name
from tests.helpers.script import run_script

pytest.importorskip("torch")

PROGRAM = """
import os, sys, time
import pyinstrument_gpu as pig

with pig.record(sys.argv[1]):
    import torch
    assert "torch._dynamo" not in sys.modules
    started = []

    def grows(x):                # line 10
        return x * 2

    def breaks(x):               # line 13
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    def trained(x, w):           # line 18
        return (x @ w).relu()

    torch._dynamo.config.recompile_limit = 3
    torch._dynamo.on_compile_start(lambda args: started.append(args))
    static = torch.compile(grows, backend="eager", dynamic=False)
    broken = torch.compile(breaks, backend="eager")
    whole = torch.compile(trained, backend="aot_eager", dynamic=False)
    w = torch.ones(4, 4, requires_grad=True)
    for size in pig.gpu_steps([1, 2, 3, 4, 5]):
        with pig.gpu_phase("forward"):
            y = static(torch.ones(size))
            assert y.tolist() == [2.0] * size
            if size == 1:
                assert broken(torch.ones(3)).tolist() == [4.0] * 3
        if size <= 2:
            loss = whole(torch.ones(size, 4), w).sum()
            with pig.gpu_phase("backward"):
                loss.backward()
    handler = torch._dynamo.callback_handler
    assert len(started) == 9
    torch._dynamo.reset()
    torch.compile(trained, backend="eager")(torch.ones(3, 4), w)
assert "install_callbacks" not in vars(handler)
assert len(started) == 9         # reset() took the callback away, and it alone
"""


@pytest.mark.thorough
def test_recompilations_breaks_and_a_limit_are_told_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "a.gpurun"
    run_script(PROGRAM, path, is_fresh=True)
    run = Run.load(path)
    found = run.compilations
    assert found is not None
    assert not run.notes
    kinds = [
        (
            *(one.function, one.line, one.kind, one.step, one.recompiled),
            None if one.path is None else run.paths[one.path],
        )
        for one in found.compilations
    ]
    resumed = "torch_dynamo_resume_in_breaks_at_15"
    assert kinds == [
        ("grows", 10, "dynamo", 0, False, "forward"),
        ("breaks", 13, "dynamo", 0, False, "forward"),
        (resumed, 15, "dynamo", 0, False, "forward"),
        ("trained", 18, "dynamo", 0, False, None),
        ("trained", 18, "lazy_backward", 0, False, "backward"),
        ("grows", 10, "dynamo", 1, True, "forward"),
        ("trained", 18, "dynamo", 1, True, None),
        ("trained", 18, "lazy_backward", 1, True, "backward"),
        ("grows", 10, "dynamo", 2, True, "forward"),
        ("trained", 18, "dynamo", None, False, None),
    ]
    assert found.count == len(kinds)
    reasons = [one.reason for one in found.compilations if one.function == "grows"]
    size = "tensor 'x' size mismatch at index 0. expected {}, actual {}"
    assert reasons == [None, size.format(1, 2), size.format(2, 3)]
    (limit,) = found.limits
    assert (limit.function, limit.reason) == ("grows", size.format(3, 4))
    assert limit.limit.startswith("recompile_limit")
    (broken,) = found.breaks
    assert (broken.line, broken.function, broken.count) == (15, "breaks", 1)
    assert broken.reason.startswith("Call to `torch._dynamo.graph_break()`")
    assert run.steps[3].begin_ns < limit.at_ns < run.steps[3].end_ns

    (readings,) = (
        of for name, of in metrics_by_name(run.metric_names, run.metrics) if "comp" in name
    )
    by_step = {int(one["step"]): int(one["value"]) for one in readings}
    assert by_step == {
        step: sum(one.duration_ns for one in found.compilations if one.step == step)
        for step in (0, 1, 2)
    }
    assert found.total_ns == sum(one.duration_ns for one in found.compilations)
    for one in found.compilations:
        if one.step is not None:
            step_of = run.steps[one.step]
            assert step_of.begin_ns <= one.begin_ns
            assert one.begin_ns + one.duration_ns <= step_of.end_ns
    report = run.report(verbose=True, width=200)
    assert "% is compilation" in report
    assert "grows (<string>:10) was compiled 3 times" in report
