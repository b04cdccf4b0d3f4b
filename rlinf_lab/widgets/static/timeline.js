// The timeline: one canvas, lanes by device or by worker, everything done in the browser while the kernel may be busy.
import { FONT, applyTheme, colourNumbers, fitCanvas, make, painter, shortNames, themeMode, watchTheme } from "./base.js";
import { paintCounters } from "./counters.js";
import { RULER, listRows, placeRows, wholeRows } from "./rows.js";
import { ROOM, busyShare, paintArrows, paintGutter, paintMarks, paintNames, paintPicked, paintRuler, paintScrollbar, paintSelection, paintStrips, paintUnderWay, titleFont } from "./paint.js";
import { Details } from "./details.js";
import { Legend } from "./legend.js";
import { Store } from "./store.js";
import { listen } from "./hands.js";

const TAIL = 7; // letters that are kept at the end of a name that is cut
const KNOWN = 0.7; // of the time that is under way is shown of the time before, at least
const LEAST_NS = 200; // that one can look at
const TAIL_NS = 6e9; // the least that is followed of a longer run

export class TimelineView {
  /**
   * `root`: an element of its own. `stores`: the spans of one timeline, or of two to lay over each other (`options.labels` names them).
   * options: {follow: whether the newest stay in sight (else everything is, until one zooms), counters: whether they are shown at first, tail: how many of the last iterations to follow, most: px that the root may grow to, instead of a height that is given}.
   */
  constructor(root, stores, options = {}) {
    this.root = root;
    this.stores = Array.isArray(stores) ? stores : [stores];
    this.store = this.stores[0];
    this.labels = options.labels || ["", ""];
    this.follow = options.follow !== false;
    this.tail = options.tail || 0; // 0: all of them
    this.most = options.most || 0;
    this.from = 0;
    this.to = 1e9;
    this.span = null; // width of the view while it follows the tail; null: everything
    this.whole = !this.follow; // everything is in sight, also what comes
    this.over = false; // nothing will come: there is no tail to follow
    this.shifts = [];
    this.scroll = 0;
    this.by = "device";
    this.colourBy = "worker";
    this.align = "iteration";
    this.arrows = false;
    this.counters = options.counters !== false;
    this.ask = options.ask || null; // asks the kernel what a bar shows: {worker, rank, start}; `details.tellSample` takes the answer
    this.selection = null;
    this.picked = null; // {layer, track or device, lane, i}
    this.hovered = null;
    this.widths = new Map();
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
    this.forget();
    this.observer.disconnect();
    this.redraw.stop();
  }

  build() {
    this.root.classList.add("rl-timeline");
    this.canvas = make("canvas", { tabindex: "0", role: "img", "aria-label": "Timeline of the devices and workers" });
    this.tip = make("div.tip");
    this.details = new Details(this);
    this.note = make("div.note", { role: "status" });
    this.stage = make("div.stage", {}, this.canvas, this.note, this.tip);
    this.redraw = painter(this.stage, () => this.draw());
    this.legend = new Legend(this);
    this.search = make("input.search", { type: "search", placeholder: "Search spans", "aria-label": "Search spans" });
    this.found = make("span.found");
    const button = (text, title, onclick) => make("button.tool", { title, onclick }, text);
    this.buttons = {
      outliers: button("Outliers", "The spans that took strangely long (O)", () => this.details.showOutliers()),
      arrows: button("Arrows", "Who handed items to whom, where few enough are in sight (R)", () => this.setArrows(!this.arrows)),
      counters: button("Counters", "Load, memory, depths of channels, metrics below the lanes (K)", () => this.setCounters(!this.counters)),
      by: button("By device", "Lanes by device or by worker (G)", () => this.setBy(this.by === "device" ? "worker" : "device")),
      colour: button("By worker", "Colours by worker or by kind of time (C)", () => this.setColour(this.colourBy === "worker" ? "kind" : "worker")),
      align: button("Align", "Lay the two over each other so that both begin together: the iteration in the middle of what is in sight, or the whole", () => this.setAlign(this.align === "iteration" ? "start" : "iteration")),
      fit: button("Fit", "Show everything (double-click or F)", () => this.fit()),
      follow: button("Follow", "Keep the newest spans in sight (L)", () => this.setFollow(!this.follow)),
    };
    if (this.stores.length < 2) this.buttons.align.style.display = "none";
    this.bar = make("div.toolbar", {}, this.legend.node, make("div.tools", {}, this.found, this.search, ...Object.values(this.buttons)));
    this.root.append(this.bar, this.stage);
    this.setFollow(this.follow);
    this.setBy(this.by);
    this.setColour(this.colourBy);
    this.setAlign(this.align);
    this.setArrows(this.arrows);
    this.setCounters(this.counters);
    listen(this);
  }

