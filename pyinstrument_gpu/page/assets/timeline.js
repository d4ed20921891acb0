// SPDX-License-Identifier: Apache-2.0
// The timeline: bars on threads and streams, on a canvas that draws only what is in view.
"use strict";

const ROW_PX = 20;
const TRACK_HEAD_PX = 22;
const AXIS_PX = 26;
const LEAST_SPAN_NS = 20;
const MOST_ARROWS = 300;
// What bars are, as in the exports: waits, modules, phases, phases that were open, steps.
const [WAIT, STEP] = [0, 4];

/** A duration in words, to the nanosecond below a microsecond and with three decimals above. */
function durationText(ns) {
  const size = Math.abs(ns);
  if (size >= 1e9) return (ns / 1e9).toFixed(6) + " s";
  if (size >= 1e6) return (ns / 1e6).toFixed(3) + " ms";
  if (size >= 1e3) return (ns / 1e3).toFixed(3) + " us";
  return ns + " ns";
}

/** A duration in three digits, as in the report's text: 1234567 ns is "1.23 ms". */
function brief(ns) {
  // What would round up to the next larger unit is written in that.
  const [unit, size] = [["s", 1e9], ["ms", 1e6], ["us", 1e3]].find((each) => Math.abs(ns) >= 0.9995 * each[1]) || ["ns", 1];
  const number = Math.abs(ns / size);
  return `${(ns / size).toFixed(unit === "ns" || number >= 99.95 ? 0 : number >= 9.995 ? 1 : 2)} ${unit}`;
}

/** Microseconds with all digits there are: 1234567 ns is "1,234.567 us". */
function microseconds(ns) {
  const sign = ns < 0 ? "-" : "";
  const whole = Math.floor(Math.abs(ns) / 1000);
  const rest = String(Math.abs(ns) % 1000).padStart(3, "0");
  return `${sign}${whole.toLocaleString("en")}.${rest} us`;
}

class Timeline {
  /**
   * root: the element with a `.timeline-scroll` and a canvas in it, and the controls around it.
   * data: the windows and what the runs are called, as the page has them.
   * onSelect: called with the bar that was chosen, or null.
   */
  constructor(root, data, onSelect) {
    this.root = root;
    this.data = data;
    this.onSelect = onSelect;
    this.scroll = root.querySelector(".timeline-scroll");
    this.canvas = root.querySelector("canvas");
    this.spacer = root.querySelector(".timeline-spacer");
    this.context = this.canvas.getContext("2d");
    this.search = "";
    this.selected = null;
    this.hovered = null;
    this.drawMs = 0;
    this.pointers = new Map();
    this.listen();
    this.readTheme();
    this.show(0);
  }

  // What is shown

  show(number) {
    this.window = this.data.windows[number];
    this.number = number;
    this.prepare();
    this.select(null);
    this.fit();
    this.resize();
    this.root.dispatchEvent(new CustomEvent("shown", { detail: number }));
  }

  prepare() {
    const window_ = this.window;
    this.labels = window_.labels.map(([name, path, kind, color, ink]) => ({
      name, path, kind, color, ink, isMatch: true,
    }));
    let top = 0;
    this.tracks = window_.tracks.map((track) => {
      const rows = [];
      const count = track.begin.length;
      for (let i = 0; i < count; i++) {
        const row = track.row[i];
        while (rows.length <= row) rows.push([]);
        rows[row].push(i);
      }
      const made = { ...track, rows, top, height: TRACK_HEAD_PX + rows.length * ROW_PX + 6 };
      top += made.height;
      return made;
    });
    this.height = top;
    // Of each pair the bar on the thread and the one on the stream, as [track, bar].
    this.pairs = [];
    this.tracks.forEach((track, t) => {
      track.pair.forEach((pair, i) => {
        if (pair < 0) return;
        this.pairs[pair] ??= {};
        this.pairs[pair][track.device ? "device" : "host"] = [t, i];
      });
    });
    this.applySearch();
  }

  /** From the begin of the first bar to the end of the last, with a little air. */
  extent() {
    return [-0.01 * this.window.duration, 1.01 * this.window.duration];
  }

