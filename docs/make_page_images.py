# SPDX-License-Identifier: Apache-2.0
"""Takes the pictures of the HTML page for docs/page.md, with Chromium.

Usage: python -m docs.make_page_images train.html job.html change.html docs/images

The first is of a run of a program under `run --modules`, the second of two ranks, the third of a
comparison.
"""

import argparse
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.helpers.browser import Browser, browser

TIMELINE = "document.querySelector('.timeline').timeline"


class Picture(NamedTuple):
    """A part of a page: which, how wide and high, where it begins, and what is done before."""

    name: str
    page: Path
    width: int
    height: int
    top: str
    is_dark: bool = False
    script: str = ""


def pictures(run: Path, ranks: Path, comparison: Path) -> Iterator[Picture]:
    choose = (
        "document.querySelector('.step-chart').chart.outlier(1);"
        f"{TIMELINE}.show(1); {TIMELINE}.step(1); {TIMELINE}.step(1); {TIMELINE}.step(1);"
    )
    yield Picture("page-light", run, 1180, 1420, "#main", script=choose)
    select = f"{TIMELINE}.select([0, 2]);"
    yield Picture("page-dark", ranks, 1180, 760, ".timeline", True, select)
    yield Picture("page-phone", run, 390, 844, "#timeline-0", script=choose)
    yield Picture("page-compare", comparison, 1180, 1240, "#main")


def take(chromium: Browser, picture: Picture, folder: Path) -> None:
    chromium.size(picture.width, picture.height)
    chromium.dark(picture.is_dark)
    chromium.open(picture.page)
    chromium.run(picture.script)
    chromium.next_frame()
    top = chromium.run(
        "return document.querySelector(arguments[0]).getBoundingClientRect().top + scrollY",
        picture.top,
    )
    clip = {"x": 0, "y": max(0, top - 12), "width": picture.width, "height": picture.height}
    shot = chromium.driver.execute_cdp_cmd(
        "Page.captureScreenshot",
        {"format": "png", "captureBeyondViewport": True, "clip": {**clip, "scale": 1}},
    )
    (folder / f"{picture.name}.png").write_bytes(base64.b64decode(shot["data"]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("run", "ranks", "comparison", "folder"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args()
    with browser() as chromium:
        for picture in pictures(
            arguments.run.resolve(), arguments.ranks.resolve(), arguments.comparison.resolve()
        ):
            take(chromium, picture, arguments.folder)
