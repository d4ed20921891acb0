# SPDX-License-Identifier: Apache-2.0
"""Phases in what TorchInductor compiles, from programs that are compiled for real."""

from collections.abc import Callable
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase
from pyinstrument_gpu.core.run import Run

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("inductor"),
]

FORWARD, BACKWARD = "forward graph of layers", "backward graph of layers"


def layers(x: Any, *w: Any) -> Any:
    """Products only, which need no C++ compiler."""
    with gpu_phase("a"):
        y = x @ w[0]
    for name, one in zip(("c", "d"), w[1:3], strict=True):
        with gpu_phase("b"), gpu_phase(name):
            y = y @ one
    return y @ w[3]


def other_layers(x: Any, *w: Any) -> Any:
    """The same graph, with the same names in the same order elsewhere."""
    with gpu_phase("a"):
        y = x @ w[0] @ w[1]
    with gpu_phase("b"):
        with gpu_phase("c"):
            y = y @ w[2]
        with gpu_phase("d"):
            return y @ w[3]


def inputs() -> tuple[Any, ...]:
    torch.manual_seed(0)
    return (torch.randn(8, 8), *(torch.randn(8, 8, requires_grad=True) for _ in range(4)))


def values(function: Callable[..., Any], of: tuple[Any, ...]) -> list[Any]:
    with gpu_phase("step"):
        result = function(*of)
        result.backward(torch.ones_like(result))
    return [result.detach(), *(one.grad for one in of[1:])]


def run_of(function: Callable[..., Any], calls: int = 2, **options: Any) -> Run:
    """A run in which a function is compiled, and called some times, with the right results."""
    torch._dynamo.reset()
    expected = values(function, inputs())
    compiled = torch.compile(function, fullgraph=True)
    with pig.record(**options) as recording:
        for _ in range(calls):
            found = values(compiled, inputs())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    return recording.run


def hits() -> int:
    return int(torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"])


def counts(run: Run) -> dict[str, int]:
    return {path.removeprefix("step/"): phase.count for path, phase in run.phases.items()}


WHOLE = {"step": 2, FORWARD: 2, BACKWARD: 2}
MARKED = {
    **WHOLE,
    **{f"{FORWARD}/{path}": 2 for path in ("a", "b", "b/c", "b/d")},
    **{f"{BACKWARD}/{path}": 2 for path in ("a", "b", "b/c", "b/d")},
}


def test_marks_time_the_phases_forward_and_backward() -> None:
    run = run_of(layers, compiled_phases=True)
    assert run.compilations is not None
    assert run.compilations.unknown_phases == ()
    assert counts(run) == MARKED
    for path in ("step", f"step/{FORWARD}", f"step/{FORWARD}/b"):
        inside = [one for one in run.phases if one.rpartition("/")[0] == path]
        of = run.phases[path]
        assert of.host is not None
        assert of.self_host is not None
        hosts = [run.phases[one].host for one in inside]
        rest_ns = of.host.total_ns - sum(one.total_ns for one in hosts if one is not None)
        assert rest_ns == pytest.approx(of.self_host.total_ns, abs=100)  # rounded
    assert run.dropped["unmatched_ends"] == 0

    before = hits()
    assert counts(run_of(layers, compiled_phases=True)) == MARKED  # kept by torch, with its marks
    assert hits() == before + 2


def test_what_torch_keeps_has_no_marks_of_another_program() -> None:
    torch.compile(layers, fullgraph=True)(*inputs()).sum()
    assert counts(run_of(layers, compiled_phases=True)) == MARKED
    before = hits()
    other = run_of(other_layers, compiled_phases=True)
    assert hits() == before
    assert {path.replace("other_", ""): count for path, count in counts(other).items()} == MARKED

    # Without marks a run compiles what a program does that is not recorded.
    torch._dynamo.reset()
    values(torch.compile(layers, fullgraph=True), inputs())
    before = hits()
    assert counts(run_of(layers)) == WHOLE
    assert hits() == before + 2


@pytest.mark.parametrize("what", ["another signature", "a missing name"])
def test_where_inductor_is_built_otherwise_graphs_are_timed_as_a_whole(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import custom_graph_pass
    from torch._inductor.scheduler import Scheduler

    before = Scheduler.enter_context
    if what == "a missing name":
        monkeypatch.delattr(custom_graph_pass, "get_hash_for_files")
    else:
        monkeypatch.setattr(Scheduler, "enter_context", lambda self, one: before(self, one))
    run = run_of(layers, compiled_phases=True)
    assert counts(run) == WHOLE
    sentence = "recorded as asked: TorchInductor of this version of torch is not built as expected"
    assert sentence in run.report(verbose=True, width=300)


def test_what_can_not_be_marked_is_said() -> None:
    from torch._inductor import config

    compiled = torch.compile(layers, fullgraph=True)
    with (
        pig.record(compiled_phases=True) as recording,
        config.patch(post_grad_custom_post_pass=None),
    ):
        for _ in range(2):
            values(compiled, inputs())
    run = recording.run
    assert counts(run) == WHOLE
    assert run.compilations is not None
    assert run.compilations.unknown_phases == (
        "phases in some graphs are not marked: the program has replaced "
        "torch._inductor.config.post_grad_custom_post_pass",
    )


def test_a_pass_of_the_program_s_own_stays() -> None:
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    seen = []

    class Own(CustomGraphPass):
        def __call__(self, graph: Any) -> None:
            seen.append(graph)

        def uuid(self) -> Any:
            return "own"

    own = Own()
    with config.patch(post_grad_custom_post_pass=own):
        assert counts(run_of(layers, compiled_phases=True)) == MARKED
        assert config.post_grad_custom_post_pass is own
    assert len(seen) == 2


@pytest.mark.slow
def test_values_gradients_and_graphs_are_those_of_the_program() -> None:
    """With dynamic shapes, autocast, a checkpoint, nesting and a loop."""
    from torch.utils.checkpoint import checkpoint

    layer = torch.nn.ModuleList([torch.nn.Linear(16, 16) for _ in range(3)])

    def block(x: Any) -> Any:
        with gpu_phase("inner"):
            return torch.tanh(layer[0](x)) * x

    def model(x: Any) -> Any:
        with gpu_phase("outer"):
            with torch.autocast("cpu", torch.bfloat16):
                x = checkpoint(block, x, use_reentrant=False)
            for one in layer[1:]:
                with gpu_phase("layer"):
                    x = torch.relu(one(x)).softmax(-1)
        return x.square().sum()

    def trained(function: Callable[[Any], Any], x: Any) -> list[Any]:
        layer.zero_grad()
        loss = function(x)
        loss.backward()
        return [loss.detach(), *(one.grad for one in layer.parameters())]

    sizes = [torch.randn(size, 16) for size in (8, 12, 20)]
    expected = [trained(model, x) for x in sizes]
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    torch._dynamo.utils.counters.clear()
    with pig.record(compiled_phases=True) as recording:
        found = [trained(compiled, x) for x in sizes]
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.001)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    names = {path.rpartition("/")[2] for path in recording.run.phases}
    assert {"inner", "layer"} <= {one for name in names for one in name.split("+")}
