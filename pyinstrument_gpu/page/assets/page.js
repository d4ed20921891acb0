// SPDX-License-Identifier: Apache-2.0
// Charts, histograms and keys of the page. All words and tables are in the page already.
"use strict";

const PAGE = JSON.parse(document.getElementById("page-data").textContent);
const timelines = [];
const redraws = [];

function element(name, attributes, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function svg(name, attributes, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(made, attributes = {}, children) {
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function theme(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function facts(rows) {
  const list = element("dl", { class: "facts" });
  for (const [name, value] of rows) {
    if (value === null || value === undefined) continue;
    list.append(element("div", {}, element("dt", {}, name), element("dd", {}, value)));
  }
  return list;
}

/** A table: what stands in each cell of its rows, of which those from `numbers` on are numbers. */
function tableOf(headers, numbers, rows) {
  const look = (i) => (i < numbers ? {} : { class: "n" });
  const head = headers.map((name, i) => element("th", { scope: "col", ...look(i) }, name));
  const body = element("tbody");
  for (const [first, ...others] of rows) {
    const cells = others.map((cell, i) => element("td", look(i + 1), cell));
    body.append(element("tr", {}, element("th", { scope: "row" }, ...[first].flat()), ...cells));
  }
  return element("table", {}, element("thead", {}, element("tr", {}, ...head)), body);
}

function swatch(color) {
  const made = element("span", { class: "swatch", "aria-hidden": "true" });
  made.style.background = color;
  return made;
}

// Curves

function axis(label, size) {
  return {
    stroke: () => theme("--faint"), label, labelSize: 16, labelFont: "12px system-ui", size,
    font: "11px system-ui", grid: { stroke: () => theme("--line"), width: 1 },
    ticks: { stroke: () => theme("--line"), width: 1, size: 5 },
  };
}

const WHOLE_NUMBERS = Array.from({ length: 30 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3));

/** The axis of steps, which are whole numbers. */
function stepAxis(label) {
  return { ...axis(label, 28), incrs: WHOLE_NUMBERS };
}

/** The name of a number on an axis, as exact as the gap to the next one asks for. */
function axisName(number, gap) {
  const compact = { notation: "compact", maximumFractionDigits: 3 };
  if (number === 0 || Math.abs(number) >= 1e5) return number.toLocaleString("en", compact);
  const power = Math.floor(Math.log10(gap) + 1e-9);
  const digits = Math.abs(gap / 10 ** power - 2.5) < 0.1 ? 1 - power : -power; // 2.5 needs one more
  if (digits <= 4) return number.toLocaleString("en", { maximumFractionDigits: Math.max(digits, 0) });
  return number.toExponential(Math.max(0, digits + Math.floor(Math.log10(Math.abs(number)) + 1e-9)));
}

/** A uPlot that has the width of its parent, and is drawn again when the colours change. */
function plot(parent, options, data) {
  const height = options.height;
  const made = new uPlot({
    width: Math.max(200, parent.clientWidth), ...options, height, legend: { show: false },
    cursor: { points: { size: 7 }, drag: { x: true, y: false }, ...options.cursor },
  }, data, parent);
  const [only, ...more] = data[0];
  if (only !== undefined && !more.length) made.setScale("x", { min: only, max: only + 1 });
  new ResizeObserver(() => {
    const width = Math.max(200, parent.clientWidth);
    if (width !== made.width) made.setSize({ width, height });
  }).observe(parent);
  redraws.push(() => made.redraw(false, true));
  return made;
}

function unitOf(largest) {
  return largest >= 1e10 ? ["s", 1e9] : largest >= 1e6 ? ["ms", 1e6] : ["us", 1e3];
}

class StepChart {
  constructor(root, run) {
    this.root = root;
    this.series = PAGE.runs[run].series;
    this.run = run;
    this.panel = root.querySelector(".step-panel");
    this.box = root.querySelector(".plot");
    const { duration, profiled } = this.series;
    const slower = (best, ns, i) => (ns > duration[best] && !profiled.includes(i) ? i : best);
    this.chosen = duration.reduce(slower, 0);
    this.isLog = false;
    this.build();
    this.describe();
    const scale = root.querySelector(".log-scale");
    scale.addEventListener("click", () => {
      this.isLog = !this.isLog;
      scale.setAttribute("aria-pressed", String(this.isLog));
      this.plot.destroy();
      this.build();
    });
    for (const button of root.querySelectorAll("[data-step]")) {
      button.addEventListener("click", () => this.chooseIndex(Number(button.dataset.step)));
    }
  }

  build() {
    const { index, duration, slow, main, causes } = this.series;
    const [unit, ns] = unitOf(Math.max(...duration));
    const line = duration.map((d) => d / ns);
    // Slow steps in the colour of what made them slow, a series for each cause.
    const kinds = [...new Set(main)];
    const beyond = kinds.map((kind) => {
      const places = new Set(slow.filter((_, n) => main[n] === kind));
      return duration.map((d, i) => (places.has(i) ? d / ns : null));
    });
    const colorOf = (kind) => (kind < 0 ? theme("--alarm") : causes[kind].color);
    this.ns = ns;
    const least = Math.min(...line.filter((value) => value > 0));
    this.plot = plot(this.box, {
      height: 360,
      scales: {
        x: { time: false },
        y: this.isLog ? { distr: 3 } : { range: (u, low, high) => [0, 1.06 * (high || 1)] },
      },
      axes: [stepAxis("step"), axis(`${unit} per step`, 50)],
      series: [
        { label: "step" },
        { label: "time", stroke: () => theme("--accent"), width: 1,
          points: { show: line.length < 120, size: 5 } },
        ...kinds.map((kind) => ({
          label: kind < 0 ? "unexplained" : causes[kind].words, stroke: () => colorOf(kind),
          width: 0, paths: () => null, points: { show: true, size: 7, fill: () => colorOf(kind) },
        })),
      ],
      hooks: { draw: [(u) => this.mark(u)] },
    }, [index, this.isLog ? line.map((v) => Math.max(v, least)) : line, ...beyond]);
    this.plot.over.addEventListener("click", (event) => this.clicked(event));
  }

  mark(u) {
    const { index, duration } = this.series;
    const x = u.valToPos(index[this.chosen], "x", true);
    const y = u.valToPos(duration[this.chosen] / this.ns, "y", true);
    const paint = u.ctx;
    paint.save();
    paint.strokeStyle = theme("--ink");
    paint.lineWidth = 2.5;
    paint.beginPath();
    paint.arc(x, y, 8, 0, 7);
    paint.stroke();
    paint.restore();
  }

  clicked(event) {
    const box = this.plot.over.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let best = null, least = 900;
    this.series.index.forEach((step, i) => {
      const dx = this.plot.valToPos(step, "x") - x;
      if (Math.abs(dx) > 30) return;
      const dy = this.plot.valToPos(this.series.duration[i] / this.ns, "y") - y;
      // Along the line, any height will do; a point that is hit goes first.
      const off = dx * dx + Math.min(dy * dy, 400 + 0.05 * dy * dy);
      if (off < least) [best, least] = [i, off];
    });
    if (best !== null) this.choose(best);
  }

  chooseIndex(step) {
    const place = this.series.index.indexOf(step);
    if (place >= 0) this.choose(place);
  }

  choose(place) {
    this.chosen = Math.min(Math.max(place, 0), this.series.index.length - 1);
    this.plot.redraw(false, false);
    this.describe();
  }

  describe() {
    const { index, begin, duration, profiled, cut, samples, phases, self, other } = this.series;
    const i = this.chosen;
    const total = duration[i];
    const [unit, size] = unitOf(total);
    const parts = phases.map((phase, p) => [phase.path, phase.color, self[p][i]]);
    parts.push(["other phases", "#8c8c8c", other[i]]);
    const isKnown = parts.every(([, , ns]) => ns >= 0);
    const rest = total - parts.reduce((sum, [, , ns]) => sum + Math.max(ns, 0), 0);
    if (isKnown && rest >= 0) parts.push(["outside phases", "transparent", rest]);
    this.panel.replaceChildren(
      element("h3", {}, `Step ${index[i].toLocaleString("en")}`),
      facts([
        ["took", brief(total)],
        ["began", `${brief(begin[i])} into the run`],
        ["samples", samples[i] === null ? null : String(samples[i])],
        ["cut short", cut.includes(i) ? "yes" : null],
        ["profiled", profiled.includes(i) ? "yes: torch.profiler slowed it" : null],
      ]),
    );
    if (isKnown && rest >= 0) {
      const bar = element("div", { class: "stack", role: "img", "aria-label": "shares of phases, as in the table below" });
      const rows = [];
      for (const [path, color, ns] of parts.filter(([, , ns]) => ns > 0).sort((a, b) => b[2] - a[2])) {
        const piece = element("span", { title: path });
        piece.style.flexGrow = ns;
        piece.style.background = color;
        bar.append(piece);
        rows.push([[swatch(color), path], (ns / size).toFixed(2), total ? (100 * ns / total).toFixed(1) : "-"]);
      }
      this.panel.append(bar, tableOf(["phase", `own ${unit}`, "% step"], 1, rows));
    } else {
      this.panel.append(element("p", { class: "note" }, "Its spans are no longer in the history."));
    }
    this.panel.append(...this.ledger(i), this.wayOn(index[i]));
    this.panel.scrollTop = 0;
  }

  /** What made the step slow: nothing if it is not. */
  ledger(place) {
    const { duration, slow, ledgers, causes } = this.series;
    const found = ledgers[slow.indexOf(place)];
    if (!found) return [];
    const [unit, size] = unitOf(duration[place]);
    const inUnit = (ns) => (ns / size).toFixed(2);
    const rows = found.parts.map(([cause, ns, note]) =>
      [[swatch(causes[cause].color), note ? `${causes[cause].words} (${note})` : causes[cause].words],
        inUnit(ns)]);
    if (found.unexplained) rows.push([[swatch(theme("--alarm")), "unexplained"], inUnit(found.unexplained)]);
    const more = brief(duration[place] - found.typical);
    const where = found.where ? `, in ${found.where}` : "";
    const parts = [
      element("h4", {}, `${more} more than others of its kind${where}`),
      tableOf(["cause", `more ${unit}`], 1, rows),
    ];
    if (found.unknown.length) {
      parts.push(element("p", { class: "note" }, `Causes not recorded in this step: ${found.unknown.join(", ")}.`));
    }
    const main = found.parts[0];
    if (main && causes[main[0]].remedy) {
      parts.push(element("p", { class: "note" }, `What to do: ${causes[main[0]].remedy}.`));
    }
    return parts;
  }

  /** A button that leads to the step in the timeline, or else the command that shows it. */
  wayOn(step) {
    for (const timeline of timelines) {
      const run = timeline.data.numbers.indexOf(this.run);
      const number = run < 0 ? -1 : timeline.data.windows.findIndex((each) => each.step === step);
      if (number < 0) continue;
      const button = element("button", { type: "button", class: "go" }, "Show in the timeline");
      button.addEventListener("click", () => {
        timeline.show(number);
        timeline.root.scrollIntoView({ block: "start" });
        timeline.scroll.focus({ preventScroll: true });
      });
      return element("p", {}, button);
    }
    return element("p", { class: "note" }, "Not in the timeline. ",
      element("code", {}, `pyinstrument-gpu report ${PAGE.runs[this.run].command_name} --step ${step}`));
  }

  key(key) {
    const last = this.series.index.length - 1;
    const here = this.chosen;
    if (key === "ArrowRight") this.choose(here + 1);
    else if (key === "ArrowLeft") this.choose(here - 1);
    else if (key === "Home") this.choose(0);
    else if (key === "End") this.choose(last);
    else if (key === "n" || key === "p") this.outlier(key === "n" ? 1 : -1);
    else if (key === "+" || key === "=" || key === "-") this.zoom(key === "-" ? 1 / 0.7 : 0.7);
    else if (key === "0" || key === "Escape") this.zoom(Infinity);
    else if (key === "Enter") this.panel.querySelector("button")?.click();
    else return false;
    return true;
  }

  outlier(direction) {
    const all = direction > 0 ? this.series.slow : [...this.series.slow].reverse();
    const next = all.find((place) => (place - this.chosen) * direction > 0);
    if (next !== undefined) this.choose(next);
  }

  zoom(factor) {
    const { index } = this.series;
    const first = index[0], last = index[index.length - 1];
    let { min, max } = this.plot.scales.x;
    const middle = index[this.chosen];
    const half = Math.max(1, ((max - min) / 2) * factor);
    min = Math.max(first, middle - half);
    max = Math.min(last, middle + half);
    this.plot.setScale("x", { min, max: Math.max(max, min + 1) });
  }
}

/** Small curves: metrics over steps, memory over steps; runs over time, as dots below a line. */
function curves(root) {
  const data = PAGE.runs[Number(root.dataset.run)][root.dataset.of][Number(root.dataset.number)];
  const colors = ["--accent", "--second"];
  const ofRuns = data.x_name === "time";
  const looks = ofRuns
    ? [{ width: 0, paths: () => null, points: { show: true, size: 4 } },
      { width: 2.5, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false }, dash: [] }]
    : [];
  plot(root.querySelector(".plot"), {
    height: 170,
    scales: { x: { time: ofRuns } },
    axes: [ofRuns ? axis(null, 42) : stepAxis(data.x_name), {
      ...axis(data.unit || null, 54),
      values: (u, numbers, a, space, gap) => numbers.map((number) => axisName(number, gap)),
    }],
    series: [{}, ...data.names.map((name, i) => ({
      label: name, stroke: () => theme(colors[i]), width: 1.5, spanGaps: false,
      points: { show: data.x.length < 60, size: 5 }, dash: i ? [6, 4] : undefined, ...looks[i],
    }))],
  }, [data.x, ...data.y]);
}

// Histograms

function shortDuration(ns) {
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["us", 1e3]]) {
    if (ns >= size) return `${+(ns / size).toPrecision(3)} ${unit}`;
  }
  return `${ns} ns`;
}

/** Round times between two powers of ten, at most so many. */
function logTicks(low, high, most) {
  const choices = [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 7], [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9]];
  let best = [];
  for (const digits of choices) {
    const ticks = [];
    for (let power = Math.floor(low); power <= high; power++) {
      for (const digit of digits) {
        const ns = Math.round(digit * 10 ** power);
        if (Math.log10(ns) >= low && Math.log10(ns) <= high) ticks.push(ns);
      }
    }
    if (ticks.length > most) break;
    best = ticks;
  }
  return [...new Set(best)];
}

