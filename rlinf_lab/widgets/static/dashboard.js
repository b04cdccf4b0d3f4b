// anywidget entry: the dashboard. One state per model, shared by its views.
import { CAUSES, applyTheme, connect, keepKeys, make, painter, tellKernel, themeMode, watchTheme } from "./base.js";
import { Store } from "./store.js";
import { TimelineView } from "./timeline.js";
import { LineChart } from "./charts.js";
import { DIVERGED, Rows, Sums } from "./history.js";
import { Bubbles, Figures, Header, Picture, Utilisation, headline, label, share } from "./panels.js";
import { Standstill } from "./standstill.js";

const KEPT = 600; // samples
const SILENT = 15, MISSED = 4; // s without a word of a kernel that said it would have one in time, at least; and pushes that have not come
const ENDED = new Set(["finished", "stopped", "failed"]);

/** What the kernel has told so far. */
class RunState {
  constructor() { this.store = new Store(); this.reset(); }

  reset() {
    this.heard = performance.now();
    this.store.reset();
    this.state = {};
    this.metrics = new Rows();
    this.samples = [];
    this.bubbles = new Sums(["busy", ...CAUSES]);
    this.frame = this.sample = null;
  }

  /** Seconds since the kernel last said something, 0 where nothing is to come. */
  get silence() { return ENDED.has(this.state.state) ? 0 : (performance.now() - this.heard) / 1e3; }

  apply(message, parts) {
    this.heard = performance.now();
    this.store.apply(message, parts);
    if (message.state) { this.state = message.state; this.store.now = message.now || 0; }
    if (message.metrics) message.metrics.forEach((row) => this.metrics.put(row));
    if (message.counters) this.samples = [...this.samples, ...message.counters].slice(-KEPT);
    if (message.bubbles) message.bubbles.forEach((row) => this.bubbles.add(row));
    if (parts.frame) this.frame = parts.frame;
    if (message.sample) this.sample = message.sample;
  }

  /** The metrics to plot: the wished ones that are there ("a|b": b where no a is), else the first ones there are. The same as in fallback.py. */
  keys(wished) {
    const known = [...this.metrics.names.keys()], called = (name) => {
      const ending = (by) => known.filter((k) => k.endsWith(by + name));
      return known.includes(name) ? [name] : ending(".").length ? ending(".") : ending("_").slice(0, 1); // each worker's own, where several log it
    };
    const found = [...new Set(wished.flatMap((names) => [names, ...names.split("|")].map(called).find((keys) => keys.length) || []))];
    return found.length || !known.length ? found : known.filter((k) => !["iteration", "seconds"].includes(k)).slice(0, 3);
  }
}

class DashboardView {
  constructor(model, run, el) {
    this.run = run;
    this.config = model.get("config");
    this.charts = new Map();
    this.header = new Header(this.config, (command) => { this.gone = !tellKernel(model, { type: "command", command }); this.refresh(); });
    this.figures = new Figures();
    this.curves = make("div.curves");
    this.picture = new Picture();
    this.utilisation = new Utilisation();
    this.bubbles = new Bubbles();
    const timeline = make("section.panel.lanes");
    this.still = new Standstill();
    this.upper = make("div.upper", {}, this.curves, this.picture.node);
    const lower = make("div.lower", {}, timeline, make("div.side", {}, this.utilisation.node, this.bubbles.node));
    this.root = make("div.dashboard", {}, this.header.node, this.figures.node, this.upper, lower);
    keepKeys(this.root);
    el.append(make("div.host", {}, this.root));
    this.timeline = new TimelineView(timeline, run.store, { tail: 6, counters: false, ask: (bar) => tellKernel(model, { type: "sample", ...bar }) });
    timeline.append(this.still.node);
    this.refresh = painter(this.root, () => this.draw());
    this.setTheme(themeMode());
    this.stopTheme = watchTheme((mode) => this.setTheme(mode));
    this.observer = new ResizeObserver(() => this.refresh());
    this.observer.observe(this.root);
    this.appearing = new IntersectionObserver(() => this.changed()); // what changed while the cell was scrolled away is drawn now
    this.appearing.observe(this.root);
    this.wished().forEach((key) => this.chart(key));
    this.refresh();
    this.listening = this.config.every_seconds ? setInterval(() => { if (this.silence) this.refresh(); }, 1000) : 0;
  }

  destroy() { clearInterval(this.listening); this.stopTheme(); this.observer.disconnect(); this.appearing.disconnect(); this.refresh.stop(); this.timeline.destroy(); }

  /** Seconds without a word, where that is longer than the kernel said; 0 also where it has said nothing of when there will be one. */
  get silence() {
    const { every_seconds: every } = this.config, { silence } = this.run;
    return every && silence > Math.max(SILENT, MISSED * every) ? silence : 0;
  }

  /** New data came. All of it is drawn in one frame: what `draw` asked for would be drawn in the next. */
  changed() {
    this.gone = false;
    this.timeline.refresh();
    this.timeline.details.tellSample(this.run.sample);
    this.refresh();
  }

  setTheme(mode) {
    this.colours = applyTheme(this.root, mode);
    for (const chart of this.charts.values()) chart.colours = this.colours;
    this.refresh();
  }

  /** What is plotted: what is wished until it is known what there is. An iteration without any number tells that there may be nothing. */
  wished() {
    const found = this.run.keys(this.config.charts);
    return found.length || this.run.metrics.all.length ? found : this.config.charts.map((names) => names.split("|")[0]);
  }

  chart(key) {
    const chart = new LineChart(label(key), { colour: this.charts.size, percent: share(key) });
    chart.colours = this.colours;
    this.charts.set(key, chart);
    this.curves.append(chart.node);
    return chart;
  }

  draw() {
    const run = this.run, state = { iterations: this.config.iterations, ...run.state };
    this.header.set(state, this.silence, this.gone);
    const keys = this.wished(), over = ENDED.has(state.state);
    if (keys.join() !== [...this.charts.keys()].join()) { this.charts.clear(); this.curves.replaceChildren(); keys.forEach((k) => this.chart(k)); }
    // What decides on sizes comes before what is drawn into them.
    this.root.dataset.bare = String(!keys.length && !run.frame); // nothing to plot, nothing to see: the lanes get the room
    this.upper.dataset.picture = String(Boolean(run.frame) || !state.iteration); // a run that shows nothing leaves the room to its curves
    for (const [key, chart] of this.charts) {
      const latest = run.metrics.latest(key);
      chart.set(run.metrics.points(key), over ? 0 : state.iterations || 0, run.metrics.last?.iteration, DIVERGED.has(latest) ? latest : "");
    }
    this.figures.set(headline(keys, run.metrics, run.bubbles));
    this.utilisation.draw(run.samples, this.colours, state.load_note);
    this.bubbles.draw(run.bubbles, this.colours, over);
    if (run.frame && run.frame !== this.frame) { this.frame = run.frame; this.picture.set(run.frame); }
    this.still.set(state.standstill || [], state.waits);
    this.timeline.over = over;
    this.root.dataset.iteration = state.iteration || 0; // lets a test see what is shown
    this.root.dataset.state = state.state || "starting";
  }
}

export default () => {
  const run = new RunState(), views = new Set();
  return {
    initialize({ model }) {
      connect(model, {
        reset: () => run.reset(),
        apply: (message, parts) => { run.apply(message, parts); views.forEach((view) => view.changed()); },
      });
    },
    render({ model, el }) {
      const view = new DashboardView(model, run, el);
      views.add(view);
      return () => { views.delete(view); view.destroy(); };
    },
  };
};
