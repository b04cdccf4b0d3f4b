// What a rank computed in one piece, and which pieces took strangely long. A call is cut by its gets and puts: compared are whole calls, their turns (from a
// get to the next one, whatever was put meanwhile) and the stretches of those, switches, and the spans of users and of other tools, each with what is alike.
import { GET, KINDS, LABEL, LOCK, PUT, RUN, SETUP, WAIT } from "./base.js";

const FEW = 8; // of what there is less, nothing is usual
const SAMPLE = 16384; // for a median
const OF_ONE_GROUP = 3; // what is slow in many places would hide what else is
const MOSTLY = 0.8, PARTLY = 0.3; // of a loss: what lies within explains it, or is worth a line beside it
const SLIGHT = 0.002; // of an iteration: what was lost is not worth a line
const SLIVER = 0.125; // of what most of the time goes into: between two puts in a row there is next to nothing
const PARTS = ["ns", "start", "end", "parts", "track", "lane", "row"];

/** All pieces of one sort, as columns: `ns` computed, from `start` to `end` on `track`, `parts` spans; the longest of them is `lane[j]`'s `row[j]`. */
class Group {
  constructor(first) {
    Object.assign(this, { ...first, wanted: -1 });
    for (const key of PARTS) this[key] = [];
  }

  add(piece) {
    this.ns.push(piece.ns); this.start.push(piece.start); this.end.push(piece.end); this.parts.push(piece.parts);
    this.track.push(piece.track); this.lane.push(piece.lane); this.row.push(piece.row);
    if (piece.wanted) this.wanted = this.ns.length - 1;
  }

  addAll(group) {
    if (group.wanted >= 0) this.wanted = this.ns.length + group.wanted;
    for (const key of PARTS) for (const value of group[key]) this[key].push(value);
  }

  /**
   * {durations by size, how many pieces those stand for}: without slivers where the most time goes into longer pieces; of very many some,
   * evenly picked. What most of the time goes into is looked for without the slowest few, of which one may have taken longer than all others together.
   */
  usual(slivers = false) {
    const step = Math.ceil(this.ns.length / SAMPLE), sorted = Float64Array.from({ length: Math.ceil(this.ns.length / step) }, (_, j) => this.ns[j * step]).sort();
    const n = sorted.length - Math.min(FEW, Math.ceil(sorted.length / 20));
    let half = 0, time = 0, k = 0;
    for (let j = 0; j < n; j++) half += sorted[j] / 2;
    while (k < n - 1 && (time += sorted[k]) < half) k++;
    const first = sorted.findIndex((ns) => ns >= SLIVER * sorted[k]), kept = slivers || sorted.length < FEW ? sorted : sorted.subarray(first);
    return { sorted: kept, count: Math.round((this.ns.length * kept.length) / sorted.length) };
  }
}

/** Groups of like pieces by a key; `wanted`: {lane, i} of a span whose piece is marked in its group. */
class Groups {
  constructor(wanted = null) { this.of = new Map(); this.wanted = wanted; }

  group(key, first) {
    let group = this.of.get(key);
    if (!group) this.of.set(key, (group = new Group(first)));
    return group;
  }

  is(lane, i) { return this.wanted !== null && lane === this.wanted.lane && i === this.wanted.i; }

  /** Batches of a size that came a few times are compared whatever their size, and what is at one level a few times with all levels (`among`). */
  list() {
    const found = [], joined = new Groups(), wide = new Groups(), named = (g) => `${g.worker}/${g.name}/${g.kind}/${g.how}/${g.channel}`;
    for (const group of this.of.values()) {
      if (group.items === undefined || group.ns.length >= FEW) { found.push(group); continue; }
      const { worker, name, kind, how, channel, depth } = group, sized = group.items > 0;
      joined.group(`${named(group)}/${depth}/${sized}`, { worker, name, kind, how, channel, depth, sized }).addAll(group);
    }
    found.push(...joined.of.values());
    const rare = (group) => group.ns.length < FEW && !group.sized, some = new Set(found.filter(rare).map(named));
    for (const group of found) if (some.has(named(group)) && !group.sized && !(group.items > 0)) wide.group(named(group), {}).addAll(group);
    for (const group of found.filter(rare)) group.among = wide.of.get(named(group));
    return found;
  }
}

const BEGUN = 0, GOT = 1, WAITED = 2, HOW = ["start", "get", "wait", "put"];
/** How a turn or a stretch began, as a number: after the start of its call, a get of so many items from a channel, a wait, or a put. */
const beginning = (how, channel = -1, items = 0) => how + 4 * (channel + 1 + 4194304 * items);

/** The pieces of one lane; puts and gets that took no time lie among the points of its track. */
class Walk {
  constructor(groups, track, lane, depth) {
    Object.assign(this, { groups, track, lane, depth, turn: null, call: null });
    this.after = -1; // the kind of what came last
    this.begun = { how: BEGUN, channel: -1, items: 0 }; // what the next turn begins with
    this.before = this.got = 0; // how the next stretch begins, and with how many items
    this.known = new Map(); // groups of a method by how they begin: a string for each span would take most of the time
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
    const { kind, name, start, dur } = lane.columns, worker = this.track.worker, first = { worker, name: name[i], kind: kind[i], depth: this.depth };
    const piece = { ns: dur[i], start: start[i], end: start[i] + dur[i], parts: 1, track: this.track, lane, row: i, wanted: this.groups.is(lane, i) };
    this.groups.group(`${worker}/${name[i]}/${kind[i]}/${this.depth}`, first).add(piece);
  }

