# SPDX-License-Identifier: Apache-2.0
"""Formulas for the floating-point operations of a call of an operator, by the shapes that torch's
profiler has noted.

The formulas are those of `torch.utils.flop_counter`, with those that a program has registered
there. The ones below are for operators of which torch has none, and for convolutions: torch's needs
the shape of the result, which the profiler doesn't know, and counts the gradient of the weights
once for each group.

What a sparse product does is not known: it depends on how many values there are, which shapes
don't tell.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any, TypeAlias

import torch
from torch.utils import flop_counter

from pyinstrument_gpu.aspects.operations.events import CallFlops

_Formula: TypeAlias = Callable[..., int]

_DTYPES = {
    "double": "float64",
    "float": "float32",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8",
    "c10::Float8_e5m2": "float8",
    "c10::Float4_e2m1fn_x2": "float4",
    "signed char": "int8",
    "c10::complex<c10::Half>": "float16",
    "c10::complex<float>": "float32",
    "c10::complex<double>": "float64",
}
# An element of the first holds two numbers, and a complex product with its addition is four real
# products with four additions.
_TIMES = {"c10::Float4_e2m1fn_x2": 2} | {name: 4 for name in _DTYPES if "complex" in name}
_CONVOLUTION = "convolution"


def flops_of(event: Any) -> CallFlops | None:
    """The operations of a call; None where they are not known.

    Args:
        event: of the profiler, which has noted shapes.
    """
    formula, is_programs = _formula_of(event.name())
    if formula is None:
        return None
    try:
        dtype = next((name for name in event.dtypes() if name in _DTYPES), None)
        if dtype is None or (not is_programs and _is_sparse(event)):
            return None
        values = event.concrete_inputs()
        arguments = [
            shape or (values[place] if place < len(values) else None)
            for place, shape in enumerate(event.shapes())
        ]
        times = 1 if is_programs else _TIMES.get(dtype, 1)
        flops = times * int(formula(*arguments))
        again = _scores(*arguments[1:3]) if formula is _attention_backward else 0
        dtype = _on_tensor_cores(event.name(), _DTYPES[dtype])
        return CallFlops(flops, again, dtype, is_programs) if flops >= 0 else None
    except Exception:  # of another version of torch, or of the program
        return None


def _is_sparse(event: Any) -> bool:
    """Look for tensors without strides. So are MKL-DNN's own, which convolutions are given."""
    if _CONVOLUTION in event.name() or not hasattr(event, "structured_input_strides"):
        return False  # torch before 2.13 doesn't tell
    strides = event.structured_input_strides()
    return any(shape and not steps for shape, steps in zip(event.shapes(), strides, strict=False))


def _on_tensor_cores(name: str, dtype: str) -> str:
    """The type in which the device computes."""
    if dtype != "float32" or not torch.cuda.is_initialized():
        return dtype
    if _CONVOLUTION in name or "cudnn_rnn" in name:
        return "tf32" if torch.backends.cudnn.allow_tf32 else dtype
    return dtype if torch.get_float32_matmul_precision() == "highest" else "tf32"


@cache
def _formula_of(name: str) -> tuple[_Formula | None, bool]:
    """Return the formula of an operator, and whether the program has registered it."""
    namespace, _, operator = name.partition("::")
    if namespace == "aten" and operator in _OURS:
        return _OURS[operator], False
    # Those that work in place have the formula of those that don't.
    names = (operator, operator.removesuffix("_"))
    packets = (getattr(getattr(torch.ops, namespace, None), one, None) for one in names)
    known = (flop_counter.flop_registry.get(one) for one in packets if one is not None)
    formula = next((one for one in known if one is not None), None)
    if formula is None:
        return None, False
    return _taking_its_arguments(formula), formula.__module__ != flop_counter.__name__


def _taking_its_arguments(formula: _Formula) -> _Formula:
    """Pass to a formula those of an operator's arguments that it takes, which come first."""
    parameters = inspect.signature(formula).parameters.values()
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return formula
    count = sum(
        one.kind is one.POSITIONAL_OR_KEYWORD and one.name not in ("out_shape", "out_val")
        for one in parameters
    )
    return lambda *arguments: int(formula(*arguments[:count]))


def _scores(query: Any, key: Any) -> int:
    """Count all positions, whether or not they are masked. Heads of keys may be shared."""
    return int(2 * prod(query) * key[2])


def _attention(query: Any, key: Any, value: Any, *_: Any) -> int:
    return _scores(query, key) + _scores((*query[:3], value[3]), key)


def _attention_backward(_: Any, query: Any, key: Any, value: Any, *__: Any) -> int:
    """Count the scores again, then the gradients of scores, values, queries and keys."""
    return 3 * _scores(query, key) + 2 * _scores((*query[:3], value[3]), key)


