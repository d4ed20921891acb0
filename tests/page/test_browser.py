# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser that reaches no network. Skipped where there is none."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.compare import compare
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE
from pyinstrument_gpu.page.page import comparison_page, html_page
from pyinstrument_gpu.parts.words import duration
from tests.helpers.browser import Browser, browser
from tests.job.jobs import one_late
from tests.page.runs import HOSTILE, MS, STEP_NS, metrics, training

pytest.importorskip("jinja2", reason="jinja2 is not installed")

SLOW = 7
TIMELINE = "document.querySelector('.timeline').timeline"
CHART = "document.querySelector('.step-chart').chart"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture
def run() -> Run:
    durations = [STEP_NS + 1_000 * i for i in range(20)]
    durations[SLOW] = 3 * STEP_NS + 1_230
    return training(durations, **metrics([1.0 / (i + 1) for i in range(20)]))


@pytest.fixture
def page(chromium: Browser, run: Run, tmp_path: Path) -> Iterator[Browser]:
    """The page of the run, open. Nothing may be wrong with it when the test is done."""
    show(chromium, run, tmp_path)
    yield chromium
    assert chromium.messages() == []
    assert chromium.requests() == []


def show(chromium: Browser, run: Run, folder: Path) -> None:
    file = folder / "page.html"
    file.write_text(html_page([run], ["train.gpurun"]), "utf-8")
    chromium.dark(False)
    chromium.size(1280, 900)
    chromium.open(file)


def facts(page: Browser, panel: str) -> dict[str, str]:
    script = (
        "return [...document.querySelectorAll(arguments[0] + ' dl > div')].map("
        "row => [row.children[0].textContent, row.children[1].textContent])"
    )
    return dict(page.run(script, panel))


def us(ns: int) -> str:
    return f"{ns // 1000:,}.{ns % 1000:03d} us"


def ms(ns: int) -> str:
    return f"{ns / MS:.2f}"


def place_of(page: Browser, path: str, on_device: bool = False) -> tuple[float, float]:
    """The middle of the first bar of a path that is in view, on the canvas."""
    script = f"""
        const timeline = {TIMELINE};
        for (const track of timeline.tracks) {{
          if (track.device !== arguments[1]) continue;
          for (let i = 0; i < track.begin.length; i++) {{
            if (timeline.labels[track.label[i]].path !== arguments[0]) continue;
            const middle = track.begin[i] + track.duration[i] / 2;
            if (middle < timeline.from) continue; // of the step before
            const x = (middle - timeline.from) / (timeline.to - timeline.from) * timeline.width;
            return [x, 26 + track.top + 22 + track.row[i] * 20 + 10 - timeline.scroll.scrollTop];
          }}
        }}"""
    x, y = page.run(script, path, on_device)
    return x, y


def test_a_bar_that_is_clicked_says_what_the_run_holds(page: Browser, run: Run) -> None:
    slow = run.steps.by_index(SLOW)
    unit = (slow.duration_ns or 0) // 10
    canvas = page.find(".timeline canvas")
    page.click_at(canvas, *place_of(page, "forward/attention"))

    assert page.text(".bar-panel h3") == "forward/attention"
    assert facts(page, ".bar-panel") == {
        "what": "phase",
        "where": "MainThread",
        "took": us(2 * unit),
        "began": f"{us(slow.begin_ns + unit)} into the run",
        "in its step": f"after {us(unit)}",
        "step": str(SLOW),
        "on the stream": f"{us(2 * unit)}, GPU 0 default stream",
        "queue time": f"{us(2 * MS)} from the host's begin to the device's",
    }

    page.click_at(canvas, *place_of(page, "backward", True))
    assert page.text(".bar-panel h3") == "backward"
    found = facts(page, ".bar-panel")
    assert (found["what"], found["where"]) == ("phase, on the stream", "GPU 0 default stream")

    page.click_at(canvas, *place_of(page, "wait: .item() /nowhere/train.py:57"))
    assert page.text(".bar-panel h3") == "wait: .item() /nowhere/train.py:57"
    assert facts(page, ".bar-panel")["took"] == us(3 * unit)


