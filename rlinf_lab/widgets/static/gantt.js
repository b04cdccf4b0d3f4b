// Plans as bars side by side on one scale of seconds: who occupies which devices from when to when.
import { FONT, figures, fitCanvas, inkOn, make } from "./base.js";

const FIELDS = 6; // of a bar: start, end [s], first lane, the one behind the last, worker, kind
const SWITCHING = 1;
const AXIS = 15; // CSS pixels below the lanes
const HOST = 4; // between the devices and the workers that have none

export function hasSwitching(bars) {
  for (let i = FIELDS - 1; i < bars.length; i += FIELDS) if (bars[i] === SWITCHING) return true;
  return false;
}

/** One plan. chart: {name, mode, shape, seconds, how, lanes, devices, workers}, bars: Float32Array. */
export class GanttCard {
  constructor(pick) {
    this.title = make("b");
    this.value = make("span.value");
    this.shape = make("div.shape");
    this.canvas = make("canvas", { role: "img" });
    this.tip = make("div.tip");
    this.stage = make("div.ganttstage", {}, this.canvas, this.tip);
    this.node = make("section.panel.gantt", { tabindex: "0", onclick: () => pick(this.chart.name), onkeydown: (e) => { if (e.key === "Enter") pick(this.chart.name); } },
      make("header", {}, this.title, this.value), this.shape, this.stage);
    this.canvas.addEventListener("pointermove", (e) => this.explain(e));
    this.canvas.addEventListener("pointerleave", () => { this.tip.style.display = "none"; });
  }

  /** most: seconds at the right edge, the same for all cards; best: of the fastest plan. */
  set(chart, bars, most, best, selected) {
    Object.assign(this, { chart, bars, most });
    this.title.textContent = chart.name;
    const slower = chart.seconds / best - 1;
    this.value.textContent = `${figures(chart.seconds)} s` + (slower > 5e-4 ? `  +${(100 * slower).toFixed(slower < 0.1 ? 1 : 0)} %` : "");
    this.value.title = `seconds of an iteration, ${chart.how}`;
    this.shape.textContent = this.shape.title = chart.shape;
    this.node.dataset.selected = String(selected);
    this.canvas.setAttribute("aria-label", `${chart.name}: ${chart.shape}, ${figures(chart.seconds)} seconds an iteration`);
  }

  place() {
    const width = this.stage.clientWidth, height = this.stage.clientHeight - AXIS, hosts = this.chart.lanes - this.chart.devices;
    const each = (height - (hosts ? HOST : 0)) / (this.chart.devices + 3 * hosts || 1); // a worker without a device is as high as three
    const y = (lane) => (lane <= this.chart.devices ? lane * each : this.chart.devices * each + HOST + (lane - this.chart.devices) * 3 * each);
    return { width, height, x: (t) => (t / this.most) * width, top: (lane) => (lane >= this.chart.devices && hosts ? y(lane) + (lane === this.chart.devices ? HOST : 0) : y(lane)), y };
  }

  /** numbers: Map of the number of each worker's colour. */
  draw(colours, numbers) {
    const { width, height, x, top, y } = this.place();
    if (!width || height <= 0) return;
    const g = fitCanvas(this.canvas, width, height + AXIS);
    g.clearRect(0, 0, width, height + AXIS);
    g.fillStyle = colours.grid;
    g.fillRect(0, 0, x(this.chart.seconds), y(this.chart.devices));
    const b = this.bars, labels = new Map();
    for (let i = 0; i < b.length; i += FIELDS) {
      const left = x(b[i]), right = Math.max(left + 0.75, x(b[i + 1])), upper = top(b[i + 2]), lower = y(b[i + 3]), colour = colours.workers[numbers.get(this.chart.workers[b[i + 4]])];
      g.fillStyle = b[i + 5] === SWITCHING ? colours.causes.switch : colour;
      g.fillRect(left, upper, right - left, Math.max(0.75, lower - upper - (lower - upper > 3 ? 0.5 : 0)));
      if (b[i + 5] === SWITCHING) continue;
      const area = (right - left) * (lower - upper), known = labels.get(b[i + 4]);
      if (!known || area > known.area) labels.set(b[i + 4], { area, left, right, upper, lower, colour });
    }
    g.font = `11px ${FONT}`;
    g.textBaseline = "middle";
    g.textAlign = "left";
    for (const [worker, at] of labels) {
      const text = this.chart.workers[worker];
      if (at.lower - at.upper < 13 || g.measureText(text).width > at.right - at.left - 8) continue;
      g.fillStyle = inkOn(at.colour);
      g.fillText(text, at.left + 4, (at.upper + at.lower) / 2);
    }
    this.axis(g, colours, width, height, x);
  }

  axis(g, colours, width, height, x) {
    const raw = this.most / Math.max(2, Math.floor(width / 60)), power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].find((m) => m * power >= raw) * power;
    g.fillStyle = colours.muted;
    g.font = `10px ${FONT}`;
    g.textBaseline = "alphabetic";
    for (let t = 0; t <= this.most * 1.0001; t += step) {
      g.fillRect(Math.round(x(t)), height, 1, 3);
      g.textAlign = t === 0 ? "left" : x(t) > width - 14 ? "right" : "center";
      g.fillText(t === 0 ? "0 s" : String(+t.toPrecision(3)), Math.min(x(t), width), height + AXIS - 2);
    }
  }

  explain(event) {
    const { x, top, y } = this.place(), px = event.offsetX, py = event.offsetY, b = this.bars;
    let found = -1;
    for (let i = 0; i < b.length; i += FIELDS) if (px >= x(b[i]) - 1 && px <= x(b[i + 1]) + 1 && py >= top(b[i + 2]) && py <= y(b[i + 3])) found = i;
    this.tip.style.display = found < 0 ? "none" : "block";
    if (found < 0) return;
    const first = Math.floor(b[found + 2]), last = Math.ceil(b[found + 3]), there = first >= this.chart.devices ? "on the host" : last - first > 1 ? `devices ${first} to ${last - 1}` : `device ${first}`;
    this.tip.textContent = `${this.chart.workers[b[found + 4]]}${b[found + 5] === SWITCHING ? ", switching" : ""}: ${figures(b[found])} to ${figures(b[found + 1])} s, ${there}`;
    const room = this.stage.clientWidth - this.tip.offsetWidth - 4;
    this.tip.style.transform = `translate(${Math.max(0, Math.min(px + 10, room))}px, ${Math.max(0, Math.min(py + 12, this.stage.clientHeight - this.tip.offsetHeight))}px)`;
  }
}
