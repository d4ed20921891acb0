# SPDX-License-Identifier: Apache-2.0
"""A TorchInductor that compiles in milliseconds."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def inductor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In this process, from an empty cache. What is compiled does best with products only, which
    need no C++ compiler."""
    import torch
    from torch._inductor import config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    # Without a search for vector instructions, which compiles a program.
    with config.patch({"compile_threads": 1, "cpp.simdlen": 1, "fx_graph_cache": True}):
        yield
    torch._dynamo.reset()