  fit() {
    [this.from, this.to] = this.extent();
    this.request();
  }

  /** Zooms by a factor (below 1: in) around a time. */
  zoom(factor, around = (this.from + this.to) / 2) {
    const [first, last] = this.extent();
    const span = Math.min(Math.max((this.to - this.from) * factor, LEAST_SPAN_NS), last - first);
    const share = (around - this.from) / (this.to - this.from);
    this.from = around - share * span;
    this.to = this.from + span;
    this.keepInside();
  }

  pan(ns) {
    this.from += ns;
    this.to += ns;
    this.keepInside();
  }

  keepInside() {
    const [first, last] = this.extent();
    const span = this.to - this.from;
    if (this.from < first) [this.from, this.to] = [first, first + span];
    if (this.to > last) [this.from, this.to] = [Math.max(first, last - span), last];
    this.request();
  }

  // Choosing bars

  /** The bar of a track with all that the run says of it; null for none. */
  describe(where) {
    if (where === null) return null;
    const [t, i] = where;
    const track = this.tracks[t];
    const label = this.labels[track.label[i]];
    const found = {
      path: label.path,
      kind: label.kind,
      run: track.run,
      track: track.name,
      isDevice: track.device,
      begin_ns: this.window.begins[track.run] + track.begin[i],
      since_window_ns: track.begin[i],
      duration_ns: track.duration[i],
      step: track.step[i],
      blocked_ns: track.blocked ? track.blocked[i] : -1,
    };
    const step = this.window.step_times[track.run];
    found.since_step_ns = step && track.step[i] === this.window.step ? track.begin[i] - step[0] : null;
    const pair = this.pairs[track.pair[i]];
    if (pair) {
      const [ht, hi] = pair.host, [dt, di] = pair.device;
      const device = this.tracks[dt];
      found.queue_time_ns = device.begin[di] - this.tracks[ht].begin[hi];
      found.stream = device.name;
      found.device_duration_ns = device.duration[di];
      found.host_duration_ns = this.tracks[ht].duration[hi];
    }
    return found;
  }

  select(where, reveal = false) {
    this.selected = where;
    if (where && reveal) this.reveal(where);
    this.request();
    this.onSelect(this.describe(where), this);
  }

  reveal([t, i]) {
    const track = this.tracks[t];
    const begin = track.begin[i], end = begin + track.duration[i];
    const span = this.to - this.from;
    if (begin < this.from || end > this.to || end - begin > span) {
      const wanted = Math.max(span, 1.2 * (end - begin));
      this.from = (begin + end) / 2 - wanted / 2;
      this.to = this.from + wanted;
      this.keepInside();
    }
    const y = AXIS_PX + track.top + TRACK_HEAD_PX + track.row[i] * ROW_PX;
    const shown = this.scroll.clientHeight;
    if (y < this.scroll.scrollTop + AXIS_PX || y + ROW_PX > this.scroll.scrollTop + shown) {
      this.scroll.scrollTop = Math.max(0, y - shown / 2);
    }
  }

  /** The next bar of the chosen one's track by `direction`, or the first that is in view. */
  step(direction) {
    if (!this.tracks.length) return;
    if (!this.selected) {
      const first = this.tracks.findIndex((track) => track.begin.length);
      if (first < 0) return;
      const i = this.tracks[first].begin.findIndex((begin, k) =>
        begin + this.tracks[first].duration[k] >= this.from);
      this.select([first, Math.max(0, i)], true);
      return;
    }
    const [t, i] = this.selected;
    const next = i + direction;
    if (next >= 0 && next < this.tracks[t].begin.length) this.select([t, next], true);
  }

  /** The same moment on the next track by `direction`. */
  turn(direction) {
    if (!this.selected) return this.step(1);
    const [t, i] = this.selected;
    const moment = this.tracks[t].begin[i];
    for (let next = t + direction; next >= 0 && next < this.tracks.length; next += direction) {
      const begins = this.tracks[next].begin;
      if (!begins.length) continue;
      let place = begins.findIndex((begin) => begin >= moment);
      if (place < 0) place = begins.length - 1;
      return this.select([next, place], true);
    }
  }

