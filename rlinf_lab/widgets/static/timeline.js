// The timeline: one canvas, lanes by device and below each device the worker ranks placed on it.
import { CAUSES, CAUSE_TEXT, FONT, KINDS, KIND_CAUSE, LABEL, RUN, applyTheme, duration, fitCanvas, inkOn, make, painter, rgb, themeMode, watchTheme } from "./base.js";

const GUTTER = 118, RULER = 20, OTHER = KINDS.length, SLOTS = KINDS.length + 1;

export class TimelineView {
  /** `root`: an element of its own; `store`: the spans; options: {follow, tail: how many of the last iterations to follow}. */
  constructor(root, store, options = {}) {
    this.root = root;
    this.store = store;
    this.follow = options.follow !== false;
    this.tail = options.tail || 0; // 0: all of them
    this.from = 0;
    this.to = 1e9;
    this.span = null; // width of the view while it follows the tail; null: everything
    this.scroll = 0;
    this.query = "";
    this.selection = null;
    this.strip = document.createElement("canvas");
    this.build();
    this.setTheme(themeMode());
    this.stopTheme = watchTheme((mode) => this.setTheme(mode));
    this.observer = new ResizeObserver(() => this.redraw());
    this.observer.observe(this.stage);
    this.redraw();
  }

  destroy() {
    this.stopTheme();
    this.observer.disconnect();
    this.redraw.stop();
  }

  build() {
    this.root.classList.add("rl-timeline");
    this.root.dataset.lmSuppressShortcuts = "true"; // the keys are ours while the picture has the focus
    this.canvas = make("canvas", { tabindex: "0", role: "img", "aria-label": "Timeline of the devices and workers" });
    this.tip = make("div.tip");
    this.stage = make("div.stage", {}, this.canvas, this.tip);
    this.redraw = painter(this.stage, () => this.draw());
    this.legend = make("div.legend");
    this.followButton = make("button.tool", { title: "Keep the newest spans in sight (L)", onclick: () => this.setFollow(!this.follow) }, "Follow");
    this.fitButton = make("button.tool", { title: "Show everything (double-click or F)", onclick: () => this.fit() }, "Fit");
    this.search = make("input.search", { type: "search", placeholder: "Search spans", "aria-label": "Search spans", oninput: (e) => this.find(e.target.value) });
    this.found = make("span.found");
    this.stats = make("div.stats");
    this.bar = make("div.toolbar", {}, this.legend, this.found, this.search, this.fitButton, this.followButton);
    this.root.append(this.bar, this.stage, this.stats);
    this.setFollow(this.follow);
    this.listen();
  }

  listen() {
    const c = this.canvas;
    c.addEventListener("wheel", (e) => this.onWheel(e), { passive: false });
    c.addEventListener("pointerdown", (e) => this.onDown(e));
    c.addEventListener("pointermove", (e) => this.onMove(e));
    c.addEventListener("pointerup", (e) => this.onUp(e));
    c.addEventListener("pointerleave", () => { this.tip.style.display = "none"; });
    c.addEventListener("dblclick", () => this.fit());
    c.addEventListener("keydown", (e) => this.onKey(e));
    this.search.addEventListener("keydown", (e) => {
      e.stopPropagation();
      if (e.key === "Enter") this.next(e.shiftKey ? -1 : 1);
      if (e.key === "Escape") { this.search.value = ""; this.find(""); c.focus(); }
    });
  }

  setTheme(mode) {
    this.colours = applyTheme(this.root, mode);
    this.redraw();
  }

  setFollow(on) {
    this.follow = on;
    this.followButton.setAttribute("aria-pressed", String(on));
    this.redraw();
  }

  /** New data came. */
  refresh() { this.redraw(); }

  fit() {
    this.span = null;
    this.tail = 0;
    this.from = 0;
    this.to = Math.max(this.store.end, 1);
    this.selection = null;
    this.showStats();
    this.redraw();
  }

