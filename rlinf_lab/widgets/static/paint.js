// One frame of a timeline: strips of pixels, then names, gutter, ruler, marks, arrows and the selection.
import { BUSY, FONT, KIND_CAUSE, LABEL, KINDS, RUN, blend, clock, duration, inkOn } from "./base.js";
import { latest } from "./counters.js";
import { NOTCH, sparse } from "./instants.js";
import { CATEGORIES } from "./lane.js";
import { arrows, arrowsOf, missingArrows } from "./links.js";
import { KIND_COLOUR, LABEL_VEIL, RULER, SOLID, paintOf, stripsOf } from "./rows.js";

const LONG = 120e9, DAY = 86400, STEPS = [2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, DAY]; // ns, s, s
const NANOSECONDS = 2e4; // ns: shorter timelines are told in them
const UNDER_WAY = 24; // px: less is how late news come
const SPARSE = 56; // px between the numbers of narrow iterations
/** What a row's title leaves free of the gutter, px: its mark before it, a share or a value behind it. */
export const ROOM = { device: 54, worker: 30, track: 32, counter: 74 };
const MOST_ARROWS = 240, MOST_ITERATIONS = 4, MOST_NAMED = 2000;

/** All lanes in sight at once: one pixel row of an ImageData for each, stretched to its height. */
export function paintStrips(view, g, columns) {
  const strips = [];
  for (const row of view.rows) {
    if (row.y > view.height || row.y + row.h < RULER) continue;
    for (const strip of [...stripsOf(row), ...ticksOver(view, row, columns)]) if (strip.lane.count && strip.y < view.height && strip.y + strip.h > RULER) strips.push({ ...strip, row });
  }
  if (!strips.length) return;
  const canvas = view.strip;
  if (canvas.width !== columns || canvas.height < strips.length) {
    canvas.width = columns;
    canvas.height = strips.length + 8;
    view.image = null;
  }
  const context = canvas.getContext("2d", { willReadFrequently: true });
  if (!view.image) {
    view.image = context.createImageData(columns, canvas.height);
    view.pixels = new Uint32Array(view.image.data.buffer);
  }
  const pixel = (view.to - view.from) / columns, pixels = view.pixels;
  pixels.fill(0, 0, strips.length * columns);
  strips.forEach((strip, j) => {
    const worker = strip.row.track ? view.workerColour(strip.row.track.worker) : "", dense = strip.paint === "point" && !isSparse(view, strip.row, strip.lane, columns);
    strip.lane.paint(view.from - view.shift(strip.row.layer), pixel, columns, paintOf(view.colours, view.colourBy, dense ? "dust" : strip.paint, worker, strip.row.layer > 0), pixels, j * columns);
  });
  context.putImageData(view.image, 0, 0, 0, 0, columns, strips.length);
  g.imageSmoothingEnabled = false;
  g.save();
  g.beginPath(); g.rect(view.gutter, RULER, view.plot, view.bottom - RULER); g.clip();
  strips.forEach(({ y, h }, j) => g.drawImage(canvas, 0, j, columns, 1, view.gutter, y, view.plot, h));
  g.restore();
}

/** Strips of the instants that lie over the spans of a row: those that a search found, else all where they are few. */
function ticksOver(view, row, columns) {
  if (row.kind !== "track") return [];
  return row.track.points.lanes.flatMap((lane) => {
    if (lane.found) return [{ lane, y: row.y, h: row.h, paint: "hit" }];
    return row.track.spans.count && isSparse(view, row, lane, columns) ? [{ lane, y: row.y, h: Math.min(NOTCH, row.h / 3), paint: "notch" }] : [];
  });
}

function isSparse(view, row, lane, columns) {
  const shift = view.shift(row.layer);
  return sparse(lane, view.from - shift, view.to - shift, columns);
}

/** From the last that ended to now: that nothing is drawn there does not say that nothing is done. */
export function paintUnderWay(view, g) {
  const { end, now } = view.store, x0 = Math.max(view.gutter, view.x(end)), x1 = Math.min(view.gutter + view.plot, view.x(now));
  if (view.over || x1 - x0 < UNDER_WAY) return;
  g.fillStyle = view.colours.grid;
  g.fillRect(x0, RULER, x1 - x0, view.bottom - RULER);
  const text = "under way: drawn when it ends";
  g.font = `10.5px ${FONT}`;
  if (g.measureText(text).width + 16 < x1 - x0) paintText(g, g.font, view.colours.muted, "left", text, x0 + 8, RULER + 10);
}