  find(text) {
    this.search = text.trim().toLowerCase();
    this.applySearch();
    this.request();
    return this.matched.length;
  }

  applySearch() {
    for (const label of this.labels) {
      label.isMatch = !this.search || label.path.toLowerCase().includes(this.search);
    }
    this.matched = this.search
      ? this.bars().filter(([t, i]) => this.labels[this.tracks[t].label[i]].isMatch) : [];
  }

  /** All bars, as [track, bar]. */
  bars() {
    return this.tracks.flatMap((track, t) => track.begin.map((_, i) => [t, i]));
  }

  nextMatch(direction = 1) {
    const all = this.matched;
    if (!all.length) return;
    const here = all.findIndex((where) => String(where) === String(this.selected));
    this.select(all[(here + direction + all.length) % all.length], true);
  }

  /** What is drawn at a place of the canvas, in CSS pixels; null for nothing. */
  at(x, y) {
    const inside = y - AXIS_PX + this.scroll.scrollTop;
    if (y < AXIS_PX) return null;
    const t = this.tracks.findIndex((each) => inside >= each.top && inside < each.top + each.height);
    if (t < 0) return null;
    const track = this.tracks[t];
    const row = track.rows[Math.floor((inside - track.top - TRACK_HEAD_PX) / ROW_PX)];
    if (!row || inside < track.top + TRACK_HEAD_PX) return null;
    const slack = 2 * (this.to - this.from) / this.width;
    const moment = this.timeAt(x);
    let best = null, least = Infinity;
    for (let k = this.firstInView(track, row, moment - slack); k < row.length; k++) {
      const i = row[k];
      if (track.begin[i] > moment + slack) break;
      const end = track.begin[i] + track.duration[i];
      let off = Math.max(track.begin[i] - moment, moment - end, 0);
      if (off > slack) continue;
      if (track.duration[i] < slack) off = 0; // too narrow to be hit otherwise
      if (off <= least) [best, least] = [[t, i], off];
    }
    return best;
  }

  timeAt(x) {
    return this.from + (x / this.width) * (this.to - this.from);
  }

  // Drawing

  readTheme() {
    const names = ["paper", "panel", "ink", "faint", "line", "accent"];
    this.theme = Object.fromEntries(names.map((name) => [name, theme(`--${name}`)]));
    this.stripes = null;
    this.request();
  }

