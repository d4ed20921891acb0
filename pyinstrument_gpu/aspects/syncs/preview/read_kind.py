# SPDX-License-Identifier: Apache-2.0
"""In which words a program reads one number of a tensor."""

from __future__ import annotations

import ast
import dis
from types import FrameType

from pyinstrument_gpu.aspects.syncs.preview.source_call import call_of
from pyinstrument_gpu.core.sync_kind import SyncKind

_CALLS = {
    "item": SyncKind.ITEM,
    "tolist": SyncKind.TOLIST,
    "float": SyncKind.FLOAT,
    "int": SyncKind.INT,
    "range": SyncKind.INT,
    "complex": SyncKind.COMPLEX,
}
_COMPARING = ("bool", "any", "all", "max", "min", "sorted")
_INSTRUCTIONS = {
    "BINARY_OP": SyncKind.FORMAT,  # "%d" % x
    "BINARY_SUBSCR": SyncKind.INT,
    "STORE_SUBSCR": SyncKind.INT,
    "COMPARE_OP": SyncKind.BOOL,
    "CONTAINS_OP": SyncKind.COMPARE,
    "FORMAT_VALUE": SyncKind.FORMAT,
    "UNARY_NOT": SyncKind.BOOL,
    "TO_BOOL": SyncKind.BOOL,
}


def kind_of_read(frame: FrameType) -> SyncKind:
    """What a frame is doing that reads one number."""
    instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    if "JUMP" in instruction:  # `if`, `while`, `and`, `assert`, ...
        return SyncKind.BOOL
    if instruction in _INSTRUCTIONS:
        return _INSTRUCTIONS[instruction]
    call = call_of(frame)
    if call is None:
        return SyncKind.ITEM
    function = call.node.func
    if isinstance(function, ast.Attribute):
        return _CALLS.get(function.attr, SyncKind.ITEM)
    name = function.id if isinstance(function, ast.Name) else ""
    return _CALLS.get(name, SyncKind.BOOL if name in _COMPARING else SyncKind.ITEM)
