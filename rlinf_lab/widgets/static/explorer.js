// anywidget entry: the what-if explorer. Sliders ask the kernel, at most one question at a time; when they rest, the answer is simulated.
import { GONE, applyTheme, colourNumbers, connect, figures, keepKeys, make, painter, tellKernel, themeMode, watchTheme } from "./base.js";
import { GanttCard, hasSwitching } from "./gantt.js";

const MODES = ["temporal", "spatial", "hybrid", "alone"];
const REST = 150; // ms that a quick answer stands until it is simulated

/** What the kernel has told so far. */
class Told {
  constructor() { this.reset(); }

  reset() { this.answer = null; this.error = ""; this.answered = 0; this.bars = []; this.positions = {}; }

  apply(message, parts) {
    if (message.answered !== undefined) this.answered = message.answered;
    if (message.positions) this.positions = message.positions;
    if (message.error !== undefined) this.error = message.error;
    if (message.answer) {
      this.answer = message.answer;
      this.bars = this.answer.charts.map((_, i) => floats(parts[`bars${i}`]));
    }
  }
}

function floats(part) {
  if (!part) return new Float32Array();
  const bytes = part instanceof DataView ? new Uint8Array(part.buffer, part.byteOffset, part.byteLength) : new Uint8Array(part);
  return new Float32Array(bytes.slice().buffer);
}

/**
 * Asks for the newest positions. A quick answer is waited for before the next question, so that a drag shows something; a simulation
 * is not: the kernel gives it up for a newer question. It is asked for when the quick answer has been there for a while.
 */
class Asker {
  constructor(model, told, positions, changed) { Object.assign(this, { model, told, positions, changed, id: 0, waiting: 0, simulates: false, due: false, timer: 0 }); }

  ask() {
    clearTimeout(this.timer);
    this.due = true;
    if (!this.waiting || this.simulates) this.send(false);
    else this.changed();
  }

  send(simulate) {
    this.id = Math.max(this.id, this.told.answered) + 1;
    this.waiting = this.id;
    this.asked = performance.now();
    this.due = false;
    this.simulates = simulate;
    if (!tellKernel(this.model, { type: "ask", id: this.id, positions: this.positions(), simulate })) { this.waiting = 0; this.told.error = GONE; }
    this.changed();
  }

  heard() {
    if (!this.waiting || this.told.answered < this.waiting) return;
    this.took = performance.now() - this.asked;
    this.waiting = 0;
    if (this.due) this.send(false);
    else if (!this.simulates) this.timer = setTimeout(() => this.send(true), REST);
  }

  /** "older": what is shown answers a question before the newest; "rough": it is being simulated; "" when nothing is open. */
  get open() { return this.due || (this.waiting && !this.simulates) ? "older" : this.waiting ? "rough" : ""; }
}

