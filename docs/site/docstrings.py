# SPDX-License-Identifier: Apache-2.0
"""Docstrings that reading the sources alone does not find. An extension of griffe.

The site is built without the native module, so nothing is imported for it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import griffe

_GPU_PHASE = Path(__file__).parents[2] / "csrc" / "python" / "gpu_phase_function.cpp"
_LITERALS = re.compile(r'"gpu_phase\(name, /\)\\n--\\n\\n"\s*((?:"(?:[^"\\]|\\.)*"\s*)+)')
_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"')


class Docstrings(griffe.Extension):
    """Puts into the package what only its import would.

    `gpu_phase` is the function of the native module, with its docstring. `record` and `start` have
    the arguments of `RecordingOptions`. A class without a docstring has that of its base.
    """

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        pkg.set_member("gpu_phase", _gpu_phase(pkg))
        options = pkg["recording.options.RecordingOptions.__init__"].parameters
        for name in ("record", "start"):
            pkg[name].final_target.parameters = griffe.Parameters(
                *(option for option in options if option.name != "self")
            )
        for exported in pkg.exports or ():
            public = pkg[str(exported)]
            if public.is_class and not public.has_docstring:
                of_base = next((base.docstring for base in public.mro() if base.docstring), None)
                public.final_target.docstring = of_base


def _gpu_phase(package: griffe.Module) -> griffe.Function:
    kind = griffe.ParameterKind("positional-only")
    name = griffe.Parameter("name", annotation="str", kind=kind)
    function = griffe.Function(
        "gpu_phase", parameters=griffe.Parameters(name), returns="Phase", parent=package
    )
    function.docstring = griffe.Docstring(gpu_phase_docstring(), parent=function)
    return function


def gpu_phase_docstring() -> str:
    """What `help(gpu_phase)` says, from the source of the native module.

    Raises:
        ValueError: the docstring is not where it used to be.
    """
    found = _LITERALS.search(_GPU_PHASE.read_text("utf-8"))
    if found is None:
        raise ValueError(f"no docstring of gpu_phase in {_GPU_PHASE}")
    return "".join(ast.literal_eval(literal) for literal in _LITERAL.findall(found[1]))
