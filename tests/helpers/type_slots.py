# SPDX-License-Identifier: Apache-2.0
"""The slots of a type, which CPython keeps beside the attributes of its dictionary.

Read from memory: the order of the slots is that of `PyTypeObject` in CPython's
Include/cpython/object.h, the same since 3.8.
"""

import ctypes

_WORD = ctypes.sizeof(ctypes.c_void_p)
_TYPE_SLOTS = {
    "tp_dealloc": 6,
    "tp_getattr": 8,
    "tp_setattr": 9,
    "tp_repr": 11,
    "tp_hash": 15,
    "tp_call": 16,
    "tp_str": 17,
    "tp_getattro": 18,
    "tp_setattro": 19,
    "tp_traverse": 23,
    "tp_clear": 24,
    "tp_richcompare": 25,
    "tp_iter": 27,
    "tp_iternext": 28,
    "tp_descr_get": 34,
    "tp_descr_set": 35,
    "tp_init": 37,
    "tp_alloc": 38,
    "tp_new": 39,
    "tp_free": 40,
}
_TABLES = {"number": (12, 36), "sequence": (13, 10), "mapping": (14, 3)}
"""Where the type has the address of a table of further slots, and how many words that has."""


def slots(kind: type) -> dict[str, int]:
    """The address in each slot; 0 in an empty one."""
    found = {name: _word(id(kind), index) for name, index in _TYPE_SLOTS.items()}
    for name, (index, length) in _TABLES.items():
        table = _word(id(kind), index)
        for slot in range(length):
            found[f"{name} {slot}"] = _word(table, slot) if table else 0
    return found


def _word(address: int, index: int) -> int:
    return ctypes.c_void_p.from_address(address + index * _WORD).value or 0


def is_sequence(value: object) -> bool:
    """What CPython takes for a sequence: `PySequence_Check`."""
    return bool(ctypes.pythonapi.PySequence_Check(ctypes.py_object(value)))