/**
 * A picture of histograms over one logarithmic axis of time.
 * sides: [{name, color, dash, columns: [[low, high, count], ...]}]; heights are shares of each side.
 */
function histogram(sides, label, room) {
  // A narrow page has a narrow picture, so that its text is not made smaller.
  const width = Math.min(640, room || document.getElementById("main").clientWidth);
  const [height, bottom, left] = [220, 34, 40];
  const all = sides.flatMap((side) => side.columns);
  const log = (ns) => Math.log10(Math.max(ns, 1));
  let low = Math.min(...all.map(([begin]) => log(begin)));
  let high = Math.max(...all.map(([, end]) => log(end)));
  [low, high] = [low - 0.05, Math.max(high, low + 0.3) + 0.05];
  const totals = sides.map((side) => side.columns.reduce((sum, [, , count]) => sum + count, 0));
  const most = Math.max(...sides.flatMap((side, s) => side.columns.map(([, , n]) => n / totals[s])));
  const x = (ns) => left + ((log(ns) - low) / (high - low)) * (width - left - 8);
  const y = (share) => height - bottom - (share / most) * (height - bottom - 12);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "histogram" });
  for (const ns of logTicks(low, high, Math.floor(width / 70))) {
    const name = shortDuration(ns);
    const last = width - 3.6 * name.length; // a name further to the right would be cut off
    picture.append(
      svg("line", { x1: x(ns), x2: x(ns), y1: 8, y2: height - bottom, class: "grid" }),
      svg("text", { x: Math.min(x(ns), last), y: height - bottom + 16, "text-anchor": "middle" }, name),
    );
  }
  for (const share of [0, most / 2, most]) {
    picture.append(svg("text", { x: left - 5, y: y(share) + 4, "text-anchor": "end" },
      `${(100 * share).toFixed(share < 0.1 && share ? 1 : 0)}%`));
  }
  sides.forEach((side, s) => {
    let path = "";
    let last = null;
    for (const [begin, end, count] of side.columns) {
      if (last === null || last !== begin) {
        if (last !== null) path += `V${y(0)}`;
        path += `${path ? "L" : "M"}${x(begin).toFixed(1)},${y(0)}`;
      }
      path += `V${y(count / totals[s]).toFixed(1)}H${x(end).toFixed(1)}`;
      last = end;
    }
    path += `V${y(0)}`;
    const shape = svg("path", { d: path, class: "side", "stroke-dasharray": side.dash || "none" });
    shape.style.stroke = side.color;
    shape.style.fill = side.color;
    picture.append(shape);
  });
  picture.append(svg("line", { x1: left, x2: width - 8, y1: y(0), y2: y(0), class: "base" }));
  return picture;
}