  // ---- what is shown

  setTheme(mode) {
    this.colours = applyTheme(this.root, mode);
    this.redraw();
  }

  press(name, on, text) {
    this.buttons[name].setAttribute("aria-pressed", String(on));
    if (text) this.buttons[name].textContent = text;
    this.redraw();
  }

  /** From where one has zoomed to it goes on with that width. */
  setFollow(on) {
    if (on && !this.follow && !this.whole) this.span = this.to - this.from;
    this.follow = on;
    this.press("follow", on);
  }

  setArrows(on) { this.arrows = on; this.press("arrows", on); }
  setCounters(on) { this.counters = on; this.rowsKey = ""; this.press("counters", on); }
  setBy(by) { this.by = by; this.rowsKey = ""; this.press("by", by !== "device", `Lanes: ${by}`); }
  setAlign(align) { this.align = align; this.measureShifts((this.from + this.to) / 2); this.redraw(); }

  /** By what the two lie over each other, on the button: by which iteration depends on what is in sight. */
  tellAlign() {
    const text = this.align !== "iteration" ? "Align: start" : this.aligned === null ? "Align: start (no iteration of both)" : `Align: iteration ${this.aligned}`;
    if (this.buttons.align.textContent !== text) this.buttons.align.textContent = text;
  }

  setColour(by) {
    this.colourBy = by;
    this.press("colour", by !== "worker", `Colour: ${by}`);
  }

  /** New data came. What is gone stays in the panel, in words. */
  refresh() {
    if (this.picked) this.picked = this.stores[this.picked.layer].found(this.picked);
    this.redraw();
  }

  fit() {
    this.span = null;
    this.tail = 0;
    this.whole = true;
    this.showWhole();
    this.selection = null;
    this.details.hide();
    this.redraw();
  }

  /** From where to where there is something, ns: what lies over the first timeline may begin before it. */
  get begin() { return Math.min(0, ...this.stores.map((_, layer) => this.shift(layer))); }
  get end() { return Math.max(...this.stores.map((store, layer) => Math.max(store.end, this.over ? 0 : store.now) + this.shift(layer))); }

  /** Everything, aligned in the middle of the first timeline: how two are aligned decides where the middle of both is. */
  showWhole() {
    this.measureShifts(this.store.end / 2);
    this.from = this.begin;
    this.to = Math.max(this.end, LEAST_NS);
  }

  /** Look at [from, to) ns, or at what is nearest to that and not beside everything. */
  look(from, to) {
    const least = LEAST_NS, most = Math.max(this.end - this.begin, least) * 1.5;
    const width = Math.min(most, Math.max(least, to - from)), mid = Math.min(Math.max(this.end, 1), Math.max(this.begin, (from + to) / 2));
    this.whole = false;
    this.from = mid - width / 2;
    this.to = mid + width / 2;
    this.redraw();
  }

  /** Around the time that is pointed at; without one around the middle. The tail that is followed stays in sight, unless one points elsewhere. */
  zoom(factor, at = null) {
    const tail = at === null || at > this.to - (this.to - this.from) / 10;
    if (this.follow && (this.over || !tail)) this.setFollow(false);
    const { follow } = this;
    at = follow ? this.to : at ?? (this.from + this.to) / 2;
    this.look(at - (at - this.from) * factor, at + (this.to - at) * factor);
    if (follow) this.span = this.to - this.from;
  }

  pan(ns) {
    if (this.follow) this.setFollow(false);
    this.look(this.from + ns, this.to + ns);
  }

