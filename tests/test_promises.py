# SPDX-License-Identifier: Apache-2.0
"""promises.md lists what users are told, each with a test that holds it: these tests exist."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PROMISE = re.compile(r"\* .+ — `(?P<file>tests/[\w./]+)(?:::(?P<test>\w+))?`")


def is_held(line: str) -> bool:
    promise = PROMISE.fullmatch(line)
    if promise is None or not (source := TESTS.parent / promise["file"]).is_file():
        return False
    test = promise["test"]
    return test is None or bool(
        re.search(rf"^(?:\w+ )+{test}\(", source.read_text(encoding="utf-8"), re.MULTILINE)
    )


def test_each_promise_is_held_by_a_test() -> None:
    """Its lines look like: * What is promised. — `tests/FILE::TEST`"""
    page = (TESTS / "promises.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("*")]
    assert lines and [line for line in lines if not is_held(line)] == []