function drawHistogram(box, sides, label) {
  const legend = element("p", { class: "legend" });
  for (const side of sides) {
    const mark = element("span", { class: "stroke-mark", "aria-hidden": "true" });
    mark.style.borderTop = `3px ${side.dash ? "dashed" : "solid"} ${side.color}`;
    legend.append(element("span", {}, mark, `${side.name}`));
  }
  const rows = () => sides.flatMap(({ name, columns }) => columns.map(([begin, end, count]) =>
    [name, microseconds(begin), microseconds(end), count.toLocaleString("en")]));
  const details = element("details", {}, element("summary", {}, "As a table"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    details.append(tableOf(["side", "from", "to", "calls"], 1, rows()));
  });
  box.replaceChildren(histogram(sides, label, box.clientWidth), legend, details);
}

const SIDES = {
  host: { name: "on the host", color: "var(--accent)" },
  device: { name: "on the stream", color: "var(--second)", dash: "7 4" },
  blocked: { name: "blocked", color: "var(--third)", dash: "2 3" },
  before: { name: "before", color: "var(--second)", dash: "7 4" },
  after: { name: "after", color: "var(--accent)" },
};

/** The times of one of some phases, on each side that it has: where they passed, or when. */
function startHistograms(root, all, which) {
  const box = root.querySelector(".histogram-box");
  const choice = root.querySelector("select");
  if (!all.length) return;
  const show = () => {
    const { label, of } = all[Number(choice.value)];
    const sides = Object.entries(of).map(([side, columns]) => ({ ...SIDES[side], columns }));
    drawHistogram(box, sides, `Times of ${label}, ${which}, on a logarithmic axis`);
  };
  choice.addEventListener("change", show);
  for (const button of root.querySelectorAll("button[data-histogram]")) {
    button.addEventListener("click", () => {
      choice.value = button.dataset.histogram;
      show();
      box.scrollIntoView({ block: "nearest" });
    });
  }
  show();
}

