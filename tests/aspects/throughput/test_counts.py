# SPDX-License-Identifier: Apache-2.0
"""Counts of floating-point operations, beside those that torch counts and those of the papers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import forward_ad
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from torch.utils.flop_counter import FlopCounterMode

import pyinstrument_gpu as pig
from pyinstrument_gpu.aspects.operations.events import CallFlops, DeviceEvent, HostEvent
from pyinstrument_gpu.aspects.operations.flops.counting import FlopCounting
from pyinstrument_gpu.core.flops import FlopCount, FlopKind, Flops, UnknownOperator
from pyinstrument_gpu.core.run import Run

transformers = pytest.importorskip("transformers")


def recorded(step: Callable[[], object], before: int = 1) -> Run:
    """A run whose last step is counted."""
    with pig.record() as recording:
        for number in range(before + 1):
            if number == before:
                pig.profile_steps(1, flops=True)
            with pig.gpu_step():
                step()
    return recording.run


def flops_of(run: Run) -> Flops:
    assert run.operations is not None and run.operations.flops is not None, run.notes
    return run.operations.flops


def by_kind(run: Run) -> Mapping[str, int]:
    sums = Counter[str]()
    for one in flops_of(run).counts:
        sums[one.kind.value] += one.flops
    return sums


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, requires_grad=True)


def images(dimensions: int) -> torch.Tensor:
    return rand(2, 4, *[9] * dimensions)


AS_TORCH: dict[str, Callable[[], torch.Tensor]] = {
    "mm": lambda: rand(2, 3) @ rand(3, 4),
    "addmm": lambda: functional.linear(rand(5, 3), rand(4, 3), rand(4)),
    "linear of three dimensions": lambda: functional.linear(rand(2, 5, 3), rand(4, 3), rand(4)),
    "bmm": lambda: rand(7, 2, 3) @ rand(7, 3, 4),
    "baddbmm": lambda: torch.baddbmm(rand(7, 2, 4), rand(7, 2, 3), rand(7, 3, 4)),
    "einsum": lambda: torch.einsum("bij,bjk,k->bi", rand(2, 3, 4), rand(2, 4, 5), rand(5)),
    "conv1d": lambda: functional.conv1d(images(1), rand(6, 4, 3), padding=1),
    "conv2d": lambda: functional.conv2d(images(2), rand(6, 4, 3, 2), rand(6), (2, 1), (1, 0), 2),
    "conv3d": lambda: functional.conv3d(images(3), rand(6, 4, 3, 3, 3), stride=3),
    "conv_transpose2d": lambda: functional.conv_transpose2d(images(2), rand(4, 6, 3, 3), stride=2),
}


def test_operators_count_as_torch_counts_them_forward_and_backward() -> None:
    wanted = {}
    for name, function in AS_TORCH.items():
        with FlopCounterMode(display=False) as counter:
            function().sum().backward()
        wanted[name] = counter.get_total_flops()

    def step() -> None:
        for name, function in AS_TORCH.items():
            with pig.gpu_phase(name):
                function().sum().backward()

    found = Counter[str | None]()
    for one in flops_of(recorded(step)).counts:
        found[one.path] += one.flops
    assert found == wanted


Q, GROUP, KV = (2, 4, 5, 8), (2, 2, 5, 8), (2, 4, 7, 8)
SCORES = 2 * math.prod(Q) * 5
OURS: dict[str, tuple[Callable[[], torch.Tensor], Mapping[str, int]]] = {
    "fused attention": (
        lambda: functional.scaled_dot_product_attention(rand(*Q), rand(*KV), rand(*KV)),
        {"forward": 4 * math.prod(Q) * 7, "backward": 8 * math.prod(Q) * 7}
        | {"recompute": 2 * math.prod(Q) * 7},
    ),
    "grouped queries": (
        lambda: functional.scaled_dot_product_attention(
            rand(*Q), rand(*GROUP), rand(*GROUP), is_causal=True, enable_gqa=True
        ),
        {"forward": 2 * SCORES, "backward": 4 * SCORES, "recompute": SCORES},
    ),
    "grouped convolution": (
        lambda: functional.conv2d(images(2), rand(8, 1, 3, 3), groups=4),
        {"forward": 2 * 2 * 49 * 8 * 9, "backward": 4 * 2 * 49 * 8 * 9},
    ),
    "vectors": (
        lambda: rand(3, 4).mv(rand(4)).dot(rand(3)),
        {"forward": 2 * 12 + 2 * 3, "backward": 2 * 12},  # outer products have no formula
    ),
    "in place": (
        lambda: torch.ones(2, 4).addmm_(torch.ones(2, 3), torch.ones(3, 4)) * rand(1),
        {"forward": 2 * 24},
    ),
}


@pytest.mark.parametrize("case", OURS)
def test_operators_that_torch_does_not_count(case: str) -> None:
    function, wanted = OURS[case]
    assert by_kind(recorded(lambda: function().sum().backward())) == wanted


# What operators are given, and what is computed with


def of_examples(function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> None:
    """As a loop over the examples of a batch does them, with their gradients."""
    for _ in range(5):
        function(*(rand(*shape) for shape in shapes)).sum().backward()


def in_vmap(function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> None:
    batch = [rand(5, *shape) for shape in shapes]
    torch.func.vmap(function)(*batch).sum().backward()


def gradients_in_vmap(function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> None:
    """Of each example its own."""
    gradients = torch.func.grad(lambda *one: function(*one).sum(), tuple(range(len(shapes))))
    torch.func.vmap(gradients)(*(torch.rand(5, *shape) for shape in shapes))


EXAMPLES: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "mm": (torch.mm, ((2, 3), (3, 4))),
    "linear": (functional.linear, ((6, 3), (4, 3), (4,))),
    "baddbmm": (torch.baddbmm, ((7, 2, 4), (7, 2, 3), (7, 3, 4))),
    "conv2d": (functional.conv2d, ((2, 4, 9, 9), (6, 4, 3, 3))),
    "in another vmap": (torch.func.vmap(torch.mm), ((7, 2, 3), (7, 3, 4))),
}


@pytest.mark.parametrize("batched", [in_vmap, gradients_in_vmap])
@pytest.mark.parametrize("case", EXAMPLES)
def test_vmap_counts_as_the_loop_over_its_examples(case: str, batched: Callable[..., None]) -> None:
    """The operators inside vmap see the shapes of one example."""
    function, shapes = EXAMPLES[case]
    with FlopCounterMode(display=False) as counter:
        of_examples(function, *shapes)
    found = by_kind(recorded(lambda: batched(function, *shapes)))
    assert found["forward"] + found["backward"] == counter.get_total_flops()
    assert found["backward"] == 2 * found["forward"]


def test_a_batch_inside_vmap_is_counted_as_a_whole() -> None:
    one = torch.rand(256, 16, 16)
    assert by_kind(recorded(lambda: torch.func.vmap(torch.mm)(one, one))) == {"forward": 2_097_152}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_of_an_operator_without_a_batched_form_runs_it_for_each_example() -> None:
    attention = functional.scaled_dot_product_attention
    found = by_kind(recorded(lambda: in_vmap(attention, Q, Q, Q)))
    assert found == {"forward": 10 * SCORES, "backward": 20 * SCORES, "recompute": 5 * SCORES}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch uses it here
def test_forward_mode_counts_the_function_and_its_tangents() -> None:
    pairs = torch.rand(2, 3), torch.rand(3, 4)

    def functional_transform() -> None:
        torch.func.jvp(torch.mm, pairs, pairs)

    def dual_numbers() -> None:
        with forward_ad.dual_level():
            torch.mm(*(forward_ad.make_dual(one, one) for one in pairs))

    for step in functional_transform, dual_numbers:
        assert by_kind(recorded(step)) == {"forward": 3 * 48}


def test_of_a_tensor_that_is_divided_among_ranks_the_part_of_this_one_counts() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (4,))
        x = distribute_tensor(torch.rand(2, 3), mesh, [Replicate()])
        weight = distribute_tensor(torch.rand(3, 8), mesh, [Shard(1)])
        assert by_kind(recorded(lambda: x @ weight)) == {"forward": 2 * 2 * 3 * 8 // 4}
    finally:
        dist.destroy_process_group()


def test_a_formula_of_the_program_stands_for_all_that_its_operator_calls() -> None:
    @torch.library.custom_op("throughput::masked", mutates_args=())
    def masked(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left @ right

    @torch.utils.flop_counter.register_flop_formula(torch.ops.throughput.masked)
    def half(left: Any, right: Any, **_: Any) -> int:
        return int(math.prod(left) * right[1])

    step = torch.autocast("cpu", torch.bfloat16)(lambda: masked(rand(2, 3), rand(3, 4)) @ rand(4))
    assert by_kind(recorded(step)) == {"forward": 2 * 3 * 4 + 2 * 2 * 4}


# Models

BATCH, LENGTH = 2, 16


def tokens(vocabulary: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (BATCH, LENGTH))


def language_model(model: Any, vocabulary: int) -> Callable[[], None]:
    ids = tokens(vocabulary)
    return lambda: model(input_ids=ids, labels=ids).loss.backward()


def gpt2(**options: Any) -> tuple[Any, int]:
    """With what it does forward: "12 n_layer n_embd^2" products of each token in its layers, those
    of the attention and of the head (Kaplan et al., Scaling laws for neural language models)."""
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=4, vocab_size=100, n_positions=LENGTH, attn_pdrop=0, **options
    )
    per_token = 2 * (12 * 2 * 32**2 + 32 * 100) + 2 * 4 * LENGTH * 32
    return transformers.GPT2LMHeadModel(config).train(), BATCH * LENGTH * per_token


def test_gpt2() -> None:
    model, forward = gpt2()
    found = by_kind(recorded(language_model(model, 100)))
    assert found["forward"] == pytest.approx(forward, rel=0.01)
    assert found["backward"] == pytest.approx(2 * forward, rel=0.01)


def test_autocast_computes_in_its_own_type() -> None:
    """Also what a program calls by the operator itself, as GPT-2 its layers' products."""
    model, forward = gpt2()
    step = torch.autocast("cpu", torch.bfloat16)(language_model(model, 100))
    found = Counter[str]()
    for one in flops_of(recorded(step)).counts:
        found[one.dtype] += one.flops
    assert [*found] == ["bfloat16"]
    assert found["bfloat16"] == pytest.approx(
        3 * forward + 2 * 2 * BATCH * LENGTH**2 * 32, rel=0.01
    )


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoints_count_as_recomputation(use_reentrant: bool) -> None:
    model, forward = gpt2()
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    found = by_kind(recorded(language_model(model, 100)))
    assert found["forward"] == pytest.approx(forward, rel=0.01)
    assert found["backward"] == pytest.approx(2 * forward, rel=0.01)
    blocks = forward - 2 * BATCH * LENGTH * 32 * 100
    scores_again = 2 * 2 * BATCH * LENGTH**2 * 32
    assert found["recompute"] == pytest.approx(blocks + scores_again, rel=0.01)


