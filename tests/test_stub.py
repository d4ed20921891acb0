# SPDX-License-Identifier: Apache-2.0
"""The native module as it was built, against `_C.pyi`, which says what it should be."""

import ast
import inspect
from pathlib import Path

import pytest

from pyinstrument_gpu import native
from pyinstrument_gpu.native import _C

STUB = ast.parse(Path(native.__file__).with_name("_C.pyi").read_text())
FUNCTIONS = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
VARIABLES = {
    node.target.id
    for node in STUB.body
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
}

# What every type has, and need not be said.
COMMON = {
    "__doc__",
    "__new__",
    "__repr__",
    "__reduce__",
    "__module__",
    "__hash__",
    "_pybind11_conduit_v1_",
}


def is_public(name: str) -> bool:
    return not name.startswith("_")


def members(stub_class: ast.ClassDef) -> set[str]:
    return {node.name for node in stub_class.body if isinstance(node, ast.FunctionDef)}


def parameters(function: ast.FunctionDef) -> list[tuple[str, str]]:
    """Name and kind of each."""
    arguments = function.args
    return [
        *((argument.arg, "positional") for argument in arguments.posonlyargs),
        *((argument.arg, "either") for argument in arguments.args),
        *((argument.arg, "keyword") for argument in arguments.kwonlyargs),
    ]


def declared_by(function: object) -> ast.FunctionDef:
    """The signature as the built function states it."""
    text_signature = getattr(function, "__text_signature__", None)
    # pybind11 puts it into the first line of the docstring.
    signature = text_signature or (inspect.getdoc(function) or "").splitlines()[0].partition("(")[2]
    (definition,) = ast.parse(f"def f({signature.removeprefix('(')}: ...").body
    assert isinstance(definition, ast.FunctionDef)
    return definition


def test_the_module_has_what_the_stub_says_and_nothing_more() -> None:
    declared = {*FUNCTIONS, *CLASSES, *VARIABLES}

    assert set(filter(is_public, declared)) == set(filter(is_public, dir(_C)))


@pytest.mark.parametrize("name", sorted(filter(is_public, CLASSES)))
def test_members_of_a_class(name: str) -> None:
    assert members(CLASSES[name]) == set(vars(getattr(_C, name))) - COMMON


def test_members_of_gpu_phase() -> None:
    own = set(vars(type(_C.gpu_phase)))

    assert members(CLASSES["_GpuPhase"]) - {"__call__"} == set(filter(is_public, own))
    assert callable(_C.gpu_phase)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_parameters_of_a_function(name: str) -> None:
    assert parameters(declared_by(getattr(_C, name))) == parameters(FUNCTIONS[name])
