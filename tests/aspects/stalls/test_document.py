# SPDX-License-Identifier: Apache-2.0
"""The stalls in a run file."""

import json
from typing import Any

import pytest

from pyinstrument_gpu.aspects.stalls.data import GroupProgress, Stall, decode_stalls
from pyinstrument_gpu.errors import RunFileDamagedError

STALL = {
    "since_ns": 5,
    "noticed_ns": 40,
    "limit_ns": 30,
    "ended_ns": None,
    "step": 7,
    "paths": [[0, 1]],
    "answer": {
        "stacks": [["MainThread", "first\nsecond"]],
        "groups": [["0", 9, None, 8, "all_reduce"], ["1", None, None, None, None]],
    },
    "traceback": None,
}
READ = Stall(
    since_ns=5,
    noticed_ns=40,
    ended_ns=None,
    limit_ns=30,
    step=7,
    paths=((0, "a/b"),),
    stacks=(("MainThread", "first\nsecond"),),
    groups=(
        GroupProgress("0", 9, None, 8, "all_reduce"),
        GroupProgress("1", None, None, None, None),
    ),
)
TRACEBACK = """Thread 0x0000000000000010 (most recent call first):
  <no Python frame>

Thread 0x0000000000000011 (most recent call first):
  File "a.py", line 1 in helper

Current thread 0x00007f01 (most recent call first):
  File "b.py", line 3 in inner
  File "b.py", line 9 in outer
"""


def decoded(*stalls: Any) -> Any:
    return decode_stalls(json.dumps({"stalls": stalls}).encode(), ("a", "a/b"), threads=1)


def test_all_of_it() -> None:
    assert decoded(STALL) == (READ,)
    assert decoded() == ()


def test_stacks_that_python_did_not_give_are_those_of_the_traceback() -> None:
    (stall,) = decoded({**STALL, "answer": None, "traceback": TRACEBACK})
    # What Python says after that is of a later time.
    assert decoded({**STALL, "traceback": TRACEBACK})[0].stacks == stall.stacks
    assert stall.stacks == (
        ("thread 32513", 'File "b.py", line 3 in inner\nFile "b.py", line 9 in outer'),
        ("thread 17", 'File "a.py", line 1 in helper'),
        ("thread 16", "<no Python frame>"),
    )


def test_a_thread_of_a_number_that_none_has() -> None:
    text = f"Thread 0x{'f' * 6000} (most recent call first):\n  a\n{TRACEBACK}"
    (stall,) = decoded({**STALL, "answer": None, "traceback": text})
    assert [name for name, _ in stall.stacks] == ["thread 32513", "thread 17", "thread 16"]


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {},
        {**STALL, "since_ns": None},
        {**STALL, "since_ns": 41},
        {**STALL, "noticed_ns": 1 << 61},
        {**STALL, "limit_ns": -1},
        {**STALL, "ended_ns": 39},
        {**STALL, "step": -2},
        {**STALL, "step": "7"},
        {**STALL, "paths": 3},
        {**STALL, "answer": 3},
        {**STALL, "answer": {"stacks": [["a"]], "groups": []}},
        {**STALL, "answer": {"stacks": [], "groups": [["0", -1, None, None, None]]}},
        {**STALL, "answer": {"stacks": [], "groups": [[0, 1, None, None, None]]}},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(RunFileDamagedError, match="STALLS"):
        decoded(wrong, STALL)


def test_more_than_are_kept_are_refused() -> None:
    with pytest.raises(RunFileDamagedError, match="STALLS"):
        decoded(*[STALL] * 9)


def test_phases_whose_path_or_thread_the_file_lost_are_left_out() -> None:
    (stall,) = decoded({**STALL, "paths": [[0, 2], [1, 0], [0, 1]]})
    assert stall == READ


def test_texts_are_shown_without_control_characters() -> None:
    answer = {"stacks": [["a\x1b", "b\x1b\nc"]], "groups": [["\n", 1, 1, 1, "\t"]]}
    (stall,) = decoded({**STALL, "answer": answer})
    assert stall.stacks == (("a?", "b?\nc"),)
    assert stall.groups == (GroupProgress("?", 1, 1, 1, "?"),)
