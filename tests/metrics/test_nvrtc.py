# SPDX-License-Identifier: Apache-2.0
"""The kernels by NVRTC: their source is whole, and they are compiled where the image is no use."""

from __future__ import annotations

import os
from pathlib import Path

import _kernel_compiler  # type: ignore[import-not-found]
import _simulated_cuda  # type: ignore[import-not-found]
import pytest

from tests.helpers.script import run_script

torch = pytest.importorskip("torch")

ARCHITECTURES = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]
FAKE_NVRTC = Path(_simulated_cuda.__file__).with_name("inject_nvrtc.so")


def compile_kernels(capability: tuple[int, int]) -> bytes:
    from pyinstrument_gpu.metrics.accumulator import _nvrtc_paths

    _kernel_compiler.set_nvrtc_paths(_nvrtc_paths())
    code, error = _kernel_compiler.compile_kernels(*capability)
    if "was not found" in error and not os.environ.get("PYINSTRUMENT_GPU_LIBNVRTC"):
        pytest.skip(error)
    assert error == ""
    return bytes(code)


@pytest.mark.parametrize(
    "capability",
    [
        each if each == (9, 0) else pytest.param(each, marks=pytest.mark.slow)
        for each in ARCHITECTURES
    ],
)
def test_the_source_compiles(capability: tuple[int, int]) -> None:
    code = compile_kernels(capability)

    # An NVRTC that is older than the architecture gives PTX.
    assert code.startswith(b"\x7fELF") or b".target sm_" in code
    for layout in ("thread", "warp", "block"):
        for dtype in ("float64", "float32", "float16", "bfloat16"):
            assert f"pig_metric_update_{dtype}_{layout}".encode() in code
    assert b"pig_metric_scalar" in code


def test_for_a_device_that_it_does_not_know_it_gives_ptx() -> None:
    assert b".target sm_" in compile_kernels((99, 0))


def compiled_by_the_fake(capability: tuple[int, int], **variables: str) -> str:
    done = run_script(
        f"""
import _kernel_compiler
code, error = _kernel_compiler.compile_kernels(*{capability})
print(code.decode(), error, sep="|")
""",
        environment={"PYINSTRUMENT_GPU_LIBNVRTC": str(FAKE_NVRTC), **variables},
    )
    return done.stdout.strip()


HEADERS = "metrics/metric_kernel.h metrics/metric_state.h"


@pytest.mark.parametrize(
    ("capability", "kind", "option"),
    [((9, 0), "cubin", "sm_90"), ((10, 0), "ptx", "compute_90"), ((8, 6), "ptx", "compute_80")],
)
def test_it_is_asked_for_what_the_device_takes(
    capability: tuple[int, int], kind: str, option: str
) -> None:
    assert compiled_by_the_fake(capability) == (
        f"{kind} metric_kernel.cu {HEADERS} --gpu-architecture={option} --std=c++17|"
    )


def test_what_the_compiler_said() -> None:
    assert compiled_by_the_fake((9, 0), FAKE_NVRTC_FAILS="1") == (
        "|nvrtcCompileProgram: NVRTC_ERROR_COMPILATION (--gpu-architecture=sm_90) line 1"
    )


@pytest.mark.parametrize(
    ("cuda", "found"), [("13.0", ["cu13"]), ("12.6", ["cuda_nvrtc"]), (None, [])]
)
def test_the_library_among_pytorchs_packages(
    cuda: str | None, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyinstrument_gpu.metrics.accumulator import _nvrtc_paths

    for package, names in {
        "cu13": ("libnvrtc.so.13", "libnvrtc.alt.so.13", "libnvrtc-builtins.so.13.0"),
        "cuda_nvrtc": ("libnvrtc.so.12", "libnvrtc-builtins.so.12.6"),
    }.items():
        folder = tmp_path / "nvidia" / package / "lib"
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).touch()
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr(torch.version, "cuda", cuda)

    assert [Path(path).parent.parent.name for path in _nvrtc_paths()] == found


def test_a_library_that_is_not_there() -> None:
    done = run_script(
        "import _kernel_compiler; print(_kernel_compiler.compile_kernels(9, 0)[1])",
        environment={"PYINSTRUMENT_GPU_LIBNVRTC": "/nowhere/libnvrtc.so"},
    )
    assert "/nowhere/libnvrtc.so: cannot open shared object file" in done.stdout