  /** Look at [from, to) ns; leaves the tail. */
  look(from, to) {
    const least = 200, most = Math.max(this.store.end, 1) * 1.5;
    const width = Math.min(most, Math.max(least, to - from));
    const mid = (from + to) / 2;
    this.from = mid - width / 2;
    this.to = mid + width / 2;
    this.redraw();
  }

  zoom(factor, at) {
    if (this.follow) at = this.to;
    const from = at - (at - this.from) * factor, to = at + (this.to - at) * factor;
    this.look(from, to);
    if (this.follow) this.span = this.to - this.from;
  }

  pan(ns) {
    if (this.follow) this.setFollow(false);
    this.look(this.from + ns, this.to + ns);
  }

  // ---- rows

  workerColour(worker) {
    const i = this.store.workers.indexOf(worker);
    return i < 0 ? this.colours.muted : this.colours.workers[i % this.colours.workers.length];
  }

  layout(height) {
    const rows = [], store = this.store;
    const placed = new Set();
    for (const device of store.tables.devices) {
      rows.push({ kind: "device", device, lane: store.idle.get(device) });
      store.tracks.forEach((track, i) => {
        if (track.devices.includes(device)) { rows.push({ kind: "track", device, track }); placed.add(i); }
      });
    }
    store.tracks.forEach((track, i) => {
      if (!placed.has(i) && track.spans.count) rows.push({ kind: "track", device: "", track });
    });
    const heads = rows.filter((r) => r.kind === "device").length, tracks = rows.length - heads;
    const head = 15, gap = 7;
    const each = Math.max(13, Math.min(34, (height - RULER - heads * (head + gap) - 4) / Math.max(1, tracks)));
    let y = RULER + 2;
    for (const row of rows) {
      if (row.kind === "device") y += gap;
      row.y = y;
      row.h = row.kind === "device" ? head - 3 : each - 2;
      y += row.kind === "device" ? head : each;
    }
    this.content = y;
    this.scroll = Math.max(0, Math.min(this.scroll, y - height));
    for (const row of rows) row.y -= this.scroll;
    return rows;
  }

  // ---- drawing

  draw() {
    const began = performance.now();
    const width = this.stage.clientWidth, height = this.stage.clientHeight;
    const g = fitCanvas(this.canvas, width, height);
    const end = Math.max(this.store.end, 1);
    if (this.follow) {
      this.from = this.span === null ? this.tailStart() : end - this.span;
      this.to = end;
    }
    const c = this.colours;
    g.fillStyle = c.bg;
    g.fillRect(0, 0, width, height);
    this.plot = width - GUTTER - 1;
    this.rows = this.layout(height);
    this.drawMarks(g, height);
    const ratio = window.devicePixelRatio || 1;
    const columns = Math.max(1, Math.round(this.plot * ratio));
    this.drawStrips(g, columns);
    g.save();
    g.beginPath(); g.rect(0, RULER, width, height - RULER); g.clip();
    this.drawText(g);
    g.restore();
    this.drawRuler(g, width);
    if (this.selection) this.drawSelection(g, height);
    if (!this.store.count) {
      g.fillStyle = c.muted; g.font = `12px ${FONT}`; g.textAlign = "center"; g.textBaseline = "middle";
      g.fillText("Waiting for the first spans", GUTTER + this.plot / 2, height / 2);
    }
    this.drawLegend();
    this.drawMs = performance.now() - began;
    this.frames = (this.frames || 0) + 1;
    this.root.dataset.frames = this.frames; // lets a test see that something was drawn
    this.root.dataset.spans = this.store.count;
    this.root.dataset.range = `${this.from},${this.to}`;
  }

  tailStart() {
    const marks = this.store.marks;
    return this.tail && marks.length > this.tail ? marks[marks.length - this.tail].start : 0;
  }

