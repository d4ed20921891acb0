# SPDX-License-Identifier: Apache-2.0
"""The kernels by NVRTC: their source is whole, they are compiled in a process of their own, and
what came of it is kept on disk."""

from __future__ import annotations

import os
import re
from pathlib import Path

import _simulated_cuda  # type: ignore[import-not-found]
import pytest

torch = pytest.importorskip("torch")

from pyinstrument_gpu import disk_cache  # noqa: E402
from pyinstrument_gpu.metrics import kernels  # noqa: E402
from pyinstrument_gpu.metrics.nvrtc import CompileError  # noqa: E402
from pyinstrument_gpu.native import native  # noqa: E402
from tests.helpers.script import run_script  # noqa: E402

ARCHITECTURES = [75, 80, 86, 89, 90, 100, 120]
FAKE_NVRTC = Path(_simulated_cuda.__file__).with_name("inject_nvrtc.so")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's cache is, which does not exist yet."""
    monkeypatch.setenv("PYINSTRUMENT_GPU_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """NVRTC is the fake, which environment variables steer."""
    monkeypatch.setenv("PYINSTRUMENT_GPU_LIBNVRTC", str(FAKE_NVRTC))
    return monkeypatch


# --- by a real NVRTC ---


def really_compiled(capability: int) -> bytes:
    try:
        return kernels.compiled(capability)
    except CompileError as error:
        if "was not found" in str(error) and not os.environ.get("PYINSTRUMENT_GPU_LIBNVRTC"):
            pytest.skip(str(error))
        raise


@pytest.mark.parametrize(
    "capability",
    [each if each == 90 else pytest.param(each, marks=pytest.mark.slow) for each in ARCHITECTURES],
)
def test_the_source_compiles(capability: int) -> None:
    code = really_compiled(capability)

    # An NVRTC that is older than the architecture gives PTX.
    assert code.startswith(b"\x7fELF") or b".target sm_" in code
    for rows_by in ("thread", "warp", "block"):
        for dtype in ("float64", "float32", "float16", "bfloat16"):
            assert f"pig_metric_update_{dtype}_{rows_by}".encode() in code
            assert f"pig_metric_cross_entropy_{dtype}_{rows_by}".encode() in code
    for name in ("scalar", "values", "rows", "pairs", "labels"):
        assert f"pig_metric_{name}".encode() in code


def test_all_that_the_source_includes_is_there() -> None:
    texts = dict(native.metric_kernel_texts())
    included = {
        name
        for text in texts.values()
        for name in re.findall(r'^#include "(.+)"', text, re.MULTILINE)
    }
    assert included == set(texts) - {"metric_kernel.cu"}


def test_for_a_device_that_it_does_not_know_it_gives_ptx() -> None:
    assert b".target sm_" in really_compiled(990)


# --- the compiler's process ---

TEXTS = " ".join(name for name, _ in native.metric_kernel_texts())


@pytest.mark.parametrize(
    ("capability", "kind", "option"),
    [(90, "cubin", "sm_90"), (100, "ptx", "compute_90"), (86, "ptx", "compute_80")],
)
def test_it_is_asked_for_what_the_device_takes(
    capability: int, kind: str, option: str, fake: pytest.MonkeyPatch
) -> None:
    assert kernels.compiled(capability).decode() == (
        f"{kind} {TEXTS} --gpu-architecture={option} --std=c++17"
    )


def test_what_the_compiler_said(fake: pytest.MonkeyPatch) -> None:
    fake.setenv("FAKE_NVRTC_FAILS", "1")
    with pytest.raises(CompileError) as raised:
        kernels.compiled(90)
    assert str(raised.value) == (
        "nvrtcCompileProgram: NVRTC_ERROR_COMPILATION (--gpu-architecture=sm_90) line 1"
    )


def test_a_compiler_that_crashes(fake: pytest.MonkeyPatch) -> None:
    fake.setenv("FAKE_NVRTC_FAILS", "abort")
    with pytest.raises(CompileError, match="process that runs NVRTC ended with exit code -6"):
        kernels.compiled(90)


def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYINSTRUMENT_GPU_LIBNVRTC", "/nowhere/libnvrtc.so")
    with pytest.raises(CompileError, match=r"/nowhere/libnvrtc\.so: cannot open shared object"):
        kernels.compiled(90)


@pytest.mark.parametrize(
    ("cuda", "found"), [("13.0", ["cu13"]), ("12.6", ["cuda_nvrtc"]), (None, [])]
)
def test_the_library_among_pytorchs_packages(
    cuda: str | None, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package, names in {
        "cu13": ("libnvrtc.so.13", "libnvrtc.alt.so.13", "libnvrtc-builtins.so.13.0"),
        "cuda_nvrtc": ("libnvrtc.so.12", "libnvrtc-builtins.so.12.6"),
    }.items():
        folder = tmp_path / "nvidia" / package / "lib"
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).touch()
    monkeypatch.delenv("PYINSTRUMENT_GPU_LIBNVRTC", raising=False)
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr(torch.version, "cuda", cuda)

    libraries = kernels._libraries()
    packaged = [Path(each) for each in libraries if each.startswith(str(tmp_path))]
    assert [path.parent.parent.name for path in packaged] == found
    assert libraries[-3:] == ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"]


# --- the cache ---


def only_entry(cache: Path) -> Path:
    (entry,) = cache.iterdir()
    return entry


def test_it_is_compiled_once(fake: pytest.MonkeyPatch, cache: Path) -> None:
    code = kernels.compiled(90)
    fake.setenv("FAKE_NVRTC_FAILS", "1")

    assert kernels.compiled(90) == code
    assert cache.stat().st_mode & 0o777 == 0o700
    assert only_entry(cache).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("change", ["architecture", "compiler", "options", "package", "source"])
def test_what_another_one_has_compiled_is_not_taken(
    change: str, fake: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "libnvrtc.so"
    library.write_bytes(FAKE_NVRTC.read_bytes())
    fake.setenv("PYINSTRUMENT_GPU_LIBNVRTC", str(library))
    kernels.compiled(90)
    fake.setenv("FAKE_NVRTC_FAILS", "1")
    capability = 90
    if change == "architecture":
        capability = 80
    elif change == "compiler":
        os.utime(library, ns=(0, 0))
    elif change == "options":
        fake.setattr(kernels, "_OPTIONS", ["--std=c++20"])
    elif change == "package":
        fake.setattr(kernels, "__version__", "0.0.0")
    else:
        fake.setattr(native, "metric_kernel_texts", lambda: [("metric_kernel.cu", "")])

    with pytest.raises(CompileError):
        kernels.compiled(capability)


@pytest.mark.parametrize("damage", ["truncated", "empty", "changed", "another's"])
def test_a_damaged_entry_is_compiled_again(
    damage: str, fake: pytest.MonkeyPatch, cache: Path
) -> None:
    code = kernels.compiled(90)
    entry = only_entry(cache)
    whole = entry.read_bytes()
    if damage == "another's":
        kernels.compiled(80)
        (other,) = set(cache.iterdir()) - {entry}
        other.replace(entry)
    else:
        broken = {"truncated": whole[:-1], "empty": b"", "changed": whole[:-1] + b"?"}
        entry.write_bytes(broken[damage])

    assert kernels.compiled(90) == code
    assert only_entry(cache).read_bytes() == whole


def test_a_cache_of_another_user_is_not_used(fake: pytest.MonkeyPatch, cache: Path) -> None:
    kernels.compiled(90)
    before = only_entry(cache).stat().st_mtime_ns
    fake.setattr(os, "geteuid", lambda: cache.stat().st_uid + 1)
    fake.setenv("FAKE_NVRTC_FAILS", "1")

    with pytest.raises(CompileError):
        kernels.compiled(90)
    fake.delenv("FAKE_NVRTC_FAILS")
    kernels.compiled(90)
    assert only_entry(cache).stat().st_mtime_ns == before


@pytest.mark.parametrize("what", ["directory", "entry"])
def test_what_others_may_write_to_is_not_trusted(
    what: str, fake: pytest.MonkeyPatch, cache: Path
) -> None:
    kernels.compiled(90)
    path = cache if what == "directory" else only_entry(cache)
    path.chmod(path.stat().st_mode | 0o020)
    fake.setenv("FAKE_NVRTC_FAILS", "1")

    with pytest.raises(CompileError):
        kernels.compiled(90)


def test_a_link_is_no_entry(fake: pytest.MonkeyPatch, cache: Path, tmp_path: Path) -> None:
    kernels.compiled(90)
    entry = only_entry(cache)
    entry.replace(tmp_path / "elsewhere")
    entry.symlink_to(tmp_path / "elsewhere")
    fake.setenv("FAKE_NVRTC_FAILS", "1")
    (tmp_path / "elsewhere").chmod(0o666)

    # Its own mode lets everybody write, and what it points to may be anybody's.
    with pytest.raises(CompileError):
        kernels.compiled(90)


def test_without_a_place_there_is_no_cache(fake: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    fake.setenv("PYINSTRUMENT_GPU_CACHE_DIR", str(tmp_path / "file" / "cache"))

    assert kernels.compiled(90) == kernels.compiled(90)


def test_a_full_disk_leaves_nothing_behind(cache: Path) -> None:
    # A process of its own: no file may grow beyond so many bytes from then on.
    done = run_script(
        """
import resource
import torch
from pyinstrument_gpu import disk_cache
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
disk_cache.store("small", b"code")
disk_cache.store("large", bytes(10_000))
print(disk_cache.load("small"), disk_cache.load("large"))
"""
    )
    assert done.stdout.strip() == "b'code' None"
    assert [path.name for path in cache.iterdir()] == ["small"]


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert disk_cache.cache_directory().name == "cache"
    monkeypatch.setenv("PYINSTRUMENT_GPU_CACHE_DIR", "")
    assert disk_cache.cache_directory() == Path("/xdg/pyinstrument_gpu")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert disk_cache.cache_directory() == Path("/home/of/.cache/pyinstrument_gpu")
