// The parts of the dashboard beside charts and timeline: header, figures, utilisation, bubbles, picture.
import { CAUSES, CAUSE_TEXT, FONT, GONE, clock, figures, make, shortNames } from "./base.js";
import { drawSpark, drawStacks } from "./charts.js";
import { DIVERGED } from "./history.js";

const NAME = 88; // px of a device's name
const SLOTS = 12; // bars that have room, at least, while more are to come
const LIVE = ["starting", "running", "idle", "paused", "stopping"];

export class Header {
  constructor(config, command) {
    this.state = make("span.chip");
    this.bar = make("i");
    this.track = make("div.progress", { role: "progressbar", "aria-valuemin": "0" }, this.bar);
    this.count = make("span.count");
    this.times = make("span.times");
    this.silence = make("span.silence", { role: "status", title: "This is how it was then: the kernel was restarted or is gone, cannot be reached, or computes without a pause" });
    this.pause = make("button.button", { onclick: () => command(this.paused ? "resume" : "pause") }, "Pause");
    this.stop = make("button.button.danger", { onclick: () => command("stop") }, "Stop");
    const plan = config.plan ? [make("span.plan", { title: "execution plan" }, config.plan)] : [];
    this.message = make("p.message", { role: "status" });
    const line = make("div.top", {}, make("h2", { title: config.title }, config.title), ...plan, this.state, this.track, this.count, this.times, this.silence,
      ...(config.buttons === false ? [] : [make("span.buttons", {}, this.pause, this.stop)]));
    this.plan = make("p.plannote", { title: "how the plan came about, in seconds an iteration" });
    this.node = make("header", {}, line, this.plan, this.message);
  }

  /** silence: seconds since the kernel was heard, where that is long; gone: nobody hears the buttons. */
  set(s, silence = 0, gone = false) {
    const state = s.state || "starting", of = s.iterations, done = s.iteration || 0;
    this.paused = state === "paused";
    this.state.textContent = state;
    this.state.dataset.state = state;
    this.message.textContent = s.message || "";
    this.message.title = s.message || "";
    this.plan.textContent = s.plan_note || "";
    const share = of ? Math.min(1, done / of) : 0;
    this.bar.style.width = `${100 * share}%`;
    this.track.style.visibility = of ? "visible" : "hidden";
    this.track.setAttribute("aria-valuemax", of || 0);
    this.track.setAttribute("aria-valuenow", done);
    this.count.textContent = of ? `${done} / ${of}` : `iteration ${done}`;
    const live = LIVE.includes(state), left = live && s.eta_seconds != null && done < (of || Infinity);
    this.times.textContent = s.elapsed_seconds == null ? "" : clock(s.elapsed_seconds) + (left ? `  ·  ${clock(s.eta_seconds)} left` : "");
    this.times.title = left ? "elapsed, and the estimate for the rest" : "elapsed";
    this.silence.textContent = gone ? GONE : silence ? `nothing heard for ${clock(silence)}` : "";
    this.pause.textContent = this.paused ? "Resume" : "Pause";
    this.pause.disabled = gone || !["running", "paused"].includes(state);
    this.stop.disabled = gone || !live || state === "stopping";
  }
}

export class Figures {
  constructor() { this.node = make("div.kpis"); this.tiles = new Map(); }

  /** tiles: [[label, value, note], ...] */
  set(tiles) {
    const labels = tiles.map(([label]) => label).join("\n");
    if (labels !== this.labels) { this.labels = labels; this.tiles.clear(); this.node.replaceChildren(); }
    for (const [label, value, note] of tiles) {
      let tile = this.tiles.get(label);
      if (!tile) {
        tile = { value: make("b"), note: make("small") };
        this.tiles.set(label, tile);
        this.node.append(make("div.kpi", { title: label }, make("span", {}, label), make("div", {}, tile.value, tile.note)));
      }
      tile.value.textContent = value;
      tile.value.dataset.odd = String(DIVERGED.has(value));
      tile.note.textContent = note || "";
    }
  }
}

export class Utilisation {
  constructor() {
    this.rows = new Map();
    this.list = make("div.util", {}, make("span.empty", {}, "nothing sampled yet"));
    this.node = make("section.panel", {}, make("header", {}, make("h3", { title: "how busy each core or GPU of the machine is, whoever uses it; device time below is what this run did" }, "Machine load")), this.list, (this.note = make("div.loadnote", { role: "note" })));
  }

  /** samples: [[seconds, {device: share}], ...]; note: why some device has no curve. */
  draw(samples, colours, note = "") {
    if (this.note.textContent !== note) { this.note.textContent = note; this.note.title = note; }
    const latest = samples.length ? samples[samples.length - 1][1] : {};
    for (const device of Object.keys(latest)) {
      let row = this.rows.get(device);
      if (!row) {
        row = { canvas: make("canvas"), value: make("span.value"), name: make("span", { title: device }) };
        row.stage = make("div.spark", {}, row.canvas);
        if (!this.rows.size) this.list.replaceChildren();
        this.rows.set(device, row);
        this.list.append(make("div.utilrow", {}, row.name, row.stage, row.value));
      }
      if (this.named !== this.rows.size) this.nameAll();
      row.value.textContent = `${Math.round(100 * latest[device])} %`;
      const values = samples.filter((s) => device in s[1]).map((s) => [s[0], s[1][device]]);
      if (row.stage.clientWidth) drawSpark(row.canvas, values, row.stage.clientWidth, row.stage.clientHeight, colours.accent, colours.line);
    }
  }

