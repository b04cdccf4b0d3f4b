// What a timeline says in words: the tooltip, and the panel on a span, a bubble, a range, or the outliers.
import { CAUSES, CAUSE_TEXT, KINDS, KIND_CAUSE, LABEL, RUN, duration, make } from "./base.js";
import { Breath, likeIt, outliers, pieceName } from "./calls.js";
import { arrowsOf, explain, waitText } from "./links.js";
import { RULER } from "./rows.js";
import { alike, rangeStatistics } from "./statistics.js";
import { Store } from "./store.js";

const cell = (text, tag = "td") => make(tag, {}, text);
const table = (head, rows, words = "") => make(`table${words}`, {}, make("tr", {}, ...head.map((t) => cell(t, "th"))), ...rows.map((row) => (row instanceof Node ? row : make("tr", {}, ...row.map((t) => cell(t))))));
const percent = (part, whole) => `${Math.round((100 * part) / whole)} %`;

const NARROWEST = 260; // px: a line of some words
const LOWEST = 72; // px: a title and three lines, of which more can be scrolled to
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
    this.node.dataset.edge = "bottom";
    for (const room of ["--rl-room", "--rl-wide"]) this.node.style.removeProperty(room);
    this.isNew = true;
    this.asked = null;
    this.view.tip.style.display = "none";
  }

  /**
   * Where a new one would lie over what it tells of, [left, top, right, bottom] px, it goes over or under that if it has room there, else beside it; where
   * there is little room on all sides, over or under it and no higher than that.
   */
  keepClearOf(told) {
    if (!this.isNew || !this.open) return;
    this.isNew = false;
    const { offsetLeft: left, offsetWidth: wide, offsetTop: top, offsetHeight: high, style, dataset } = this.node, end = top + high;
    if (!told || dataset.place === "below" || told[0] > left + wide || told[2] < left || told[3] < top || told[1] > end) return;
    const over = told[1] - RULER - 8, under = end - told[3] - 4, before = told[0] - this.view.gutter - 8, after = this.view.width - told[2] - 18;
    if (Math.max(over, under) < high && Math.max(before, after) >= NARROWEST) {
      dataset.side = before > after ? "left" : "right";
      style.setProperty("--rl-wide", `${Math.max(before, after)}px`);
      return;
    }
    dataset.edge = over > under ? "top" : "bottom";
    style.setProperty("--rl-room", `${Math.max(LOWEST, over, under)}px`);
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
    this.asked = null;
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
      for (const like of likeIt(store, track, lane, i)) parts.push(make("div.muted", {}, likeText(like)));
    }
    const pairs = arrowsOf(store, lane, i);
    for (const [put, get] of pairs.slice(0, 4)) {
      const other = c.kind[i] === 1 ? put : get, verb = c.kind[i] === 1 ? "items came from" : "items went to";
      parts.push(make("div", {}, `${verb} ${other.track.label}, ${duration(Math.abs(get.end - put.end))} ${get.end >= put.end ? "from put to get" : ""}`));
    }
    if (c.kind[i] === LABEL && this.view.ask) this.askSample(parts, track, c.start[i]);
    if (pairs.length > 4) parts.push(make("div.muted", {}, `and ${pairs.length - 4} more`));
    this.show(title, ...parts);
  }

  /** What a bar of a sample shows (a completion's text, reward, versions) only the kernel knows: it comes a little later, and for other labels not at all. */
  askSample(parts, { worker, rank }, start) {
    parts.push((this.sampleNode = make("div")));
    this.bar = { worker, rank, start };
    this.view.ask(this.bar);
  }

  /** The kernel's answer, `fields`: [[name, text], ...]; it may be to somebody else. */
  tellSample(said) {
    if (!said || said === this.said || !this.bar || ["worker", "rank", "start"].some((key) => said[key] !== this.bar[key])) return;
    this.said = said;
    if (said.fields.length) this.sampleNode.replaceChildren(table(["", ""], said.fields, ".words"));
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

  /** Of millions of spans it tells how far it is, and ends when it is closed or something else is shown. */
  async showOutliers() {
    const { stores } = this.view, found = [], asked = (this.asked = {});
    let layer = 0;
    const breath = new Breath((part) => {
      if (this.asked !== asked) return false;
      this.at = null;
      this.show("Outliers", make("div.muted", {}, `${percent(layer + part, stores.length)} of the spans looked at`));
      this.asked = asked;
      return true;
    });
    for (; layer < stores.length; layer++) {
      const some = await outliers(stores[layer], 8, breath);
      if (!some) return this.asked === asked ? this.showOutliers() : undefined; // all spans have come anew
      found.push(...some.map((f) => ({ ...f, layer })));
    }
    found.sort((a, b) => b.lost - a.lost).splice(10);
    this.at = null;
    if (!found.length) { this.show("No outliers", make("div", {}, "Nothing took half as long again as is usual for what is like it.")); return; }
    const what = "By time lost against the median of what is alike: of one worker and method, from a get of as many items to the next get, or a whole call. Click to go there.";
    this.show("Outliers", make("div.muted", {}, what), ...found.flatMap((f) => {
      const store = this.view.stores[f.layer], { iteration } = f.lane.columns;
      const said = [iteration[f.i] >= 0 ? `iteration ${iteration[f.i]}` : "", f.items > 0 ? itemsText(f.items) : "", f.layer ? this.view.labels[f.layer] : ""];
      const times = f.median ? ` (${timesText(f.ns / f.median)} × the median of ${f.count.toLocaleString("en")})` : "";
      const text = [`${pieceName(store, f)}: ${duration(f.ns)}, ${duration(f.lost)} lost${times}`, ...said.filter(Boolean)].join(", ");
      const marked = Store.marked(f), line = make("button.link", { onclick: () => this.goTo(marked) }, text);
      return f.more ? [line, make("div.muted", {}, `and ${f.more.toLocaleString("en")} more like it: ${duration(f.moreLost)} lost`)] : [line];
    }));
  }

  /** To a piece: all of it in sight, its longest span chosen. */
  goTo(marked) {
    const { layer, start, end } = marked, shift = this.view.shift(layer), half = Math.max(3 * (end - start), 500), mid = (start + end) / 2 + shift;
    const { track, lane, i } = this.view.stores[layer].found(marked) || marked;
    this.view.pick({ layer, track, lane, i }, true);
    this.view.look(mid - half, mid + half);
  }
}

const timesText = (ratio) => (ratio < 10 ? ratio.toFixed(2) : ratio < 100 ? ratio.toFixed(1) : Math.round(ratio).toLocaleString("en"));

const itemsText = (n) => `${n.toLocaleString("en")} ${n === 1 ? "item" : "items"}`;

/** How a piece compares with what is alike. */
function likeText({ sorted, count, ns, parts, how, channel, items }) {
  const at = (q) => sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))];
  const since = how === "whole" && parts > 1 ? "a whole call" : how !== "get" ? "" : items === 0 ? "after the last item" : `from a get${items > 0 ? ` of ${itemsText(items)}` : ""} to the next`;
  const piece = [parts > 1 ? `in ${parts.toLocaleString("en")} stretches` : "", since].filter(Boolean).join(", ");
  const like = `${count.toLocaleString("en")} like it: median ${duration(at(0.5))}, p95 ${duration(at(0.95))}, longest ${duration(sorted[sorted.length - 1])}`;
  return `${piece ? `${duration(ns)} ${piece}; ` : ""}${like}${at(0.5) ? `; this one is ${timesText(ns / at(0.5))} × the median` : ""}`;
}