  x(time) { return GUTTER + ((time - this.from) / (this.to - this.from)) * this.plot; }
  time(x) { return this.from + ((x - GUTTER) / this.plot) * (this.to - this.from); }

  drawMarks(g, height) {
    const c = this.colours;
    for (const mark of this.store.marks) {
      if (mark.end < this.from || mark.start > this.to) continue;
      const x = Math.round(this.x(mark.start)) + 0.5;
      if (x < GUTTER) continue;
      g.fillStyle = c.line;
      g.fillRect(x, RULER, 1, Math.min(height, this.content - this.scroll) - RULER);
    }
  }

  /** All lanes at once: one pixel row of an ImageData for each lane, stretched to its height. */
  drawStrips(g, columns) {
    const strips = [];
    for (const row of this.rows) {
      if (row.y > this.stage.clientHeight || row.y + row.h < RULER) continue;
      if (row.kind === "device") {
        if (row.lane) strips.push([row, row.lane, this.causeColours(), row.y + 1, row.h - 2]);
      } else {
        strips.push([row, row.track.spans, this.kindColours(row.track.worker), row.y, row.h]);
        if (row.track.labels.count) strips.push([row, row.track.labels, this.labelColours(row.track.worker), row.y + row.h * 0.66, row.h * 0.34]);
      }
    }
    if (!strips.length) return;
    const canvas = this.strip;
    if (canvas.width !== columns || canvas.height < strips.length) { canvas.width = columns; canvas.height = strips.length; }
    const context = canvas.getContext("2d", { willReadFrequently: true });
    const image = context.createImageData(columns, strips.length);
    const pixels = new Uint32Array(image.data.buffer);
    if (!this.sums || this.sums.length !== columns * SLOTS) this.sums = new Float32Array(columns * SLOTS);
    const pixel = (this.to - this.from) / columns;
    strips.forEach(([row, lane, colours], j) => {
      this.sums.fill(0);
      lane.rasterise(this.from, this.to, columns, this.sums, this.keeper(row, lane), OTHER);
      blend(this.sums, columns, colours, pixel, pixels, j * columns);
    });
    context.putImageData(image, 0, 0);
    g.imageSmoothingEnabled = false;
    g.save();
    g.beginPath(); g.rect(GUTTER, RULER, this.plot, this.stage.clientHeight); g.clip();
    strips.forEach(([, , , y, h], j) => g.drawImage(canvas, 0, j, columns, 1, GUTTER, y, this.plot, h));
    g.restore();
  }

  /** For each kind [r, g, b, opacity] on a worker's lane: its own colour when it runs, the cause's when it waits. */
  kindColours(worker) {
    const c = this.colours, table = KINDS.map((kind) => {
      const cause = KIND_CAUSE[kind];
      return cause ? [...rgb(c.causes[cause]), kind === "onload" || kind === "offload" || kind === "transfer" ? 0.85 : 0.24] : [0, 0, 0, 0];
    });
    table[RUN] = [...rgb(this.workerColour(worker)), 1];
    table[OTHER] = [...rgb(c.muted), 0.12];
    return table;
  }

  labelColours(worker) {
    const table = KINDS.map(() => [0, 0, 0, 0]);
    table[LABEL] = [...rgb(inkOn(this.workerColour(worker))), 0.42];
    table[OTHER] = [0, 0, 0, 0];
    return table;
  }

  causeColours() {
    const table = CAUSES.map((cause) => [...rgb(this.colours.causes[cause]), 1]);
    while (table.length < SLOTS) table.push([...rgb(this.colours.muted), 0.12]);
    table[8] = [...rgb(this.colours.busy), 0.9];
    return table;
  }

