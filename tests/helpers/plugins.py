# SPDX-License-Identifier: Apache-2.0
"""Packages with plug-ins, which are installed for a test and gone after it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyinstrument_gpu import plugins
from pyinstrument_gpu.core.aspect import aspects


@contextmanager
def on_the_path(folder: Path) -> Iterator[None]:
    """Have Python find what is installed in a folder, which holds packages and their metadata."""
    names = {path.stem for path in folder.iterdir() if not path.name.endswith(".dist-info")}
    sys.path.insert(0, str(folder))
    _forget()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for module in [name for name in sys.modules if name.partition(".")[0] in names]:
            del sys.modules[module]
        _forget()


def _forget() -> None:
    importlib.invalidate_caches()
    for known in (plugins.installed, plugins.load, aspects):
        known.cache_clear()


def install(folder: Path, source: str, points: Mapping[str, str], package: str = "added") -> None:
    """Put a package of one module into a folder, with its entry points.

    Args:
        points: what the entry point named `mine` of each kind names, by the kind.
    """
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text(source)
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"[pyinstrument_gpu.{kind}]\nmine = {what}" for kind, what in points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
