# SPDX-License-Identifier: Apache-2.0
"""Draws the screen of `watch` as an SVG image.

Usage: python docs/make_watch_image.py runs/ docs/images/watch.svg --size 80x24 right 1

What comes last are keys, pressed before the image is made.
"""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from pyinstrument_gpu.watch.app import WatchApp
from pyinstrument_gpu.watch.run_files import run_files
from pyinstrument_gpu.watch.watch import Watch


async def screen_svg(target: str, width: int, height: int, keys: Sequence[str]) -> str:
    """The screen of a terminal of that size, as an SVG document."""
    watch = Watch(run_files(target))
    app = WatchApp(watch, interval_s=None)
    async with app.run_test(size=(width, height)) as pilot:
        await pilot.press(*keys)
        await app.look()
        await pilot.pause()
        svg = app.export_screenshot(title="pyinstrument-gpu watch")
    watch.close()
    return svg


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("output", type=Path)
    parser.add_argument("--size", default="80x24")
    parser.add_argument("keys", nargs="*")
    arguments = parser.parse_intermixed_args()
    width, height = map(int, arguments.size.split("x"))
    svg = asyncio.run(screen_svg(arguments.target, width, height, arguments.keys))
    arguments.output.write_text(svg, encoding="utf-8")