def _convolution(
    x: Any, weight: Any, _: Any, stride: Any, padding: Any, dilation: Any, transposed: Any, *__: Any
) -> int:
    if transposed:
        return int(2 * x[0] * prod(x[2:]) * prod(weight))
    places = 1
    for number, (size, kernel) in enumerate(zip(x[2:], weight[2:], strict=True)):
        pad, step, spread = (one[min(number, len(one) - 1)] for one in (padding, stride, dilation))
        places *= (size + 2 * pad - spread * (kernel - 1) - 1) // step + 1
    return int(2 * x[0] * places * prod(weight))


def _convolution_backward(grad: Any, x: Any, weight: Any, *rest: Any) -> int:
    """Count that of the input and that of the weights, each as much as the convolution."""
    transposed, mask = rest[4], rest[7]
    one = 2 * x[0] * prod((x if transposed else grad)[2:]) * prod(weight)
    return int(one * (bool(mask[0]) + bool(mask[1])))


def _recurrent(x: Any, sizes: Any, is_bidirectional: Any) -> int:
    """Count the products of all weights at each place of a sequence: of an RNN, LSTM or GRU."""
    mode, hidden, projected, layers = sizes
    gates, directions, size = (1, 1, 4, 3)[mode], 1 + is_bidirectional, projected or hidden
    inputs = x[-1] + (layers - 1) * directions * size + layers * size
    return int(2 * prod(x[:-1]) * directions * hidden * (gates * inputs + layers * projected))


def _recurrent_layer(x: Any, input_weight: Any, hidden_weight: Any, *_: Any) -> int:
    return int(2 * prod(x[:-1]) * (prod(input_weight) + prod(hidden_weight)))


def _product(left: Any, right: Any, *_: Any) -> int:
    """Count those of groups, too, which divide one dimension of a matrix among them: all of it, as
    shapes don't tell where the last one ends."""
    groups = left[0] if len(left) == len(right) == 3 else 1
    return int(2 * groups * prod(left[-2:]) * right[-1])


def _packed_product(left: Any, weight: Any, *_: Any) -> int:
    """Weights have a row for each output, and on CUDA one tile for each eight of them."""
    return int(2 * prod(left) * weight[0] * (8 if len(weight) == 4 else 1))


def _vector_product(left: Any, *_: Any) -> int:
    return int(2 * prod(left))


def _added_sum_of_products(_: Any, left: Any, right: Any, *__: Any) -> int:
    return int(2 * prod(left) * right[2])


_ATTENTION = tuple(
    f"_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient", "cudnn")
)
_FOR_CPU = "_scaled_dot_product_flash_attention_for_cpu"

_INT4_PACKED = ("", "_for_cpu", "_with_scales_and_zeros")

_OURS: dict[str, _Formula] = {
    **dict.fromkeys(("convolution", "_convolution"), _convolution),
    # torch takes some of its arguments for others.
    "cudnn_convolution": lambda x, weight, padding, stride, dilation, *_: _convolution(
        x, weight, None, stride, padding, dilation, False
    ),
    "convolution_backward": _convolution_backward,
    **dict.fromkeys((*_ATTENTION, _FOR_CPU), _attention),
    **{f"{name}_backward": _attention_backward for name in (*_ATTENTION, _FOR_CPU)},
    "_cudnn_rnn": lambda x, *rest: _recurrent(x, rest[5:9], rest[12]),
    "_cudnn_rnn_backward": lambda x, *rest: (
        _recurrent(x, rest[9:13], rest[16]) * (1 + bool(rest[20][3]))
    ),
    "mkldnn_rnn_layer": _recurrent_layer,
    "mkldnn_rnn_layer_backward": lambda *arguments: 2 * _recurrent_layer(*arguments),
    **dict.fromkeys(("_int_mm", "_scaled_mm_v2"), _product),
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"), _product),
    "_addmm_activation": lambda _, *rest: _product(*rest),
    "_weight_int8pack_mm": _packed_product,
    **{f"_weight_int4pack_mm{end}": _packed_product for end in _INT4_PACKED},
    "_dyn_quant_matmul_4bit": lambda left, *rest: 2 * prod(left) * rest[3],
    # Of these, the first matrix has half of its values, the others being zero.
    "_sparse_semi_structured_mm": lambda left, _, right, *__: _product(left, right),
    "_sparse_semi_structured_addmm": lambda _, left, __, right, *___: _product(left, right),
    "_sparse_semi_structured_linear": lambda left, right, *_: prod(left) * right[0],
    "_cslt_sparse_mm": lambda left, right, *_: left[0] * prod(right),
    "mv": _vector_product,
    "dot": _vector_product,
    "vdot": _vector_product,
    **dict.fromkeys(("addmv", "addmv_"), lambda _, *rest: _vector_product(*rest)),
    **dict.fromkeys(("addbmm", "addbmm_"), _added_sum_of_products),
}
