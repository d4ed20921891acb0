# SPDX-License-Identifier: Apache-2.0
"""Packages that are installed in editable mode: both sides import them from the same place."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit


def editable_packages(folder: Path) -> list[str]:
    """The names of those of this environment whose code lies in the folder, by name."""
    names = []
    for distribution in metadata.distributions():
        place = _editable_place(distribution)
        if place is not None and place.resolve().is_relative_to(folder.resolve()):
            names.append(str(distribution.metadata["Name"]))
    return sorted(set(names))


def _editable_place(distribution: metadata.Distribution) -> Path | None:
    """By PEP 610: where it was installed from; None if it is not editable, or does not say so."""
    text = distribution.read_text("direct_url.json")
    try:
        origin = json.loads(text or "{}")
        if not origin["dir_info"]["editable"]:
            return None
        return Path(unquote(urlsplit(origin["url"]).path))
    except (ValueError, KeyError, TypeError):
        return None
