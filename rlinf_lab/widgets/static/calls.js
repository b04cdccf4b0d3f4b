// What a rank computed in one piece, and which pieces took strangely long. A call is cut by its gets and puts: compared are whole calls, their turns (from a
// get to the next one, whatever was put meanwhile) and the stretches of those, switches, and the spans of users and of other tools, each with what is alike.
import { GET, KINDS, LABEL, LOCK, PUT, RUN, SETUP, WAIT } from "./base.js";
import { grown } from "./lane.js";

const FEW = 8; // of what there is less, nothing is usual
const SAMPLE = 16384; // for a median
const OF_ONE_GROUP = 3; // what is slow in many places would hide what else is
const MOSTLY = 0.8, PARTLY = 0.3; // of a loss: what lies within explains it, or is worth a line beside it
const SLIGHT = 0.002; // of an iteration: what was lost is not worth a line
const SLIVER = 0.125; // of what most of the time goes into, and all of them together of the time: between two puts in a row there is next to nothing
const WIDTH = 6; // numbers of a piece

/**
 * All pieces of one sort, one after the other: ns computed, start, end, how many spans, the number of its lane and there that of the longest of them.
 * Numbers in one typed array, for of objects or lists of numbers the collector looks through millions. Where one piece is `wanted`, only ns of the others.
 */
class Group {
  constructor(first, isLean) {
    Object.assign(this, { ...first, wanted: null, count: 0, width: isLean ? 1 : WIDTH });
    this.rows = new Float64Array(4 * this.width);
  }

  room(count) { if (this.rows.length < count * this.width) this.rows = grown(this.rows, Math.ceil(1.6 * count + 4) * this.width); }

  ns(j) { return this.rows[j * this.width]; }

  /** {ns, start, end, parts, lane: its number, row} of the j-th. */
  piece(j) { const [ns, start, end, parts, lane, row] = this.rows.subarray(j * WIDTH, (j + 1) * WIDTH); return { ns, start, end, parts, lane, row }; }

  add(piece) {
    this.room(this.count + 1);
    const { rows } = this, at = this.count++ * this.width;
    rows[at] = piece.ns;
    if (piece.wanted) this.wanted = piece;
    if (this.width === 1) return;
    rows[at + 1] = piece.start; rows[at + 2] = piece.end; rows[at + 3] = piece.parts; rows[at + 4] = piece.lane; rows[at + 5] = piece.row;
  }

  addAll(group) {
    this.wanted ||= group.wanted;
    this.room(this.count + group.count);
    this.rows.set(group.rows.subarray(0, group.count * this.width), this.count * this.width);
    this.count += group.count;
  }

  /**
   * {durations by size, how many pieces those stand for}: without slivers where the most time goes into longer pieces; of very many some,
   * evenly picked. What most of the time goes into is looked for without the slowest few, of which one may have taken longer than all others together.
   */
  usual(slivers = false) {
    const step = Math.ceil(this.count / SAMPLE), sorted = new Float64Array(Math.ceil(this.count / step));
    for (let j = 0; j < sorted.length; j++) sorted[j] = this.ns(j * step);
    sorted.sort();
    const n = sorted.length - Math.min(FEW, Math.ceil(sorted.length / 20));
    let half = 0, time = 0, k = 0, first = 0, short = 0;
    for (let j = 0; j < n; j++) half += sorted[j] / 2;
    while (k < n - 1 && (time += sorted[k]) < half) k++;
    while (sorted[first] < SLIVER * sorted[k]) short += sorted[first++];
    // Where these take a part of the time that counts, they are what is usual, and what most of the time goes into is what is slow.
    const kept = slivers || sorted.length < FEW || short > SLIVER * 2 * half ? sorted : sorted.subarray(first);
    return { sorted: kept, count: Math.round((this.count * kept.length) / sorted.length) };
  }
}

/** Groups of like pieces by a key; `wanted`: {lane, i} of a span whose piece is marked in its group, and pieces of other methods are left out. */
class Groups {
  constructor(wanted = null) {
    this.of = new Map();
    this.lanes = []; // {track, lane} by number
    this.wanted = wanted;
    this.name = wanted ? wanted.lane.columns.name[wanted.i] : -1;
    this.kind = wanted ? wanted.lane.columns.kind[wanted.i] : -1;
  }

  group(key, first) {
    let group = this.of.get(key);
    if (!group) this.of.set(key, (group = new Group(first, this.wanted !== null)));
    return group;
  }

  concerns(name, kind) { return this.wanted === null || (name === this.name && kind === this.kind); }

  is(lane, i) { return this.wanted !== null && lane === this.wanted.lane && i === this.wanted.i; }

