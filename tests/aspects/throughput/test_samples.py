# SPDX-License-Identifier: Apache-2.0
"""The samples by which torch tests its own operators count as `torch.utils.flop_counter` counts
them, whatever their arguments.

In a process of its own, as torch's module of samples changes settings of the process.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = '''
import json, sys, types, unittest, warnings
from collections import Counter
from math import prod

# torch's module wants the package for the base class of torch's tests, and nothing else.
expecttest = types.ModuleType("expecttest")
expecttest.TestCase = unittest.TestCase
sys.modules.setdefault("expecttest", expecttest)
warnings.simplefilter("ignore")

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils.flop_counter import FlopCounterMode

import pyinstrument_gpu as pig


def vector_product(left, *_, **__):
    return 2 * prod(left)


OF_VECTORS = {getattr(torch.ops.aten, name): vector_product for name in ("mv", "dot", "vdot")}
NAMES = """addmm bmm baddbmm einsum inner linalg.multi_dot matmul mm __rmatmul__ tensordot
nn.functional.linear nn.functional.conv1d nn.functional.conv2d nn.functional.conv3d
nn.functional.conv_transpose1d nn.functional.conv_transpose2d nn.functional.conv_transpose3d"""


def call(operator, samples):
    for sample in samples:
        operator(sample.input, *sample.args, **sample.kwargs)


cases, wanted, found = {}, Counter(), Counter()
for operator in op_db:
    for dtype in torch.float32, torch.bfloat16, torch.complex64:
        # torch's counter knows nothing of complex numbers, and their convolutions are three real.
        times = 4 if dtype.is_complex and "conv" not in operator.name else 1
        if operator.name in NAMES.split() and dtype in operator.supported_dtypes("cpu"):
            name = f"{operator.name} {operator.variant_test_name} {dtype}"
            cases[name] = operator, [*operator.sample_inputs("cpu", dtype)]
            with FlopCounterMode(display=False, custom_mapping=OF_VECTORS) as counter:
                call(*cases[name])
            wanted[name] = times * counter.get_total_flops()

with pig.record() as recording:
    pig.profile_steps(1, flops=True)
    with pig.gpu_step():
        for name, case in cases.items():
            with pig.gpu_phase(name):
                call(*case)
for one in recording.run.operations.flops.counts:
    found[one.path] += one.flops
others = {name: (wanted[name], found[name]) for name in cases if wanted[name] != found[name]}
print(json.dumps([len(cases), others]))
'''


@pytest.mark.thorough
def test_samples_of_torch_count_as_torch_counts_them() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    cases, others = json.loads(result.stdout.splitlines()[-1])
    assert others == {}
    assert cases >= 50
