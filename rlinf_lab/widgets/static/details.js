// What a timeline says in words: the tooltip, and the panel on a span, a bubble, a range, or the outliers.
import { CAUSES, CAUSE_TEXT, KINDS, KIND_CAUSE, LABEL, RUN, duration, make } from "./base.js";
import { arrowsOf, explain, waitText } from "./links.js";
import { alike, durationsOf, outliers, rangeStatistics } from "./statistics.js";

const cell = (text, tag = "td") => make(tag, {}, text);
const table = (head, rows, words = "") => make(`table${words}`, {}, make("tr", {}, ...head.map((t) => cell(t, "th"))), ...rows.map((row) => (row instanceof Node ? row : make("tr", {}, ...row.map((t) => cell(t))))));
const percent = (part, whole) => `${Math.round((100 * part) / whole)} %`;

const NARROW = 640; // px: a picture less wide would be covered by what lies over it

export class Details {
  constructor(view) {
    this.view = view;
    this.title = make("b");
    this.body = make("div.detailsbody");
    this.node = make("aside.details", { role: "status" }, make("header", {}, this.title, make("button.close", { title: "Close (Esc)", "aria-label": "Close", onclick: () => this.close() }, "×")), this.body);
  }

  /** Where more room is beside what is told of (`this.at`, ns): it and its arrows stay in sight. */
  show(title, ...children) {
    this.title.textContent = title;
    const focused = this.body.contains(document.activeElement); // on a link that led here
    this.body.replaceChildren(...children);
    if (focused) this.view.canvas.focus({ preventScroll: true });
    this.node.dataset.open = "true";
    this.node.dataset.side = this.at && this.view.x(this.at[0]) - this.view.gutter > this.view.width - this.view.x(this.at[1]) ? "left" : "right";
    this.view.tip.style.display = "none";
  }

  /** Over the lanes where they are wide, else below them. */
  place() {
    const { root, stage } = this.view, below = stage.clientWidth < NARROW, home = below ? root : stage;
    if (this.node.parentNode === home) return;
    this.node.dataset.place = below ? "below" : "over";
    home.append(this.node);
  }

  get open() { return this.node.dataset.open === "true"; }

  /** The keys of what was focused in it go on to the lanes: what is hidden has none. */
  hide() {
    const focused = this.node.contains(document.activeElement);
    this.node.dataset.open = "false";
    if (focused) this.view.canvas.focus({ preventScroll: true });
  }

  close() {
    this.view.picked = this.view.selection = null;
    this.hide();
    this.view.redraw();
    this.view.canvas.focus({ preventScroll: true });
  }

  /** A line that leads to a span. */
  link(text, picked) { return make("button.link", { onclick: () => this.view.pick(picked, true) }, text); }

  // ---- one span or bubble

  /** [title, ...lines] of the tooltip. */
  describe({ layer, track, device, lane, i }) {
    const store = this.view.stores[layer], c = lane.columns, of = layer ? ` (${this.view.labels[layer]})` : "";
    if (device) {
      const cause = CAUSES[c.kind[i]], waiting = store.tracks[c.track[i]], length = duration(c.dur[i]);
      if (!cause) return [`${device}${of}: busy`, length];
      return [`${device}${of}: ${cause}`, CAUSE_TEXT[cause], ...(waiting ? [`${waiting.label} ${waitText(store, c.waitKind[i], c.channel[i])}`] : []), length, "click: who was waited for"];
    }
    const kind = KINDS[c.kind[i]], cause = KIND_CAUSE[kind];
    const lines = [`${track.label}${of} · ${store.name(c.name[i]) || kind}`];
    if (!c.dur[i]) lines.push(`${kind}, took no time`);
    else if (cause) lines.push(`${kind}: ${CAUSE_TEXT[cause]}`);
    if (c.kind[i] === LABEL) lines.push("label");
    lines.push(`${c.dur[i] ? `${duration(c.dur[i])} from` : "at"} ${duration(c.start[i])}`);
    if (c.channel[i] >= 0) lines.push(`channel ${store.name(c.channel[i])}`);
    if (c.items[i] > 0) lines.push(`${c.items[i].toLocaleString("en")} items`);
    if (c.iteration[i] >= 0) lines.push(`iteration ${c.iteration[i]}`);
    const error = store.tables.clock_errors[track.host];
    if (error) lines.push(`by the clock of another node, aligned to ± ${duration(error)}`);
    const jumps = store.tables.clock_jumps[track.host];
    if (jumps) lines.push(`that clock was set or stood still ${jumps === 1 ? "once" : `${jumps} times`}`);
    return lines;
  }

  fillTip(tip, lines) { tip.replaceChildren(make("b", {}, lines[0]), ...lines.slice(1).map((line) => make("div", {}, line))); }

  showPicked() {
    const picked = this.view.picked;
    if (!picked) { this.hide(); return; }
    const c = picked.lane.columns, start = c.start[picked.i] + this.view.shift(picked.layer);
    this.at = [start, start + c.dur[picked.i]];
    if (picked.device) this.showBubble(picked);
    else this.showSpan(picked);
  }