// Timelines

function describeBar(panel, found, timeline) {
  if (!found) {
    panel.replaceChildren(element("p", { class: "note" },
      "Choose a bar with a click, or with n and p, to see its times."));
    return;
  }
  const kinds = ["wait", "module", "phase", "phase", "step", "metric", "compilation"];
  const runs = timeline.data.runs;
  panel.replaceChildren(element("h3", {}, found.path), facts([
    ["what", found.isDevice ? `${kinds[found.kind]}, on the stream` : kinds[found.kind]],
    ["where", (runs.length > 1 ? `${runs[found.run]}, ` : "") + found.track],
    ["took", microseconds(found.duration_ns)],
    ["began", `${microseconds(found.begin_ns)} into the run`],
    ["in its step", found.since_step_ns === null ? null : `after ${microseconds(found.since_step_ns)}`],
    ["step", found.step < 0 || found.kind === STEP ? null : String(found.step)],
    ["waited for the device", found.kind === WAIT
      ? (found.blocked_ns < 0 ? "how long is unknown" : null)
      : (found.blocked_ns < 0 ? null : microseconds(found.blocked_ns))],
    ...(found.queue_time_ns === undefined ? [] : [
      [found.isDevice ? "on the host" : "on the stream", found.isDevice
        ? microseconds(found.host_duration_ns) : `${microseconds(found.device_duration_ns)}, ${found.stream}`],
      ["queue time", `${microseconds(found.queue_time_ns)} from the host's begin to the device's`],
    ]),
  ]));
}

