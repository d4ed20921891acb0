# SPDX-License-Identifier: Apache-2.0
import pytest

from pyinstrument_gpu.aspects.syncs import watch


@pytest.fixture(autouse=True)
def torch_that_can_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch is on in these tests, also with a torch that was built without an accelerator."""
    monkeypatch.setattr(watch, "can_wait", lambda: True)
