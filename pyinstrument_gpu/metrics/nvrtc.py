# SPDX-License-Identifier: Apache-2.0
"""Compiles CUDA source with NVRTC, in a process of its own.

`kernels.py` runs this file as a program that imports nothing of this package. In the training's
process NVRTC would crash a program that ends while it compiles (its destructors run beside it),
and would keep some hundred megabytes.

The program reads a request from stdin, as JSON, and writes an answer to stdout: a line that is
empty or says why there is no code, and then the code.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
from typing import Any


class CompileError(Exception):
    """Why there is no code."""


class Nvrtc:
    """The library: its functions, by their names without `nvrtc`. Loads the first that it can.

    Raises:
        CompileError: none can be loaded, or a call failed.
    """

    def __init__(self, libraries: list[str]) -> None:
        reasons = []
        for name in libraries:
            try:
                self._library = ctypes.CDLL(name)
                break
            except OSError as error:
                reasons.append(str(error))
        else:
            raise CompileError(f"NVRTC was not found: {'; '.join(reasons)}")
        self._load_builtins()

    def call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, f"nvrtc{name}", None)
        if function is None:
            raise CompileError(f"NVRTC has no nvrtc{name}")
        if result := function(*arguments):
            describe = self._library.nvrtcGetErrorString
            describe.restype = ctypes.c_char_p
            raise CompileError(f"nvrtc{name}: {describe(result).decode()}")

    def bytes_of(self, program: ctypes.c_void_p, what: str) -> bytes:
        """Return a part of a compiled program: its CUBIN, PTX or ProgramLog."""
        size = ctypes.c_size_t()
        self.call(f"Get{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self.call(f"Get{what}", program, text)
        return text.raw

    def architectures(self) -> list[int]:
        """The compute capabilities that it compiles for, as 90."""
        count = ctypes.c_int()
        self.call("GetNumSupportedArchs", ctypes.byref(count))
        architectures = (ctypes.c_int * count.value)()
        self.call("GetSupportedArchs", architectures)
        return list(architectures)

    def _load_builtins(self) -> None:
        """Load NVRTC's second library, which it loads by its name alone and does not find where the
        two lie in a Python package. Once loaded, it is found."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("Version", ctypes.byref(major), ctypes.byref(minor))
        for path in loaded_libraries():
            folder = path.rpartition("/")[0]
            name = f"{folder}/libnvrtc-builtins.so.{major.value}.{minor.value}"
            with contextlib.suppress(OSError):  # where it is needed, the compiler says so
                ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)


def loaded_libraries() -> list[str]:
    """Paths of the NVRTC libraries that this process has loaded."""
    with open("/proc/self/maps") as maps:
        paths = [line.split(maxsplit=5)[5].strip() for line in maps if "/libnvrtc.so" in line]
    return list(dict.fromkeys(paths))


def compile_source(request: dict[str, Any]) -> bytes:
    """The machine code for a device; PTX, which the driver compiles, where this NVRTC is older than
    the device.

    Args:
        request: `libraries`, `capability` (90 for 9.0), `options`, and `texts`: the source by its
            name, then the headers by what `#include` calls them, as pairs.

    Raises:
        CompileError: there is none; the message says why.
    """
    nvrtc = Nvrtc(request["libraries"])
    wanted = request["capability"]
    # The nearest below, as far as it goes.
    best = max((each for each in nvrtc.architectures() if each <= wanted), default=wanted)
    architecture = f"--gpu-architecture={'sm' if best == wanted else 'compute'}_{best}"
    options = [each.encode() for each in [architecture, *request["options"]]]
    (name, source), *headers = request["texts"]
    strings = ctypes.c_char_p * len(headers)
    program = ctypes.c_void_p()
    nvrtc.call(
        "CreateProgram",
        ctypes.byref(program),
        source.encode(),
        name.encode(),
        len(headers),
        strings(*(text.encode() for _, text in headers)),
        strings(*(header.encode() for header, _ in headers)),
    )
    try:
        nvrtc.call(
            "CompileProgram", program, len(options), (ctypes.c_char_p * len(options))(*options)
        )
    except CompileError as error:
        log = nvrtc.bytes_of(program, "ProgramLog").decode(errors="replace")
        raise CompileError(f"{error} ({architecture}) {log.partition(chr(10))[0]}") from None
    return nvrtc.bytes_of(program, "CUBIN" if best == wanted else "PTX")


def main() -> None:
    try:
        code, error = compile_source(json.load(sys.stdin)), ""
    except CompileError as raised:
        code, error = b"", str(raised).replace("\n", " ")
    sys.stdout.buffer.write(f"{error}\n".encode() + code)


if __name__ == "__main__":
    main()