def test_a_step_that_is_clicked_says_what_the_run_holds(page: Browser, run: Run) -> None:
    slow = run.steps.by_index(SLOW)
    place = page.run(
        f"const plot = {CHART}.plot, i = plot.data[0].indexOf({SLOW});"
        "return [plot.valToPos(plot.data[0][i], 'x'), plot.valToPos(plot.data[1][i], 'y')]"
    )
    page.click_at(page.find(".step-chart .u-over"), *place)

    assert page.text(".step-panel h3") == f"Step {SLOW}"
    assert facts(page, ".step-panel") == {
        "took": duration(slow.duration_ns or 0),
        "began": f"{duration(slow.begin_ns)} into the run",
        "samples": "16",
    }
    rows = page.run(
        "return [...document.querySelector('.step-panel table').tBodies[0].rows].map("
        "row => [...row.children].map(cell => cell.textContent))"
    )
    unit = (slow.duration_ns or 0) // 10
    no_phase = (slow.duration_ns or 0) - 9 * unit
    assert [(name, time) for name, time, _ in rows] == [
        ("backward", ms(5 * unit)),
        ("forward", ms(2 * unit)),
        ("forward/attention", ms(2 * unit)),
        ("outside phases", ms(no_phase)),
    ]
    found = analysis.of(run).excess
    assert found.steps["index"].tolist() == [SLOW]
    more = duration(int(found.excess_ns[0]))
    assert page.text(".step-panel h4") == f"{more} more than others of its kind, in backward"
    waits, rest = ms(int(found.parts_ns.max())), ms(int(found.unexplained_ns[0]))
    assert page.text(".step-panel table:nth-of-type(2) tbody").split("\n") == [
        f"waiting for the device (.item() at /nowhere/train.py:57) {waits}",
        f"unexplained {rest}",
    ]

    page.find(".step-panel button").click()
    assert page.run(f"return {TIMELINE}.window.step") == SLOW

    # One that is not in the timeline has a command.
    page.run(f"{CHART}.chooseIndex(4)")
    assert page.text(".step-panel code") == "pyinstrument-gpu report train.gpurun --step 4"


def test_the_panel_beside_the_chart_scrolls_to_its_end(page: Browser) -> None:
    panel = page.find(".step-panel")
    page.run("arguments[0].focus()", panel)
    assert page.run("return document.activeElement === arguments[0]", panel)
    ends = page.run(
        "const panel = arguments[0], bottom = (each) => each.getBoundingClientRect().bottom;"
        "panel.scrollTop = panel.scrollHeight;"
        "return [bottom(panel.lastElementChild), bottom(panel), bottom(panel.parentElement)]",
        panel,
    )
    assert ends == sorted(ends)
    assert page.run("return arguments[0].scrollTop", panel) > 0
    page.run(f"{CHART}.choose(1)")
    assert page.run("return arguments[0].scrollTop", panel) == 0


def test_the_keyboard_does_all(page: Browser) -> None:
    scroll = page.find(".timeline-scroll")
    page.run("arguments[0].focus()", scroll)

    def view() -> list[float]:
        found: list[float] = page.run(f"return [{TIMELINE}.from, {TIMELINE}.to]")
        return found

    whole = view()
    page.keys("+")
    closer = view()
    assert closer[1] - closer[0] == pytest.approx(0.7 * (whole[1] - whole[0]))
    page.keys("\ue014")  # right
    assert view()[0] > closer[0]
    page.keys("-", "0")
    assert view() == whole
    page.keys("n")
    assert page.text(".bar-panel h3") == f"step {SLOW}"
    page.keys("n", "n")
    assert page.text(".bar-panel h3") == "forward/attention"
    page.keys("p")
    assert page.text(".bar-panel h3") == "forward"
    page.keys("\ue015")  # down: the stream
    assert facts(page, ".bar-panel")["where"] == "GPU 0 default stream"

    page.run("arguments[0].focus()", page.find(".step-chart"))
    assert page.text(".step-panel h3") == f"Step {SLOW}"  # the slowest is chosen already
    page.keys("n")
    assert page.text(".step-panel h3") == f"Step {SLOW}"
    page.keys("\ue012")  # left
    assert page.text(".step-panel h3") == f"Step {SLOW - 1}"