def test_selective_checkpoints_do_not_do_again_what_they_keep() -> None:
    def policy(_: object, operator: object, *__: object, **___: object) -> CheckpointPolicy:
        is_kept = operator is torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    x, left, right, bias = rand(2, 3), rand(3, 3), rand(3, 3), rand(3)

    def layers(x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(bias, (x @ left).sin(), right).sin()

    def step() -> None:
        checkpoint(layers, x, use_reentrant=False, context_fn=contexts).sum().backward()

    one = 2 * 2 * 3 * 3
    found = by_kind(recorded(step))
    assert found == {"forward": 2 * one, "backward": 4 * one, "recompute": one}


def test_accumulated_batches_count_each() -> None:
    model, forward = gpt2()
    step = language_model(model, 100)

    def update() -> None:
        for _ in range(3):
            step()

    assert by_kind(recorded(update))["forward"] == pytest.approx(3 * forward, rel=0.01)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_compiled_graphs_count_too_and_are_not_compiled_anew(
    inductor: None,
) -> None:
    """As attention is compiled for a GPU: products, which need no C++ compiler."""
    n, width = 16, 8

    def attention(x: Any, w: Any) -> Any:
        return (x @ w[0]) @ (x @ w[1]).mT @ (x @ w[2]) @ w[3]

    compiled = torch.compile(attention, fullgraph=True)
    x, w = torch.rand(n, width), [rand(width, width) for _ in range(4)]
    frames: list[int] = []

    def step() -> None:
        result = compiled(x, w)
        result.backward(torch.ones_like(result))
        frames.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])

    found = by_kind(recorded(step, before=2))
    forward = 4 * 2 * n * width**2 + 2 * 2 * n**2 * width
    assert found["forward"] == forward
    # The input has no gradient, and three products are of it.
    assert found["backward"] == 2 * forward - 3 * 2 * n * width**2
    assert frames[-1] == frames[-2] > 0


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_llama_with_groups_of_queries_and_frozen_weights(attention: str) -> None:
    """Only the adapters (LoRA, of rank 2) of the queries are trained."""
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, vocab_size=100
    )
    config.num_attention_heads, config.num_key_value_heads = 4, 2
    config.head_dim, config._attn_implementation = 8, attention
    model = transformers.LlamaForCausalLM(config)
    model.requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj = WithAdapter(layer.self_attn.q_proj)
    step = language_model(model, 100)
    with FlopCounterMode(display=False) as counter:
        step()
    found = by_kind(recorded(step))
    n = BATCH * LENGTH
    kv, ffn, head = 2 * 2 * 32 * 16, 3 * 2 * 32 * 48, 2 * 32 * 100
    square, scores, adapter = 2 * 32 * 32, 2 * LENGTH * 32, 2 * 2 * (32 + 32)
    layer_flops = 2 * square + kv + ffn + 2 * scores + adapter
    assert found["forward"] == n * (2 * layer_flops + head)
    # Frozen weights have no gradient of their own; the first layer ends at its adapter's input.
    second = 2 * square + kv + ffn + 4 * scores + 2 * adapter
    first = square + ffn + 4 * scores + 2 * adapter - 2 * 2 * 32
    # Nobody asks the gradients of keys and values of the first layer, but a fused kernel has no
    # way not to compute them.
    first -= 2 * scores if attention == "eager" else 0
    assert found["backward"] == n * (first + second + head)
    assert found.get("recompute", 0) == (0 if attention == "eager" else n * 2 * scores)
    if attention == "eager":  # of the fused one for CPUs torch has no formula
        assert found["forward"] + found["backward"] == counter.get_total_flops()


