# SPDX-License-Identifier: Apache-2.0
"""Has CMake build the native module, as CMakeLists.txt says. The rest is in pyproject.toml."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


class BuildWithCMake(build_ext):
    """Builds every extension by one CMake install into the place where setuptools looks for it."""

    def build_extension(self, ext: Extension) -> None:
        # Not setuptools' build_temp: an editable install throws that away, and with it every object
        # file. One directory for each ABI keeps rebuilds incremental and interpreters apart.
        build = ROOT / "build" / str(sysconfig.get_config_var("SOABI"))
        prefix = Path(self.get_ext_fullpath(ext.name)).resolve().parents[ext.name.count(".")]
        # Fresh: pip's build environment has another path each time, so a cache would be stale.
        configure = ["--fresh", "-S", ROOT, "-B", build, "-G", "Ninja"]
        for arguments in (
            [*configure, f"-DPython_EXECUTABLE={sys.executable}"],
            ["--build", build],
            ["--install", build, "--prefix", prefix, "--strip"],
        ):
            subprocess.run(["cmake", *map(str, arguments)], check=True)


# Recording needs Linux. Elsewhere the package still loads, analyses and exports runs. The Makefile
# builds the module itself, together with the native tests, and asks pip for the rest.
has_native_module = sys.platform == "linux" and "PYINSTRUMENT_GPU_NO_NATIVE_BUILD" not in os.environ

setup(
    ext_modules=[Extension("pyinstrument_gpu.native._C", sources=[])] if has_native_module else [],
    cmdclass={"build_ext": BuildWithCMake},
)
