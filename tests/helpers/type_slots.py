# SPDX-License-Identifier: Apache-2.0
"""The slots of a type, which CPython keeps beside the attributes of its dictionary.

Read from memory: the order of the slots is that of `PyTypeObject` in CPython's
Include/cpython/object.h, the same since 3.8. Indices count words behind the head of the type, which
is that of every object, and is longer without the GIL.
"""

import ctypes

_WORD = ctypes.sizeof(ctypes.c_void_p)
_HEAD = object.__basicsize__ // _WORD + 1  # and the size, as a type is an object of variable size
_VALID_VERSION = 1 << 19
"""A flag that comes and goes with the interpreter's caches."""
_SLOTS = {
    "tp_basicsize": 1,
    "tp_itemsize": 2,
    "tp_dealloc": 3,
    "tp_vectorcall_offset": 4,
    "tp_getattr": 5,
    "tp_setattr": 6,
    "tp_repr": 8,
    "tp_hash": 12,
    "tp_call": 13,
    "tp_str": 14,
    "tp_getattro": 15,
    "tp_setattro": 16,
    "tp_doc": 19,
    "tp_traverse": 20,
    "tp_clear": 21,
    "tp_richcompare": 22,
    "tp_weaklistoffset": 23,
    "tp_iter": 24,
    "tp_iternext": 25,
    "tp_methods": 26,
    "tp_members": 27,
    "tp_getset": 28,
    "tp_base": 29,
    "tp_descr_get": 31,
    "tp_descr_set": 32,
    "tp_dictoffset": 33,
    "tp_init": 34,
    "tp_alloc": 35,
    "tp_new": 36,
    "tp_free": 37,
    "tp_is_gc": 38,
    "tp_bases": 39,
    "tp_mro": 40,
    "tp_del": 44,
    "tp_finalize": 46,
    "tp_vectorcall": 47,
}
_FLAGS = 18
_TABLES = {
    "async": (7, 4),
    "number": (9, 36),
    "sequence": (10, 10),
    "mapping": (11, 3),
    "buffer": (17, 2),
}
"""Where the type has the address of a table of further slots, and how many words that has."""


def slots(kind: type) -> dict[str, int]:
    """What is in each slot, mostly an address; 0 in an empty one."""
    head = id(kind) + _HEAD * _WORD
    found = {name: _word(head, index) for name, index in _SLOTS.items()}
    found["tp_flags"] = _word(head, _FLAGS) & ~_VALID_VERSION
    for name, (index, length) in _TABLES.items():
        table = _word(head, index)
        for slot in range(length):
            found[f"{name} {slot}"] = _word(table, slot) if table else 0
    return found


def _word(address: int, index: int) -> int:
    return ctypes.c_void_p.from_address(address + index * _WORD).value or 0


def is_sequence(value: object) -> bool:
    """What CPython takes for a sequence: `PySequence_Check`."""
    return bool(ctypes.pythonapi.PySequence_Check(ctypes.py_object(value)))