  drawText(g) {
    const c = this.colours;
    g.textBaseline = "middle";
    g.fillStyle = c.bg;
    g.fillRect(0, RULER, GUTTER - 1, this.stage.clientHeight);
    for (const row of this.rows) {
      const mid = row.y + row.h / 2 + 0.5;
      g.textAlign = "left";
      if (row.kind === "device") {
        g.fillStyle = c.text;
        g.font = `600 11px ${FONT}`;
        g.fillText(row.device, 2, mid);
        if (row.lane) {
          g.fillStyle = c.muted;
          g.font = `11px ${FONT}`;
          g.textAlign = "right";
          g.fillText(`${Math.round(100 * this.busyShare(row.lane))} %`, GUTTER - 8, mid);
        }
        continue;
      }
      g.fillStyle = this.workerColour(row.track.worker);
      g.fillRect(10, mid - 3.5, 7, 7);
      g.fillStyle = c.text;
      g.font = `11px ${FONT}`;
      g.fillText(clip(g, `${row.track.worker} ${row.track.rank}`, GUTTER - 30), 22, mid);
      if (row.h >= 11) this.drawNames(g, row, mid);
    }
  }

  drawNames(g, row, mid) {
    const lane = row.track.spans, c = lane.columns;
    const [first, last] = lane.range(this.from, this.to);
    const least = ((this.to - this.from) / this.plot) * 34;
    if (last - first > 4000) return; // too many to name: nothing would fit
    g.font = `10.5px ${FONT}`;
    g.textAlign = "left";
    g.fillStyle = inkOn(this.workerColour(row.track.worker));
    const at = row.track.labels.count && row.h >= 18 ? row.y + row.h * 0.34 : mid;
    const keep = this.keeper(row, lane);
    for (let i = first; i < last; i++) {
      if (c.kind[i] !== RUN || c.dur[i] < least || (keep && !keep(i))) continue;
      const x0 = Math.max(GUTTER, this.x(c.start[i])), x1 = Math.min(GUTTER + this.plot, this.x(c.start[i] + c.dur[i]));
      const text = clip(g, this.store.name(c.name[i]), x1 - x0 - 8);
      if (text) g.fillText(text, x0 + 4, at);
    }
  }

  drawRuler(g, width) {
    const c = this.colours;
    g.fillStyle = c.bg;
    g.fillRect(0, 0, width, RULER);
    g.fillStyle = c.line;
    g.fillRect(0, RULER - 0.5, width, 1);
    g.font = `10.5px ${FONT}`;
    g.textBaseline = "middle";
    const step = niceStep((this.to - this.from) / Math.max(2, this.plot / 110));
    for (let t = Math.ceil(this.from / step) * step; t <= this.to; t += step) {
      const x = this.x(t);
      g.fillStyle = c.line;
      g.fillRect(x, RULER - 5, 1, 5);
      if (x > GUTTER + this.plot - 34) continue;
      g.fillStyle = c.muted;
      g.textAlign = "left";
      g.fillText(rulerText(t, step), x + 3, 9);
    }
    g.textAlign = "left";
    g.fillStyle = c.muted;
    const mark = this.marks(this.from, this.to);
    g.fillText(mark, 2, 9);
  }

  marks(from, to) {
    const seen = this.store.marks.filter((m) => m.end > from && m.start < to);
    if (!seen.length) return "";
    const a = seen[0].iteration + 1, b = seen[seen.length - 1].iteration + 1;
    return a === b ? `iteration ${a}` : `iterations ${a}–${b}`;
  }

  drawSelection(g, height) {
    const [a, b] = this.selection, x0 = this.x(Math.min(a, b)), x1 = this.x(Math.max(a, b));
    g.fillStyle = this.colours.accent;
    g.globalAlpha = 0.14;
    g.fillRect(x0, RULER, x1 - x0, height);
    g.globalAlpha = 1;
    g.fillRect(x0, RULER, 1, height);
    g.fillRect(x1, RULER, 1, height);
  }