class ExplorerView {
  constructor(model, told, el) {
    Object.assign(this, { model, told, cards: new Map(), inputs: new Map(), picked: "", selected: "" });
    this.sliders = model.get("sliders");
    this.asker = new Asker(model, told, () => this.positions(), () => (told.error === GONE ? this.refresh() : this.mark()));
    this.head = make("b.headline");
    this.chip = make("span.chip");
    this.note = make("span.muted");
    this.pinned = model.get("pinned"); // {seconds, shape} of the plan that others are compared with: the first one, or the one shown when Pin was pressed
    this.pin = make("button.button", { onclick: () => { this.pinned = bestOf(told.answer); this.refresh(); }, title: "compare what comes with the plan that is the best now" }, "Pin");
    this.reset = make("button.button", { onclick: () => this.back(), title: "every slider to where it was" }, "Reset");
    this.problem = make("p.message", { role: "alert" });
    this.rows = make("tbody");
    this.table = make("table.ranked", {}, make("thead", {}, make("tr", {}, ...["plan", "seconds", "", "shape", "devices"].map((h) => make("th", {}, h)))), this.rows);
    this.why = make("section.panel.why", {}, make("header", {}, make("h3", {}, "Why not this one?")), make("div.whybody"));
    this.whyBody = this.why.lastChild;
    this.notes = make("ul.notes", { "aria-label": "what the figures rest on" });
    const resting = make("section.panel.resting", {}, make("header", {}, make("h3", {}, "What do the figures rest on?")), this.notes);
    this.gantts = make("div.gantts");
    this.key = make("div.legend");
    const main = make("div.answers", {}, this.key, this.gantts, make("div.tablestage", {}, this.table), make("div.below", {}, this.why, resting));
    // Arrow keys move the sliders, not JupyterLab's cells.
    this.root = make("div.explorer", {}, make("header.top", {}, make("h2", { title: model.get("title") }, model.get("title")), this.chip, this.head, this.note, make("span.buttons", {}, this.pin, this.reset)), this.problem,
      make("div.halves", {}, make("aside.sliders", {}, ...this.sliders.filter((s) => !isSpeed(s)).map((s) => this.slider(s)), this.speeds()), main));
    keepKeys(this.root);
    el.append(make("div.host", {}, this.root));
    this.refresh = painter(this.root, () => this.draw());
    this.setTheme(themeMode());
    this.stopTheme = watchTheme((mode) => this.setTheme(mode));
    this.observer = new ResizeObserver(() => this.refresh());
    this.observer.observe(this.root);
    this.appearing = new IntersectionObserver(() => this.refresh());
    this.appearing.observe(this.root);
    this.refresh();
  }

  destroy() { clearTimeout(this.asker.timer); this.stopTheme(); this.observer.disconnect(); this.appearing.disconnect(); this.refresh.stop(); }

  setTheme(mode) { this.colours = applyTheme(this.root, mode); this.refresh(); }

  slider(s) {
    const shown = make("output"), input = make("input", { type: "range", min: 0, max: s.texts.length - 1, step: 1, value: s.at, "aria-label": s.label });
    const tell = () => { shown.textContent = s.texts[input.value]; input.setAttribute("aria-valuetext", shown.textContent); };
    input.addEventListener("input", () => { tell(); this.asker.ask(); });
    tell();
    this.inputs.set(s.field, { input, tell, start: s.at });
    return make("label.slider", { title: s.why }, make("span", {}, s.label), shown, input);
  }

  /** How fast each worker is: folded away, for there may be many. */
  speeds() {
    const sliders = this.sliders.filter(isSpeed).map((s) => this.slider(s));
    return sliders.length ? make("details.speeds", {}, make("summary", { title: "how fast the calls of a worker are, relative to the profile" }, "speed of a worker"), ...sliders) : "";
  }

  positions() { return Object.fromEntries([...this.inputs].map(([field, { input }]) => [field, +input.value])); }

  back() {
    for (const { input, tell, start } of this.inputs.values()) { input.value = start; tell(); }
    this.asker.ask();
  }

  pick(name) { this.picked = name; this.refresh(); }

  /** New from the kernel. Sliders that somebody holds stay where they are. */
  heard() {
    this.asker.heard();
    if (!this.asker.open) for (const [field, at] of Object.entries(this.told.positions)) {
      const slider = this.inputs.get(field);
      if (slider && +slider.input.value !== at) { slider.input.value = at; slider.tell(); }
    }
    this.refresh();
  }

  /** Says at once whether what is shown answers what the sliders ask. */
  mark() {
    const { answer, error } = this.told, open = this.asker.open;
    this.root.dataset.open = open;
    if (!answer) return;
    const how = answer.plans[0].seconds_are;
    this.chip.textContent = open === "older" ? "updating…" : error ? "no plan" : open === "rough" ? (how === "simulated" ? "searching…" : "simulating…") : how;
    this.chip.title = open === "older" ? "what is shown answers an earlier question" : open !== "rough" ? "" : how === "simulated" ? "simulated; better plans are looked for" : "followed micro-batch by micro-batch so far; a simulation is under way";
    this.chip.dataset.state = open ? "running" : error ? "failed" : how === "simulated" ? "finished" : "running";
  }

