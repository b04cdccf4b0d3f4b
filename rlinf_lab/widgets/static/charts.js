// Small, crisp charts: a line over iterations, a sparkline, stacked bars. A few hundred points, redrawn at will.
import { FONT, figures, fitCanvas, make } from "./base.js";

/** Round tick values that cover [low, high], about `count` of them. */
function axisTicks(low, high, count) {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-6; k++) ticks.push(k * step);
  return ticks;
}

/** The smallest and the largest value. (Math.min(...list) fails beyond some ten thousand.) */
function range(points) {
  let low = Infinity, high = -Infinity;
  for (const [, v] of points) { if (v < low) low = v; if (v > high) high = v; }
  return [low, high];
}

/** At most about `most` points that draw the same line: of each stretch the first, the lowest, the highest and the last. */
export function thinned(points, most) {
  if (points.length <= most) return points;
  const size = Math.ceil((4 * points.length) / most), out = [];
  for (let from = 0; from < points.length; from += size) {
    const to = Math.min(from + size, points.length);
    let low = from, high = from;
    for (let k = from; k < to; k++) { if (points[k][1] < points[low][1]) low = k; if (points[k][1] > points[high][1]) high = k; }
    for (const k of [...new Set([from, Math.min(low, high), Math.max(low, high), to - 1])]) out.push(points[k]);
  }
  return out;
}

/** The last iteration of an axis: a round one at most a tenth beyond that of the points, so that it moves now and then, or the last that is planned. */
export function axisEnd(done, planned) {
  const most = done / 10, power = 10 ** Math.floor(Math.log10(Math.max(1, most))), step = [5, 2, 1].map((m) => m * power).find((m) => m <= most) || 1;
  return Math.max(2, done, planned > 0 ? Math.min(planned - 1, step * Math.ceil((done + 1) / step)) : done);
}

export class LineChart {
  /** options: {colour: index of a worker colour, percent: the values are shares} */
  constructor(title, options = {}) {
    this.options = options;
    this.points = [];
    this.value = make("span.value");
    this.canvas = make("canvas", { role: "img", "aria-label": title });
    this.stage = make("div.chartstage", {}, this.canvas);
    this.node = make("section.panel.chart", {}, make("header", {}, make("h3", {}, title), this.value), this.stage);
    this.canvas.addEventListener("pointermove", (e) => { this.cursor = e.offsetX; this.draw(); });
    this.canvas.addEventListener("pointerleave", () => { this.cursor = null; this.draw(); });
  }

  /**
   * points: [[iteration, value], ...]; planned: how many iterations there will be (0: nobody knows); done: the last one there is, which need not have
   * measured this; odd: what the value has become, if that is no number.
   */
  set(points, planned = 0, done = 0, odd = "") {
    Object.assign(this, { points, planned, done, odd });
    this.draw();
  }

  text(v) { return this.options.percent ? `${(100 * v).toFixed(v === 1 || v === 0 ? 0 : 1)} %` : figures(v); }