  waitPattern(color) {
    if (!this.stripes) {
      const tile = document.createElement("canvas");
      tile.width = tile.height = 8;
      const paint = tile.getContext("2d");
      paint.fillStyle = color;
      paint.fillRect(0, 0, 8, 8);
      paint.strokeStyle = "#fff";
      paint.lineWidth = 1.8;
      for (const shift of [-8, 0, 8]) {
        paint.beginPath();
        paint.moveTo(shift - 1, 9);
        paint.lineTo(shift + 9, -1);
        paint.stroke();
      }
      this.stripes = this.context.createPattern(tile, "repeat");
    }
    return this.stripes;
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    this.width = Math.max(1, this.scroll.clientWidth);
    this.spacer.style.height = `${this.height + AXIS_PX}px`;
    const room = Math.max(160, Math.round(0.62 * window.innerHeight));
    const shown = Math.min(this.height + AXIS_PX, room);
    this.scroll.style.height = `${shown}px`;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(shown * ratio);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${shown}px`;
    this.shownHeight = shown;
    this.request();
  }

  request() {
    if (this.isRequested) return;
    this.isRequested = true;
    requestAnimationFrame(() => {
      this.isRequested = false;
      this.draw();
    });
  }

  /** The first place of a row whose bar may reach into the view: bars of a row don't overlap. */
  firstInView(track, row, from) {
    let low = 0, high = row.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (track.begin[row[middle]] < from) low = middle + 1; else high = middle;
    }
    let first = Math.max(0, low - 1);
    // One without length may begin together with another.
    while (first > 0 && track.begin[row[first - 1]] === track.begin[row[first]]) first--;
    return first;
  }

  draw() {
    if (!this.window || !this.width) return;
    const began = performance.now();
    const paint = this.context;
    const ratio = window.devicePixelRatio || 1;
    const { width, shownHeight: height, theme } = this;
    const scale = width / (this.to - this.from);
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint.fillStyle = theme.paper;
    paint.fillRect(0, 0, width, height);
    this.drawSteps(scale);
    paint.font = "12px system-ui, sans-serif";
    paint.textBaseline = "middle";
    this.letterWidth ||= 1.05 * paint.measureText("abcdefghijklmnopqrstuvwxyz0123456789").width / 36;
    const above = this.scroll.scrollTop - AXIS_PX;
    for (const track of this.tracks) {
      const y = track.top - above;
      if (y > height || y + track.height < AXIS_PX) continue;
      this.drawTrack(track, y, scale);
    }
    this.drawArrows(scale, above);
    this.drawChosen(scale, above);
    this.drawAxis(scale);
    this.drawMs = performance.now() - began;
  }

  drawTrack(track, top, scale) {
    const paint = this.context, { theme, width } = this;
    for (let r = 0; r < track.rows.length; r++) {
      const y = top + TRACK_HEAD_PX + r * ROW_PX;
      if (y > this.shownHeight || y + ROW_PX < AXIS_PX) continue;
      const row = track.rows[r];
      let drawnTo = -1, drawnLabel = -1;
      for (let k = this.firstInView(track, row, this.from); k < row.length; k++) {
        const i = row[k];
        const begin = track.begin[i];
        if (begin > this.to) break;
        const left = Math.max(-2, (begin - this.from) * scale);
        const right = Math.min(width + 2, (begin + track.duration[i] - this.from) * scale);
        if (right < 0) continue;
        const size = Math.max(1, right - left);
        // What is narrower than a pixel and lies on one that is drawn adds nothing.
        if (right <= drawnTo && track.label[i] === drawnLabel) continue;
        if (size <= 1 && left < drawnTo) continue;
        [drawnTo, drawnLabel] = [left + size, track.label[i]];
        const label = this.labels[track.label[i]];
        paint.globalAlpha = label.isMatch ? 1 : 0.18;
        paint.fillStyle = label.kind === WAIT && size > 3 ? this.waitPattern(label.color) : label.color;
        paint.fillRect(left, y + 1, size > 2 ? size - 0.75 : size, ROW_PX - 2);
        if (size > 26) this.drawName(label, left, size, y, track.duration[i]);
      }
    }
    paint.globalAlpha = 1;
    const rank = this.data.runs.length > 1 ? `${this.data.runs[track.run]} · ` : "";
    paint.fillStyle = theme.faint;
    paint.font = "600 12px system-ui, sans-serif";
    paint.fillText(`${rank}${track.name}`, 6, top + TRACK_HEAD_PX / 2 + 1);
    paint.font = "12px system-ui, sans-serif";
    paint.fillStyle = theme.line;
    paint.fillRect(0, top, width, 1);
  }

  drawName(label, left, size, y, duration) {
    const paint = this.context;
    const from = Math.max(left, 0), to = Math.min(left + size, this.width);
    const room = to - from - 8;
    if (room < 18) return;
    let text = label.name;
    const per = this.letterWidth;
    if (text.length * per > room) {
      text = text.slice(0, Math.max(1, Math.floor(room / per) - 1)) + "…";
    } else if ((text.length + 12) * per < room) {
      text += `  ${durationText(duration)}`;
    }
    if (label.kind === WAIT) {
      paint.fillStyle = label.color;
      paint.fillRect(from + 2, y + 3, Math.min(room + 4, paint.measureText(text).width + 6), ROW_PX - 6);
    }
    paint.fillStyle = label.ink;
    paint.fillText(text, from + 5, y + ROW_PX / 2 + 0.5);
  }

  drawSteps(scale) {
    const paint = this.context;
    paint.fillStyle = this.theme.panel;
    const known = this.window.step_times.find((times) => times);
    if (known) {
      paint.fillRect((known[0] - this.from) * scale, 0, (known[1] - known[0]) * scale, this.shownHeight);
    }
  }

  /** Where a bar is drawn: its left, right and top. */
  boxOf([t, i], scale, above) {
    const track = this.tracks[t];
    const left = (track.begin[i] - this.from) * scale;
    const top = track.top - above + TRACK_HEAD_PX + track.row[i] * ROW_PX;
    return [left, left + track.duration[i] * scale, top];
  }

  drawArrow({ host, device }, scale, above, isChosen) {
    const paint = this.context;
    const [x0, , hostTop] = this.boxOf(host, scale, above), [x1, , deviceTop] = this.boxOf(device, scale, above);
    const y0 = hostTop + ROW_PX - 1, y1 = deviceTop + 1;
    paint.strokeStyle = paint.fillStyle = isChosen ? this.theme.accent : this.theme.faint;
    paint.globalAlpha = isChosen ? 1 : 0.45;
    paint.lineWidth = isChosen ? 2.5 : 1;
    paint.beginPath();
    paint.moveTo(x0, y0);
    paint.bezierCurveTo(x0, y0 + 24, x1, y1 - 24, x1, y1 - 4);
    paint.stroke();
    paint.beginPath();
    paint.moveTo(x1, y1);
    paint.lineTo(x1 - 3.5, y1 - 6);
    paint.lineTo(x1 + 3.5, y1 - 6);
    paint.fill();
    paint.globalAlpha = 1;
  }

  drawArrows(scale, above) {
    const inView = [];
    for (const pair of this.pairs) {
      const [ht, hi] = pair.host, [dt, di] = pair.device;
      const begin = this.tracks[ht].begin[hi], then = this.tracks[dt].begin[di];
      if (Math.max(begin, then) < this.from || Math.min(begin, then) > this.to) continue;
      if (!this.labels[this.tracks[ht].label[hi]].isMatch) continue;
      inView.push(pair);
      if (inView.length > MOST_ARROWS) return;
    }
    for (const pair of inView) this.drawArrow(pair, scale, above, false);
  }

  drawChosen(scale, above) {
    const paint = this.context;
    for (const [where, width] of [[this.hovered, 1.5], [this.selected, 3]]) {
      if (!where) continue;
      const pair = this.pairs[this.tracks[where[0]].pair[where[1]]];
      if (pair) this.drawArrow(pair, scale, above, true);
      for (const bar of pair ? [pair.host, pair.device] : [where]) {
        const [begin, end, top] = this.boxOf(bar, scale, above);
        const left = Math.max(-4, begin), right = Math.min(this.width + 4, end);
        paint.strokeStyle = this.theme.ink;
        paint.lineWidth = width;
        paint.strokeRect(left, top + 1, Math.max(2, right - left), ROW_PX - 2);
      }
    }
  }

  drawAxis(scale) {
    const paint = this.context, { theme, width } = this;
    paint.fillStyle = theme.paper;
    paint.fillRect(0, 0, width, AXIS_PX);
    paint.fillStyle = theme.line;
    paint.fillRect(0, AXIS_PX - 1, width, 1);
    const least = 90 / scale;
    const power = 10 ** Math.floor(Math.log10(least));
    const gap = Math.max(1, [1, 2, 5, 10].map((n) => n * power).find((n) => n >= least));
    const [unit, ns] = gap >= 1e8 ? ["s", 1e9] : gap >= 1e5 ? ["ms", 1e6] : gap >= 100 ? ["us", 1e3] : ["ns", 1];
    const digits = Math.max(0, Math.round(Math.log10(ns)) - Math.floor(Math.log10(gap)));
    paint.font = "11px system-ui, sans-serif";
    for (let n = Math.ceil(this.from / gap); n * gap <= this.to; n++) {
      const x = (n * gap - this.from) * scale;
      paint.fillStyle = theme.line;
      paint.fillRect(x, AXIS_PX - 6, 1, 6);
      paint.fillStyle = theme.faint;
      const name = `${((n * gap) / ns).toFixed(digits)} ${unit}`;
      if (x + 3 + paint.measureText(name).width <= width) paint.fillText(name, x + 3, AXIS_PX / 2);
    }
  }

  // Input

  listen() {
    const { canvas, scroll } = this;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    scroll.addEventListener("scroll", () => this.request());
    new ResizeObserver(() => this.resize()).observe(this.root);
    canvas.addEventListener("wheel", (event) => {
      // A wheel alone scrolls the page. A pinch on a touchpad arrives as a wheel with ctrl.
      const [x] = place(event);
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        this.zoom(1.0018 ** event.deltaY, this.timeAt(x));
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        const by = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
        this.pan((by / this.width) * (this.to - this.from));
      }
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      this.pointers.set(event.pointerId, place(event));
      this.wasDragged = false;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const now = place(event);
      const before = this.pointers.get(event.pointerId);
      if (!before) {
        const hovered = this.at(...now);
        if (String(hovered) !== String(this.hovered)) {
          this.hovered = hovered;
          canvas.style.cursor = hovered ? "pointer" : "grab";
          const found = this.describe(hovered);
          canvas.title = found ? `${found.path}\n${microseconds(found.duration_ns)}` : "";
          this.request();
        }
        return;
      }
      if (this.pointers.size === 2) {
        const [[, other]] = [...this.pointers].filter(([id]) => id !== event.pointerId);
        const [apart, were] = [now, before].map((at) => Math.max(8, Math.abs(at[0] - other[0])));
        this.zoom(were / apart, this.timeAt((now[0] + other[0]) / 2));
        this.wasDragged = true;
      } else if (this.wasDragged || Math.abs(now[0] - before[0]) > 4) {
        this.pan(((before[0] - now[0]) / this.width) * (this.to - this.from));
        this.wasDragged = true;
      } else {
        return;
      }
      this.pointers.set(event.pointerId, now);
    });
    const lift = (event) => {
      const was = this.pointers.delete(event.pointerId);
      if (was && event.type === "pointerup" && !this.wasDragged) {
        this.select(this.at(...place(event)));
        scroll.focus({ preventScroll: true });
      }
    };
    canvas.addEventListener("pointerup", lift);
    canvas.addEventListener("pointercancel", lift);
    canvas.addEventListener("pointerleave", () => {
      this.hovered = null;
      this.request();
    });
    canvas.addEventListener("dblclick", (event) => {
      const where = this.at(...place(event));
      if (!where) return this.fit();
      const track = this.tracks[where[0]];
      const wide = Math.max(LEAST_SPAN_NS, 1.1 * track.duration[where[1]]);
      const middle = track.begin[where[1]] + track.duration[where[1]] / 2;
      [this.from, this.to] = [middle - wide / 2, middle + wide / 2];
      this.keepInside();
    });
  }

  /** What a key does here; whether it does anything. */
  key(key, isShifted) {
    const span = this.to - this.from;
    if (key === "ArrowLeft") this.pan(-span / 8);
    else if (key === "ArrowRight") this.pan(span / 8);
    else if (key === "ArrowDown") this.turn(1);
    else if (key === "ArrowUp") this.turn(-1);
    else if (key === "+" || key === "=") this.zoom(0.7, this.middleOfChosen());
    else if (key === "-" || key === "_") this.zoom(1 / 0.7, this.middleOfChosen());
    else if (key === "0" || key === "Home") this.fit();
    else if (key === "n" || key === ".") this.step(1);
    else if (key === "p" || key === ",") this.step(-1);
    else if (key === "Escape") this.select(null);
    else if (key === "Enter" && this.search) this.nextMatch(isShifted ? -1 : 1);
    else return false;
    return true;
  }

  middleOfChosen() {
    if (this.selected) {
      const [t, i] = this.selected;
      const middle = this.tracks[t].begin[i] + this.tracks[t].duration[i] / 2;
      if (middle >= this.from && middle <= this.to) return middle;
    }
    return (this.from + this.to) / 2;
  }
}