  /** A stretch of a call; two that meet belong to two calls, for within one something lies between them. */
  run(i, name, iteration, ns) {
    const { lane, track } = this, { start } = lane.columns, end = start[i] + ns;
    if (!this.call || this.call.name !== name || this.call.iteration !== iteration || this.after === RUN) {
      if (this.begun.how === BEGUN) this.before = this.got = 0;
      this.close();
      if (!this.known.has(name)) this.known.set(name, { stretches: new Map(), turns: new Map() });
      this.call = { name, iteration, turns: 0, items: 0, ns: 0, start: start[i], end, parts: 0, longest: 0, track, lane, row: i, wanted: false, groups: this.known.get(name) };
    }
    if (!this.turn) {
      this.turn = { begun: this.begun, ns: 0, start: start[i], end, parts: 0, longest: 0, track, lane, row: i, wanted: false, first: null };
      this.call.turns++;
      this.call.items += this.begun.items;
      this.begun = { how: BEGUN, channel: -1, items: 0 };
    }
    const wanted = this.groups.is(lane, i), stretch = { ns, start: start[i], end, parts: 1, track, lane, row: i, before: this.before, got: this.got, wanted };
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
    if (!call || (call.turns === 1 && !gotNothing)) return;
    this.groups.group(`${worker}/${call.name}/call/${call.items}/${depth}`, { worker, name: call.name, kind: RUN, how: "whole", items: call.items, depth }).add(call);
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
  const rank = (group) => (group.how === "whole" ? 2 : group.how === "stretch" || group.how === undefined ? 0 : 1), own = groups.list().filter((g) => g.wanted >= 0);
  const found = own.map((g) => (g.among ? Object.assign(g.among, { how: g.how, channel: g.channel, items: g.items }) : g)).filter((g) => g.ns.length > 1);
  return found.sort((a, b) => rank(a) - rank(b)).map((group) => {
    const { how, channel, items, wanted } = group, ns = group.ns[wanted], usual = group.usual();
    return { ...(ns < usual.sorted[0] ? group.usual(true) : usual), ns, parts: group.parts[wanted], how, channel, items };
  });
}

/**
 * The `most` pieces that lost most time against the median of what is alike, by that time:
 * [{track, lane, i, start, end, ns, median, lost, count, name, kind, items, channel, whole, more, moreLost}]; `more` of its group are left out, that lost `moreLost`.
 * What is rare counts: beyond nine tenths of its group as far as those are from the median, and half as long again as it.
 */
export function outliers(store, most = 8) {
  const groups = new Groups(), found = [];
  for (const track of store.tracks) walk(groups, track);
  for (const group of groups.list()) {
    const { sorted, count } = (group.among || group).usual();
    if (sorted.length < FEW) continue;
    const median = sorted[sorted.length >> 1], high = sorted[Math.floor(0.9 * (sorted.length - 1))];
    const bound = Math.max(1.5 * median, 2 * high - median), slow = [];
    for (let j = 0; j < group.ns.length; j++) if (group.ns[j] > bound) slow.push(j);
    slow.sort((a, b) => group.ns[b] - group.ns[a]);
    const listed = slow.slice(0, OF_ONE_GROUP), rest = slow.slice(OF_ONE_GROUP);
    const more = { more: rest.length, moreLost: rest.reduce((sum, j) => sum + group.ns[j] - median, 0) };
    for (const [k, j] of listed.entries()) {
      const { name, kind, items = group.got, channel, depth, how } = group, piece = Object.fromEntries(PARTS.map((key) => [key, group[key][j]])), whole = how === "whole";
      const level = kind === LABEL ? 3000 + depth : 3 * depth + (whole ? 0 : how === "stretch" ? 2 : 1);
      found.push({ ...piece, i: piece.row, median, lost: piece.ns - median, count, name, kind, items, channel, whole: whole && piece.parts > 1, level, ...(k === listed.length - 1 ? more : { more: 0, moreLost: 0 }) });
    }
  }
  found.sort((a, b) => b.lost - a.lost);
  const lengths = store.marks.map((m) => m.end - m.start).sort((a, b) => a - b), least = lengths.length ? SLIGHT * lengths[lengths.length >> 1] : 0;
  const lies = (a, b) => a.track === b.track && a.level > b.level && a.start >= b.start - 1 && a.end <= b.end + 1, shown = [];
  for (const f of found) {
    if (f.lost < least || found.some((a) => a.lost >= MOSTLY * f.lost && lies(a, f)) || shown.some((b) => f.lost < PARTLY * b.lost && lies(f, b))) continue;
    if (shown.push(f) === most) break;
  }
  return shown;
}

/** What a piece is called: "policy 0 act", and that it is a whole call, a switch, .... */
export function pieceName(store, { track, name, kind, whole }) {
  const text = `${track.label} ${store.name(name)}`, sort = KINDS[kind];
  return whole ? `${text}, whole call` : kind === RUN || kind === LABEL || store.name(name) === sort ? text : `${text} (${sort})`;
}