export function paintNames(view, g) {
  const least = ((view.to - view.from) / view.plot) * 30; // 30 pixels
  g.font = `10.5px ${FONT}`;
  g.textAlign = "left";
  g.textBaseline = "middle";
  for (const row of view.rows) {
    if (row.kind !== "track" || row.y > view.height || row.y + row.h < RULER) continue;
    for (const strip of stripsOf(row)) {
      if (strip.h < 10 || strip.paint === "point") continue;
      const labelled = strip.paint === "kind" && row.track.labels.count && row.track.spans.lanes.length === 1;
      paintLaneNames(view, g, row, strip, labelled ? strip.y + strip.h * 0.34 : strip.y + strip.h / 2 + 0.5, least);
    }
  }
}

function paintLaneNames(view, g, row, strip, y, least) {
  const shift = view.shift(row.layer), c = strip.lane.columns, store = view.stores[row.layer], edge = view.gutter + view.plot;
  const full = view.colourBy === "kind" ? view.colours.busy : view.workerColour(row.track.worker);
  namedStretches(strip.lane, view.from - shift, view.to - shift, least, (i, start, end) => {
    const x0 = Math.max(view.gutter, view.x(start + shift)), x1 = Math.min(edge, view.x(end + shift));
    const run = c.kind[i] === RUN || c.kind[i] === LABEL;
    const text = fitted(view, g, run ? store.name(c.name[i]) : `${KINDS[c.kind[i]]} ${store.name(c.channel[i])}`, x1 - x0 - 8);
    if (!text) return;
    const ground = groundOf(view, KINDS[c.kind[i]]);
    g.fillStyle = strip.paint === "label" ? inkOn(blend(full, inkOn(full), LABEL_VEIL)) : run ? inkOn(full) : ground ? inkOn(ground) : view.colours.muted;
    g.fillText(text, x0 + 4, y);
  });
}

/** The colour under the name of a wait or a switch; nothing where it is faint. */
function groundOf(view, kind) { return view.colours.causes[view.colourBy === "kind" ? KIND_COLOUR[kind] : SOLID.has(kind) && KIND_CAUSE[kind]]; }

/**
 * Calls `visit(i, start, end)` for what is wide enough for a name: spans, and neighbours of the same kind and name without a visible gap,
 * as a method that computes, puts and computes on leaves them. Of more spans than can be looked at in a frame only single ones are named.
 */
function namedStretches(lane, from, to, least, visit) {
  const { start, dur, kind, name, channel } = lane.columns, hidden = lane.found && lane.found.category, [first, last] = lane.range(from, to);
  if (last - first > MOST_NAMED) {
    lane.wide(from, to, least, (i) => { if (!hidden || hidden[i] === kind[i]) visit(i, start[i], start[i] + dur[i]); });
    return;
  }
  const gap = least / 30; // a pixel
  for (let i = first; i < last;) {
    let j = i + 1, end = start[i] + dur[i];
    while (j < last && kind[j] === kind[i] && name[j] === name[i] && channel[j] === channel[i] && start[j] - end < gap) { end = start[j] + dur[j]; j++; }
    if (end - start[i] >= least && (!hidden || hidden[i] === kind[i])) visit(i, start[i], end);
    i = j;
  }
}

/** The text, or as much of it as is `width` wide with an ellipsis; "" where that says nothing. */
function fitted(view, g, text, width) {
  if (width < 8 || !text) return "";
  const wide = (part) => {
    let found = view.widths.get(part);
    if (found === undefined) view.widths.set(part, (found = g.measureText(part).width));
    return found;
  };
  if (wide(text) <= width) return text;
  let n = Math.ceil((text.length * (width - 6)) / wide(text)) + 1, part;
  do part = `${text.slice(0, --n).replace(/[\ud800-\udbff]$/, "")}…`; while (n > 1 && wide(part) > width); // the letters before may be wider than those after
  return n > 1 ? part : "";
}