  /** Choose a span or a bubble: {layer, track or device, lane, i}; `go`: bring it into sight. */
  pick(picked, go = false) {
    this.picked = picked && Store.marked(picked);
    if (picked && go) {
      const c = picked.lane.columns, shift = this.shift(picked.layer), start = c.start[picked.i] + shift, width = Math.max(c.dur[picked.i] * 6, 1000);
      this.setFollow(false);
      this.look(start + c.dur[picked.i] / 2 - width / 2, start + c.dur[picked.i] / 2 + width / 2);
      const row = (this.rows || []).find((r) => r.layer === picked.layer && r.track === picked.track && (picked.track || r.device === picked.device));
      if (row && (row.y < RULER || row.y + row.h > this.height)) this.scroll += row.y - this.height / 2;
    }
    this.details.showPicked();
    this.redraw();
  }

  find(text) {
    let hits = 0;
    for (const store of this.stores) hits += store.search(text);
    this.found.textContent = this.store.query ? `${hits.toLocaleString("en")} found` : "";
    this.redraw();
  }

  next(direction) {
    if (!this.store.query) return;
    const from = this.picked && this.picked.layer === 0 && this.picked.track ? this.picked : null, at = from ? from.lane.columns.start[from.i] : (this.from + this.to) / 2;
    const hit = this.store.nextHit(at, direction, from) || this.store.nextHit(direction > 0 ? -1 : Infinity, direction);
    if (!hit) return;
    const [track, lane, i] = hit, half = (this.to - this.from) / 2, mid = lane.columns.start[i] + lane.columns.dur[i] / 2;
    this.setFollow(false);
    this.look(mid - half, mid + half);
    this.pick({ layer: 0, track, lane, i });
  }

  // ---- geometry

  x(time) { return this.gutter + ((time - this.from) / (this.to - this.from)) * this.plot; }
  time(x) { return this.from + ((x - this.gutter) / this.plot) * (this.to - this.from); }

  /** What is added to the times of a layer so that it lies over the first one. */
  shift(layer) { return (layer && this.shifts[layer]) || 0; }

  measureShifts(time) {
    this.aligned = null;
    this.shifts = this.stores.map((store, layer) => {
      if (!layer || this.align !== "iteration") return 0;
      const mine = this.store.marks.findLast((m) => m.start <= time) || this.store.marks[0];
      const other = mine && store.marks.find((m) => m.iteration === mine.iteration);
      if (!other) return 0;
      this.aligned = mine.iteration;
      return mine.start - other.start;
    });
    this.tellAlign();
  }

  rowOf(track) { return (this.rows || []).find((r) => r.track === track); }
  rowAt(y) { return y < RULER || y >= this.bottom ? null : (this.rows || []).find((r) => y >= r.y && y < r.y + r.h + 1.5); }

  workerColour(worker) {
    const count = this.stores.reduce((sum, store) => sum + store.workers.length, 0);
    if (this.numbers?.count !== count) this.numbers = { count, of: colourNumbers(this.stores.flatMap((store) => store.workers)) };
    const i = this.numbers.of.get(worker);
    return i === undefined ? this.colours.muted : this.colours.workers[i];
  }

  /** What the picture leaves out, over the picture; "": nothing. */
  setNote(text) { if (this.note.textContent !== text) this.note.textContent = text; }

  busyShare(row) { return busyShare(this, row); }

  /** A text of the gutter, cut to its width once; a long one keeps its end, which says the rank or the device of a node. */
  cut(g, text, width) {
    const key = `${text}|${Math.round(width)}`;
    let cut = this.widths.get(key);
    if (cut === undefined) {
      const tail = text.length > TAIL + 2 ? text.slice(-TAIL) : "";
      cut = text;
      for (let n = text.length - tail.length; n > 2 && g.measureText(cut).width > width;) cut = `${text.slice(0, --n)}…${tail}`;
      this.widths.set(key, cut);
    }
    return cut;
  }

  // ---- drawing

  layout(g) {
    const key = `${this.by}|${this.height}|${this.stores.map((s) => `${s.version}`)}`;
    if (key !== this.rowsKey) {
      this.rowsKey = key;
      this.rows = listRows(this.stores, this.by, this.counters);
      if (this.most) this.grow();
      this.content = placeRows(this.rows, this.height);
      for (const row of this.rows) row.top = row.y;
      const need = (row) => {
        g.font = titleFont(row);
        return g.measureText(row.title || "").width + ROOM[row.kind];
      };
      const widest = Math.max(...this.rows.slice(0, 500).map(need));
      this.labelWidth = this.stores.length > 1 ? Math.min(80, 4 + Math.max(...this.labels.map((label) => g.measureText(label).width))) : 0;
      this.gutter = Math.ceil(Math.min(220, Math.max(106, widest)) + this.labelWidth);
      this.nameRows(g);
      this.root.style.setProperty("--rl-left", `${this.gutter + 8}px`); // what lies over the lanes leaves their labels free
      if (this.widths.size > 20000) this.widths.clear();
    }
    this.scroll = Math.max(0, Math.min(this.scroll, this.content - this.height));
    const [from, bottom] = wholeRows(this.rows, this.scroll, this.height, this.content);
    this.bottom = bottom;
    for (const row of this.rows) row.y = row.top - from;
  }

