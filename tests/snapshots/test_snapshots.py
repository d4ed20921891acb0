# SPDX-License-Identifier: Apache-2.0
"""What each renderer shows stays as it is, to the last character.

After a change that is meant to show something else, `WRITE_SNAPSHOTS=1 pytest tests/snapshots`
writes the files anew, and what has changed is reviewed with the change.
"""

import difflib
import os
from pathlib import Path

import pytest

pytest.importorskip("jinja2", reason="jinja2 is not installed")
pytest.importorskip("scipy", reason="scipy is not installed")

from tests.snapshots.shown import SHOWN

_FOLDER = Path(__file__).parent
_WRITES = os.environ.get("WRITE_SNAPSHOTS") == "1"
_MOST_LINES = 60


@pytest.mark.parametrize("name", SHOWN)
def test_it_is_shown_as_before(name: str) -> None:
    path, shown = _FOLDER / name, SHOWN[name]().rstrip("\n") + "\n"
    if _WRITES:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(shown.encode())
    kept = path.read_bytes().decode() if path.exists() else ""
    if shown != kept:
        lines = difflib.unified_diff(
            kept.split("\n"), shown.split("\n"), "kept", "shown", "", "", 2
        )
        difference = "\n".join([*lines][:_MOST_LINES])
        pytest.fail(
            f"{name} is shown in another way. If that is meant, write it anew with "
            f"`WRITE_SNAPSHOTS=1 pytest tests/snapshots`.\n{difference}",
            pytrace=False,
        )


def test_each_file_is_of_something_that_is_shown() -> None:
    kept = {path.relative_to(_FOLDER).as_posix() for path in _FOLDER.glob("*/*.*")}
    assert {name for name in kept if "__pycache__" not in name} == set(SHOWN)
