# SPDX-License-Identifier: Apache-2.0
"""Takes the pictures of the HTML page, with Chromium.

Usage: python -m docs.make_page_images docs/images --run train.html --ranks job.html
    --comparison change.html --tutorial digits.html

The first page is of a run of a program under `run --modules`, the second of two ranks, the third of
a comparison, and the last of the tutorial's program. Those that are left out keep their pictures.
"""

import argparse
import base64
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


CHOOSE = f"{TIMELINE}.show(1); {TIMELINE}.step(1); {TIMELINE}.step(1); {TIMELINE}.step(1);"


def of_run(page: Path) -> list[Picture]:
    return [
        Picture("page-light", page, 1320, 1060, "#main", script=CHOOSE),
        Picture("page-phone", page, 390, 844, "#timeline-0", script=CHOOSE),
    ]


def of_ranks(page: Path) -> list[Picture]:
    select = f"{TIMELINE}.select([0, 2]);"
    return [Picture("page-dark", page, 1180, 760, ".timeline", True, select)]


def of_comparison(page: Path) -> list[Picture]:
    return [Picture("page-compare", page, 1180, 1240, "#main")]


def of_tutorial(page: Path) -> list[Picture]:
    return [
        Picture("report", page, 1320, 640, "#main"),
        Picture("tutorial", page, 1180, 225, "#timeline-0", script=f"{TIMELINE}.show(1);"),
    ]


PICTURES = {
    "run": of_run,
    "ranks": of_ranks,
    "comparison": of_comparison,
    "tutorial": of_tutorial,
}
"""What is taken of which page, by the option that names it."""


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
    parser.add_argument("folder", type=Path)
    for name in PICTURES:
        parser.add_argument(f"--{name}", type=Path)
    arguments = parser.parse_args()
    with browser() as chromium:
        for name, of in PICTURES.items():
            page = getattr(arguments, name)
            for picture in of(page.resolve()) if page else ():
                take(chromium, picture, arguments.folder)