  /** The titles of devices, workers and lanes for this gutter: those that differ stay different. */
  nameRows(g) {
    const shown = this.rows.filter((row) => row.kind !== "counter" && !row.layer), key = `${this.gutter}|${this.labelWidth}|${shown.map((row) => row.kind + row.title)}`;
    if (key === this.namesKey) return;
    this.namesKey = key;
    this.names = new Map();
    for (const kind of ["device", "worker", "track"]) {
      const room = this.gutter - ROOM[kind] - (kind === "track" && this.labelWidth ? this.labelWidth + 8 : 0);
      g.font = titleFont({ kind });
      this.names.set(kind, shortNames(shown.filter((row) => row.kind === kind).map((row) => row.title), (text) => g.measureText(text).width <= room));
    }
  }

  /** As high as the lanes need, up to `most`; from the moment the user drags the corner the height is theirs. */
  grow() {
    const height = `${Math.round(Math.min(this.most, this.root.offsetHeight - this.height + Math.max(220, placeRows(this.rows, Infinity) + 4)))}px`;
    if (this.given && this.root.style.height !== this.given) this.most = 0;
    else this.root.style.height = this.given = height;
    this.height = this.stage.clientHeight;
  }

  draw() {
    const began = performance.now();
    this.details.place();
    this.width = this.stage.clientWidth;
    this.height = this.stage.clientHeight;
    const g = fitCanvas(this.canvas, this.width, this.height), c = this.colours;
    this.layout(g);
    this.plot = this.width - this.gutter - (this.content > this.height ? 9 : 1);
    if (this.follow && (this.span !== null || this.tail)) {
      const end = Math.max(this.end, 1);
      this.from = this.span === null ? this.tailStart() : end - this.span;
      this.to = end;
      this.measureShifts((this.from + this.to) / 2);
    } else if (this.follow || this.whole) this.showWhole();
    else this.measureShifts((this.from + this.to) / 2);
    g.fillStyle = c.bg;
    g.fillRect(0, 0, this.width, this.height);
    const columns = Math.max(1, Math.round(this.plot * (window.devicePixelRatio || 1)));
    paintStrips(this, g, columns);
    g.save();
    g.beginPath(); g.rect(0, RULER, this.width, this.bottom - RULER); g.clip();
    paintUnderWay(this, g);
    paintMarks(this, g);
    paintNames(this, g);
    paintCounters(this, g, columns);
    paintArrows(this, g);
    const picked = paintPicked(this, g);
    paintGutter(this, g);
    g.restore();
    paintRuler(this, g);
    paintSelection(this, g);
    this.details.keepClearOf(picked);
    paintScrollbar(this, g);
    if (!this.store.count) {
      g.fillStyle = c.muted; g.font = `12px ${FONT}`; g.textAlign = "center"; g.textBaseline = "middle";
      g.fillText("No spans yet", this.gutter + this.plot / 2, this.height / 2);
    }
    this.legend.draw();
    this.drawMs = performance.now() - began;
    this.frames = (this.frames || 0) + 1;
    Object.assign(this.root.dataset, { frames: this.frames, spans: this.store.count, range: `${this.from},${this.to}`, bottom: this.bottom, plot: `${this.gutter},${this.plot}`, arrows: this.arrowCount, chosen: this.chosenCount, counters: this.rows.filter((r) => r.kind === "counter").length }); // lets a test see what is shown
  }

  tailStart() {
    const marks = this.store.marks;
    if (!this.tail || marks.length <= this.tail) return 0;
    const { end } = this.store, since = end - KNOWN * (this.end - end); // beside a long call that has not ended there stays something to see
    return Math.max(0, Math.min(marks[marks.length - this.tail].start, this.end - TAIL_NS, since)); // device time is told a little late
  }
}