  /** Batches of a size that came a few times are compared whatever their size, and what is at one level a few times with all levels (`among`). */
  list() {
    const found = [], joined = new Groups(this.wanted), wide = new Groups(this.wanted), named = (g) => `${g.worker}/${g.name}/${g.kind}/${g.how}/${g.channel}`;
    for (const group of this.of.values()) {
      if (group.items === undefined || group.count >= FEW) { found.push(group); continue; }
      const { worker, name, kind, how, channel, depth } = group, sized = group.items > 0;
      joined.group(`${named(group)}/${depth}/${sized}`, { worker, name, kind, how, channel, depth, sized }).addAll(group);
    }
    found.push(...joined.of.values());
    const rare = (group) => group.count < FEW && !group.sized, some = new Set(found.filter(rare).map(named));
    for (const group of found) if (some.has(named(group)) && !group.sized && !(group.items > 0)) wide.group(named(group), {}).addAll(group);
    for (const group of found.filter(rare)) group.among = wide.of.get(named(group));
    return found;
  }
}

const BEGUN = 0, GOT = 1, WAITED = 2, HOW = ["start", "get", "wait", "put"];
/** How a turn or a stretch began, as a number: after the start of its call, a get of so many items from a channel, a wait, or a put. */
const beginning = (how, channel = -1, items = 0) => how + 4 * (channel + 1 + 4194304 * items);
const AFRESH = { how: BEGUN, channel: -1, items: 0 };

/** The pieces of one lane; puts and gets that took no time lie among the points of its track. */
class Walk {
  constructor(groups, track, lane, depth) {
    Object.assign(this, { groups, track, lane, depth, turn: null, call: null, number: groups.lanes.push({ track, lane }) - 1 });
    this.after = -1; // the kind of what came last
    this.begun = AFRESH; // what the next turn begins with
    this.before = this.got = 0; // how the next stretch begins, and with how many items
    this.known = new Map(); // groups of a method by how they begin: a string for each span would take most of the time
    this.single = new Map(); // and of what is a piece by itself
  }

  see(lane, i) {
    const { kind, name, iteration, dur, channel, items } = lane.columns, is = kind[i];
    if (is === RUN) this.run(i, name[i], iteration[i], dur[i]);
    else if (is === GET) this.next(GOT, channel[i], items[i]);
    else if (is === WAIT) this.next(WAITED, -1, 0);
    else if (is === PUT) { this.before = beginning(3, channel[i]); this.got = 0; }
    else if (is !== LOCK && is !== SETUP && dur[i] > 0) this.alone(lane, i);
    this.after = is;
  }

  /** A span that is a piece by itself. */
  alone(lane, i) {
    const { kind, name, start, dur } = lane.columns, worker = this.track.worker, key = 16 * name[i] + kind[i];
    if (!this.groups.concerns(name[i], kind[i])) return;
    let group = this.single.get(key);
    if (!group) {
      group = this.groups.group(`${worker}/${name[i]}/${kind[i]}/${this.depth}`, { worker, name: name[i], kind: kind[i], depth: this.depth });
      this.single.set(key, group);
    }
    group.add({ ns: dur[i], start: start[i], end: start[i] + dur[i], parts: 1, lane: this.number, row: i, wanted: this.groups.is(lane, i) });
  }

  /** A stretch of a call; two that meet belong to two calls, for within one something lies between them. */
  run(i, name, iteration, ns) {
    const { lane, number } = this, { start } = lane.columns, end = start[i] + ns;
    if (!this.call || this.call.name !== name || this.call.iteration !== iteration || this.after === RUN) {
      if (this.begun.how === BEGUN) this.before = this.got = 0;
      this.close();
      if (!this.known.has(name)) this.known.set(name, this.groups.concerns(name, RUN) ? { stretches: new Map(), turns: new Map(), wholes: new Map() } : null);
      this.call = { name, iteration, turns: 0, items: 0, ns: 0, start: start[i], end, parts: 0, longest: 0, lane: number, row: i, wanted: false, groups: this.known.get(name) };
    }
    if (!this.call.groups) { this.begun = AFRESH; return; }
    if (!this.turn) {
      this.turn = { begun: this.begun, ns: 0, start: start[i], end, parts: 0, longest: 0, lane: number, row: i, wanted: false, first: null };
      this.call.turns++;
      this.call.items += this.begun.items;
      this.begun = AFRESH;
    }
    const wanted = this.groups.is(lane, i), stretch = { ns, start: start[i], end, parts: 1, lane: number, row: i, before: this.before, got: this.got, wanted };
    grow(this.turn, stretch);
    grow(this.call, stretch);
    if (this.turn.parts === 1) this.turn.first = stretch; // a turn of one stretch is that
    else {
      if (this.turn.parts === 2) this.addStretch(this.turn.first);
      this.addStretch(stretch);
    }
  }

