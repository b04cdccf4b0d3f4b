// Who handed what to whom, and why a device stood still: read from the spans in the browser, while the kernel is busy.
import { CAUSES, CAUSE_TEXT, GET, KINDS, LOCK, PUT, RUN, duration } from "./base.js";
import { CATEGORIES } from "./lane.js";

const MOST = 4000000; // spans of an iteration that are looked at for arrows: some tenths of a second

/** The stretch of time of an iteration; one without a mark yet reaches from the last mark to the end. */
function windowOf(store, iteration) {
  const mark = store.marks.find((m) => m.iteration === iteration);
  if (mark) return [mark.start, mark.end];
  return [store.marks.length ? store.marks[store.marks.length - 1].end : 0, store.end];
}

/**
 * Puts and gets of an iteration by channel: Map channel -> {puts, gets} of {track, start, end, low, high}. Kept until spans come; with `rest`, also
 * then for ten times as long as they took to find: what is drawn again with every delta must not take all the time there is. `cut`: of more spans than
 * can be looked at.
 */
export function movements(store, iteration, rest = false) {
  const began = performance.now();
  if (store.movesVersion !== store.version && !(rest && began < store.movesUntil)) { store.movesVersion = store.version; store.moves = new Map(); store.movesUntil = began; }
  let found = store.moves.get(iteration);
  if (found) return found;
  store.moves.set(iteration, (found = new Map()));
  const [from, to] = windowOf(store, iteration);
  let looked = 0;
  look: for (const track of store.tracks) {
    for (const lane of [...track.spans.lanes, ...track.points.lanes]) {
      const [first, last] = lane.range(from, to), c = lane.columns;
      if ((looked += last - first) > MOST) { found.cut = true; break look; }
      for (let i = first; i < last; i++) {
        if ((c.kind[i] !== GET && c.kind[i] !== PUT) || c.iteration[i] !== iteration || c.flow[i] < 0 || c.items[i] <= 0 || c.channel[i] < 0) continue;
        let entry = found.get(c.channel[i]);
        if (!entry) found.set(c.channel[i], (entry = { puts: [], gets: [] }));
        entry[c.kind[i] === PUT ? "puts" : "gets"].push({ track, start: c.start[i], end: c.start[i] + c.dur[i], low: c.flow[i], high: c.flow[i] + c.items[i] });
      }
    }
  }
  for (const { puts, gets } of found.values()) { puts.sort((a, b) => a.low - b.low); gets.sort((a, b) => a.low - b.low); }
  store.movesUntil += 10 * (performance.now() - began);
  return found;
}

/** What is not known of the arrows of an iteration, in words: "" where all of them are. */
export function missingArrows(store, iteration) {
  return movements(store, iteration, true).cut ? `Iteration ${iteration} has more than ${MOST.toLocaleString("en")} spans: arrows of its first lanes only` : "";
}

/** Pairs [put, get] of an iteration that share an item and touch [from, to): the rule of rlinf_lab/timeline/critical/flows.py. */
export function arrows(store, iteration, from, to, most) {
  const pairs = [];
  for (const { puts, gets } of movements(store, iteration, true).values()) {
    let first = 0;
    for (const get of gets) {
      while (first < puts.length && puts[first].high <= get.low) first++;
      for (let p = first; p < puts.length && puts[p].low < get.high; p++) {
        const put = puts[p];
        if (put.high <= get.low || put.start > get.end || get.end < from || put.end > to) continue;
        pairs.push([put, get]);
        if (pairs.length > most) return pairs;
      }
    }
  }
  return pairs;
}

/** Arrows into and out of one put or get; `rest` as of `movements`. */
export function arrowsOf(store, lane, i, rest = false) {
  const c = lane.columns, kind = c.kind[i];
  if ((kind !== GET && kind !== PUT) || c.flow[i] < 0 || c.channel[i] < 0) return [];
  const entry = movements(store, c.iteration[i], rest).get(c.channel[i]);
  if (!entry) return [];
  const low = c.flow[i], high = low + c.items[i], mine = { start: c.start[i], end: c.start[i] + c.dur[i] };
  const touching = (m) => m.low < high && m.high > low;
  return kind === GET
    ? entry.gets.filter((g) => g.start === mine.start && touching(g)).flatMap((get) => entry.puts.filter((p) => touching(p) && p.start <= get.end).map((put) => [put, get]))
    : entry.puts.filter((p) => p.start === mine.start && touching(p)).flatMap((put) => entry.gets.filter((g) => touching(g) && put.start <= g.end).map((get) => [put, get]));
}