export function paintGutter(view, g) {
  const c = view.colours;
  g.fillStyle = c.bg;
  g.fillRect(0, RULER, view.gutter - 1, view.height);
  g.textBaseline = "middle";
  for (const row of view.rows) {
    if (row.y > view.height || row.y + row.h < RULER) continue;
    const mid = row.y + row.h / 2 + 0.5, head = row.kind !== "track";
    if (row.kind === "counter") {
      const title = row.layer ? view.labels[row.layer] : row.title, value = latest(view, row);
      g.font = `11px ${FONT}`;
      const room = view.gutter - 8 - Math.max(52, g.measureText(value).width + 6) - 6; // the same for all values of a usual length: the title is cut once
      paintText(g, `11px ${FONT}`, row.layer ? c.muted : c.text, "left", view.cut(g, title, room), 8, mid);
      paintText(g, `11px ${FONT}`, c.muted, "right", value, view.gutter - 8, mid);
      continue;
    }
    if (head && !row.layer) {
      paintText(g, titleFont(row), c.text, "left", view.names.get(row.kind).get(row.title), 2, mid);
      if (row.kind === "worker") { g.fillStyle = view.workerColour(row.title); g.fillRect(view.gutter - 16, mid - 3.5, 7, 7); }
    }
    if (row.kind === "device" && row.lane) paintText(g, `11px ${FONT}`, c.muted, "right", shareText(view.busyShare(row)), view.gutter - 8, mid);
    if (head) continue;
    if (row.layer) { if (row.h >= 9) paintText(g, `10px ${FONT}`, c.muted, "right", view.cut(g, view.labels[row.layer], view.gutter - 20), view.gutter - 8, mid); continue; }
    g.fillStyle = view.workerColour(row.track.worker);
    g.fillRect(10, mid - 3.5, 7, 7);
    const name = view.stores.length > 1 && row.h >= 9 ? view.cut(g, view.labels[0], view.labelWidth) : ""; // whose lane the upper one is
    paintText(g, `11px ${FONT}`, c.text, "left", view.names.get("track").get(row.title), 22, mid);
    if (name) paintText(g, `10px ${FONT}`, c.muted, "right", name, view.gutter - 8, mid);
  }
}

export function titleFont(row) { return `${row.kind === "device" || row.kind === "worker" ? "600 " : ""}11px ${FONT}`; }

function paintText(g, font, colour, align, text, x, y) {
  g.font = font;
  g.fillStyle = colour;
  g.textAlign = align;
  g.fillText(text, x, y);
}

export function paintRuler(view, g) {
  const c = view.colours;
  g.fillStyle = c.bg;
  g.fillRect(0, 0, view.width, RULER);
  g.fillStyle = c.line;
  g.fillRect(view.gutter, RULER - 14, view.plot, 1);
  g.fillRect(0, RULER - 0.5, view.width, 1);
  g.textBaseline = "middle";
  const step = niceStep((view.to - view.from) / Math.max(2, view.plot / 110), view.to);
  for (let t = Math.ceil(view.from / step) * step; t <= view.to; t += step) {
    const x = view.x(t);
    g.fillStyle = c.line;
    g.fillRect(x, 2, 1, 13);
    const text = rulerText(t, step, view.to);
    g.font = `10.5px ${FONT}`;
    if (x + 3 + g.measureText(text).width <= view.gutter + view.plot) paintText(g, g.font, c.muted, "left", text, x + 3, 9);
  }
  paintIterations(view, g);
  g.fillStyle = c.bg;
  g.fillRect(0, 0, view.gutter, RULER - 1);
  if (view.store.marks.length) paintText(g, `10px ${FONT}`, c.muted, "left", "iteration", 2, RULER - 7);
}

/** A line where each iteration begins, its number where there is room for it. */
export function paintMarks(view, g) {
  const bottom = Math.min(view.bottom, view.content - view.scroll), c = view.colours;
  const lines = [];
  for (const mark of view.store.marks) {
    if (mark.end < view.from || mark.start > view.to) continue;
    const x = Math.round(view.x(mark.start));
    if (x >= view.gutter && !(x - lines[lines.length - 1] < 3)) lines.push(x);
  }
  g.fillStyle = c.muted;
  g.globalAlpha = lines.length > view.plot / 12 ? 0.2 : 0.55; // so many lines would be all that one sees
  for (const x of lines) g.fillRect(x, RULER, 1, bottom - RULER);
  g.globalAlpha = 1;
}