  /** Names as long as there is room beside the curves: those of different nodes stay different. */
  nameAll() {
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = `11px ${FONT}`;
    for (const [device, text] of shortNames([...this.rows.keys()], (name) => pen.measureText(name).width <= NAME)) this.rows.get(device).name.textContent = text;
    this.named = this.rows.size;
  }
}

export class Bubbles {
  constructor() {
    this.canvas = make("canvas", { role: "img", "aria-label": "Bubbles by cause, one bar per iteration" });
    this.stage = make("div.stackstage", {}, this.canvas, (this.empty = make("span.empty")));
    this.list = make("div.causes");
    this.total = make("span.value");
    this.node = make("section.panel.bubbles", {}, make("header", {}, make("h3", {}, "Device time"), this.total), this.stage, this.list);
  }

  /** sums: seconds by cause, and busy, of each iteration; `over`: no other one comes. */
  draw(sums, colours, over = false) {
    const colourOf = (key) => (key === "busy" ? colours.busy : colours.causes[key]), width = this.stage.clientWidth;
    if (width) drawStacks(this.canvas, sums.merged(Math.floor(width / 3)), sums.keys, colourOf, width, this.stage.clientHeight, over ? 1 : SLOTS);
    this.stage.dataset.empty = String(!sums.length);
    this.empty.textContent = over ? "no iteration came to its end" : "no iteration accounted for yet";
    const total = sums.keys.reduce((s, key) => s + sums.of(key), 0);
    this.total.textContent = total ? `${Math.round((100 * sums.of("busy")) / total)} % busy` : "–";
    const shown = CAUSES.filter((cause) => sums.of(cause) > total * 0.001).sort((a, b) => sums.of(b) - sums.of(a)).slice(0, 5);
    this.list.replaceChildren(...shown.map((cause) => make("div.cause", { title: CAUSE_TEXT[cause] },
      make("i", { style: `background:${colourOf(cause)}` }), make("span", {}, cause), make("b", {}, `${((100 * sums.of(cause)) / total).toFixed(1)} %`))));
  }
}

export class Picture {
  constructor() {
    this.image = make("img", { alt: "the environments" });
    this.empty = make("span.empty", {}, "no picture yet");
    this.node = make("section.panel.picture", {}, make("header", {}, make("h3", {}, "Environments")), make("div.frame", {}, this.image, this.empty));
    this.image.style.display = "none";
  }

  set(view) {
    const url = URL.createObjectURL(new Blob([view]));
    this.image.onload = () => { if (this.url && this.url !== url) URL.revokeObjectURL(this.url); this.url = url; };
    this.image.src = url;
    this.image.style.display = "";
    this.empty.style.display = "none";
  }
}

/** Tiles from what is known: the charted metrics, pace, and how busy the devices were. */
export function headline(keys, rows, bubbles) {
  const recent = rows.all.slice(-5);
  const mean = (name) => { const v = recent.map((m) => m[name]).filter(Number.isFinite); return v.length ? v.reduce((a, b) => a + b, 0) / v.length : NaN; };
  const tiles = keys.map((key) => {
    const points = rows.points(key), value = rows.latest(key); // not every iteration measures everything
    if (DIVERGED.has(value)) return [label(key), value, points.length ? `was ${figures(points[points.length - 1][1])}` : ""];
    return [label(key), value === undefined ? "–" : share(key, value) ? `${(100 * value).toFixed(0)} %` : figures(value), change(key, points)];
  });
  tiles.push(["Iteration", Number.isFinite(mean("seconds")) ? `${figures(mean("seconds"))} s` : "–", recent.length ? `mean of last ${recent.length}` : ""]);
  const pace = Object.keys(rows.last || {}).find((k) => /(^|[._])steps_per_second$/.test(k));
  if (pace) tiles.push(["Env steps", figures(mean(pace)), "per second"]);
  // The number of the panel "Device time", of all iterations: one of the last iteration alone would be another one, and of none that trained perhaps.
  const total = bubbles.keys.reduce((sum, key) => sum + bubbles.of(key), 0);
  if (total) tiles.push(["Devices busy", `${Math.round((100 * bubbles.of("busy")) / total)} %`, "of device time"]);
  return tiles;
}

export function share(key, value) { return /(rate|fraction|share)$/.test(key) && (value === undefined || (value >= 0 && value <= 1)); }

/** "learner.value_loss" reads "Value loss · learner". */
export function label(key) {
  const parts = key.split("."), text = parts.pop().replaceAll("_", " "), of = parts.join(".");
  return text.charAt(0).toUpperCase() + text.slice(1) + (of ? ` · ${of}` : "");
}

function change(key, points) {
  const last = points[points.length - 1]?.[1], before = points[points.length - 6]?.[1];
  if (last === undefined || before === undefined) return "";
  const by = last - before, sign = by < 0 ? "−" : "+";
  return share(key, last) ? `${sign}${Math.abs(100 * by).toFixed(0)} pts vs 5 ago` : `${sign}${figures(Math.abs(by))} vs 5 ago`;
}