function barTable(timeline) {
  const all = timeline.bars();
  const longest = all.sort((a, b) =>
    timeline.tracks[b[0]].duration[b[1]] - timeline.tracks[a[0]].duration[a[1]]).slice(0, 200);
  const rows = longest.map((where) => {
    const found = timeline.describe(where);
    const button = element("button", { type: "button", class: "link" }, found.path);
    button.addEventListener("click", () => timeline.select(where, true));
    const times = [microseconds(found.since_window_ns), microseconds(found.duration_ns)];
    return [button, found.track, ...times, found.step < 0 ? "-" : String(found.step)];
  });
  const table = tableOf(["bar", "where", "began", "took", "step"], 2, rows);
  const more = all.length - longest.length;
  return more > 0
    ? [table, element("p", { class: "note" }, `The longest 200; ${more.toLocaleString("en")} more are in the picture.`)]
    : [table];
}

function startTimeline(root) {
  const data = PAGE.timelines[Number(root.dataset.timeline)];
  if (!data.windows.length) return;
  const panel = root.querySelector(".bar-panel");
  const choice = root.querySelector("select");
  const said = root.querySelector(".window-note");
  const details = root.querySelector("details");
  const fill = () => {
    details.querySelectorAll(":scope > :not(summary)").forEach((child) => child.remove());
    if (details.open) details.append(...barTable(timeline));
  };
  root.addEventListener("shown", ({ detail: number }) => {
    const { left_out: left, shortest, is_cut: isCut } = data.windows[number];
    choice.value = String(number);
    const notes = [];
    if (left) {
      notes.push(`${left.toLocaleString("en")} bars are left out, none longer than ${microseconds(shortest)}.`);
    }
    if (isCut) notes.push("Device work of this step goes on behind the end of the picture.");
    if (!data.is_aligned && data.runs.length > 1) {
      notes.push("When the ranks began is not known, so each begins with its own step.");
    }
    said.textContent = notes.join(" ");
    if (root.timeline) fill();
  });
  const timeline = new Timeline(root, data, (found, self) => describeBar(panel, found, self));
  root.timeline = timeline;
  timelines.push(timeline);
  choice.addEventListener("change", () => timeline.show(Number(choice.value)));
  details.addEventListener("toggle", fill);
  for (const button of root.querySelectorAll("button[data-key]")) {
    button.addEventListener("click", () => timeline.key(button.dataset.key, false));
  }
}