/** Below the times: which iteration is where. Of those too narrow for a number some have one, and the lines of the others would cross it. */
function paintIterations(view, g) {
  const c = view.colours;
  let free = view.gutter;
  for (const mark of view.store.marks) {
    if (mark.end < view.from || mark.start > view.to) continue;
    const x = view.x(mark.start), x0 = Math.max(view.gutter, x), text = String(mark.iteration), need = 8 + 6.5 * text.length;
    const narrow = view.x(mark.end) - x < need, cut = x0 + need > view.gutter + view.plot || (x < view.gutter && view.x(mark.end) - x0 < need); // half in sight it would seem to be another's
    if (x0 < free || (narrow && cut)) continue;
    g.fillStyle = c.muted;
    if (x >= view.gutter) { g.globalAlpha = 0.55; g.fillRect(Math.round(x0), RULER - 12, 1, 12); g.globalAlpha = 1; }
    if (cut) continue;
    paintText(g, `10px ${FONT}`, c.muted, "left", text, x0 + 4, RULER - 7);
    free = x0 + (narrow ? Math.max(need, SPARSE) : need);
  }
}

/** Arrows from put to get: all in sight when they are few, and those of the chosen and the hovered span. What is not drawn is said. */
export function paintArrows(view, g) {
  const pairs = [], notes = new Set();
  if (view.arrows) {
    const seen = view.store.marks.filter((m) => m.end > view.from && m.start < view.to).map((m) => m.iteration);
    if (!seen.length || view.to > view.store.marks[view.store.marks.length - 1].end) seen.push((view.store.marks[view.store.marks.length - 1]?.iteration ?? -1) + 1);
    if (seen.length > MOST_ITERATIONS) notes.add(`More than ${MOST_ITERATIONS} iterations in sight: zoom in for arrows`);
    else for (const n of seen) { pairs.push(...arrows(view.store, n, view.from, view.to, MOST_ARROWS)); notes.add(missingArrows(view.store, n)); }
    const foreign = view.store.tables.foreign_arrows;
    const are = foreign === 1 ? "arrow of the tool that wrote this is" : "arrows of the tool that wrote this are";
    if (foreign) notes.add(`${foreign.toLocaleString("en")} ${are} left out: here they lead from puts to gets`);
    if (!pairs.length && ![...notes].some(Boolean)) notes.add("No arrows: nothing was handed over in sight");
    if (pairs.length > MOST_ARROWS) { pairs.length = 0; notes.add(`More than ${MOST_ARROWS} arrows in sight: zoom in to see them`); }
  }
  view.arrowCount = pairs.length;
  const pointed = [view.picked, view.hovered].filter((p) => p && p.track && !p.layer && moves(p));
  const chosen = pointed.flatMap((p) => arrowsOf(view.store, p.lane, p.i, true)).slice(0, 60);
  for (const p of pointed) notes.add(missingArrows(view.store, p.lane.columns.iteration[p.i]));
  view.chosenCount = chosen.length;
  view.setNote([...notes].filter(Boolean).join(". "));
  for (const [put, get] of pairs) arrow(view, g, put, get, view.colours.text, 0.6); // they cross lanes of any colour
  for (const [put, get] of chosen) arrow(view, g, put, get, view.colours.text, 1);
}

/** Whether it is a put or a get of known items. */
export function moves({ lane, i }) { return Boolean(lane.columns.flow) && lane.columns.flow[i] >= 0; }

function arrow(view, g, put, get, colour, opacity) {
  const a = view.rowOf(put.track), b = view.rowOf(get.track);
  if (!a || !b) return;
  const x0 = view.x(put.end), x1 = view.x(Math.max(get.end, put.end)), down = b.y > a.y;
  const y0 = a.y + a.h / 2, y1 = down ? b.y : b.y + b.h, bend = Math.max(12, Math.min(60, Math.abs(x1 - x0) * 0.5));
  if (Math.max(x0, x1) < view.gutter || Math.min(x0, x1) > view.width || Math.max(y0, y1) < RULER || Math.min(y0, y1) > view.height) return;
  g.globalAlpha = opacity;
  g.strokeStyle = g.fillStyle = colour;
  g.lineWidth = 1;
  g.beginPath();
  g.moveTo(x0, y0);
  g.bezierCurveTo(x0 + bend, y0, x1, y1 - (down ? bend : -bend), x1, y1);
  g.stroke();
  const tip = down ? -5 : 5;
  g.beginPath(); g.moveTo(x1, y1); g.lineTo(x1 - 3, y1 + tip); g.lineTo(x1 + 3, y1 + tip); g.fill();
  g.beginPath(); g.arc(x0, y0, 1.8, 0, 7); g.fill();
  g.globalAlpha = 1;
}

