# SPDX-License-Identifier: Apache-2.0
"""Counts of single operators, counted by hand here. Those of CUDA are called with tensors of the
device "meta", which have shapes and no numbers; the profiler notes also a call that then raises, as
a few of them have no such form."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.sparse import SparseSemiStructuredTensorCUTLASS
from torch.utils.flop_counter import FlopCounterMode

from pyinstrument_gpu.core.flops import Flops
from tests.aspects.throughput.test_counts import by_kind, flops_of, rand, recorded

aten = torch.ops.aten
BF16, INT8, FP8, FP4 = torch.bfloat16, torch.int8, torch.float8_e4m3fn, torch.float4_e2m1fn_x2


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Any:
    return torch.empty(*shape, dtype=dtype, device="meta")


def of(call: Callable[[], object]) -> dict[str, int]:
    """The operations of a call by the type of their numbers."""

    def step() -> None:
        with contextlib.suppress(NotImplementedError, AttributeError):
            call()

    return {one.dtype: one.flops for one in flops_of(recorded(step, before=0)).counts}


def grouped(left: tuple[int, ...], right: tuple[int, ...]) -> Callable[[], object]:
    """Of two groups."""
    arguments = meta(*left, dtype=BF16), meta(*right, dtype=BF16)
    offsets = None if len(left) == len(right) == 3 else meta(2, dtype=torch.int32)
    return lambda: torch._grouped_mm(*arguments, offs=offsets)


def scaled(operator: Any, right: tuple[int, ...], *more: Any) -> Callable[[], object]:
    """Of 16 rows of 32 columns, and what is passed as columns of rows."""
    matrices = meta(16, 32, dtype=FP8), meta(*right, dtype=FP8).mT
    scales = [meta(1)], [0], [0]
    return lambda: operator(*matrices, *scales, *scales, *more)


PRODUCTS: dict[str, tuple[Callable[[], object], str, int]] = {
    "int8": (
        lambda: torch._int_mm(meta(32, 16, dtype=INT8), meta(16, 24, dtype=INT8)),
        "int8",
        2 * 32 * 16 * 24,
    ),
    "with an activation": (
        lambda: torch._addmm_activation(rand(4), rand(2, 3), rand(3, 4), use_gelu=True),
        "float32",
        2 * 2 * 3 * 4,
    ),
    "rows in groups": (grouped((16, 8), (2, 8, 24)), "bfloat16", 2 * 16 * 8 * 24),
    "sums in groups": (grouped((8, 16), (16, 24)), "bfloat16", 2 * 8 * 16 * 24),
    "columns in groups": (grouped((2, 8, 16), (16, 24)), "bfloat16", 2 * 8 * 16 * 24),
    "a group for each matrix": (grouped((2, 8, 16), (2, 16, 24)), "bfloat16", 2 * 2 * 8 * 16 * 24),
    "fp8": (
        lambda: torch._scaled_mm(
            meta(16, 32, dtype=FP8), meta(48, 32, dtype=FP8).t(), meta(1), meta(1), out_dtype=BF16
        ),
        "float8",
        2 * 16 * 32 * 48,
    ),
    "fp8, by the second operator": (
        scaled(aten._scaled_mm_v2, (48, 32), None, BF16),
        "float8",
        2 * 16 * 32 * 48,
    ),
    "fp8 in groups": (
        lambda: torch._scaled_grouped_mm(
            meta(16, 32, dtype=FP8),
            meta(2, 48, 32, dtype=FP8).mT,
            meta(16),
            meta(2, 48),
            offs=meta(2, dtype=torch.int32),
        ),
        "float8",
        2 * 16 * 32 * 48,
    ),
    "fp8 in groups, by the second operator": (
        scaled(aten._scaled_grouped_mm_v2, (2, 48, 32), meta(2, dtype=torch.int32)),
        "float8",
        2 * 16 * 32 * 48,
    ),
    "fp4, two numbers in an element": (
        lambda: torch._scaled_mm(
            meta(32, 16, dtype=FP4),
            meta(64, 16, dtype=FP4).t(),
            meta(512, dtype=FP8),
            meta(512, dtype=FP8),
            out_dtype=BF16,
        ),
        "float4",
        2 * 32 * 32 * 64,
    ),
    "int8 weights": (
        lambda: aten._weight_int8pack_mm(
            meta(4, 32, dtype=BF16), meta(16, 32, dtype=INT8), meta(16, dtype=BF16)
        ),
        "bfloat16",
        2 * 4 * 32 * 16,
    ),
    "int4 weights": (
        lambda: aten._weight_int4pack_mm(
            meta(4, 64, dtype=BF16),
            meta(3, 2, 32, 4, dtype=torch.int32),
            32,
            meta(2, 24, 2, dtype=BF16),
        ),
        "bfloat16",
        2 * 4 * 64 * 24,
    ),
    "int4 weights for processors": (
        lambda: aten._weight_int4pack_mm_for_cpu(
            meta(4, 64, dtype=BF16),
            meta(32, 32, dtype=torch.uint8),
            32,
            meta(2, 32, 2, dtype=BF16),
        ),
        "bfloat16",
        2 * 4 * 64 * 32,
    ),
    "int4 weights with scales": (
        lambda: aten._weight_int4pack_mm_with_scales_and_zeros(
            meta(4, 64, dtype=BF16),
            meta(32, 8, dtype=torch.int32),
            32,
            meta(2, 32, dtype=BF16),
            meta(2, 32, dtype=INT8),
        ),
        "bfloat16",
        2 * 4 * 64 * 32,
    ),
    "int4 weights and numbers": (
        lambda: aten._dyn_quant_matmul_4bit(meta(4, 64), meta(900, dtype=torch.uint8), 32, 64, 24),
        "float32",
        2 * 4 * 64 * 24,
    ),
    "convolution of cuDNN": (
        lambda: aten.cudnn_convolution(
            meta(2, 4, 9, 9), meta(6, 4, 3, 3), [1, 1], [2, 2], [1, 1], 1, True, False, True
        ),
        "float32",
        2 * 2 * 5 * 5 * 6 * 4 * 9,
    ),
    "half of the left matrix zero": (
        lambda: aten._cslt_sparse_mm(meta(32, 36, dtype=BF16), meta(64, 8, dtype=BF16)),
        "bfloat16",
        32 * 64 * 8,
    ),
    "half of the weights zero": (
        lambda: aten._sparse_semi_structured_linear(
            meta(8, 64, dtype=BF16), meta(32, 32, dtype=BF16), meta(32, 4, dtype=torch.int16)
        ),
        "bfloat16",
        8 * 64 * 32,
    ),
    "half of the middle matrix zero": (
        lambda: aten._sparse_semi_structured_addmm(
            meta(32, dtype=BF16),
            meta(32, 32, dtype=BF16),
            meta(32, 4, dtype=torch.int16),
            meta(64, 8, dtype=BF16),
        ),
        "bfloat16",
        32 * 64 * 8,
    ),
}


@pytest.mark.parametrize("case", PRODUCTS)
def test_products_of_every_kind(case: str) -> None:
    call, dtype, wanted = PRODUCTS[case]
    assert of(call) == {dtype: wanted}


@pytest.mark.filterwarnings("ignore:The PyTorch API of SparseSemiStructuredTensor")
def test_a_product_with_a_half_empty_matrix_is_not_counted_as_dense() -> None:
    """The outer operator is that of the full matrix, of 32 rows and 64 columns. The inner one is
    for CUDA, and here stands in for itself."""
    packed = torch.ones(32, 32, dtype=BF16)
    places = torch.ones(32, 4, dtype=torch.int16)
    left = SparseSemiStructuredTensorCUTLASS(
        torch.Size([32, 64]), packed, places, packed, places, None
    )
    with torch.library._scoped_library("aten", "IMPL") as library:
        product: Any = lambda *_, **__: torch.ones(32, 8, dtype=BF16)  # noqa: E731
        library.impl("_sparse_semi_structured_mm", product, "CPU")
        assert of(lambda: left @ torch.ones(64, 8, dtype=BF16)) == {"bfloat16": 32 * 64 * 8}


# Recurrent networks

LENGTH, BATCH, WIDTH, HIDDEN = 4, 3, 5, 6
GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}


def of_all_weights(model: nn.Module, places: int) -> int:
    """Each number of a matrix of weights is used once at each place of a sequence."""
    return 2 * places * sum(one.numel() for one in model.parameters() if one.dim() == 2)


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}])
@pytest.mark.parametrize("kind", GATES)
def test_recurrent_networks_on_a_processor(kind: str, options: dict[str, Any]) -> None:
    model = getattr(nn, kind)(WIDTH, HIDDEN, **options)
    x = rand(LENGTH, BATCH, WIDTH)
    found = by_kind(recorded(lambda: model(x)[0].sum().backward()))
    forward = of_all_weights(model, LENGTH * BATCH)
    assert found["forward"] == forward
    # Where autograd goes through the steps, nobody asks the gradient of the first state.
    first = 0 if kind == "LSTM" else 2 * BATCH * GATES[kind] * HIDDEN**2
    first *= options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    assert found["backward"] == 2 * forward - first


def test_packed_sequences_have_no_padding() -> None:
    model = nn.LSTM(WIDTH, HIDDEN)
    packed = nn.utils.rnn.pack_sequence([torch.rand(4, WIDTH), torch.rand(2, WIDTH)])
    assert by_kind(recorded(lambda: model(packed))) == {"forward": of_all_weights(model, 6)}


@pytest.mark.parametrize("options", [{}, {"num_layers": 3, "bidirectional": True}])
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("kind", [*GATES, "LSTM with a projection"])
def test_recurrent_networks_of_cudnn(kind: str, is_packed: bool, options: dict[str, Any]) -> None:
    name, _, projected = kind.partition(" ")
    size = 2 if projected else 0
    model = getattr(nn, name)(
        WIDTH, HIDDEN, device="meta", **options, **{"proj_size": size} if size else {}
    )
    layers, is_double = options.get("num_layers", 1), options.get("bidirectional", False)
    x = meta(11, WIDTH) if is_packed else meta(LENGTH, BATCH, WIDTH)
    weights, rest = [*model.parameters()], [HIDDEN, size, layers, False, 0.0, True, is_double]
    mode = {"RNN": 1, "LSTM": 2, "GRU": 3}[name]
    rest = [mode, *rest, [3, 3, 3, 2] if is_packed else [], None]
    states = [meta(layers * (1 + is_double), BATCH, HIDDEN)] * 2
    forward = of_all_weights(model, 11 if is_packed else LENGTH * BATCH)
    assert of(lambda: aten._cudnn_rnn(x, weights, 4, None, *states, *rest)) == {"float32": forward}
    for mask, times in ([True] * 4, 2), ([True] * 3 + [False], 1):  # weights that are frozen
        backward = (x, weights, 4, meta(1), *states, x, x, None, None, *rest, meta(1), mask)
        found = of(lambda: aten._cudnn_rnn_backward(*backward))  # noqa: B023
        assert found == {"float32": times * forward}


# Complex numbers

COMPLEX: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...], int]] = {
    "mm": (torch.mm, ((2, 3), (3, 4)), 2 * 3 * 4),
    "addmm": (torch.addmm, ((2, 4), (2, 3), (3, 4)), 2 * 3 * 4),
    "bmm": (torch.bmm, ((7, 2, 3), (7, 3, 4)), 7 * 2 * 3 * 4),
    "mv": (torch.mv, ((2, 3), (3,)), 2 * 3),
    "vdot": (torch.vdot, ((3,), (3,)), 3),
}


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("case", COMPLEX)
def test_a_complex_product_with_its_addition_is_eight_operations(
    case: str, dtype: torch.dtype
) -> None:
    function, shapes, products = COMPLEX[case]
    arguments = [torch.ones(shape, dtype=dtype) for shape in shapes]
    found = flops_of(recorded(lambda: function(*arguments))).counts
    name = {torch.complex64: "float32", torch.complex128: "float64"}[dtype]
    assert [(one.dtype, one.flops) for one in found] == [(name, 8 * products)]


def test_a_complex_convolution_is_three_of_real_numbers() -> None:
    """As torch computes it."""
    x, weight = (torch.ones(shape, dtype=torch.complex64) for shape in ((2, 3, 9, 9), (5, 3, 3, 3)))
    found = by_kind(recorded(lambda: functional.conv2d(x, weight)))
    assert found == {"forward": 3 * 2 * 2 * 7 * 7 * 5 * 3 * 9}


# Sparse products

LAYOUTS = {
    "COO": lambda dense: dense.to_sparse(),
    "CSR": lambda dense: dense.to_sparse_csr(),
    "CSC": lambda dense: dense.to_sparse_csc(),
    "BSR": lambda dense: dense.to_sparse_bsr((2, 2)),
}


def unknown(flops: Flops) -> set[str | None]:
    return {one.name for one in flops.unknown if one.time_ns > 0}


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_sparse_product_does_is_not_known(layout: str) -> None:
    sparse, dense = LAYOUTS[layout](torch.eye(8)), torch.rand(8, 4)
    found = flops_of(recorded(lambda: (sparse @ dense, functional.linear(dense.T, sparse))))
    assert found.counts == ()
    assert "aten::mm" in unknown(found)


def test_of_a_sparse_product_and_a_dense_one_the_dense_one_counts() -> None:
    """As of the gradients of a sparse product, of which one is the product of dense ones."""
    sparse, dense = torch.eye(8).to_sparse().requires_grad_(), rand(8, 4)
    found = recorded(lambda: torch.sparse.mm(sparse, dense).sum().backward())
    assert by_kind(found) == {"backward": 2 * 8 * 4 * 8}
    assert "aten::_sparse_mm" in unknown(flops_of(found))
    batches = torch.ones(2, 8, 8).to_sparse(), torch.rand(2, 8, 4)
    assert "aten::bmm" in unknown(flops_of(recorded(lambda: torch.bmm(*batches))))


def test_what_torch_counts_is_counted_alike() -> None:
    """Products that torch has formulas for, with a convolution of MKL-DNN's own tensors, which have
    no strides either."""
    x, weight = torch.rand(2, 4, 9, 9).to_mkldnn(), torch.rand(6, 4, 3, 3).to_mkldnn()
    with FlopCounterMode(display=False) as counter:
        functional.conv2d(torch.rand(2, 4, 9, 9), torch.rand(6, 4, 3, 3))
    found = by_kind(recorded(lambda: functional.conv2d(x, weight)))
    assert found == {"forward": counter.get_total_flops()}
