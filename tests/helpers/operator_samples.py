# SPDX-License-Identifier: Apache-2.0
"""Runs torch's own samples of its operators, on the CPU, with and without the watch and automatic
phases, and compares what comes out. Arguments: names of operators; none: all of them.
"""

import sys
import types
import unittest
import warnings
from typing import Any

import torch

import pyinstrument_gpu as pig
from pyinstrument_gpu.aspects.syncs import watch
from tests.helpers.host_watch import watched_host


def outcomes(operator: Any) -> list[Any]:
    """What an operator makes of its samples, as function, method and in place by turns."""
    found = []
    torch.manual_seed(1)
    samples = operator.sample_inputs("cpu", torch.float32)
    variants = [operator.op, operator.method_variant, operator.inplace_variant]
    variants = [variant for variant in variants if variant is not None]
    for number, sample in zip(range(6), samples, strict=False):
        copied = sample.transform(lambda x: x.clone() if isinstance(x, torch.Tensor) else x)
        torch.manual_seed(0)
        try:
            result = variants[number % len(variants)](copied.input, *copied.args, **copied.kwargs)
        except Exception as error:
            result = (type(error), str(error))
        found.append(result)
    return found


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return type(one) is type(other) and is_same_tensor(one, other)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other or (one != one and other != other))


def is_same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (one.layout, one.dtype, one.shape) != (other.layout, other.dtype, other.shape):
        return False
    if one.layout is not torch.strided:
        one, other = one.to_dense(), other.to_dense()
    return torch.allclose(one.detach(), other.detach(), rtol=0, atol=0, equal_nan=True)


def compare_operators(names: set[str] | None) -> int:
    """Compares each with and without the watch; returns how many there were."""
    from torch.testing._internal.common_methods_invocations import op_db

    compared = 0
    for operator in op_db:
        if torch.float32 not in operator.supported_dtypes("cpu"):
            continue
        if names is not None and operator.name not in names:
            continue
        try:
            before, again = outcomes(operator), outcomes(operator)
        except Exception:  # whose samples can't be made here
            continue
        if not is_same(before, again):  # such as torch.empty
            continue
        with pig.record(), pig.watch_syncs():
            watched = outcomes(operator)
        with pig.record(), watched_host(), pig.auto_phases():
            previewed = outcomes(operator)
        assert is_same(before, watched), operator.name
        assert is_same(before, previewed), operator.name
        compared += 1
    return compared


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    # torch's samples import it, for a class of tests that we don't use.
    watch.can_wait = lambda: True
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].__dict__["TestCase"] = unittest.TestCase
    print(compare_operators(set(sys.argv[1:]) or None))
