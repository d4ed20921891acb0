# SPDX-License-Identifier: Apache-2.0
import importlib.util

import pytest


@pytest.fixture(autouse=True)
def torch_that_can_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch is on in these tests, also with a torch that was built without an accelerator."""
    if importlib.util.find_spec("torch") is not None:
        monkeypatch.setattr("pyinstrument_gpu.aspects.syncs.watch.can_wait", lambda: True)
