# SPDX-License-Identifier: Apache-2.0
"""A framework that is missing, or too old, is an error with the command to install it."""

import sys
import types
from pathlib import Path

import pytest

from pyinstrument_gpu.errors import MissingDependencyError
from pyinstrument_gpu.integrations.training_recording import import_framework


def test_framework_that_is_missing() -> None:
    with pytest.raises(MissingDependencyError) as raised:
        import_framework("no_such_framework.sub", "no-such-framework", (2, 0))
    assert str(raised.value) == (
        "no-such-framework is not installed: pip install -U 'no-such-framework>=2.0'"
    )


def test_framework_that_misses_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_framework.py").write_text("import no_such_module_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        import_framework("broken_framework", "broken-framework", (2, 0))


@pytest.mark.parametrize("version", ["1.9.5", "0.4", "1.12.0rc1"])
def test_framework_that_is_too_old(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("old_framework")
    module.__dict__["__version__"] = version
    monkeypatch.setitem(sys.modules, "old_framework", module)
    with pytest.raises(MissingDependencyError) as raised:
        import_framework("old_framework", "old-framework", (2, 0))
    assert str(raised.value) == (
        f"old-framework {version} is older than the first version that is supported, 2.0: "
        "pip install -U 'old-framework>=2.0'"
    )


@pytest.mark.parametrize("version", ["2.0", "2.0.0rc1", "10.1", "main", ""])
def test_framework_that_is_new_enough(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("new_framework")
    module.__dict__["__version__"] = version
    monkeypatch.setitem(sys.modules, "new_framework", module)
    assert import_framework("new_framework", "new-framework", (2, 0)) is module