class WithAdapter(nn.Module):
    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, 2, bias=False)
        self.up = nn.Linear(2, frozen.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        adapted: torch.Tensor = self.frozen(x) + self.up(self.down(x))
        return adapted


def resnet50_flops(size: int) -> tuple[int, int]:
    """What it does forward, and what of that is its first layer (He et al., Deep residual learning
    for image recognition, table 1, with the stride in the middle of a block)."""
    size //= 2
    first = flops = 2 * size**2 * 64 * 3 * 7**2
    size, width = size // 2, 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner, outer = 64 * 2**stage, 256 * 2**stage
        for block in range(blocks):
            flops += 2 * size**2 * width * inner
            if block == 0:
                size //= 1 if stage == 0 else 2
                flops += 2 * size**2 * width * outer
            flops += 2 * size**2 * (9 * inner * inner + inner * outer)
            width = outer
    return flops + 2 * width * 1000, first


def test_resnet50() -> None:
    assert resnet50_flops(224)[0] / 2 == pytest.approx(4.09e9, rel=0.01)  # as it is known
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))
    images = torch.rand(1, 3, 64, 64)
    model.eval()  # its last layers would normalise single values
    found = by_kind(recorded(lambda: model(images).logits.sum().backward(), before=0))
    forward, first = resnet50_flops(64)
    assert found["forward"] == pytest.approx(forward, rel=0.01)
    assert found["backward"] == pytest.approx(2 * forward - first, rel=0.01)