  draw() {
    const c = this.colours, width = this.stage.clientWidth, height = this.stage.clientHeight;
    if (!c || !width || !height) return;
    const g = fitCanvas(this.canvas, width, height), points = this.points;
    g.clearRect(0, 0, width, height);
    g.font = `10px ${FONT}`;
    let [low, high] = range(points);
    if (this.options.percent) { low = 0; high = 1; }
    if (!points.length) { low = 0; high = 1; }
    if (low === high) { const by = Math.abs(low) * 0.1 || 1; low -= by; high += by; }
    if (low > 0 && low < high * 0.3) low = 0;
    const ticks = axisTicks(low, high, Math.max(2, Math.floor(height / 34)));
    if (!this.options.percent) { low = Math.min(low, ticks[0]); high = Math.max(high, ticks[ticks.length - 1]); }
    const texts = ticks.map((tick) => (this.options.percent ? `${Math.round(tick * 100)} %` : tidy(tick, ticks)));
    const pad = { left: Math.max(38, 10 + Math.ceil(Math.max(...texts.map((text) => g.measureText(text).width)))), right: 8, top: 6, bottom: 16 };
    const w = width - pad.left - pad.right, h = height - pad.top - pad.bottom;
    const lastX = axisEnd(Math.max(this.done || 0, points.length ? points[points.length - 1][0] : 0), this.planned);
    const x = (i) => pad.left + (i / lastX) * w, y = (v) => pad.top + (1 - (v - low) / (high - low)) * h;
    g.textBaseline = "middle";
    g.textAlign = "right";
    for (const [k, tick] of ticks.entries()) {
      const at = Math.round(y(tick)) + 0.5;
      g.strokeStyle = c.line;
      g.lineWidth = 1;
      g.beginPath(); g.moveTo(pad.left, at); g.lineTo(width - pad.right, at); g.stroke();
      g.fillStyle = c.muted;
      g.fillText(texts[k], pad.left - 6, at);
    }
    g.textBaseline = "alphabetic";
    g.textAlign = "center";
    for (const tick of axisTicks(0, lastX, Math.max(2, Math.floor(w / 46))).filter(Number.isInteger)) {
      g.fillText(String(tick), Math.min(x(tick), width - pad.right - 4), height - 4);
    }
    this.value.dataset.odd = String(Boolean(this.odd));
    if (!points.length) { this.value.textContent = this.odd || "–"; return; }
    const colour = c.workers[this.options.colour || 0];
    g.strokeStyle = colour;
    g.lineWidth = 1.75;
    g.lineJoin = "round";
    g.beginPath();
    thinned(points, 4 * w).forEach(([i, v], k) => (k ? g.lineTo(x(i), y(v)) : g.moveTo(x(i), y(v))));
    g.stroke();
    let shown = points[points.length - 1];
    if (this.cursor !== null && this.cursor !== undefined) {
      for (const p of points) if (Math.abs(x(p[0]) - this.cursor) < Math.abs(x(shown[0]) - this.cursor)) shown = p;
      g.strokeStyle = c.muted;
      g.lineWidth = 1;
      g.beginPath(); g.moveTo(Math.round(x(shown[0])) + 0.5, pad.top); g.lineTo(Math.round(x(shown[0])) + 0.5, pad.top + h); g.stroke();
      this.value.textContent = `${this.text(shown[1])} at ${shown[0]}`;
    } else this.value.textContent = this.odd || this.text(shown[1]);
    g.fillStyle = colour;
    g.beginPath(); g.arc(x(shown[0]), y(shown[1]), 2.6, 0, 2 * Math.PI); g.fill();
  }
}

/** A tick in few characters, but so many that no two ticks of an axis read alike. */
function tidy(v, ticks) {
  if (!v) return "0";
  const most = Math.max(...ticks.map(Math.abs)), step = ticks.length > 1 ? ticks[1] - ticks[0] : most || 1;
  const [unit, letter] = most >= 1e9 ? [1e9, "G"] : most >= 1e6 ? [1e6, "M"] : most >= 1e4 ? [1e3, "k"] : [1, ""];
  if (most >= 1e12 || (most > 0 && most < 1e-3)) return v.toExponential(1).replace("e-", "e−").replace("-", "−");
  const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step / unit) - 1e-9) + (Number.isInteger(+(step / 10 ** Math.floor(Math.log10(step))).toPrecision(3)) ? 0 : 1)));
  return `${(v / unit).toFixed(digits)}${letter}`.replace("-", "−");
}

/** A filled curve of shares from 0 to 1; values: [[time, share], ...]. */
export function drawSpark(canvas, values, width, height, colour, line) {
  const g = fitCanvas(canvas, width, height);
  g.clearRect(0, 0, width, height);
  g.fillStyle = line;
  g.fillRect(0, height - 1, width, 1);
  if (values.length < 2) return;
  const t0 = values[0][0], t1 = values[values.length - 1][0] || t0 + 1;
  const x = (t) => ((t - t0) / (t1 - t0)) * width, y = (v) => 1 + (1 - Math.max(0, Math.min(1, v))) * (height - 2);
  g.beginPath();
  values.forEach(([t, v], i) => (i ? g.lineTo(x(t), y(v)) : g.moveTo(x(t), y(v))));
  g.strokeStyle = colour;
  g.lineWidth = 1.25;
  g.lineJoin = "round";
  g.stroke();
  g.lineTo(width, height); g.lineTo(0, height); g.closePath();
  g.globalAlpha = 0.16;
  g.fillStyle = colour;
  g.fill();
  g.globalAlpha = 1;
}

/** One bar per row, its parts stacked in the order of `keys`, each bar filling the height; room for `least` bars. rows: [{key: amount}, ...]. */
export function drawStacks(canvas, rows, keys, colourOf, width, height, least) {
  const g = fitCanvas(canvas, width, height);
  g.clearRect(0, 0, width, height);
  if (!rows.length) return;
  const slots = Math.max(rows.length, least), each = width / slots, gap = each > 5 ? 1 : 0;
  rows.forEach((row, i) => {
    const total = keys.reduce((sum, key) => sum + (row[key] || 0), 0);
    let y = height;
    if (!total) return;
    for (const key of keys) {
      const part = ((row[key] || 0) / total) * height;
      g.fillStyle = colourOf(key);
      g.fillRect(i * each, y - part, each - gap, part);
      y -= part;
    }
  });
}
