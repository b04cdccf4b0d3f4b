// Which lanes a timeline shows, in which order, how high, and in which colours.
import { CAUSES, KINDS, KIND_CAUSE, LABEL, RUN, inkOn, rgb } from "./base.js";
import { CATEGORIES, OTHER } from "./lane.js";

export const RULER = 30;
const HEAD = 15, GAP = 6, COUNTER = 26, LEAST = 13, TALLEST = 44, COMB = 16, SUBLANE = 5, NAMED = 14, WHOLE = 56;
const NOWHERE = "no device"; // over the lanes of the driver and of others that work on none
/** Colour by kind: ten colours that are told apart with any vision. */
export const KIND_COLOUR = { run: "busy", get: "starved", put: "blocked", lock: "lock", onload: "switch", offload: "fill", transfer: "drain", wait: "tail", setup: "setup" };

/**
 * The rows of one or two stores, top to bottom: {kind: "device" | "worker" | "track" | "counter", layer, title, note, track, lane, device, series}.
 * Of two stores each lane of the second lies under the same lane of the first.
 */
export function listRows(stores, by, counters) {
  const rows = [], [store] = stores, placed = new Set();
  const twin = (layer, track) => stores[layer].tracks.find((t) => t.worker === track.worker && t.rank === track.rank);
  const add = (track, layer, extra) => { placed.add(track); rows.push({ kind: "track", track, layer, ...extra }); };
  const both = (track, extra) => {
    add(track, 0, extra);
    for (let layer = 1; layer < stores.length; layer++) { const other = twin(layer, track); if (other) add(other, layer, extra); }
  };
  const device = (name) => stores.forEach((s, layer) => {
    if (layer && !s.idle.has(name)) return;
    rows.push({ kind: "device", layer, device: name, title: name, lane: s.idle.get(name) });
  });
  if (by === "device") {
    const on = new Map(); // thousands of tracks on thousands of devices
    for (const track of store.tracks) {
      for (const name of new Set(track.devices)) { if (!on.has(name)) on.set(name, []); on.get(name).push(track); }
    }
    for (const name of store.tables.devices) {
      device(name);
      for (const track of on.get(name) || []) both(track, { device: name, title: track.label });
    }
  } else {
    for (const worker of store.workers) {
      rows.push({ kind: "worker", layer: 0, title: worker });
      for (const track of store.tracks) if (track.worker === worker) both(track, { title: `${track.rank} on ${track.devices.join(", ")}`, device: track.devices[0] });
    }
    for (const name of store.tables.devices) device(name); // below: there may be hundreds
  }
  const elsewhere = stores.flatMap((s, layer) => s.tracks.filter((t) => !placed.has(t) && (t.spans.count || t.points.count || t.labels.count)).map((track) => [track, layer]));
  if (elsewhere.length) rows.push({ kind: "device", layer: 0, title: NOWHERE }); // else they would seem to be on the device above them
  for (const [track, layer] of elsewhere) add(track, layer, { title: track.label, device: "" });
  if (counters) {
    const names = [...new Set(stores.flatMap((s) => [...s.counters.keys()]))];
    for (const name of names) stores.forEach((s, layer) => { if (s.counters.has(name)) rows.push({ kind: "counter", layer, title: name, series: s.counters.get(name) }); });
  }
  return rows;
}

/** [least, wished] height of a track's row, px: nested spans want lanes that their names fit into. */
function heights(row) {
  const { spans, labels } = row.track, deep = spans.lanes.length, labelled = labels.lanes.length > 1 ? 10 + labels.lanes.length * SUBLANE : 0;
  const least = Math.max(row.layer ? LEAST * 0.6 : LEAST, deep > 1 ? deep * SUBLANE : 0, labelled) - 2;
  const wished = spans.count || labels.count ? TALLEST : COMB; // ticks alone say where, not what
  return [least, Math.max(least, row.layer ? wished * 0.6 : wished, deep > 1 ? deep * NAMED : 0)];
}

/** Gives each row `y` (from the top of the content) and `h`; returns the content's height. */
export function placeRows(rows, height) {
  const counters = rows.filter((r) => r.kind === "counter").length;
  const heads = rows.filter((r) => (r.kind === "device" || r.kind === "worker") && !r.layer).length, tracks = rows.filter((r) => r.kind === "track").map(heights);
  const fixed = RULER + 4 + heads * (HEAD + GAP) + rows.filter((r) => r.kind === "device" && r.layer).length * (HEAD - 3)
    + Math.min(counters, Math.max(1, Math.floor((0.3 * height) / COUNTER))) * COUNTER; // where there is not room for all, the lanes come first
  const least = tracks.reduce((sum, [low]) => sum + low + 2, 0), more = tracks.reduce((sum, [low, high]) => sum + high - low, 0);
  const part = more ? Math.max(0, Math.min(1, (height - fixed - least) / more)) : 0;
  let y = RULER + 2, counter = 0;
  rows.forEach((row, i) => {
    if (row.kind === "track") {
      const [low, high] = heights(row), next = rows[i + 1];
      row.h = low + part * (high - low);
      row.y = y;
      y += row.h + (next && next.layer && !row.layer ? 0.5 : 2);
      return;
    }
    if (row.kind === "counter") {
      counter ||= counterHeight(height - y, counters);
      row.y = y; row.h = counter - 3; y += counter;
      return;
    }
    if (!row.layer) y += GAP;
    row.y = y;
    row.h = row.layer ? HEAD - 5 : HEAD - 3;
    y += row.layer ? HEAD - 3 : HEAD;
  });
  return y;
}

