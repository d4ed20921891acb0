# SPDX-License-Identifier: Apache-2.0
"""The most floating-point operations per second that a device can do, without sparsity: from the
data sheets of its maker, or as `pyinstrument-gpu peak` has measured it on this machine."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import platform
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from pyinstrument_gpu import disk_cache
from pyinstrument_gpu.core.file.json_document import decode_object
from pyinstrument_gpu.core.flops import Peak
from pyinstrument_gpu.errors import RunFileDamagedError

_TERA = 1e12
_SIDES = (1024, 2048, 4096, 8192)
_REPEATS = 5
_LONGEST_S = 5.0
"""No larger products are tried once one has taken a tenth of this."""

# TFLOP/s by the name that torch gives the device, which has to match as a whole: a part of a GPU
# (MIG), and one for laptops, are something else. Half a data sheet's figure "with sparsity". What a
# row is from stands above it; a GPU without such a source has no row.
_TABLE: tuple[tuple[str, str, Mapping[str, float]], ...] = (
    # resources.nvidia.com/en-us-gpu-resources/h100-datasheet-24306
    # nvdam.widen.net/s/nb5zzzsjdf/hpc-datasheet-sc23-h200-datasheet-3002446
    (
        r"NVIDIA H100 80GB HBM3|NVIDIA H200",
        "NVIDIA H100 and H200 Tensor Core GPU data sheets (SXM)",
        {"float64": 67, "float32": 67, "tf32": 494.5, "float16": 989.5, "bfloat16": 989.5}
        | dict.fromkeys(("float8", "int8"), 1979.0),
    ),
    (
        r"NVIDIA H100 PCIe",
        "NVIDIA H100 Tensor Core GPU data sheet (PCIe)",
        {"float64": 51.2, "float32": 51.2, "tf32": 378, "float16": 756, "bfloat16": 756}
        | dict.fromkeys(("float8", "int8"), 1513.0),
    ),
    (
        r"NVIDIA H100 NVL",
        "NVIDIA H100 Tensor Core GPU data sheet (NVL)",
        {"float64": 60, "float32": 60, "tf32": 417.5, "float16": 835.5, "bfloat16": 835.5}
        | dict.fromkeys(("float8", "int8"), 1670.5),
    ),
    # www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/
    # nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf
    (
        r"NVIDIA A100[- ].*(SXM|PCIe|PCIE)[^ ]*( 80GB)?(-\d+GB)?|A100-.*",
        "NVIDIA A100 Tensor Core GPU data sheet",
        {"float64": 19.5, "float32": 19.5, "tf32": 156, "float16": 312, "bfloat16": 312}
        | {"int8": 624.0},
    ),
    # images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf
    (
        r"Tesla V100-SXM2-\d+GB",
        "NVIDIA V100 Tensor Core GPU data sheet (SXM2)",
        {"float64": 7.8, "float32": 15.7, "float16": 125},
    ),
    (
        r"Tesla V100-PCIE-\d+GB",
        "NVIDIA V100 Tensor Core GPU data sheet (PCIe)",
        {"float64": 7.0, "float32": 14.0, "float16": 112},
    ),
    # www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/
    # t4-tensor-core-datasheet-951643.pdf
    (r"Tesla T4", "NVIDIA T4 data sheet", {"float32": 8.1, "float16": 65, "int8": 130}),
    # images.nvidia.com/aem-dam/Solutions/Data-Center/l4/
    # nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf
    (
        r"NVIDIA L4",
        "NVIDIA Ada GPU architecture (L4)",
        {"float32": 30.3, "tf32": 60, "float16": 121, "bfloat16": 121, "int8": 242},
    ),
    # The data sheet's table as resellers print it, www.mullet.se/product.html?product_id=355414
    (
        r"NVIDIA L40S",
        "NVIDIA L40S data sheet",
        {"float32": 91.6, "tf32": 183, "float16": 362.05, "bfloat16": 362.05, "float8": 733},
    ),
    # www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/a10-datasheet.pdf
    (
        r"NVIDIA A10",
        "NVIDIA A10 data sheet",
        {"float32": 31.2, "tf32": 62.5, "float16": 125, "bfloat16": 125, "int8": 250},
    ),
    # The Ada paper above, appendix A; the tensor cores' as in gigagpu.com/?p=34220
    (
        r"NVIDIA GeForce RTX 4090",
        "NVIDIA Ada GPU architecture (RTX 4090, sums in float32)",
        {"float32": 82.6, "tf32": 82.6, "float16": 165.2, "bfloat16": 165.2},
    ),
)


def device_name() -> str:
    """Return the name of the GPU in use, or of the processor with the number of torch's threads."""
    if torch.cuda.is_initialized():
        return str(torch.cuda.get_device_name())
    name = platform.machine()
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
        name = name if found is None else found[1].strip()
    return f"{name}, {torch.get_num_threads()} threads"


def peaks_of(device: str) -> tuple[Peak, ...]:
    """Return the peaks of a device: of the table, and where it has none, as they were measured."""
    known = {peak.dtype: peak for peak in (*_measured(device), *_of_table(device))}
    return tuple(known.values())


def _of_table(device: str) -> Iterator[Peak]:
    for pattern, source, rates in _TABLE:
        if re.fullmatch(pattern, device):
            yield from (Peak(dtype, rate * _TERA, source) for dtype, rate in rates.items())
            return


def _measured(device: str) -> tuple[Peak, ...]:
    data = disk_cache.load(_key(device))
    with contextlib.suppress(RunFileDamagedError):  # another version of ours has kept it
        return () if data is None else decode_object(data, "peak", _Measured).peaks
    return ()


def keep(device: str, peaks: Sequence[Peak]) -> None:
    """Have later recordings of this user find what was measured, if it can be kept."""
    disk_cache.store(_key(device), msgspec.json.encode(_Measured(tuple(peaks))))


def _key(device: str) -> str:
    return f"peak-{hashlib.sha256(device.encode()).hexdigest()}"


class _Measured(msgspec.Struct):
    peaks: tuple[Peak, ...]


def measure(dtype: str) -> Peak:
    """Multiply square matrices, larger ones as long as that takes little time; the fastest counts.

    Raises:
        RuntimeError: the device can't multiply such numbers, or has no memory for them.
    """
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    numbers = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    best, best_side = 0.0, 0
    try:
        for side in _SIDES:
            left, right = (torch.randn(side, side, device=place).to(numbers) for _ in range(2))
            fastest_s = min(_seconds(left, right) for _ in range(_REPEATS))
            rate = 2 * side**3 / fastest_s
            if rate > best:
                best, best_side = rate, side
            if fastest_s > _LONGEST_S / 10:
                break
    finally:
        torch.set_float32_matmul_precision(before)
    day = datetime.date.today().isoformat()
    source = (
        f"measured on {day}: product of two {best_side} x {best_side} matrices, torch "
        f"{torch.__version__}"
    )
    return Peak(dtype, best, source)


def _seconds(left: Any, right: Any) -> float:
    if left.is_cuda:
        torch.cuda.synchronize()
    began_s = time.perf_counter()
    torch.mm(left, right)
    if left.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began_s