  drawLegend() {
    const causes = new Set();
    for (const lane of this.store.idle.values()) CAUSES.forEach((cause, k) => { if (laneTotal(lane, k) > 0) causes.add(cause); });
    const key = `${this.colours.mode}|${this.store.workers}|${[...causes]}`;
    if (key === this.legendKey) return;
    this.legendKey = key;
    const item = (colour, text, title) => make("span.key", { title }, make("i", { style: `background:${colour}` }), text);
    this.legend.replaceChildren(
      ...this.store.workers.map((w) => item(this.workerColour(w), w, `worker ${w}`)),
      ...(causes.size ? [make("span.sep"), item(this.colours.busy, "busy", "user code on the device")] : []),
      ...CAUSES.filter((cause) => causes.has(cause)).map((cause) => item(this.colours.causes[cause], cause, CAUSE_TEXT[cause])),
    );
  }

  /** Share of the visible time of a device in which user code ran. */
  busyShare(lane) {
    const from = Math.max(0, this.from), to = Math.min(this.store.end, this.to);
    const sums = new Float32Array(SLOTS);
    if (to <= from) return 0;
    lane.rasterise(from, to, 1, sums);
    const total = sums.reduce((a, b) => a + b, 0);
    return total ? sums[8] / total : 0;
  }

  // ---- search and statistics

  find(text) {
    this.query = text.trim().toLowerCase();
    this.hits = this.query ? this.store.tables.names.map((n) => n.toLowerCase().includes(this.query)) : null;
    this.found.textContent = this.query ? `${this.matches().length.toLocaleString("en")} found` : "";
    this.redraw();
  }

  matchesTrack(track) { return `${track.worker} ${track.rank}`.toLowerCase().includes(this.query); }

  keeper(row, lane) {
    if (!this.query || row.kind === "device") return null;
    if (this.matchesTrack(row.track)) return null;
    const { name, channel, kind } = lane.columns;
    return (i) => this.hits[name[i]] || (channel[i] >= 0 && this.hits[channel[i]]) || KINDS[kind[i]].includes(this.query);
  }

  matches() {
    const found = [];
    for (const track of this.store.tracks) {
      for (const lane of [track.spans, track.labels]) {
        const keep = this.keeper({ kind: "track", track }, lane);
        for (let i = 0; i < lane.count; i++) if (!keep || keep(i)) found.push(lane.columns.start[i]);
      }
    }
    return found.sort((a, b) => a - b);
  }

  next(direction) {
    const found = this.query ? this.matches() : [];
    if (!found.length) return;
    const mid = (this.from + this.to) / 2, half = (this.to - this.from) / 2;
    const at = direction > 0 ? found.find((t) => t > mid + 1) ?? found[0] : found.findLast((t) => t < mid - 1) ?? found[found.length - 1];
    this.setFollow(false);
    this.look(at - half, at + half);
  }

  /** Statistics of the selected range: per worker how much of it was user code, and what it waited for. */
  showStats() {
    if (!this.selection) { this.stats.style.display = "none"; return; }
    const from = Math.min(...this.selection), to = Math.max(...this.selection), length = to - from;
    const perWorker = new Map();
    for (const track of this.store.tracks) {
      if (!track.spans.count) continue;
      const sums = new Float32Array(SLOTS);
      track.spans.rasterise(from, to, 1, sums);
      const [first, last] = track.spans.range(from, to);
      const entry = perWorker.get(track.worker) || { sums: new Float32Array(SLOTS), ranks: 0, spans: 0 };
      sums.forEach((v, k) => { entry.sums[k] += v; });
      entry.ranks++;
      for (let i = first; i < last; i++) if (track.spans.columns.start[i] + track.spans.columns.dur[i] > from) entry.spans++;
      perWorker.set(track.worker, entry);
    }
    const cell = (text, tag = "td") => make(tag, {}, text);
    const percent = (ns, ranks) => `${Math.round((100 * ns) / (length * ranks))} %`;
    const head = make("tr", {}, ...["worker", "run", "get", "put", "lock", "switch", "spans"].map((t) => cell(t, "th")));
    const rows = [...perWorker].map(([worker, e]) => make("tr", {}, cell(worker), cell(percent(e.sums[0], e.ranks)), cell(percent(e.sums[1], e.ranks)),
      cell(percent(e.sums[2], e.ranks)), cell(percent(e.sums[3], e.ranks)), cell(percent(e.sums[4] + e.sums[5], e.ranks)), cell(e.spans.toLocaleString("en"))));
    this.stats.replaceChildren(make("div", {}, `${duration(length)} selected`), make("table", {}, head, ...rows));
    this.stats.style.display = "block";
  }

