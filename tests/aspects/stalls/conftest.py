# SPDX-License-Identifier: Apache-2.0
import pytest

from pyinstrument_gpu.recording import hang_program


@pytest.fixture(autouse=True)
def _nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are of what the process itself notes; tests/cli/test_hang.py has the rest."""
    monkeypatch.setattr(hang_program, "install", lambda *_: None)