def test_the_search_jumps_from_one_match_to_the_next(page: Browser) -> None:
    def here() -> str:
        script = (
            "const found = document.querySelectorAll('.here');"
            "const box = found[0].getBoundingClientRect();"
            "return [found.length, box.top > 0 && box.top < innerHeight, found[0].dataset.name]"
        )
        count, is_in_view, name = page.run(script)
        assert (count, is_in_view) == (1, True)
        return str(name or "timeline")

    page.keys("/", *"attention")
    assert page.text("#search-count") == "4 rows, 2 bars"
    first = page.run("return document.querySelector('.here').closest('section').id")
    assert (here(), first) == ("forward/attention", "phases-0")
    assert page.run("return document.activeElement.id") == "search"
    passed = [here()]
    while passed[-1] != "timeline":
        page.keys("\ue007")  # enter
        passed.append(here())
    assert page.text(".bar-panel h3") == "forward/attention"
    page.keys("\ue00c")  # escape
    assert page.run("return document.querySelectorAll('tr.unlike, .here').length") == 0


def test_long_tables_and_sections_are_folded_and_found(chromium: Browser, tmp_path: Path) -> None:
    many = [f"phase {number}" for number in range(30)]
    few = training()
    spans = np.repeat(few.spans[:1], 30)
    spans["phase"] = spans["path"] = np.arange(3, 33)
    run = training(
        names=[*few.names, *many],
        path_parents=[-1, 0, -1] + [-1] * 30,
        path_names=range(33),
        spans=np.concatenate([few.spans, spans]),
        span_self_ns=np.concatenate([few.span_self_ns, np.ones(30, np.int64)]),
    )
    show(chromium, run, tmp_path)

    shown = (
        "return [...document.querySelector('#phases-0 tbody').rows]"
        ".filter(row => row.offsetParent && row.dataset.name).length"
    )
    assert chromium.run(shown) == 12
    assert not chromium.find("#environment-0 dl").is_displayed()
    chromium.keys("/", *"phase 29")
    assert chromium.run("return document.querySelector('.here').offsetParent !== null")
    chromium.keys("\ue00c")
    assert chromium.run(shown) == 12
    chromium.find("#phases-0 .unfold").click()
    assert chromium.run(shown) == 33
    chromium.run("document.querySelector(\"nav a[href='#environment-0']\").click()")
    assert chromium.find("#environment-0 dl").is_displayed()


def test_pictures_have_names_and_tables_behind_them(page: Browser, run: Run) -> None:
    page.run("document.querySelectorAll('details').forEach(each => { each.open = true })")
    page.wait("document.querySelector('.timeline details tbody')")
    rows = page.run(
        "return [...document.querySelectorAll('.timeline details tbody tr')].map("
        "row => [row.children[0].textContent, row.children[3].textContent])"
    )
    slow = run.steps.by_index(SLOW)
    assert rows[0] == [f"step {SLOW}", us(slow.duration_ns or 0)]

    page.wait("document.querySelector('.histogram-box tbody')")
    counts = page.run(
        "return [...document.querySelectorAll('.histogram-box tbody tr')]"
        ".filter(row => row.children[0].textContent === 'on the host')"
        ".map(row => Number(row.children[3].textContent))"
    )
    assert sum(counts) == 20

    # Every picture has a name, and all can be reached.
    nameless = page.run(
        "return [...document.querySelectorAll('[role=img], [role=application], input, select, "
        "button, [tabindex]')].filter(each => !(each.getAttribute('aria-label') || "
        "each.getAttribute('aria-labelledby') || each.textContent.trim() || each.labels?.length))"
        ".map(each => each.outerHTML.slice(0, 100))"
    )
    assert nameless == []
    twice = page.run(
        "const ids = [...document.querySelectorAll('[id]')].map(each => each.id);"
        "return ids.filter((id, i) => ids.indexOf(id) !== i)"
    )
    assert twice == []


