# SPDX-License-Identifier: Apache-2.0
"""The meaning of a call's device argument on a machine with a GPU.

On a CPU its value says nothing: it is the CPU in any case. What the call's source says is the
literal "cpu", a name like `cpu_device`, or one to which only CPU literals are assigned: the host.
`x.device` is where `x` is, also where a caller gives it for a parameter. Everything else is taken
for the device.
"""

from __future__ import annotations

import ast
import inspect
from types import FrameType
from typing import Any

import torch
from torch.utils._device import _device_constructors

from pyinstrument_gpu.aspects.syncs.preview.placement import Placement
from pyinstrument_gpu.aspects.syncs.preview.source_call import SourceCall, call_of, called_name

_MAX_DEPTH = 6
_FACTORIES = {function.__name__ for function in _device_constructors()}
"""Functions that make a tensor on the host unless they are told otherwise."""
_NUMBERS = {"size", "dim", "ndimension", "numel", "nelement", "stride", "item", "tolist"}
"""Methods of tensors that return something else."""


def is_device(
    frame: FrameType,
    placement: Placement,
    *,
    undecided: bool | None,
    position: int | None = None,
    keyword: str = "device",
) -> bool | None:
    """Return whether the device argument of the call that a frame makes would be a device. None
    where the source doesn't show it, or that is only assumed; False where it shows there is none.

    Args:
        undecided: what an argument is that the source shows and doesn't decide.
        position: where the argument stands without its keyword, in a call that has it, even if it
            is hidden, as in `x.to(*args)`. It is then undecided.
        keyword: what the argument is called.
    """
    call = call_of(frame)
    if call is None:
        return None
    resolver = _Resolver(frame, placement, call)
    expression = call.argument(position, keyword)
    if expression is not None:
        try:
            found = resolver.resolve(expression, 0)
        except _Presumed:
            return None
        return undecided if found is None else found
    if position is not None:
        return undecided
    return None if call.is_open else False


def makes_beside(frame: FrameType, placement: Placement) -> bool:
    """Return whether the call that a frame makes is a function of a tensor on the device, which
    makes others where that lies."""
    call = call_of(frame)
    if call is None or call.argument(None, "device") is not None:
        return False
    name = called_name(call.node)
    if name in _FACTORIES or name.endswith("Tensor"):
        return False
    resolver = _Resolver(frame, placement, call)
    return any(map(resolver.lies_there, resolver.given(call.node)))


class _Presumed(Exception):
    """The device comes from a tensor that is only assumed to be on the GPU."""