def test_a_backward_pass_that_is_differentiated_is_no_recomputation() -> None:
    weight = rand(3, 4)

    def step() -> None:
        x = rand(2, 3)
        (gradient,) = torch.autograd.grad((x @ weight).square().sum(), x, create_graph=True)
        gradient.square().sum().backward()

    found = by_kind(recorded(step))
    assert (found["forward"], found["recompute"]) == (48, 0)


@pytest.mark.parametrize("in_closure", [False, True], ids=["before", "in the step, as Lightning"])
def test_what_an_optimizer_multiplies_is_not_of_the_model(in_closure: bool) -> None:
    class Orthogonal(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            if closure is not None:
                closure()
            with torch.no_grad():
                weight.addmm_(weight @ weight.T, weight)

    weight = nn.Parameter(torch.rand(3, 4))
    optimizer = Orthogonal([weight])

    def passes() -> None:
        (torch.ones(2, 3) @ weight).sum().backward()

    def step() -> None:
        if not in_closure:
            passes()
        optimizer.step(passes if in_closure else None)

    found = by_kind(recorded(step))
    assert found == {"forward": 48, "backward": 48, "optimizer": 2 * 72}


def test_what_has_no_formula_has_its_time() -> None:
    @torch.library.custom_op("throughput::own", mutates_args=())
    def own(x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    def broken(*_: object, **__: object) -> int:
        raise RuntimeError

    @torch.library.custom_op("throughput::broken", mutates_args=())
    def other(x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    torch.utils.flop_counter.register_flop_formula(torch.ops.throughput.broken)(broken)
    whole_numbers = torch.ones(3, 3, dtype=torch.int32)

    def step() -> None:
        own(torch.ones(100, 100)), other(torch.ones(100, 100))
        whole_numbers @ whole_numbers
        torch.ones(10, 10).view(100).clone()

    found = flops_of(recorded(step))
    times = {one.name: one.time_ns for one in found.unknown}
    assert found.counts == ()
    assert {"throughput::own", "throughput::broken", "aten::mm", "aten::exp"} <= set(times)
    assert not {"aten::view", "aten::clone", "aten::ones"} & set(times)
    assert all(time_ns > 0 for time_ns in times.values())


def test_counting_changes_nothing() -> None:
    def trained(flops: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4), nn.Dropout())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pig.record(flops=flops) as recording:
            for _ in pig.gpu_steps(range(12)):
                checkpoint(model, torch.rand(8, 4), use_reentrant=False).sum().backward()
                optimizer.step()
        assert (recording.run.operations is not None) is flops
        return [*model.parameters(), torch.rand(4)]

    with_flops, without = trained(True), trained(False)
    assert all(map(torch.equal, with_flops, without))


def test_on_a_device_kernels_of_operators_without_a_formula_have_their_time() -> None:
    """Also those that no operator launched, as of replayed graphs; copies compute nothing."""
    names = "aten::mm", "aten::gelu", "aten::copy_", "aten::fill_"
    host = [
        HostEvent(name, 10 * number, 10 * number + 5, 1, 1, number)
        for number, name in enumerate(names, 1)
    ]
    inside = HostEvent("aten::sum", 11, 12, 1, 1, 9)  # in the product
    counting = FlopCounting()
    product = host[0]._replace(flops=CallFlops(48, 0, "float32"))
    for event in (product, *host[1:]):
        counting.add(event, 5, (), "forward")
        if event is product:
            counting.add(inside, 1, (product,), None)
    work = [
        DeviceEvent(100, 100 + ns, 0, by) for ns, by in ((7, 1), (20, 2), (3, 3), (1, 9), (9, 0))
    ]
    assert counting.counts() == (FlopCount("forward", None, FlopKind.FORWARD, "float32", 48),)
    assert counting.unknown(work) == (
        UnknownOperator("aten::gelu", 1, 20),
        UnknownOperator(None, 0, 9),
    )
    assert counting.unknown([]) == (UnknownOperator("aten::gelu", 1, 5),)