def contrast(page: Browser, first: str, second: str) -> float:
    """By the formula of WCAG 2, between two colours of the style."""

    def luminance(name: str) -> float:
        hexadecimal = page.run(
            "return getComputedStyle(document.documentElement).getPropertyValue(arguments[0])", name
        ).strip()[1:]
        parts = [int(hexadecimal[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("is_dark", [False, True])
def test_light_and_dark_follow_the_system_and_can_be_read(page: Browser, is_dark: bool) -> None:
    page.dark(is_dark)
    page.next_frame()
    for ink in ("--ink", "--faint", "--accent", "--second", "--third", "--alarm"):
        for paper in ("--paper", "--panel"):
            assert contrast(page, ink, paper) >= 4.5, (ink, paper)
    corner = page.run(
        f"const t = {TIMELINE}; return [...t.context.getImageData(2, 2, 1, 1).data].slice(0, 3)"
    )
    assert (max(corner) < 60) is is_dark


def test_a_phone_needs_no_scrolling_sideways_and_no_glass(page: Browser) -> None:
    page.size(390, 844, 2)
    page.next_frame()
    assert page.run("return document.documentElement.scrollWidth") <= 390
    heights = []
    for width in (1280, 390):
        page.size(width, 844)
        page.next_frame()
        page.run("document.querySelector('.phase-times select').dispatchEvent(new Event('change'))")
        texts = "[...document.querySelectorAll('.histogram text')]"
        heights.append(page.run(f"return {texts}.map(t => t.getBoundingClientRect().height)[0]"))
    assert min(heights) >= 11


def test_a_desktop_has_two_columns_and_no_page_is_wider_than_its_window(page: Browser) -> None:
    edges = (
        "return ['.findings', '.facts.short', '#phases-0 table', '.histogram'].map(found => "
        "document.querySelector(found).getBoundingClientRect()).map(box => [box.left, box.right])"
    )
    for width in (1920, 1440, 1280, 1000, 820, 390):
        page.size(width, 900)
        page.next_frame()
        assert page.run("return document.documentElement.scrollWidth") <= width
        cards, short, phases, histogram = page.run(edges)
        assert (cards[1] < short[0]) is (width >= 1000)
        if width == 1440:
            assert phases[1] < histogram[0]
            assert max(short[1], histogram[1]) > 1300


def test_a_table_shows_that_it_scrolls(page: Browser) -> None:
    """Where there is more, a shadow lies over the edge, and nothing at the end."""
    page.size(390, 844)
    page.next_frame()
    shades = []
    for place in ("0", "each.scrollWidth"):
        box = page.run(
            "const each = document.querySelector('#phases-0 .scroll-x');"
            f"each.scrollIntoView(); each.scrollLeft = {place};"
            "const box = each.getBoundingClientRect();"
            "return {x: box.right - 3, y: box.bottom + scrollY - 5, width: 2, height: 2}"
        )
        shades.append(brightness(page, box))
    assert shades[0] < 0.9
    assert shades[1] == 1


def brightness(page: Browser, box: dict[str, float]) -> float:
    """Of a place on the page, from 0 to 1."""
    found = page.driver.execute_cdp_cmd(
        "Page.captureScreenshot",
        {"format": "png", "captureBeyondViewport": True, "clip": {**box, "scale": 1}},
    )
    script = (
        "const [data, done] = arguments, image = new Image();"
        "image.onload = () => { const canvas = document.createElement('canvas').getContext('2d');"
        "canvas.drawImage(image, 0, 0); done(canvas.getImageData(0, 0, 1, 1).data[0] / 255); };"
        "image.src = 'data:image/png;base64,' + data"
    )
    return float(page.driver.execute_async_script(script, found["data"]))


def test_names_on_the_axes_are_whole(page: Browser) -> None:
    """At every length of an axis, where the last name would reach beyond the picture."""
    cut = page.run(
        f"const t = {TIMELINE}, paint = t.context, draw = paint.fillText, cut = [];"
        "paint.fillText = (text, x) => {"
        "  if (x + paint.measureText(text).width > t.width) cut.push(text);"
        "};"
        "for (let i = 0; i < 40; i++) { t.key('+'); t.drawAxis(t.width / (t.to - t.from)); }"
        "paint.fillText = draw; return cut"
    )
    assert cut == []
    beyond = page.run(
        "const box = document.createElement('div'), beyond = [];"
        "document.body.append(box);"
        "for (let i = 1; i < 100; i++) {"
        "  const side = { name: 'host', color: 'red', columns: [[1e6, 1e6 * (1 + i / 7), 1]] };"
        "  const picture = histogram([side], 'times');"
        "  box.replaceChildren(picture);"
        "  for (const text of picture.querySelectorAll('text')) {"
        "    const { x, width } = text.getBBox();"
        "    if (x < 0 || x + width > picture.viewBox.baseVal.width) beyond.push(text.textContent);"
        "  }"
        "}"
        "box.remove(); return beyond"
    )
    assert beyond == []


def test_small_and_large_numbers_on_an_axis_have_names_of_their_own(
    chromium: Browser, tmp_path: Path
) -> None:
    """Such as the axis of a learning rate, and that of a count."""
    scales = [(power, low) for power in (-9, -5, -4, -3, -1, 0, 3, 5, 7) for low in (0, 3)]
    rows = [
        (i + 1, i, i * MS, name, 10.0**power * (low + i / 19))
        for name, (power, low) in enumerate(scales)
        for i in range(20)
    ]
    run = training(metric_names=[str(one) for one in scales], metrics=np.array(rows, METRIC_DTYPE))
    show(chromium, run, tmp_path)
    axes = chromium.run(
        "const real = uPlot, made = [];"
        "uPlot = function (...all) { made.push(new real(...all)); return made.at(-1); };"
        "for (const root of document.querySelectorAll('[data-of=metrics]')) curves(root);"
        "uPlot = real;"
        "const drawn = new Promise(done => requestAnimationFrame(() => setTimeout(done)));"
        "return drawn.then(() => made.map(u => {"
        "  const { _values, _splits, font } = u.axes[1];"
        "  u.ctx.font = font[0];"
        "  const widest = Math.max(..._values.map(name => u.ctx.measureText(name).width));"
        "  return [_values, _splits, widest / devicePixelRatio];"
        "}));"
    )
    assert len(axes) == len(scales)
    for names, numbers, widest in axes:
        assert len(set(names)) == len(names) >= 2
        assert widest <= 54
        read = [float(one.rstrip("KM").replace(",", "")) for one in names]
        units = [{"K": 1e3, "M": 1e6}.get(one[-1], 1) for one in names]
        assert np.multiply(read, units) == pytest.approx(numbers, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(
    "count",
    [1, *(pytest.param(count, marks=pytest.mark.thorough) for count in (3, 30))],
)
def test_steps_on_the_axis_are_whole_numbers(chromium: Browser, tmp_path: Path, count: int) -> None:
    show(chromium, training([STEP_NS] * count), tmp_path)
    chromium.next_frame()
    places = chromium.run(f"return {CHART}.plot.axes[0]._splits")
    assert len(places) >= 2
    assert places == [round(place) for place in places]
    assert max(places) <= max(1, count - 1)


def test_nor_does_a_name_that_is_too_long_for_it(chromium: Browser, tmp_path: Path) -> None:
    show(chromium, training(names=["f" * 300, "attention" * 30, "b" * 300]), tmp_path)
    chromium.size(390, 844, 2)
    chromium.next_frame()
    assert chromium.run("return document.documentElement.scrollWidth") <= 390


def test_names_of_strangers_run_nothing(chromium: Browser, tmp_path: Path) -> None:
    run = training(
        names=[HOSTILE, '"><img src=x onerror=alert(1)>', "${alert(1)}"],
        environment={"command": [HOSTILE], "host": "<img src=http://example.com/x>"},
    )
    show(chromium, run, tmp_path)
    chromium.run("document.querySelectorAll('details').forEach(each => { each.open = true })")
    chromium.keys("n", "n", "n")
    chromium.run(f"{CHART}.choose(0)")
    chromium.next_frame()

    assert chromium.messages() == []
    assert chromium.requests() == []
    assert chromium.run("return document.images.length + document.scripts.length") == 2


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param({"durations_ns": []}, id="no-steps"),
        pytest.param({"durations_ns": [0, 0]}, id="no-time", marks=pytest.mark.thorough),
        pytest.param({"on_device": False, "syncs": None}, id="no-device"),
        pytest.param(metrics([float("nan")] * 3), id="not-finite", marks=pytest.mark.thorough),
    ],
)
def test_runs_that_lack_something_open(
    chromium: Browser, tmp_path: Path, parts: dict[str, Any]
) -> None:
    show(chromium, training(**parts), tmp_path)
    chromium.next_frame()

    assert chromium.messages() == []


def test_in_a_frame_of_a_notebook_links_stay_in_the_page(
    chromium: Browser, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "notebook.html"
    ready = "<script>onload = () => (document.documentElement.dataset.ready = 'yes')</script>"
    file.write_text(ready + run.page()._repr_html_(), "utf-8")
    chromium.open(file)
    chromium.driver.switch_to.frame(chromium.find("iframe"))
    chromium.wait("document.documentElement.dataset.ready === 'yes'")

    chromium.find("nav a[href='#environment-0']").click()
    chromium.wait("document.querySelector('#environment-0 dl').getBoundingClientRect().top < 700")
    assert chromium.find("#environment-0 dl").is_displayed()
    assert chromium.run("return location.href") == "about:srcdoc"
    chromium.driver.switch_to.default_content()
    assert chromium.messages() == []
    assert chromium.requests() == []


def test_an_empty_run_opens(chromium: Browser, tmp_path: Path) -> None:
    show(chromium, Run(), tmp_path)

    assert chromium.messages() == []
    assert "There is none: no phase ended." in chromium.text("main")


def test_the_ranks_of_a_job_are_above_their_runs(chromium: Browser, tmp_path: Path) -> None:
    document = one_late().document()
    runs = [training(environment={"rank": rank, "world_size": 4}) for rank in range(4)]
    file = tmp_path / "job.html"
    names = [f"job.rank{rank}.gpurun" for rank in range(4)]
    file.write_text(html_page(runs, names, document), "utf-8")
    chromium.dark(False)
    chromium.size(1280, 900)
    chromium.open(file)

    assert chromium.text("main .verdict") == document.verdict
    colors = chromium.run(
        "return [...document.querySelectorAll('.rank-map tbody tr')].map("
        "row => getComputedStyle(row.children[2]).backgroundColor)"
    )
    assert len(set(colors[:3])) == 1
    assert colors[3] not in colors[:3]
    chromium.find("#tab-2").click()
    shown = chromium.run(
        "return [...document.querySelectorAll('.run:not(.off)')].map(each => each.id)"
    )
    assert shown == ["run-2"]
    chromium.size(390, 844, 2)
    chromium.next_frame()
    assert chromium.run("return document.documentElement.scrollWidth") <= 390
    assert chromium.messages() == []
    assert chromium.requests() == []


def test_both_sides_of_a_comparison_are_overlaid(chromium: Browser, tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="scipy is not installed")
    before = [training([STEP_NS + noise] * 20) for noise in (0, 1_000, 2_000)]
    after = [training([STEP_NS // 2 + noise] * 20) for noise in (0, 1_000, 2_000)]
    file = tmp_path / "comparison.html"
    comparison = compare(before, after)
    file.write_text(comparison_page(comparison, before, after, list("abcdef")), "utf-8")
    chromium.open(file)
    choice = "document.querySelector('.overlaid select')"
    chromium.run(
        f"{choice}.selectedIndex = [...{choice}.options].findIndex(one => one.text === 'backward');"
        f"{choice}.dispatchEvent(new Event('change'));"
        "document.querySelector('.overlaid details').open = true"
    )
    chromium.wait("document.querySelector('.overlaid tbody')")

    rows = chromium.run(
        "return [...document.querySelectorAll('.overlaid tbody tr')].map("
        "row => [row.children[0].textContent, row.children[3].textContent])"
    )
    assert {side: sum(int(n) for name, n in rows if name == side) for side, _ in rows} == {
        "before": 60,
        "after": 60,
    }
    assert chromium.messages() == []
    assert chromium.requests() == []


def test_runs_side_by_side_have_tabs(chromium: Browser, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(html_page([run, training()], ["one.gpurun", "two.gpurun"]), "utf-8")
    chromium.size(1280, 900)
    chromium.open(file)
    shown = "return [...document.querySelectorAll('.run')].map(each => each.offsetHeight > 0)"
    assert chromium.run(shown) == [True, False]
    chromium.find("#tab-1").click()
    assert chromium.run(shown) == [False, True]
    chromium.next_frame()
    width = "document.querySelector('#run-1 .timeline').timeline.width"
    chromium.wait(f"{width} > 800 && document.querySelector('#run-1 .u-over').offsetWidth > 300")
    page_of_second = "document.querySelector('#run-1 .timeline').timeline"
    assert chromium.run(f"return {page_of_second}.data.numbers") == [1]
    assert chromium.messages() == []