class _Resolver:
    def __init__(self, frame: FrameType, placement: Placement, call: SourceCall) -> None:
        self._frame = frame
        self._placement = placement
        self._call = call

    def resolve(self, expression: ast.expr, depth: int) -> bool | None:
        """Return whether an expression is a device; None where that is not decided."""
        if depth > _MAX_DEPTH:
            return None
        if isinstance(expression, ast.Constant):
            literal = expression.value
            return not literal.startswith(("cpu", "meta")) if isinstance(literal, str) else None
        if isinstance(expression, ast.Call):
            is_torch_device = called_name(expression) == "device" and expression.args
            return self.resolve(expression.args[0], depth + 1) if is_torch_device else None
        if isinstance(expression, ast.Attribute):
            return self._of_attribute(expression, depth)
        if isinstance(expression, ast.Name):
            if "cpu" in expression.id.lower():
                return False
            local = self._call.file.assigned_in(self._call.function, expression.id)
            if local:
                return self._of_all(local, depth)
            given = self._of_parameter(expression.id, depth)
            if given is not None:
                return given
            return self._never_device(expression.id, depth)
        return None

    def _of_parameter(self, name: str, depth: int) -> bool | None:
        """Return whether a parameter is a device, if the caller gives `x.device` for it."""
        caller, code = self._frame.f_back, self._frame.f_code
        parameters = code.co_varnames[: code.co_argcount]
        call = call_of(caller) if caller is not None and name in parameters else None
        if caller is None or call is None:
            return None
        is_method = parameters[0] == "self" and isinstance(call.node.func, ast.Attribute)
        expression = call.argument(parameters.index(name) - is_method, name)
        if not isinstance(expression, ast.Attribute) or expression.attr != "device":
            return None
        return _Resolver(caller, self._placement, call).resolve(expression, depth + 1)

    def lies_there(self, expression: ast.expr) -> bool:
        """Return whether an expression is a tensor on the device, or a function of one."""
        if isinstance(expression, ast.Call):
            function = expression.func
            if not isinstance(function, ast.Attribute) or function.attr in _NUMBERS:
                return False
            return any(map(self.lies_there, self.given(expression)))
        value = self._value(expression)
        if isinstance(value, torch.Tensor):
            return self._placement.is_on_device(value)
        if isinstance(expression, (ast.Subscript, ast.Starred)):
            return self.lies_there(expression.value)
        if isinstance(expression, ast.BinOp):
            return self.lies_there(expression.left) or self.lies_there(expression.right)
        if isinstance(expression, (ast.Tuple, ast.List)):
            return any(map(self.lies_there, expression.elts))
        return False

    @staticmethod
    def given(call: ast.Call) -> list[ast.expr]:
        """Return what a call is given: its arguments and, of a method, its object."""
        owner = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        return [*owner, *call.args, *(keyword.value for keyword in call.keywords)]

    def _of_attribute(self, expression: ast.Attribute, depth: int) -> bool | None:
        if expression.attr == "device":
            owner = self._value(expression.value)
            if isinstance(owner, torch.nn.Module):
                owner = next(owner.parameters(), None)
            if isinstance(owner, torch.Tensor):
                is_there = self._placement.is_on_device(owner)
                if is_there and not self._placement.has_moved:
                    raise _Presumed
                return is_there
        if "cpu" in expression.attr.lower():
            return False
        return self._never_device(expression.attr, depth)

    def _of_all(self, values: list[ast.expr], depth: int) -> bool | None:
        found = [self.resolve(value, depth + 1) for value in values]
        return found[0] if all(one is found[0] for one in found) else None

    def _never_device(self, name: str, depth: int) -> bool | None:
        """False for a name to which the file assigns nothing but CPU literals."""
        values = self._call.file.assigned.get(name, [])
        is_host = bool(values) and all(_is_cpu_literal(value) for value in values)
        return False if is_host else None

    def _value(self, expression: ast.expr) -> Any:
        """Return the value of an expression whose evaluation runs no code of the program."""
        if isinstance(expression, ast.Name):
            local = self._frame.f_locals
            return local.get(expression.id, self._frame.f_globals.get(expression.id))
        if isinstance(expression, ast.Attribute):
            owner = self._value(expression.value)
            if owner is None or isinstance(
                inspect.getattr_static(type(owner), expression.attr, None), property
            ):
                return None
            return getattr(owner, expression.attr, None)
        if isinstance(expression, ast.Subscript):
            owner, index = self._value(expression.value), expression.slice
            if type(owner) in (list, tuple, dict) and isinstance(index, ast.Constant):
                try:
                    return owner[index.value]
                except (LookupError, TypeError):
                    return None
        if isinstance(expression, ast.Call) and len(expression.args) == 1:
            return self._first_parameter(expression)
        return None

    def _first_parameter(self, call: ast.Call) -> Any:
        """Return the parameter in `next(module.parameters())`."""
        inner = call.args[0]
        is_next = isinstance(call.func, ast.Name) and call.func.id == "next"
        if not (is_next and isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute)):
            return None
        owner = self._value(inner.func.value)
        if inner.func.attr != "parameters" or not isinstance(owner, torch.nn.Module):
            return None
        return next(owner.parameters(), None)


def _is_cpu_literal(expression: ast.expr) -> bool:
    if isinstance(expression, ast.Call):  # torch.device("cpu")
        is_one = called_name(expression) == "device" and len(expression.args) == 1
        return is_one and _is_cpu_literal(expression.args[0])
    return isinstance(expression, ast.Constant) and str(expression.value).startswith("cpu")