  // ---- hands

  onWheel(e) {
    e.preventDefault();
    const box = this.canvas.getBoundingClientRect(), x = e.clientX - box.left;
    if (x < GUTTER || e.shiftKey) { this.scroll += e.deltaY || e.deltaX; this.redraw(); return; }
    if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) this.pan((e.deltaX / this.plot) * (this.to - this.from));
    else this.zoom(Math.exp(Math.max(-120, Math.min(120, e.deltaY)) * 0.0025), this.time(x));
  }

  onDown(e) {
    this.canvas.focus({ preventScroll: true });
    this.canvas.setPointerCapture(e.pointerId);
    this.drag = { x: e.offsetX, y: e.offsetY, select: e.shiftKey || e.offsetY < RULER, from: this.from, to: this.to, scroll: this.scroll };
    if (this.drag.select) this.selection = [this.time(e.offsetX), this.time(e.offsetX)];
  }

  onMove(e) {
    if (!this.drag) { this.hover(e.offsetX, e.offsetY); return; }
    this.tip.style.display = "none";
    if (this.drag.select) {
      this.selection[1] = this.time(e.offsetX);
      this.redraw();
      return;
    }
    const dx = e.offsetX - this.drag.x;
    if (Math.abs(dx) > 2) {
      const shift = (-dx / this.plot) * (this.drag.to - this.drag.from);
      if (this.follow) this.setFollow(false);
      this.look(this.drag.from + shift, this.drag.to + shift);
    }
    this.scroll = this.drag.scroll - (e.offsetY - this.drag.y);
    this.redraw();
  }

  onUp(e) {
    const drag = this.drag;
    this.drag = null;
    if (!drag) return;
    if (drag.select && Math.abs(e.offsetX - drag.x) < 3) this.selection = null;
    if (drag.select) { this.showStats(); this.redraw(); }
  }

  onKey(e) {
    const step = (this.to - this.from) * 0.12, mid = (this.from + this.to) / 2;
    const actions = {
      w: () => this.zoom(0.8, mid), s: () => this.zoom(1.25, mid), a: () => this.pan(-step), d: () => this.pan(step),
      ArrowLeft: () => this.pan(-step), ArrowRight: () => this.pan(step), f: () => this.fit(), l: () => this.setFollow(!this.follow),
      ArrowUp: () => { this.scroll -= 24; this.redraw(); }, ArrowDown: () => { this.scroll += 24; this.redraw(); },
      "/": () => this.search.focus(), Escape: () => { this.selection = null; this.showStats(); this.redraw(); },
    };
    const action = e.ctrlKey || e.metaKey || e.altKey ? null : actions[e.key.length === 1 ? e.key.toLowerCase() : e.key];
    if (!action) return;
    e.preventDefault();
    e.stopPropagation();
    action();
  }

  hover(x, y) {
    const row = (this.rows || []).find((r) => y >= r.y && y < r.y + r.h + 2);
    const time = this.time(x), slack = ((this.to - this.from) / this.plot) * 1.5;
    const lines = row && x >= GUTTER ? this.describe(row, time, slack) : null;
    if (!lines) { this.tip.style.display = "none"; return; }
    this.tip.replaceChildren(make("b", {}, lines[0]), ...lines.slice(1).map((line) => make("div", {}, line)));
    this.tip.style.display = "block";
    const left = x + 14 + this.tip.offsetWidth > this.stage.clientWidth ? x - this.tip.offsetWidth - 10 : x + 14;
    const top = Math.max(0, Math.min(y + 12, this.stage.clientHeight - this.tip.offsetHeight));
    this.tip.style.transform = `translate(${Math.max(0, left)}px, ${top}px)`;
  }

  /** Lines of the tooltip at a time on a row; null where nothing is. */
  describe(row, time, slack) {
    if (row.kind === "device") {
      const i = row.lane ? row.lane.at(time, slack) : -1;
      if (i < 0) return null;
      const cause = CAUSES[row.lane.columns.kind[i]];
      const length = duration(row.lane.columns.dur[i]);
      return cause ? [`${row.device}: ${cause}`, CAUSE_TEXT[cause], length] : [`${row.device}: busy`, length];
    }
    const track = row.track, label = track.labels.at(time), i = track.spans.at(time, slack);
    if (i < 0) return null;
    const c = track.spans.columns, kind = KINDS[c.kind[i]], cause = KIND_CAUSE[kind];
    const lines = [`${track.worker} ${track.rank} · ${this.store.name(c.name[i]) || kind}`];
    if (cause) lines.push(`${kind}: ${CAUSE_TEXT[cause]}`);
    if (label >= 0) lines.push(`label ${this.store.name(track.labels.columns.name[label])}, ${duration(track.labels.columns.dur[label])}`);
    lines.push(`${duration(c.dur[i])} from ${duration(c.start[i])}`);
    if (c.channel[i] >= 0) lines.push(`channel ${this.store.name(c.channel[i])}`);
    if (c.items[i] > 0) lines.push(`${c.items[i].toLocaleString("en")} items`);
    if (c.iteration[i] >= 0) lines.push(`iteration ${c.iteration[i] + 1}`);
    return lines;
  }
}