/** What a track did most in [from, to): {kind, name, share, lane, i}, or null when it did nothing. */
export function doing(store, track, from, to) {
  const sums = track.spans.sum(from, to, new Float64Array(CATEGORIES)), kind = sums.indexOf(Math.max(...sums));
  if (sums[kind] <= 0) return null;
  let best = null, most = 0;
  for (const lane of track.spans.lanes) {
    const [first, last] = lane.range(from, to), c = lane.columns;
    for (let i = first, steps = 0; i < last && steps < 2000; i++, steps++) {
      const part = Math.min(to, c.start[i] + c.dur[i]) - Math.max(from, c.start[i]);
      if (c.kind[i] === kind && part > most) { most = part; best = [lane, i]; }
    }
  }
  if (!best) return null;
  const c = best[0].columns;
  return { kind, name: store.name(c.name[best[1]]), channel: c.channel[best[1]], share: sums[kind] / (to - from), lane: best[0], i: best[1] };
}

/**
 * Why a device stood still at bubble `i` of its lane, as {title, lines, chain}: `chain` follows from who waited to whom it waited for,
 * and on, while those wait themselves: [{track, text}, ...].
 */
export function explain(store, device, lane, i) {
  const c = lane.columns, from = c.start[i], to = from + c.dur[i], cause = CAUSES[c.kind[i]];
  if (!cause) return { title: `${device}: busy`, lines: [`${duration(c.dur[i])} from ${duration(from)}`], chain: [] };
  const lines = [CAUSE_TEXT[cause], `${duration(c.dur[i])} from ${duration(from)}`];
  const mark = store.markAt(from);
  if (mark) lines[1] += `, iteration ${mark.iteration}`;
  if (mark && missingArrows(store, mark.iteration)) lines.push(missingArrows(store, mark.iteration));
  const chain = [], waiting = store.tracks[c.track[i]];
  if (waiting) follow(store, waiting, c.waitKind[i], c.channel[i], from, to, chain, new Set());
  else chain.push(...busyOnes(store, device, from, to));
  return { title: `${device}: ${cause}`, lines, chain };
}

function follow(store, track, kind, channel, from, to, chain, seen) {
  const text = `${track.label} waited ${waitText(store, kind, channel)}`;
  chain.push({ track, text });
  if (seen.size > 5 || seen.has(track)) { if (seen.has(track)) chain.push({ track, text: "… a cycle" }); return; }
  seen.add(track);
  for (const other of awaited(store, track, kind, channel, from, to).slice(0, 3)) {
    const did = doing(store, other, from, to);
    if (!did) { chain.push({ track: other, text: `${other.label} recorded nothing` }); continue; }
    if (did.kind === RUN) chain.push({ track: other, text: `${other.label} ran ${did.name || "its method"} (${Math.round(100 * did.share)} % of it)` });
    else if (!seen.has(other)) follow(store, other, did.kind, did.channel, from, to, chain, seen);
  }
}

export function waitText(store, kind, channel) {
  const name = channel >= 0 ? ` ${store.name(channel)}` : "";
  return { get: `for input from channel${name}`, put: `for room in channel${name}`, lock: "for the device, or to be woken", onload: "for its onload", offload: "for an offload", transfer: `for bytes of${name}`, wait: "for the value of a call" }[KINDS[kind]] || "";
}

/** The tracks that could have ended a wait: of a get those that put, of a put those that get, of a lock those that ran on its device. */
function awaited(store, track, kind, channel, from, to) {
  if (kind === LOCK) return store.tracks.filter((t) => t !== track && t.devices.some((d) => track.devices.includes(d))).filter((t) => doing(store, t, from, to)?.kind === RUN);
  if (channel < 0) return [];
  const mark = store.markAt(from), iteration = mark ? mark.iteration : store.marks.length ? store.marks[store.marks.length - 1].iteration + 1 : 0;
  const entry = movements(store, iteration).get(channel);
  if (!entry) return [];
  const others = kind === GET ? entry.puts : entry.gets;
  // What came last was waited for longest.
  const near = others.filter((m) => m.end >= from && m.start <= to + (to - from) * 0.01 + 1e5 && m.track !== track).sort((a, b) => b.end - a.end);
  return [...new Set((near.length ? near : others.filter((m) => m.track !== track)).map((m) => m.track))];
}

/** Who ran meanwhile, the busiest first: for bubbles in which nobody waited here. */
function busyOnes(store, device, from, to) {
  return store.tracks.map((track) => [track, doing(store, track, from, to)]).filter(([, did]) => did && did.kind === RUN)
    .sort((a, b) => b[1].share - a[1].share).slice(0, 3)
    .map(([track, did]) => ({ track, text: `meanwhile ${track.label} ran ${did.name || "its method"} (${Math.round(100 * did.share)} %)` }));
}
