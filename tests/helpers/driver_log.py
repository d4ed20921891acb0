# SPDX-License-Identifier: Apache-2.0
"""What the driver is asked by the code under test: a library between the two counts, and hands on.

Importing this names the library to the code under test, so it belongs in a process of its own.
"""

import ctypes
import os
from pathlib import Path

import _call_loop  # type: ignore[import-not-found]

LIBRARY = Path(_call_loop.__file__).with_name("inject_driver_log.so")
# Not in os.environ, which the programs that tests start inherit.
os.putenv("PYINSTRUMENT_GPU_LIBCUDA", str(LIBRARY))

_library = ctypes.CDLL(str(LIBRARY))
_library.forward_name.restype = ctypes.c_char_p
_library.forward_name.argtypes = _library.forward_count.argtypes = [ctypes.c_uint64]
_library.forward_count.restype = ctypes.c_uint64


def driver_calls() -> dict[str, int]:
    """How often each of the driver's functions was called so far, those that were."""
    counts: dict[str, int] = {}
    index = 0
    while (name := _library.forward_name(index)) is not None:
        count = int(_library.forward_count(index))
        if count:
            counts[name.decode()] = count
        index += 1
    return counts


def calls_since(before: dict[str, int]) -> dict[str, int]:
    """The calls since `driver_calls` gave this."""
    now = driver_calls()
    return {name: now[name] - before.get(name, 0) for name in now if now[name] != before.get(name)}
