# SPDX-License-Identifier: Apache-2.0
"""The version that cuGetProcAddress is asked for decides which variant of a function it gives."""

import ctypes

import pytest

from tests.helpers.driver_calls import driver
from tests.helpers.script import run_script
from tests.helpers.simulated_cuda import Result, SimulatedCuda

FOUND, SYMBOL_NOT_FOUND, VERSION_NOT_SUFFICIENT = 0, 1, 2


def _find(name: str, version: int) -> tuple[int, int | None, int]:
    """The result, the address and the status."""
    address, status = ctypes.c_void_p(99), ctypes.c_int(99)
    result = driver.cuGetProcAddress_v2(
        name.encode(),
        ctypes.byref(address),
        version,
        ctypes.c_uint64(0),
        ctypes.byref(status),
    )
    return result, address.value, status.value


def _address_of(name: str) -> int | None:
    return ctypes.cast(getattr(driver, name), ctypes.c_void_p).value


def test_a_function_is_found_from_its_version_on(cuda: SimulatedCuda) -> None:
    ours = _address_of("cuLibraryLoadData")
    assert _find("cuLibraryLoadData", 11080) == (Result.SUCCESS, None, VERSION_NOT_SUFFICIENT)
    for version in (12000, 13000):
        assert _find("cuLibraryLoadData", version) == (Result.SUCCESS, ours, FOUND)


def test_what_does_not_exist_is_not_found(cuda: SimulatedCuda) -> None:
    assert _find("cuNothing", 12000) == (Result.SUCCESS, None, SYMBOL_NOT_FOUND)


def test_a_version_newer_than_the_driver_is_refused(cuda: SimulatedCuda) -> None:
    cuda.set_driver_version(12040)
    assert _find("cuEventRecord", 12050)[0] == Result.INVALID_VALUE
    assert _find("cuEventRecord", 12040)[0] == Result.SUCCESS


@pytest.mark.parametrize(
    ("name", "ours_from", "ours_to", "other"),
    [
        ("cuCtxGetDevice", 2000, 12090, 13000),
        ("cuDevicePrimaryCtxRelease", 11000, 13000, 10020),
        ("cuMemHostGetDevicePointer", 3020, 13000, 3010),
    ],
)
def test_another_variant_is_a_violation(
    cuda: SimulatedCuda, name: str, ours_from: int, ours_to: int, other: int
) -> None:
    for version in (ours_from, ours_to):
        assert _find(name, version) == (Result.SUCCESS, _address_of(name), FOUND)
    result, address, status = _find(name, other)
    assert (result, status) == (Result.SUCCESS, FOUND)
    assert address != _address_of(name)
    assert address is not None
    function = ctypes.CFUNCTYPE(ctypes.c_int)(address)
    assert function() == Result.INVALID_VALUE
    assert [text.split()[0] for text in cuda.violations] == [name]


def test_of_one_function_two_variants_are_declared(cuda: SimulatedCuda) -> None:
    first, first_to, second = (_find("cuEventElapsedTime", v)[1] for v in (2000, 12070, 12080))
    assert first == first_to == _address_of("cuEventElapsedTime")
    assert second not in (None, first)
    cuda.set_driver_version(12070)
    assert _find("cuEventElapsedTime", 12080)[0] == Result.INVALID_VALUE


@pytest.mark.parametrize("driver_version", [12000, 13000])
def test_the_recorder_asks_for_what_it_declares(driver_version: int) -> None:
    """The oldest driver that it serves knows no newer version, and a newer one has other variants
    for those who ask for an older or a newer one."""
    program = f"""
from tests.helpers.simulated_cuda import exchange_api_capsule, simulated_cuda
from pyinstrument_gpu import gpu_phase, record
from pyinstrument_gpu.native import native
with simulated_cuda() as cuda:
    cuda.set_driver_version({driver_version})
    native.attach_device(exchange_api_capsule())
    with record() as recording:
        with gpu_phase("work"):
            cuda.default_stream.launch(1_000_000)
        cuda.run_dry()
    assert recording.run.phases["work"].device is not None
    assert cuda.violations == []
    assert cuda.count("cuDevicePrimaryCtxRelease") > 0
    has_v2 = {driver_version} >= 12080
    assert (cuda.count("cuEventElapsedTime_v2", 0) > 0) == has_v2
    asked_again = cuda.count("cuEventElapsedTime_v2", 600)
    assert (cuda.count("cuEventElapsedTime") == asked_again) == has_v2
"""
    run_script(program)