  draw() {
    const { answer, error, bars } = this.told;
    this.problem.textContent = this.problem.title = error;
    this.mark();
    this.root.dataset.answered = this.told.answered; // lets a test see what is shown
    this.root.dataset.took = Math.round(this.asker.took || 0);
    this.root.dataset.stale = String(Boolean(error));
    if (!answer) return;
    const { charts, plans } = answer, best = plans[0].seconds;
    this.root.dataset.how = plans[0].seconds_are;
    this.root.dataset.best = plans[0].shape;
    this.pin.disabled = this.pinned.seconds === best && this.pinned.shape === plans[0].shape;
    this.head.textContent = `${this.against(best)}: ${plans[0].shape}`; // the end may be cut, the seconds not
    this.head.title = `pinned: ${figures(this.pinned.seconds)} s, ${this.pinned.shape}; now: ${figures(best)} s, ${plans[0].shape}`;
    this.note.textContent = answer.lower_bound_is === "estimated" ? `estimate: none takes less than about ${figures(answer.lower_bound_s)} s` : `none can take less than ${figures(answer.lower_bound_s)} s`;
    this.selected = plans.some((p) => p.name === this.picked) ? this.picked : plans[0].name; // the best one until somebody picks another
    const shown = MODES.map((mode) => charts.findIndex((c) => c.name === this.selected && c.mode === mode)).map((i, k) => (i >= 0 ? i : charts.findIndex((c) => c.mode === MODES[k]))).filter((i) => i >= 0);
    const most = Math.max(...shown.map((i) => charts[i].seconds)) * 1.02;
    const { workers, lanes, devices } = charts[0], host = workers.length - (lanes - devices); // the first one that has no device, if any
    this.numbers = colourNumbers(workers.slice(0, host), workers.slice(host)); // of all cards: who has a device in one plan may have none in another
    this.legend(workers, shown.some((i) => hasSwitching(bars[i])));
    for (const [mode, card] of this.cards) if (!shown.some((i) => charts[i].mode === mode)) { card.node.remove(); this.cards.delete(mode); }
    shown.forEach((i) => {
      const chart = charts[i];
      if (!this.cards.has(chart.mode)) this.cards.set(chart.mode, new GanttCard((name) => this.pick(name)));
      const card = this.cards.get(chart.mode);
      this.gantts.append(card.node);
      card.set(chart, bars[i], most, best, chart.name === this.selected);
    });
    this.gantts.style.setProperty("--rl-cards", shown.length);
    this.notes.replaceChildren(...answer.notes.map((note) => make("li", {}, note)));
    this.list(plans, answer.refused, best);
    this.explain(plans);
    for (const card of this.cards.values()) card.draw(this.colours, this.numbers);
  }

  /** "1069 → 810 s an iteration, 1.32×" where the best plan has other seconds than the pinned one. */
  against(best) {
    const before = this.pinned.seconds;
    if (figures(before) === figures(best) || !best) return `${figures(best)} s an iteration`;
    return `${figures(before)} → ${figures(best)} s an iteration, ${(before / best).toPrecision(3)}×`;
  }

  legend(workers, switching) {
    const keys = workers.map((name) => [name, this.colours.workers[this.numbers.get(name)]]);
    if (switching) keys.push(["switching", this.colours.causes.switch]);
    this.key.replaceChildren(...keys.map(([name, colour]) => make("span.key", { title: name }, make("i", { style: `background:${colour}` }), make("span", {}, name))));
  }