/** Colours of a pixel row: kinds mixed by their share of the pixel; what is nearly nothing stays visible. */
function blend(sums, columns, colours, pixel, pixels, offset) {
  for (let x = 0; x < columns; x++) {
    let r = 0, g = 0, b = 0, alpha = 0, share = 0;
    const base = x * SLOTS;
    for (let k = 0; k < SLOTS; k++) {
      const part = sums[base + k];
      if (part === 0) continue;
      const w = part / pixel, [cr, cg, cb, opacity] = colours[k], a = w * opacity;
      share += w;
      alpha += a;
      r += cr * a; g += cg * a; b += cb * a;
    }
    if (alpha === 0) continue;
    r /= alpha; g /= alpha; b /= alpha;
    if (share > 1) alpha /= share;
    else if (share < 0.35) alpha *= 0.35 / share;
    pixels[offset + x] = (Math.min(255, alpha * 255) << 24) | (b << 16) | (g << 8) | r;
  }
}

function laneTotal(lane, k) {
  const top = lane.levels[lane.levels.length - 1];
  return top ? top.sums[k] : 0;
}

function clip(g, text, width) {
  if (width < 8) return "";
  if (g.measureText(text).width <= width) return text;
  let n = text.length - 1;
  while (n > 1 && g.measureText(`${text.slice(0, n)}…`).width > width) n--;
  return n > 1 ? `${text.slice(0, n)}…` : "";
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  for (const m of [1, 2, 5]) if (power * m >= rough) return power * m;
  return power * 10;
}

function rulerText(t, step) {
  const [unit, name] = step >= 1e9 ? [1e9, "s"] : step >= 1e6 ? [step * 2e3 < t ? 1e9 : 1e6, step * 2e3 < t ? "s" : "ms"] : step >= 1e3 ? [1e6, "ms"] : [1e3, "µs"];
  const decimals = Math.max(0, Math.ceil(-Math.log10(step / unit)));
  return `${(t / unit).toFixed(decimals)} ${name}`;
}
