// Numbers of what is there: a range by worker, device and name, and the bubbles that are like one.
import { BUSY, CAUSES, LABEL, RUN } from "./base.js";
import { CATEGORIES } from "./lane.js";

/** Of [from, to): {workers: [{worker, sums, ranks, spans}], devices: [{device, busy, causes}], names: [{worker, name, count, total, most}]}. */
export function rangeStatistics(store, from, to) {
  const workers = new Map(), names = new Map();
  for (const track of store.tracks) {
    if (!track.spans.count && !track.points.count) continue;
    const entry = workers.get(track.worker) || { worker: track.worker, sums: new Float64Array(CATEGORIES), ranks: 0, spans: 0 };
    track.spans.sum(from, to, entry.sums);
    entry.ranks++;
    for (const lane of [...track.spans.lanes, ...track.points.lanes]) { const [a, b] = lane.range(from, to); entry.spans += b - a; }
    workers.set(track.worker, entry);
    for (const stack of [track.spans, track.labels, track.points]) for (const lane of stack.lanes) byName(names, track.worker, lane, from, to);
  }
  const devices = [...store.idle].map(([device, lane]) => {
    const sums = lane.sum(from, to, new Float64Array(CATEGORIES));
    return { device, busy: sums[BUSY], causes: Object.fromEntries(CAUSES.map((cause, k) => [cause, sums[k]])) };
  });
  return { workers: [...workers.values()], devices, names: [...names.values()].sort((a, b) => b.total - a.total) };
}

/** Spans that begin in the range, by worker and method or label. */
function byName(names, worker, lane, from, to) {
  const { start, dur, kind, name } = lane.columns;
  const [first, last] = lane.range(from, to);
  const mine = new Map();
  for (let i = first; i < last; i++) {
    if ((kind[i] !== RUN && kind[i] !== LABEL) || start[i] < from) continue;
    const key = name[i] * 16 + kind[i];
    let e = mine.get(key);
    if (!e) mine.set(key, (e = { count: 0, total: 0, most: 0 }));
    e.count++;
    e.total += dur[i];
    if (dur[i] > e.most) e.most = dur[i];
  }
  for (const [key, e] of mine) {
    const known = names.get(`${worker}/${key}`) || { worker, name: Math.floor(key / 16), count: 0, total: 0, most: 0 };
    known.count += e.count; known.total += e.total; known.most = Math.max(known.most, e.most);
    names.set(`${worker}/${key}`, known);
  }
}

/** Bubbles of a device's lane with the cause of the i-th: {count, total, median, longest, whole: time of the device}; of very many the median is that of some. */
export function alike(lane, i, most = 20000) {
  const { kind, dur } = lane.columns, step = Math.max(1, Math.floor(lane.count / most)), some = [], of = { count: 0, total: 0, longest: 0, whole: 0 };
  for (let j = 0; j < lane.count; j++) {
    of.whole += dur[j];
    if (kind[j] !== kind[i]) continue;
    if (of.count++ % step === 0) some.push(dur[j]);
    of.total += dur[j];
    if (dur[j] > of.longest) of.longest = dur[j];
  }
  some.sort((a, b) => a - b);
  return { ...of, median: some[Math.floor(some.length / 2)] };
}
