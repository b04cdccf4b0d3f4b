// Quantities over time as curves below the lanes.
import { FONT, duration, figures, rgb } from "./base.js";
import { RULER } from "./rows.js";

const DENSE = 0.25, LINE = 1.25, AREA = 36, DOT = 2.25; // samples a column of pixels; px; alpha of 255; px

/** `columns` of pixels for the plot: a curve with many samples in each is drawn by them, any other as a path. */
export function paintCounters(view, g, columns) {
  const curves = [];
  for (const row of view.rows) {
    if (row.kind !== "counter" || row.y > view.height || row.y + row.h < RULER) continue;
    const { series } = row, shift = view.shift(row.layer), first = Math.max(0, series.upto(view.from - shift) - 1), last = Math.min(series.times.length, series.upto(view.to - shift) + 1);
    const [low, high, odd] = series.extent(first, last), height = row.h - 3, part = Number.isFinite(high - low) ? 1 : 0.5; // of numbers whose distance is none
    curves.push({
      row, series, shift, first, last, low, high, odd, colour: row.layer ? view.colours.muted : view.colours.accent,
      level: (v) => 1.5 + height - ((v * part - low * part) / (high * part - low * part)) * height,
    });
  }
  for (const { row } of curves) { g.fillStyle = view.colours.grid; g.fillRect(view.gutter, row.y + row.h - 1, view.plot, 1); }
  paintDense(view, g, columns, curves.filter((c) => c.last - c.first > DENSE * columns));
  for (const curve of curves) {
    if (curve.first >= curve.last) continue;
    const { row } = curve;
    g.save();
    g.beginPath(); g.rect(view.gutter, row.y, view.plot, row.h); g.clip();
    if (curve.last - curve.first <= DENSE * columns) paintPath(view, g, curve);
    if (curve.odd) paintHoles(view, g, curve);
    const [low, high] = endsText(curve.low, curve.high);
    paintEnd(view, g, high, row.y + 1);
    if (curve.low) paintEnd(view, g, low, row.y + row.h - 12); // else it begins at 0, as one takes for granted
    g.restore();
  }
}

/** The ends of a scale in three figures, or in as many as tell them apart. */
export function endsText(low, high) {
  const precisely = (v, digits) => (Math.abs(v) < 1e4 ? v.toPrecision(digits) : String(Number(v.toPrecision(digits)))).replace("-", "−");
  let texts = [low, high].map(figures);
  for (let digits = 4; low !== high && texts[0] === texts[1] && digits <= 15; digits++) texts = [low, high].map((v) => precisely(v, digits));
  return texts;
}

/** What an end of the scale stands for. */
function paintEnd(view, g, text, y) {
  g.font = `9.5px ${FONT}`; g.textAlign = "left"; g.textBaseline = "top";
  g.fillStyle = view.colours.bg; g.globalAlpha = 0.8; g.fillRect(view.gutter, y - 1, g.measureText(text).width + 6, 12); g.globalAlpha = 1; // legible on any curve
  g.fillStyle = view.colours.muted;
  g.fillText(text, view.gutter + 3, y);
}

/** The curve goes from number to number; where there is none it is interrupted, and a number between two of those is a dot. */
function paintPath(view, g, { row, series, shift, first, last, colour, level }) {
  const x = (i) => view.x(series.times[i] + shift), y = (i) => row.y + level(series.values[i]), bottom = row.y + row.h;
  g.strokeStyle = g.fillStyle = colour;
  g.lineWidth = LINE;
  g.lineJoin = "round";
  for (let from = first; from < last; from++) {
    if (!Number.isFinite(series.values[from])) continue;
    let to = from;
    while (to + 1 < last && Number.isFinite(series.values[to + 1])) to++;
    g.beginPath();
    if (to === from) { g.arc(x(from), y(from), DOT, 0, 7); g.fill(); continue; }
    g.moveTo(x(from), y(from));
    for (let i = from + 1; i <= to; i++) g.lineTo(x(i), y(i));
    g.stroke();
    g.lineTo(x(to), bottom); g.lineTo(x(from), bottom); g.closePath();
    g.globalAlpha = AREA / 255; g.fill(); g.globalAlpha = 1;
    from = to;
  }
}