  list(plans, refused, best) {
    const slowest = Math.max(...plans.map((p) => p.seconds));
    const rows = plans.map((p) => {
      const bar = make("i.length", { style: `width:${Math.max(2, slowest ? 60 * p.seconds / slowest : 60)}px`, title: p.seconds > best && best ? `${(100 * (p.seconds / best - 1)).toFixed(0)} % longer than the fastest` : "the fastest" });
      const places = Object.entries(p.workers).map(([name, at]) => `${name} ${at.devices || "host"}`).join(", ");
      const row = make("tr", { tabindex: "0", onclick: () => this.pick(p.name), onkeydown: (e) => { if (e.key === "Enter") this.pick(p.name); } },
        make("td", {}, p.name), make("td", {}, figures(p.seconds)), make("td", {}, bar), make("td", { title: p.shape }, p.shape), make("td", { title: places }, places));
      row.dataset.selected = String(p.name === this.selected);
      return row;
    });
    const none = refused.map((r) => make("tr.muted", {}, make("td", {}, r.mode), make("td", {}, "–"), make("td"), make("td", { colspan: 2, title: r.reason }, `no plan: ${r.reason}`)));
    const held = [...this.rows.children].indexOf(document.activeElement), name = held >= 0 && document.activeElement.firstChild.textContent;
    this.rows.replaceChildren(...rows, ...none);
    if (held >= 0) (rows.find((row) => row.firstChild.textContent === name) || rows[0] || this.root).focus({ preventScroll: true });
  }

  explain(plans) {
    const plan = plans.find((p) => p.name === this.selected), fastest = plans[0];
    this.why.firstChild.firstChild.textContent = plan === fastest ? `Why ${plan.name}?` : `Why not ${plan.name}?`;
    const parts = [make("p", {}, plan.reason)];
    const changed = Object.entries(plan.workers).filter(([name, at]) => JSON.stringify(at) !== JSON.stringify(fastest.workers[name]));
    if (plan !== fastest && changed.length) parts.push(make("table", {}, make("tr", {}, ...["", plan.name, fastest.name].map((h) => make("th", {}, h))), ...changed.map(([name, at]) =>
      make("tr", {}, make("th", {}, name), make("td", {}, seat(at)), make("td", {}, seat(fastest.workers[name]))))));
    if (plan.bubbles) parts.push(make("div.stack", { title: "device time of an iteration" }, ...[["busy", 1 - plan.bubbles.reduce((s, b) => s + b[1], 0)], ...plan.bubbles].map(([cause, share]) =>
      make("i", { style: `flex:${share};background:${cause === "busy" ? this.colours.busy : this.colours.causes[cause]}`, title: `${cause} ${(100 * share).toFixed(1)} %` }))));
    if (plan.bubbles) parts.push(make("div.legend", {}, make("span.key", {}, make("i", { style: `background:${this.colours.busy}` }), "busy"), ...plan.bubbles.slice(0, 4).map(([cause, share]) =>
      make("span.key", {}, make("i", { style: `background:${this.colours.causes[cause]}` }), `${cause} ${(100 * share).toFixed(0)} %`))));
    this.whyBody.replaceChildren(...parts);
  }
}

function bestOf({ plans }) { return { seconds: plans[0].seconds, shape: plans[0].shape }; }

function isSpeed(slider) { return slider.field.startsWith("speed."); }

function seat(at) {
  const parts = [at.devices ? `${at.devices} devices` : "host"];
  if (at.ranks > 1 && at.ranks !== at.devices) parts.push(`${at.ranks} ranks`);
  if (at.micro_batches > 1) parts.push(`${at.micro_batches} micro-batches`);
  if (at.sub_batches > 1) parts.push(`${at.sub_batches} sub-batches`);
  return parts.join(", ") + (at.stays && at.devices ? ", stays" : "");
}

export default () => {
  const told = new Told(), views = new Set();
  return {
    initialize({ model }) {
      connect(model, {
        reset: () => told.reset(),
        apply: (message, parts) => {
          told.apply(message, parts);
          views.forEach((view) => view.heard());
        },
      });
    },
    render({ model, el }) {
      const view = new ExplorerView(model, told, el);
      views.add(view);
      return () => { views.delete(view); view.destroy(); };
    },
  };
};