  addStretch(stretch) {
    const { call, depth } = this, worker = this.track.worker, { before, got } = stretch;
    let group = call.groups.stretches.get(before);
    if (!group) {
      group = this.groups.group(`${worker}/${call.name}/stretch/${before}/${depth}`, { worker, name: call.name, kind: RUN, how: "stretch", got, depth });
      call.groups.stretches.set(before, group);
    }
    group.add(stretch);
  }

  /** A turn is over: the next one begins so, or with what was got just before as well. */
  next(how, channel, items) {
    this.endTurn();
    const { begun } = this;
    this.begun = { how, channel, items: begun.how === GOT && begun.channel === channel ? begun.items + items : items };
    this.got = this.begun.items;
    this.before = beginning(how, channel, this.got);
  }

  endTurn() {
    const { turn, call, depth } = this;
    if (!turn) return;
    this.turn = null;
    const { how, channel, items } = turn.begun, worker = this.track.worker, key = beginning(how, channel, items);
    let group = call.groups.turns.get(key);
    if (!group) {
      group = this.groups.group(`${worker}/${call.name}/turn/${key}/${depth}`, { worker, name: call.name, kind: RUN, how: HOW[how], channel, items, depth });
      call.groups.turns.set(key, group);
    }
    group.add(turn);
  }

  /** A call is over. One of a single turn is that turn, or, where it got nothing, the whole call. */
  close() {
    const { call, turn, depth } = this, worker = this.track.worker, gotNothing = turn && call.turns === 1 && turn.begun.how === BEGUN;
    if (gotNothing) this.turn = null;
    this.endTurn();
    this.call = null;
    if (!call || !call.groups || (call.turns === 1 && !gotNothing)) return;
    let group = call.groups.wholes.get(call.items);
    if (!group) {
      group = this.groups.group(`${worker}/${call.name}/call/${call.items}/${depth}`, { worker, name: call.name, kind: RUN, how: "whole", items: call.items, depth });
      call.groups.wholes.set(call.items, group);
    }
    group.add(call);
  }
}

/** A turn, or a call, by a stretch. */
function grow(piece, { ns, end, row, wanted }) {
  piece.ns += ns;
  piece.end = end;
  piece.parts++;
  if (ns >= piece.longest) { piece.longest = ns; piece.row = row; }
  if (wanted) piece.wanted = true;
}

function walk(groups, track) {
  for (const [depth, lane] of track.spans.lanes.entries()) {
    const own = new Walk(groups, track, lane, depth), { start } = lane.columns;
    const points = depth ? [] : track.points.lanes, point = points.length ? points[0] : null, n = point ? point.count : 0;
    for (let i = 0, j = 0; i < lane.count; i++) {
      while (j < n && point.columns.start[j] <= start[i]) own.see(point, j++);
      own.see(lane, i);
    }
    own.close();
  }
  for (const [depth, lane] of track.labels.lanes.entries()) {
    const own = new Walk(groups, track, lane, depth);
    for (let i = 0; i < lane.count; i++) own.alone(lane, i);
  }
}

/** The pieces that a span is of, the smallest first, with what is alike: [{sorted durations, count, ns, parts, how, channel, items}, ...]. */
export function likeIt(store, track, lane, i) {
  const groups = new Groups({ lane, i });
  for (const other of store.tracks) if (other.worker === track.worker) walk(groups, other);
  const rank = (group) => (group.how === "whole" ? 2 : group.how === "stretch" || group.how === undefined ? 0 : 1), own = groups.list().filter((g) => g.wanted);
  const found = own.map((g) => (g.among ? Object.assign(g.among, { how: g.how, channel: g.channel, items: g.items }) : g)).filter((g) => g.count > 1);
  return found.sort((a, b) => rank(a) - rank(b)).map((group) => {
    const { how, channel, items, wanted } = group, { ns, parts } = wanted, usual = group.usual();
    return { ...(ns < usual.sorted[0] ? group.usual(true) : usual), ns, parts, how, channel, items };
  });
}

const SLICE = 24; // ms at a time: a page that is held up for longer does not feel alive
const never = { pause: () => null };

/** Who looks through millions of spans lets the page go on now and then: `pause(part of it that is done)` is a promise when it is time, which gives false to end it. */
export class Breath {
  /** `told(part)`: at each pause; whether to go on. */
  constructor(told) { this.told = told; this.until = performance.now() + SLICE; }

  pause(part) {
    if (performance.now() < this.until) return null;
    return new Promise((go) => setTimeout(() => { this.until = performance.now() + SLICE; go(this.told(part)); }));
  }
}

/**
 * The `most` pieces that lost most time against the median of what is alike, by that time:
 * [{track, lane, i, start, end, ns, median, lost, count, name, kind, items, channel, whole, more, moreLost}]; `more` of its group are left out, that lost `moreLost`.
 * What is rare counts: beyond nine tenths of its group as far as those are from the median, and half as long again as it. A promise; null when `breath` has
 * ended it. What comes meanwhile counts or does not.
 */