/** The frame around the chosen span or bubble; where that is, [left, top, right, bottom] px. */
export function paintPicked(view, g) {
  const p = view.picked;
  if (!p || p.i >= p.lane.count) return null;
  const row = view.rows.find((r) => r.layer === p.layer && (p.track ? r.track === p.track : r.kind === "device" && r.device === p.device));
  const strip = row && stripsOf(row).find((s) => s.lane === p.lane);
  if (!strip) return null;
  const c = p.lane.columns, shift = view.shift(p.layer), x0 = view.x(c.start[p.i] + shift), x1 = view.x(c.start[p.i] + c.dur[p.i] + shift);
  g.strokeStyle = view.colours.text;
  g.lineWidth = 1.5;
  g.strokeRect(Math.max(view.gutter - 4, x0) - 0.5, strip.y - 0.5, Math.max(2, Math.min(view.width + 4, x1) - Math.max(view.gutter - 4, x0)) + 1, strip.h + 1);
  return [x0, strip.y, x1, strip.y + strip.h];
}

export function paintSelection(view, g) {
  if (!view.selection) return;
  const [a, b] = view.selection, x0 = view.x(Math.min(a, b)), x1 = view.x(Math.max(a, b)), left = view.gutter, right = left + view.plot;
  const from = Math.max(left, x0), to = Math.min(right, x1);
  g.fillStyle = view.colours.accent;
  g.globalAlpha = 0.14;
  if (to > from) g.fillRect(from, RULER, to - from, view.height); // what is beside the plot are labels and the scrollbar
  g.globalAlpha = 1;
  for (const x of [x0, x1]) if (x >= left && x <= right) g.fillRect(Math.min(x, right - 1), RULER, 1, view.height);
  const text = duration(Math.abs(b - a)), at = Math.max(view.gutter, Math.min(view.gutter + view.plot - 70, x0));
  g.font = `10.5px ${FONT}`;
  g.fillStyle = view.colours.accent;
  g.fillRect(at, RULER - 14, g.measureText(text).width + 10, 14);
  paintText(g, `10.5px ${FONT}`, inkOn(view.colours.accent), "left", text, at + 5, RULER - 6.5);
}

/** Where one is among more lanes than fit. */
export function paintScrollbar(view, g) {
  if (view.content <= view.height) return;
  const track = view.height - RULER, size = Math.max(24, (track * view.height) / view.content);
  const y = RULER + ((track - size) * view.scroll) / (view.content - view.height);
  g.fillStyle = view.colours.line;
  g.fillRect(view.width - 7, RULER, 7, track);
  g.fillStyle = view.colours.muted;
  g.fillRect(view.width - 6, y, 5, size);
}

/** Share of the visible time of a device in which user code ran, as far as it is known; NaN where nothing is known yet. */
export function busyShare(view, row) {
  const store = view.stores[row.layer], shift = view.shift(row.layer);
  const from = Math.max(0, view.from - shift), to = Math.min(store.end, view.to - shift);
  const sums = row.lane.sum(from, to, new Float64Array(CATEGORIES));
  const total = sums.reduce((a, b) => a + b, 0);
  return total ? sums[BUSY] / total : NaN;
}

function shareText(share) { return Number.isNaN(share) ? "–" : `${Math.round(100 * share)} %`; }

/** ns between the ticks of a ruler up to `to`, at least `rough`: of a long one in steps of minutes and hours. */
export function niceStep(rough, to = 0) {
  if (to >= LONG && rough > 1e9) return (STEPS.find((s) => s * 1e9 >= rough) ?? DAY * niceStep(rough / DAY / 1e9)) * 1e9;
  const power = Math.max(1, 10 ** Math.floor(Math.log10(rough))); // no time is between two nanoseconds
  for (const m of [1, 2, 5]) if (power * m >= rough) return power * m;
  return power * 10;
}

/** A time of a ruler with ticks at every `step` up to `to`, all in one unit. */
export function rulerText(t, step, to) {
  if (to >= LONG && step >= 1e9) return `${t < 0 ? "−" : ""}${clock(Math.abs(t) / 1e9)}`;
  if (to < NANOSECONDS && step < 1e3) return `${Math.round(t)} ns`;
  const [unit, name] = step >= 1e9 || (to >= 2e9 && step >= 1e5) ? [1e9, "s"] : step >= 1e3 && to >= 1e6 ? [1e6, "ms"] : [1e3, "µs"];
  const decimals = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  return `${(t / unit).toFixed(decimals)} ${name}`;
}