// Search, tabs, keys

/** Scroll to an element, and open what it is folded in. */
function reveal(target, block) {
  for (let up = target.closest("details"); up; up = up.parentElement.closest("details")) up.open = true;
  target.scrollIntoView({ block });
}

function startSearch() {
  const field = document.getElementById("search");
  const count = document.getElementById("search-count");
  if (!field) return;
  let stops = [], at = -1; // rows and timelines that match, from top to bottom, and where we are
  const jump = (by) => {
    stops[at]?.classList.remove("here");
    if (!stops.length) return;
    at = (at + by + stops.length) % stops.length;
    stops[at].classList.add("here");
    reveal(stops[at], stops[at].timeline ? "start" : "center");
    stops[at].timeline?.nextMatch(by);
  };
  const look = () => {
    stops[at]?.classList.remove("here");
    const text = field.value.trim().toLowerCase();
    let rows = 0, bars = 0;
    [stops, at] = [[], -1];
    for (const each of document.querySelectorAll("tr[data-name], .timeline")) {
      const inTimeline = each.timeline?.find(text);
      const isMatch = inTimeline === undefined ? (each.dataset.name ?? "").toLowerCase().includes(text) : inTimeline > 0;
      if (!each.dataset.timeline) each.classList.toggle("unlike", !isMatch);
      if (!text || !isMatch) continue;
      if (inTimeline) bars += inTimeline; else rows++;
      if (!each.closest(".off")) stops.push(each);
    }
    document.documentElement.classList.toggle("searching", text !== "");
    count.textContent = text ? `${rows.toLocaleString("en")} rows, ${bars.toLocaleString("en")} bars` : "";
    if (stops.length) jump(1);
  };
  field.addEventListener("input", look);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      jump(event.shiftKey ? -1 : 1);
    } else if (event.key === "Escape") {
      field.value = "";
      look();
      field.blur();
    }
  });
}