/** Where a sample is no number (NaN, infinite): at the foot of the row, in the colour of what went wrong. */
function paintHoles(view, g, { row, series, shift, first, last }) {
  g.fillStyle = view.colours.bad;
  let drawn = -Infinity;
  for (let i = first; i < last; i++) {
    if (Number.isFinite(series.values[i])) continue;
    const x = Math.round(view.x(series.times[i] + shift));
    if (x - drawn < 2) continue;
    g.fillRect(x - 1, row.y + row.h - 4, 2, 4);
    drawn = x;
  }
}

/** In every column of pixels a bar from the lowest to the highest value there: a path with so many corners takes longer than a frame. */
function paintDense(view, g, columns, curves) {
  if (!curves.length) return;
  const ratio = columns / view.plot, heights = curves.map(({ row }) => Math.round(row.h * ratio)), all = heights.reduce((a, b) => a + b, 0);
  const canvas = (view.bars ||= document.createElement("canvas"));
  if (canvas.width !== columns || canvas.height < all) { canvas.width = columns; canvas.height = all; view.barImage = null; }
  const context = canvas.getContext("2d", { willReadFrequently: true });
  view.barImage ||= context.createImageData(columns, canvas.height);
  const pixels = new Uint32Array(view.barImage.data.buffer);
  pixels.fill(0, 0, all * columns);
  let at = 0;
  curves.forEach((curve, n) => { fillBars(curve, view, columns, ratio, heights[n], pixels, at * columns); at += heights[n]; });
  context.putImageData(view.barImage, 0, 0, 0, 0, columns, all);
  at = 0;
  curves.forEach(({ row }, n) => { g.drawImage(canvas, 0, at, columns, heights[n], view.gutter, row.y, view.plot, row.h); at += heights[n]; });
}

function fillBars(curve, view, columns, ratio, height, pixels, at) {
  const [red, green, blue] = rgb(curve.colour), ink = (blue << 16) | (green << 8) | red, half = (LINE * ratio) / 2;
  const { top, bottom } = reach(curve, view, columns);
  for (let c = 0; c < columns; c++) {
    if (top[c] > bottom[c]) continue;
    const from = Math.max(0, top[c] * ratio - half), to = Math.min(height, bottom[c] * ratio + half);
    for (let y = Math.floor(from); y < height; y++) {
      const covered = Math.min(to, y + 1) - Math.max(from, y), alpha = covered > 0 ? Math.max(AREA, Math.round(255 * covered)) : AREA;
      pixels[at + y * columns + c] = ((alpha << 24) | ink) >>> 0;
    }
  }
}

/** From where to where the curve goes in each column, px from the top of its row; top > bottom where there is none. */
function reach({ series, shift, first, last, level }, view, columns) {
  const top = new Float64Array(columns).fill(Infinity), bottom = new Float64Array(columns).fill(-Infinity), { times, values } = series;
  const scale = columns / (view.to - view.from), origin = view.from - shift;
  const see = (c, y) => { if (c >= 0 && c < columns) { if (y < top[c]) top[c] = y; if (y > bottom[c]) bottom[c] = y; } };
  let x0 = NaN, y0 = NaN;
  for (let i = first; i < last; i++) {
    if (!Number.isFinite(values[i])) { x0 = NaN; continue; }
    const x = (times[i] - origin) * scale, y = level(values[i]), c = Math.floor(x);
    for (let edge = Math.max(0, Math.floor(x0) + 1); edge <= Math.min(c, columns); edge++) { // where it goes from one column to the next
      const between = y0 + ((y - y0) * (edge - x0)) / (x - x0);
      see(edge - 1, between); see(edge, between);
    }
    see(c, y);
    x0 = x; y0 = y;
  }
  return { top, bottom };
}

/** A sample in words. */
function sampleText(value) { return Number.isNaN(value) ? "NaN" : figures(value); }

/** Lines of the tooltip of a counter at a time. */
export function describeSample({ series, time }) {
  const found = series.at(time);
  return found ? [`${series.name}: ${sampleText(found[1])}`, `at ${duration(found[0])}`] : [series.name, "no sample before this"];
}

/** What the gutter says: the value at the right edge. At the end of a timeline it is the last one: what an iteration brought is known a little after its last span. */
export function latest(view, row) {
  const time = view.to - view.shift(row.layer), found = row.series.at(time >= view.stores[row.layer].end ? Infinity : time);
  return found ? sampleText(found[1]) : "";
}