  showSpan(picked) {
    const { layer, track, lane, i } = picked, store = this.view.stores[layer], c = lane.columns;
    const [title, ...lines] = this.describe(picked), parts = lines.map((line) => make("div", {}, line));
    if (track.devices.length) parts.push(make("div", {}, `on ${track.devices.join(", ")}`));
    if (c.kind[i] === RUN || c.kind[i] === LABEL) {
      const all = durationsOf(store, track.worker, c.name[i], c.kind[i]), at = (q) => all[Math.min(all.length - 1, Math.floor(q * all.length))];
      if (all.length > 1) {
        parts.push(make("div.muted", {}, `${all.length.toLocaleString("en")} like it: median ${duration(at(0.5))}, p95 ${duration(at(0.95))}, longest ${duration(all[all.length - 1])}${at(0.5) ? `; this one is ${(c.dur[i] / at(0.5)).toFixed(2)} × the median` : ""}`));
      }
    }
    const pairs = arrowsOf(store, lane, i);
    for (const [put, get] of pairs.slice(0, 4)) {
      const other = c.kind[i] === 1 ? put : get, verb = c.kind[i] === 1 ? "items came from" : "items went to";
      parts.push(make("div", {}, `${verb} ${other.track.label}, ${duration(Math.abs(get.end - put.end))} ${get.end >= put.end ? "from put to get" : ""}`));
    }
    if (pairs.length > 4) parts.push(make("div.muted", {}, `and ${pairs.length - 4} more`));
    this.show(title, ...parts);
  }

  showBubble({ layer, device, lane, i }) {
    const { title, lines, chain } = explain(this.view.stores[layer], device, lane, i), of = alike(lane, i), { dur } = lane.columns;
    const like = of.count > 1 ? [make("div.muted", {}, `${of.count.toLocaleString("en")} like it on ${device}: ${duration(of.total)} in all (${percent(of.total, of.whole)} of its time), median ${duration(of.median)}, longest ${duration(of.longest)}; this one is ${(dur[i] / of.median).toFixed(1)} × the median`)] : [];
    this.show(title, ...lines.map((line) => make("div", {}, line)), ...like, make("ol.chain", {}, ...chain.map(({ track, text }) =>
      make("li", {}, make("i", { style: `background:${this.view.workerColour(track.worker)}` }), text))));
  }

  // ---- a range

  /** Select the time of the chosen span, and around an instant what is seen as one. */
  selectPicked() {
    const p = this.view.picked;
    if (!p) return;
    const c = p.lane.columns, start = c.start[p.i] + this.view.shift(p.layer), around = c.dur[p.i] ? 0 : 3 * ((this.view.to - this.view.from) / this.view.plot);
    this.view.selection = [start - around, start + c.dur[p.i] + around];
    this.showSelection();
    this.view.redraw();
  }

  showSelection() {
    const { selection, store } = this.view;
    if (!selection) { this.hide(); return; }
    const from = Math.min(...selection), to = Math.max(...selection), length = to - from, s = rangeStatistics(store, from, to);
    this.at = [from, to];
    const workers = table(["worker", "run", "get", "put", "lock", "switch", "spans"], s.workers.map((w) => {
      const share = (...kinds) => percent(kinds.reduce((sum, k) => sum + w.sums[k], 0), length * w.ranks);
      return [w.worker, share(0), share(1), share(2), share(3), share(4, 5), w.spans.toLocaleString("en")];
    }));
    const devices = s.devices.slice(0, 8).map((d) => {
      const causes = Object.entries(d.causes).filter(([, ns]) => ns > length * 0.005).sort((a, b) => b[1] - a[1]).slice(0, 3);
      return [d.device, percent(d.busy, length), causes.map(([cause, ns]) => `${cause} ${percent(ns, length)}`).join(", ")];
    });
    const names = s.names.slice(0, 6).map((n) => [`${n.worker} ${store.name(n.name)}`, n.count.toLocaleString("en"), duration(n.total), duration(n.total / n.count), duration(n.most)]);
    this.show(`${duration(length)} selected`, workers, ...(devices.length ? [table(["device", "busy", "bubbles"], devices, ".words")] : []),
      ...(names.length ? [table(["method", "spans", "total", "mean", "longest"], names)] : []));
  }

  // ---- outliers

  showOutliers() {
    this.at = null;
    const found = this.view.stores.flatMap((store, layer) => outliers(store).map((f) => ({ ...f, layer }))).slice(0, 10);
    if (!found.length) { this.show("No outliers", make("div", {}, "No span took more than 1.5 times the median of its method.")); return; }
    this.show("Outliers", make("div.muted", {}, "longest against the median of their method; click to go there"), ...found.map((f) => {
      const store = this.view.stores[f.layer], c = f.lane.columns;
      const text = `${f.track.label} ${store.name(c.name[f.i])}: ${duration(f.dur)}, ${f.ratio.toFixed(1)} ×${c.iteration[f.i] >= 0 ? `, iteration ${c.iteration[f.i]}` : ""}`;
      return this.link(text, { layer: f.layer, track: f.track, lane: f.lane, i: f.i });
    }));
  }
}