function startFolds() {
  for (const button of document.querySelectorAll(".unfold")) {
    button.addEventListener("click", () => {
      button.parentElement.querySelector("table").classList.add("whole");
      button.remove();
    });
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    const target = link && document.getElementById(link.getAttribute("href").slice(1));
    if (!target) return;
    const fold = target.querySelector(":scope > details");
    if (fold) fold.open = true;
    if (window.parent === window) return;
    event.preventDefault(); // in a frame of a notebook, it would lead to the notebook
    reveal(target, "start");
  });
}

function startTabs() {
  const tabs = [...document.querySelectorAll("[role=tab]")];
  const choose = (tab) => {
    for (const each of tabs) {
      each.setAttribute("aria-selected", String(each === tab));
      each.tabIndex = each === tab ? 0 : -1;
      document.getElementById(each.getAttribute("aria-controls")).classList.toggle("off", each !== tab);
    }
  };
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      const next = tabs[(i + by + tabs.length) % tabs.length];
      choose(next);
      next.focus();
      event.stopPropagation();
    });
  });
  if (tabs.length) choose(tabs[0]);
}

function startKeys(charts) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = document.activeElement;
    if (at && /^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName)) return;
    if (event.key === "/") {
      event.preventDefault();
      document.getElementById("search")?.focus();
      return;
    }
    if (at && /^(BUTTON|A|SUMMARY)$/.test(at.tagName) && event.key === "Enter") return;
    const chart = charts.find((each) => each.root.contains(at));
    const inTimeline = timelines.find((each) => each.root.contains(at));
    const isMove = /^(Arrow|Home|End)/.test(event.key);
    // Arrows scroll the page, unless a picture has the focus.
    const target = chart || inTimeline || (isMove ? null : timelines[0]);
    if (target?.key(event.key, event.shiftKey)) event.preventDefault();
  });
}

function start() {
  document.documentElement.classList.add("live");
  document.querySelectorAll(".timeline").forEach(startTimeline);
  const charts = [...document.querySelectorAll(".step-chart")].map((root) =>
    (root.chart = new StepChart(root, Number(root.dataset.run))));
  document.querySelectorAll(".phase-times").forEach((root) =>
    startHistograms(root, PAGE.runs[Number(root.dataset.run)].histograms, "per call"));
  document.querySelectorAll(".overlaid").forEach((root) =>
    startHistograms(root, PAGE.overlaid, "before and after"));
  document.querySelectorAll(".curves").forEach(curves);
  startSearch();
  startFolds();
  startTabs();
  startKeys(charts);
  for (const medium of ["(prefers-color-scheme: dark)", "print"]) {
    matchMedia(medium).addEventListener("change", () => {
      for (const timeline of timelines) {
        timeline.readTheme();
        timeline.draw(); // paper does not wait for the next frame
      }
      redraws.forEach((redraw) => redraw());
    });
  }
  document.documentElement.dataset.ready = "yes";
}

start();
