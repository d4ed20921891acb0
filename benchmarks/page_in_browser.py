# SPDX-License-Identifier: Apache-2.0
"""How long the HTML page takes: to make it of a million spans, to open it, and to zoom it.

Usage: python -m benchmarks.page_in_browser

Zooming is tried with as many bars as a timeline can have, all of them in view, in steps of 1 % from
the whole window to a hundredth of it and back. Each frame, by requestAnimationFrame, zooms once and
notes the time since the last one, and how long drawing took. The browser draws in software, without
a GPU.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.million_spans import record_million_spans
from pyinstrument_gpu.core.record import Thread, named_streams
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SPAN_DTYPE, STEP_DTYPE
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.page.page import html_page
from pyinstrument_gpu.page.timeline import MAX_BARS
from tests.helpers.browser import Browser, browser

FRAMES = 600
_ZOOM = """
const done = arguments[0], frames = arguments[1];
const timeline = document.querySelector(".timeline").timeline;
timeline.fit();
const gaps = [], draws = [];
let last = null, count = 0;
function frame(now) {
  if (last !== null) gaps.push(now - last);
  last = now;
  draws.push(timeline.drawMs);
  timeline.zoom(Math.floor(count / 460) % 2 ? 1 / 0.99 : 0.99);
  if (++count < frames) requestAnimationFrame(frame);
  else done([gaps, draws]);
}
requestAnimationFrame(frame);
"""


def full_run() -> Run:
    """A step with as many phases as a timeline draws, on host and device."""
    count = MAX_BARS // 2 - 10
    step_ns = 2_000 * count
    spans = np.zeros(count, SPAN_DTYPE)
    spans["path"] = spans["phase"] = np.arange(count) % 12
    spans["host_begin_ns"] = np.arange(count) * 2_000
    spans["host_end_ns"] = spans["host_begin_ns"] + 1_500
    spans["device_begin_ns"] = spans["host_begin_ns"] + 40_000
    spans["device_end_ns"] = spans["host_end_ns"] + 40_000
    spans["blocked_ns"], spans["flags"] = -1, 1
    return Run(
        names=[f"phase {i}" for i in range(12)],
        path_parents=[-1] * 12,
        path_names=range(12),
        threads=[Thread(1, "MainThread")],
        streams=named_streams([(0, 0)]),
        spans=spans,
        span_self_ns=np.full(count, 1_500),
        steps=Steps(np.array([(0, 0, step_ns, 1, 1, True, 0)], STEP_DTYPE)),
        duration_ns=step_ns,
    )


def zooming(chromium: Browser) -> tuple[list[float], list[float]]:
    """The time between frames, and that of drawing each, in ms."""
    found: Any = chromium.driver.execute_async_script(
        f"const args = [arguments[1], arguments[0]]; (function () {{{_ZOOM}}}).apply(null, args)",
        FRAMES,
    )
    return found[0], found[1]


def _row(name: str, value: str) -> None:
    print(f"{name:<58} {value}")


def _ms(times_ms: list[float]) -> str:
    ordered = sorted(times_ms)
    p99 = ordered[int(0.99 * len(ordered))]
    return (
        f"median {statistics.median(ordered):.1f} ms, p99 {p99:.1f} ms, most {ordered[-1]:.1f} ms"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        path, page = Path(folder) / "million.gpurun", Path(folder) / "page.html"
        record_million_spans(path)
        began, cpu = time.perf_counter(), time.process_time()
        text = html_page([Run.load(path)], [path.name])
        page.write_text(text, "utf-8")
        _row("a page of a million spans: made in", f"{time.perf_counter() - began:.2f} s")
        _row("of which CPU time", f"{time.process_time() - cpu:.2f} s")
        _row("size", f"{len(text.encode()) / 1e6:.2f} MB")
        opened = []
        for _ in range(5):
            chromium.open(page)
            opened.append(float(chromium.run("return performance.now()")))
        _row("opened, from the navigation until it can be used", _ms(opened))

        page.write_text(html_page([full_run()], ["full.gpurun"]), "utf-8")
        chromium.open(page)
        bars = chromium.run(
            "return document.querySelector('.timeline').timeline.tracks"
            ".reduce((sum, track) => sum + track.begin.length, 0)"
        )
        gaps, draws = zooming(chromium)
        _row(f"zooming a timeline of {bars:,} bars: between frames", _ms(gaps))
        _row("drawing a frame", _ms(draws))
        slow = sum(gap > 17.5 for gap in gaps)
        _row("frames that came late (after more than 17.5 ms)", f"{slow} of {len(gaps)}")


if __name__ == "__main__":
    main()
