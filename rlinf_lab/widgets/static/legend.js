// What the colours of a timeline mean. Two lines at most: the causes of bubbles are always there, of many workers as many as fit, and the rest on demand.
import { CAUSES, CAUSE_TEXT, FONT, KINDS, make, shortNames } from "./base.js";
import { CATEGORIES } from "./lane.js";
import { KIND_COLOUR } from "./rows.js";

const LINES = 33, LONGEST = 150; // px: of two lines, and of a worker's name

export class Legend {
  constructor(view) {
    this.view = view;
    this.more = make("button.more", { "aria-expanded": "false", onclick: () => this.setOpen(this.node.dataset.open !== "true") });
    this.node = make("div.legend");
    this.first = []; // what may give way
    this.pen = document.createElement("canvas").getContext("2d");
  }

  setOpen(open) {
    this.node.dataset.open = String(open);
    this.more.setAttribute("aria-expanded", String(open));
    this.fitted = "";
    this.view.redraw();
  }

  /** Only what has changed is made anew: this is asked at every frame. */
  draw() {
    const { view } = this, key = `${view.colours.mode}|${view.colourBy}|${view.stores.map((store) => store.version)}`;
    if (key !== this.key) {
      this.key = key;
      this.list();
    }
    this.fit();
  }

  list() {
    const { colours: c, store, stores, labels, colourBy } = this.view, causes = new Float64Array(CATEGORIES), kinds = new Float64Array(CATEGORIES);
    for (const lane of store.idle.values()) lane.sum(0, Infinity, causes);
    for (const track of store.tracks) track.spans.sum(0, Infinity, kinds);
    const workers = [...new Set(stores.flatMap((s) => s.workers))], least = 0.001 * causes.reduce((a, b) => a + b, 0); // less of it is hardly a pixel; pointing at that names it
    const first = colourBy === "worker" ? workers.map((w) => [this.view.workerColour(w), w, `worker ${w}`])
      : KINDS.filter((kind, k) => kinds[k] > 0 && KIND_COLOUR[kind]).map((kind) => [KIND_COLOUR[kind] === "busy" ? c.busy : c.causes[KIND_COLOUR[kind]], kind, `${kind} spans`]);
    const shown = CAUSES.filter((cause, k) => causes[k] > least).map((cause) => [c.causes[cause], cause, CAUSE_TEXT[cause]]), { dropped, dropped_samples: samples } = store.tables;
    const said = JSON.stringify([c.mode, dropped, samples, labels, first, shown]);
    if (said === this.said) return;
    this.said = said;
    this.fitted = "";
    this.pen.font = `11px ${FONT}`;
    const short = shortNames(first.map(([, name]) => name), (text) => this.pen.measureText(text).width <= LONGEST);
    const item = ([colour, text, title]) => make("span.key", { title }, make("i", { style: `background:${colour}` }), make("span", {}, text));
    this.first = first.map(([colour, name, title]) => item([colour, short.get(name), title]));
    this.node.replaceChildren(
      ...(dropped ? [make("span.dropped", { title: "Neither memory nor disk took them: they are missing here" }, `${dropped.toLocaleString("en")} spans dropped`)] : []),
      ...(samples ? [make("span.dropped", { title: "Nobody fetched them in time: the curves have gaps" }, `${samples.toLocaleString("en")} counter samples dropped`)] : []),
      ...stores.slice(1).map((_, i) => make("span.key", { title: `of two lanes the lower, paler one is ${labels[i + 1]}` }, make("span", {}, `paler: ${labels[i + 1]}`))),
      ...this.first, this.more,
      ...(shown.length ? [make("span.sep"), item([c.busy, "busy", "user code on the device"])] : []),
      ...shown.map(item),
    );
  }

  /** As many of the first ones as there is room for; opened, all of them. */
  fit() {
    const open = this.node.dataset.open === "true", width = this.node.clientWidth, key = `${width}|${open}`;
    if (key === this.fitted) return;
    this.fitted = key;
    const show = (count) => {
      this.first.forEach((node, i) => { node.hidden = i >= count; });
      this.more.hidden = count === this.first.length && !open;
      this.more.textContent = open ? "fewer" : `+${this.first.length - count} more`;
    };
    const all = this.first.length, fits = (count) => { show(count); return this.node.scrollHeight <= LINES; };
    this.more.title = `${open ? "Two lines of them" : "All of them"}`;
    if (!open && fits(all)) return;
    if (open) { show(all); this.more.hidden = false; return; }
    let low = Math.min(1, all), high = all; // `low` of them fit, or it is all that can be done
    while (high - low > 1) { const mid = (low + high) >> 1; if (fits(mid)) low = mid; else high = mid; }
    show(low);
  }
}
