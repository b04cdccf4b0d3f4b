// Quantities over time as steps below the lanes: each number holds until the next one, for nobody knows what was between two samples.
import { FONT, duration, figures, rgb } from "./base.js";
import { RULER } from "./rows.js";

const DENSE = 0.125, LINE = 1.25, AREA = 36, DOT = 2.25, APART_DOTS = 8; // samples a column of pixels, each two corners of a path; px; alpha of 255; px; px

/** `columns` of pixels for the plot: a curve with many samples in each is drawn by them, any other as a path. */
export function paintCounters(view, g, columns) {
  const curves = [];
  for (const row of view.rows) {
    if (row.kind !== "counter" || row.y > view.height || row.y + row.h < RULER) continue;
    const { series } = row, shift = view.shift(row.layer), first = Math.max(0, series.upto(view.from - shift) - 1), last = series.upto(view.to - shift);
    const [low, high, odd] = series.extent(first, last), height = row.h - 3, part = Number.isFinite(high - low) ? 1 : 0.5; // of numbers whose distance is none
    curves.push({
      row, series, shift, first, last, low, high, odd, until: heldUntil(series, last, view.stores[row.layer].end), colour: row.layer ? view.colours.muted : view.colours.accent,
      level: (v) => 1.5 + height - ((v * part - low * part) / (high * part - low * part)) * height,
    });
  }
  for (const { row } of curves) { g.fillStyle = view.colours.grid; g.fillRect(view.gutter, row.y + row.h - 1, view.plot, 1); }
  paintDense(view, g, columns, curves.filter((c) => c.last - c.first > DENSE * columns));
  for (const curve of curves) {
    if (curve.first >= curve.last) continue;
    const { row } = curve;
    g.save();
    g.beginPath(); g.rect(view.gutter, row.y - 1, view.plot, row.h + 2); g.clip(); // dots are whole
    if (curve.last - curve.first <= DENSE * columns) paintPath(view, g, curve);
    if (curve.odd) paintHoles(view, g, curve);
    const [low, high] = curve.series.steps ? [curve.low, curve.high].map(countText) : endsText(curve.low, curve.high);
    paintEnd(view, g, high, row.y + 1);
    if (curve.low) paintEnd(view, g, low, row.y + row.h - 12); // else it begins at 0, as one takes for granted
    g.restore();
  }
}

/** Until when the number before number `last` holds: until the next one; what spans say, until the end of what they say, what a sample says, not beyond it. */
function heldUntil(series, last, end) {
  if (last < series.count) return Number.isFinite(series.value(last)) ? series.times[last] : series.times[last - 1];
  return series.steps ? Math.max(end, series.times[last - 1]) : series.times[last - 1];
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

/** Steps from number to number; where there is none they are interrupted, and a number between two of those is a dot. */
function paintPath(view, g, { row, series, shift, first, last, until, colour, level }) {
  const { times } = series, near = view.gutter - 9, far = view.gutter + view.plot + 9; // beyond them nothing is seen
  const x = (time) => Math.min(far, Math.max(near, view.x(time + shift))), y = (i) => row.y + level(series.value(i)), bottom = row.y + row.h;
  g.strokeStyle = g.fillStyle = colour;
  g.lineWidth = LINE;
  g.lineJoin = "round";
  for (let from = first; from < last; from++) {
    if (!Number.isFinite(series.value(from))) continue;
    let to = from;
    while (to + 1 < last && Number.isFinite(series.value(to + 1))) to++;
    const end = x(to + 1 === last ? until : times[to]);
    if (!series.steps) paintDots(view, g, x, y, series, from, to);
    if (to > from || end > x(times[from])) {
      g.beginPath();
      g.moveTo(x(times[from]), y(from));
      for (let i = from + 1, level = y(from); i <= to; i++) {
        const next = y(i);
        if (next === level && i < to) continue;
        g.lineTo(x(times[i]), level);
        if (next !== level) g.lineTo(x(times[i]), next);
        level = next;
      }
      if (end > x(times[to])) g.lineTo(end, y(to));
      g.stroke();
      g.lineTo(end, bottom); g.lineTo(x(times[from]), bottom); g.closePath();
      g.globalAlpha = AREA / 255; g.fill(); g.globalAlpha = 1;
    }
    from = to;
  }
}

/** Where it was looked at, of samples [from, to] that have nobody near. */
function paintDots(view, g, x, y, { times, count }, from, to) {
  const apart = (APART_DOTS * (view.to - view.from)) / view.plot, far = (i, j) => j < 0 || j >= count || Math.abs(times[i] - times[j]) > apart;
  for (let i = from; i <= to; i++) {
    if (from < to && !(far(i, i - 1) && far(i, i + 1))) continue;
    g.beginPath(); g.arc(x(times[i]), y(i), DOT, 0, 7); g.fill();
  }
}

/** Where a sample is no number (NaN, infinite): at the foot of the row, in the colour of what went wrong. */
function paintHoles(view, g, { row, series, shift, first, last }) {
  g.fillStyle = view.colours.bad;
  let drawn = -Infinity;
  for (let i = first; i < last; i++) {
    if (Number.isFinite(series.value(i))) continue;
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

/** From where to where the steps go in each column, px from the top of its row; top > bottom where there are none. */
function reach({ series, shift, first, last, until, level }, view, columns) {
  const top = new Float64Array(columns).fill(Infinity), bottom = new Float64Array(columns).fill(-Infinity), { times } = series;
  const width = (view.to - view.from) / columns, origin = view.from - shift;
  let i = first;
  for (let c = 0; c < columns; c++) {
    const from = origin + c * width, before = i;
    i = firstFrom(times, i, last, from + width);
    let [low, high] = series.bounds(before, i);
    if (before > first && from < (before < last ? times[before] : until)) { // what was before it holds, to a number or to the end
      const held = series.value(before - 1);
      if (Number.isFinite(held) && (before === last || Number.isFinite(series.value(before)))) { low = Math.min(low, held); high = Math.max(high, held); }
    }
    if (low <= high) { top[c] = level(high); bottom[c] = level(low); }
  }
  return { top, bottom };
}

/** The first of times [i, last) that is not before `time`: found in steps that double, for it is near. */
function firstFrom(times, i, last, time) {
  let low = i - 1, high = i, step = 1;
  while (high < last && times[high] < time) { low = high; high += step; step *= 2; }
  high = Math.min(high, last);
  while (high - low > 1) {
    const mid = (low + high) >> 1;
    if (times[mid] < time) low = mid; else high = mid;
  }
  return high;
}

/** So many items: a whole number. */
function countText(value) { return value < 1e4 ? String(value) : figures(value); }

/** A sample in words. */
function sampleText(value) { return Number.isNaN(value) ? "NaN" : figures(value); }

/** Lines of the tooltip of a counter at a time. */
export function describeSample({ series, time }) {
  const found = series.at(time);
  if (series.steps) return found ? [`${series.name}: ${found[1].toLocaleString("en")}`, `since ${duration(found[0])}`] : [series.name, "nothing was put before this"];
  return found ? [`${series.name}: ${sampleText(found[1])}`, `sampled at ${duration(found[0])}`] : [series.name, "no sample before this"];
}

/** What the gutter says: the value at the right edge. At the end of a timeline it is the last one: what an iteration brought is known a little after its last span. */
export function latest(view, row) {
  const time = view.to - view.shift(row.layer), found = row.series.at(time >= view.stores[row.layer].end ? Infinity : time);
  return found ? (row.series.steps ? countText : sampleText)(found[1]) : "";
}
