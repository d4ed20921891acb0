# SPDX-License-Identifier: Apache-2.0
"""Phases inside what torch.compile replays as CUDA graphs (`mode="reduce-overhead"`).

Inductor compiles for the CPU and is told that everything can be captured, but for `host`. Its code
is cut into partitions as for a GPU, and torch's own `cudagraphify` is given each. Only what decides
when to warm up, capture and replay needs a GPU, and is a fake on the simulated driver.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pyinstrument_gpu import gpu_phase, gpu_step
from tests.aspects.graphs.test_graph_phases import phases_of, times_of
from tests.helpers.device_program import Program
from tests.helpers.fake_graphs import FakeTreeManager
from tests.helpers.simulated_cuda import SimulatedCuda
from tests.helpers.spans import dropped_of

pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("ignore")]

A_NS, B_NS, C_NS = 160_000, 320_000, 640_000


@pytest.fixture(autouse=True)
def reduce_overhead(
    cuda: SimulatedCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    with monkeypatch.context() as as_it_is:
        as_it_is.setattr(torch.backends.cuda, "is_built", lambda: torch.version.cuda is not None)
        from torch._inductor import (
            config,
            cudagraph_trees,
            cudagraph_utils,
            output_code,
            scheduler,
        )

    def should_partition(_: Any, node: Any, **__: Any) -> Any:
        """The reason in newer versions of torch, whether there is one in older ones."""
        return "host" if "host" in str(getattr(node.node, "op_overload", "")) else None

    made = output_code.CompiledFxGraph.__init__

    @functools.wraps(made)
    def on_a_device(graph: Any, *args: Any, **options: Any) -> None:
        made(graph, *args, **options)
        graph.device_idxs = {0}

    stream = cuda.devices[0].create_stream()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(scheduler.Scheduler, "should_partition", should_partition)
    monkeypatch.setattr(output_code.CompiledFxGraph, "__init__", on_a_device)
    monkeypatch.setattr(cudagraph_utils, "check_lowering_disable_cudagraph", lambda devices: None)
    monkeypatch.setattr(
        cudagraph_trees, "CUDAGraphTreeManager", lambda device: FakeTreeManager(stream)
    )
    torch._dynamo.reset()
    with (
        torch.library._scoped_library("pig_test", "FRAGMENT") as library,
        config.patch({"compile_threads": 1, "triton.cudagraphs": True}),
    ):
        for name in ("work", "host"):
            library.define(f"{name}(Tensor x, int ns) -> Tensor")
            library.impl(name, lambda x, ns: x.clone(), "Meta")
        library.impl("host", lambda x, ns: x + 1, "CPU")

        def work(x: Any, ns: int) -> Any:
            stream.launch(ns)
            return x * 2

        library.impl("work", work, "CPU")
        yield
    torch._dynamo.reset()
    cudagraph_trees.reset_cudagraph_trees()


def layers(x: Any) -> Any:
    work, host = torch.ops.pig_test.work, torch.ops.pig_test.host
    with gpu_phase("a"):
        x = work(x, A_NS)
        with gpu_phase("b"):
            x = work(x, B_NS)
    x = host(x, 0)
    with gpu_phase("c"):
        return work(x, C_NS)


def test_each_replay_has_the_times_of_its_phases_and_their_step(program: Program) -> None:
    compiled = torch.compile(layers, fullgraph=True)
    x = torch.ones(4)
    with program.settled(compiled_phases=True) as recording, torch.no_grad():
        for _ in range(6):
            with gpu_step(), gpu_phase("step"):
                assert compiled(x).tolist() == [10] * 4
    run, found = recording.run, phases_of(recording.run)
    around = "step/forward graph of layers"
    # The first call warms up, the second captures and replays.
    for path, ns in (("a", A_NS + B_NS), ("a/b", B_NS), ("c", C_NS)):
        assert times_of(run, f"{around}/{path}") == [ns] * 5
    for one in range(2):
        steps = found.runs["step"][found.runs["graph"] == one]
        assert sorted(set(steps.tolist())) == [1, 2, 3, 4, 5]
    assert [(one.marks, one.replays, one.is_ambiguous) for one in found.graphs] == [
        (3, 5, False),
        (2, 5, False),
    ]
    assert run.compilations is not None
    assert run.compilations.unknown_phases == ()
    assert dropped_of(run) == {}
