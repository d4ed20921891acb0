# SPDX-License-Identifier: Apache-2.0
"""The optional dependencies: `all` has every one that users have a use for."""

import re
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
FOR_DEVELOPERS = re.compile("all|bench|dev|docs|test.*")


def test_all_has_every_extra_for_users() -> None:
    # Read by its lines: Python 3.10 has no parser of TOML.
    text = PYPROJECT.read_text("utf-8")
    table = text.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    extras = {*re.findall(r"^([a-z-]+) = \[", table, re.MULTILINE)}
    listed = re.search(r'^all = \[\s*"pyinstrument-gpu\[([a-z,-]+)\]"', table, re.MULTILINE)
    assert listed is not None
    for_users = {extra for extra in extras if not FOR_DEVELOPERS.fullmatch(extra)}
    assert {*listed[1].split(",")} == for_users