/** Of each of `count` counters with `room` px for all: where they do not fit, those in sight share the room, so that none of them is cut. */
function counterHeight(room, count) {
  const whole = Math.floor(room / COUNTER);
  return whole < 1 || whole >= count ? COUNTER : room / whole;
}

/**
 * [how far the rows are moved up, where they end] px, for a scroll position: a lane that is not too high is seen whole or not at all, and what would be
 * half a lane below stays empty. `row.top`: where it is when nothing is scrolled.
 */
export function wholeRows(rows, scroll, height, content) {
  if (content <= height) return [scroll, height];
  const low = (row) => row.h <= WHOLE, most = content - height;
  let from = scroll;
  const cut = rows.find((row) => row.top - scroll < RULER && row.top + row.h - scroll > RULER + 0.5);
  if (cut && low(cut)) from = scroll < most ? cut.top - RULER - 2 : cut.top + cut.h - RULER + 1; // the last one stays in sight
  const last = rows.find((row) => row.top - from < height && row.top + row.h - from > height + 0.5);
  return [from, last && low(last) ? last.top - from : height];
}

/** The lanes of a row with their place: [{lane, y, h, paint}], paint: "cause" | "point" | "kind" | "label"; later ones lie over earlier ones. */
export function stripsOf(row) {
  if (row.kind === "device") return row.lane ? [{ lane: row.lane, y: row.y + 1, h: row.h - 2, paint: "cause" }] : [];
  if (row.kind !== "track") return [];
  const { spans, labels, points } = row.track, out = points.lanes.map((lane) => ({ lane, y: row.y, h: row.h, paint: "point" }));
  const depth = Math.max(1, spans.lanes.length), each = row.h / depth;
  spans.lanes.forEach((lane, d) => out.push({ lane, y: row.y + d * each, h: depth > 1 ? each - 0.5 : each, paint: "kind" }));
  if (labels.lanes.length && row.h >= 9) {
    const h = Math.max(row.h * 0.36, labels.lanes.length * (SUBLANE - 1)), part = h / labels.lanes.length;
    labels.lanes.forEach((lane, d) => out.push({ lane, y: row.y + row.h - h + d * part, h: Math.max(1, part - (labels.lanes.length > 1 ? 0.5 : 0)), paint: "label" }));
  }
  return out;
}

/** Kinds of spans in which the device is used for something else: they are as strong as work. */
export const SOLID = new Set(["onload", "offload", "transfer", "setup"]);
/** How much of the ink lies over the span that a label is part of. */
export const LABEL_VEIL = 0.48;
const painted = new Map();

/**
 * Colours of what is drawn: {full: packed, red, green, blue: of each category times its weight, weight, ground: of empty time, veil}. They are opaque,
 * but those of labels, which lie over the spans that they are part of: `veil` is then their alpha of 255.
 * `strip`: "cause", "kind", "label", or of instants "point", "dust" (so many that they would seem to be one span), "notch" (over spans), "hit" (found by a search, which alone are drawn: `hits`); `by`: "worker" or "kind"; `faint`: of the timeline that is laid over another.
 */
export function paintOf(colours, by, strip, workerColour, faint) {
  const key = `${colours.mode}|${by}|${strip}|${workerColour}|${faint}`;
  let paint = painted.get(key);
  if (paint) return paint;
  const ground = rgb(colours.bg), label = strip === "label", weight = new Float64Array(CATEGORIES).fill(1);
  weight[OTHER] = 0; // among what was found it does not count
  const channels = ground.map(() => new Float64Array(CATEGORIES)), full = new Uint32Array(CATEGORIES);
  for (let k = 0; k < CATEGORIES; k++) {
    const [hex, opacity] = categoryColour(colours, by, strip, workerColour, k), a = opacity * (faint ? 0.75 : 1);
    const shade = rgb(hex).map((v, j) => (label ? v : Math.round(v * a + ground[j] * (1 - a))));
    full[k] = label && k === OTHER ? 0 : (((label ? Math.round(255 * a) : 255) << 24) | (shade[2] << 16) | (shade[1] << 8) | shade[0]) >>> 0;
    shade.forEach((v, j) => { channels[j][k] = v * weight[k]; });
  }
  painted.set(key, (paint = { full, red: channels[0], green: channels[1], blue: channels[2], weight, ground, veil: label ? full[LABEL] >>> 24 : 0, hits: strip === "hit" }));
  return paint;
}

/** [hex, opacity] of a category. */
function categoryColour(c, by, strip, workerColour, k) {
  if (k === OTHER) return [c.muted, 0.12]; // on a label strip: not drawn at all
  if (strip === "cause") return k < CAUSES.length ? [c.causes[CAUSES[k]], 1] : [c.busy, 0.9];
  if (strip === "label") return [inkOn(by === "kind" ? c.busy : workerColour), LABEL_VEIL];
  if (strip === "hit") return [c.text, 1];
  if (strip === "notch") return [inkOn(by === "kind" ? c.busy : workerColour), 1];
  if (strip === "dust") return [categoryColour(c, by, "point", workerColour, k)[0], 0.35];
  if (strip === "point" && by === "worker") return [workerColour, 1];
  const kind = KINDS[k];
  if (!kind || k === LABEL) return [c.muted, 0.3];
  if (by === "kind") { const name = KIND_COLOUR[kind] || "off"; return [name === "busy" ? c.busy : c.causes[name], 1]; }
  if (k === RUN) return [workerColour, 1];
  return [c.causes[KIND_CAUSE[kind]] || c.muted, SOLID.has(kind) ? 0.85 : 0.24];
}