export async function outliers(store, most = 8, breath = never) {
  const groups = new Groups(), found = [], slow = [], { tracks } = store, part = (done) => (0.8 * done) / tracks.length;
  for (const [k, track] of tracks.entries()) {
    walk(groups, track);
    const pause = breath.pause(part(k + 1));
    if (pause && (!(await pause) || store.tracks !== tracks)) return null;
  }
  for (const group of groups.list()) {
    const pause = breath.pause(0.9);
    if (pause && (!(await pause) || store.tracks !== tracks)) return null;
    const { sorted, count } = (group.among || group).usual(), { kind, depth, how } = group;
    if (sorted.length < FEW) continue;
    const median = sorted[sorted.length >> 1], high = sorted[Math.floor(0.9 * (sorted.length - 1))], bound = Math.max(1.5 * median, 2 * high - median);
    const level = kind === LABEL ? 3000 + depth : 3 * depth + (how === "whole" ? 0 : how === "stretch" ? 2 : 1), own = [];
    for (let j = 0; j < group.count; j++) {
      if (!(group.ns(j) > bound)) continue;
      const piece = group.piece(j), { track, lane } = groups.lanes[piece.lane];
      own.push({ ...piece, track, lane, lost: piece.ns - median, level });
    }
    if (own.length) slow.push({ group, own, median, count });
  }
  const explained = explanations(slow);
  for (const { group, own, median, count } of slow) {
    const { name, kind, items = group.got, channel, how } = group, left = own.filter((f) => !explained(f)).sort((a, b) => b.lost - a.lost);
    const listed = left.slice(0, OF_ONE_GROUP), moreLost = left.slice(OF_ONE_GROUP).reduce((sum, f) => sum + f.lost, 0);
    for (const [k, f] of listed.entries()) {
      const whole = how === "whole" && f.parts > 1, more = k === listed.length - 1 ? { more: left.length - listed.length, moreLost } : { more: 0, moreLost: 0 };
      found.push({ ...f, median, count, name, kind, items, channel, whole, ...more });
    }
  }
  found.sort((a, b) => b.lost - a.lost);
  const lengths = store.marks.map((m) => m.end - m.start).sort((a, b) => a - b), least = lengths.length ? SLIGHT * lengths[lengths.length >> 1] : 0, shown = [];
  for (const f of found) {
    if (f.lost < least || shown.length === most) break;
    if (!shown.some((b) => f.lost < PARTLY * b.lost && f.track === b.track && lies(f, b))) shown.push(f);
  }
  return shown.map((f) => ({ ...f, ...longest(f) }));
}

/** {lane, i} of the longest span of a piece: where it was, or where what came meanwhile has moved it to. */
function longest({ track, lane, row, start, end }) {
  const within = ({ count, columns: c }, i) => i < count && c.start[i] >= start - 1 && c.start[i] + c.dur[i] <= end + 1;
  if (within(lane, row)) return { lane, i: row };
  let best = { lane, i: Math.min(row, lane.count - 1), ns: -1 };
  for (const other of [...track.spans.lanes, ...track.labels.lanes]) {
    for (let i = other.at(start - 1.5) + 1; within(other, i); i++) if (other.columns.dur[i] > best.ns) best = { lane: other, i, ns: other.columns.dur[i] };
  }
  return best;
}

/** Whether a lies within b, both of one track. */
const lies = (a, b) => a.level > b.level && a.start >= b.start - 1 && a.end <= b.end + 1;

/** Tells of a slow piece whether another one within it, listed or not, explains most of its loss. */
function explanations(slow) {
  const of = new Map();
  for (const { own } of slow) for (const f of own) of.has(f.track) ? of.get(f.track).push(f) : of.set(f.track, [f]);
  for (const pieces of of.values()) pieces.sort((a, b) => a.start - b.start);
  return (b) => {
    const pieces = of.get(b.track);
    let low = 0, high = pieces.length;
    while (low < high) { const mid = (low + high) >> 1; if (pieces[mid].start < b.start - 1) low = mid + 1; else high = mid; }
    for (let k = low; k < pieces.length && pieces[k].start <= b.end + 1; k++) if (pieces[k].lost >= MOSTLY * b.lost && lies(pieces[k], b)) return true;
    return false;
  };
}

/** What a piece is called: "policy 0 act", and that it is a whole call, a switch, .... */
export function pieceName(store, { track, name, kind, whole }) {
  const text = `${track.label} ${store.name(name)}`, sort = KINDS[kind];
  return whole ? `${text}, whole call` : kind === RUN || kind === LABEL || store.name(name) === sort ? text : `${text} (${sort})`;
}
