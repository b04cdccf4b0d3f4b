// What a timeline shows: tracks with their lanes, device time, iterations; and the tables that numbers refer to.
import { GET, KINDS, LABEL, MARK, PUT, isolated } from "./base.js";
import { Depths } from "./depths.js";
import { InstantLane } from "./instants.js";
import { Lane } from "./lane.js";
import { addSamples } from "./series.js";

export const IDLE_BYTES = 24;
const COLUMN_TYPES = { "<f8": Float64Array, "<f4": Float32Array, "<i4": Int32Array, "<u4": Uint32Array, "<u2": Uint16Array, u1: Uint8Array };
const SPAN_COLUMNS = { name: Uint32Array, iteration: Int32Array, items: Int32Array, channel: Int32Array, flow: Int32Array };
const IDLE_COLUMNS = { waitKind: Uint8Array, track: Int32Array, channel: Int32Array };

/** Spans that may overlap, on as many lanes as they need: what is nested lies one lane below what encloses it. */
export class Stack {
  constructor(kind = Lane) { this.lanes = []; this.count = 0; this.keeper = null; this.kind = kind; }

  get end() { return this.lanes.length ? Math.max(...this.lanes.map((lane) => lane.end)) : -Infinity; }

  /** Append rows `order` of `columns`, sorted; starts are shifted by `shift`. */
  add(columns, order, shift) {
    this.count += order.length;
    const first = columns.start[order[0]] + shift;
    let late = false; // something is here that begins after the first one: both must be stacked anew
    for (const lane of this.lanes) if (lane.count && lane.columns.start[lane.count - 1] > first) late = true;
    if (late) [columns, order, shift] = this.merged(columns, order, shift, first);
    for (const [d, rows] of this.placed(columns, order, shift).entries()) if (rows.length) this.lane(d).append(columns, rows, shift);
    for (const lane of this.lanes) lane.settle();
  }

  /** For each lane the rows that go on it: the first one that is free. */
  placed({ start, dur }, order, shift) {
    const free = this.lanes.map((lane) => lane.end - slack(lane.columns.dur[lane.count - 1])), rows = this.lanes.map(() => []);
    for (const i of order) {
      const at = start[i] + shift;
      let d = 0;
      while (d < free.length && !(at >= free[d])) d++;
      if (d === free.length) rows.push([]);
      rows[d].push(i);
      free[d] = at + dur[i] - slack(dur[i]);
    }
    return rows;
  }

  lane(d) {
    if (d === this.lanes.length) {
      this.lanes.push(new this.kind(SPAN_COLUMNS));
      if (this.keeper) this.lanes[d].search(this.keeper(this.lanes[d]));
    }
    return this.lanes[d];
  }

  /** Take off what begins at `first` or later and merge it with the new rows. */
  merged(columns, order, shift, first) {
    const parts = this.lanes.map((lane) => lane.cut(lane.at(first - 0.5) + 1));
    const size = order.length + parts.reduce((sum, part) => sum + part.start.length, 0), all = {};
    for (const [key, column] of Object.entries(parts[0])) {
      const joined = (all[key] = new column.constructor(size));
      let at = 0;
      for (const i of order) joined[at++] = key === "start" ? columns.start[i] + shift : columns[key][i];
      for (const part of parts) { joined.set(part[key], at); at += part[key].length; }
    }
    return [all, sorted(all, Uint32Array.from({ length: size }, (_, i) => i)), 0];
  }

  search(keeper) {
    this.keeper = keeper;
    for (const lane of this.lanes) lane.search(keeper && keeper(lane));
  }

  /** Time of each kind in [from, to), ns, added to `sums`. */
  sum(from, to, sums) { for (const lane of this.lanes) lane.sum(from, to, sums); return sums; }

  /** [lane, number] of the innermost span at `time`, or near it. */
  near(time, slack) {
    for (let d = this.lanes.length - 1; d >= 0; d--) {
      const i = this.lanes[d].near(time, 0);
      if (i >= 0) return [this.lanes[d], i];
    }
    for (const lane of this.lanes) {
      const i = lane.near(time, slack);
      if (i >= 0) return [lane, i];
    }
    return null;
  }
}

/** How far a float32 duration may reach into the next span, ns. */
function slack(dur) { return 1 + (dur || 0) * 1.2e-7; }

/** By start; what encloses others of the same start comes first. */
function sorted({ start, dur }, order) {
  let ordered = true;
  const before = (a, b) => start[a] < start[b] || (start[a] === start[b] && dur[a] >= dur[b]);
  for (let k = 1; k < order.length && ordered; k++) ordered = before(order[k - 1], order[k]);
  return ordered ? order : order.sort((a, b) => start[a] - start[b] || dur[b] - dur[a]);
}

function packedColumns({ count: n, columns }, buffer) {
  const c = {}, channel = new Int32Array(n);
  for (const [name, type, offset] of columns) c[name] = new COLUMN_TYPES[type](buffer, offset, n);
  for (let i = 0; i < n; i++) channel[i] = c.channel[i] - 1;
  return { ...c, dur: c.duration, channel, length: (i) => c.duration[i] + (c.rest ? c.rest[i] : 0) };
}

/** Of rows as they are in the kernel's memory (SPAN_DTYPE, 56 bytes), in order of arrival: a live delta. */
function columnsOfRows({ count: n, origin }, buffer) {
  const long = new BigInt64Array(buffer), int = new Int32Array(buffer), byte = new Uint8Array(buffer), zero = BigInt(origin);
  const starts = Float64Array.from({ length: n }, (_, i) => Number(long[7 * i] - zero)), track = (i) => int[14 * i + 8];
  const order = Uint32Array.from(starts.keys()).sort((a, b) => track(a) - track(b) || starts[a] - starts[b] || a - b);
  const column = (type, value) => type.from(order, (i) => value(i)), number = (type, at) => column(type, (i) => int[14 * i + at]);
  return {
    start: column(Float64Array, (i) => starts[i]), dur: column(Float32Array, (i) => Number(long[7 * i + 1] - long[7 * i])),
    flow: column(Int32Array, (i) => Math.min(Number(long[7 * i + 3]), 2 ** 31 - 1)), kind: column(Uint8Array, (i) => byte[56 * i + 52]),
    track: number(Int32Array, 8), name: number(Uint32Array, 9), channel: number(Int32Array, 10), iteration: number(Int32Array, 11), items: number(Int32Array, 12),
    length: (k) => Number(long[7 * order[k] + 1] - long[7 * order[k]]),
  };
}

/** Everything of one timeline. Times are ns after `origin`. */
export class Store {
  constructor() { this.reset(); }

  reset() {
    this.tables = { origin: 0, devices: [], tracks: [], names: [], dropped: 0, dropped_samples: 0, clock_errors: {}, clock_jumps: {}, foreign_arrows: 0 };
    this.tracks = []; // {worker, rank, devices, host, spans: Stack, labels: Stack, points: Stack of what took no time}
    this.workers = []; // in order of appearance: the order of colours
    this.idle = new Map(); // device -> Lane of causes
    this.sampled = new Map(); // name -> Series
    this.depths = new Depths();
    this.counters = new Map(); // name -> Series, or Depth: what is shown
    this.marks = []; // {start, end, iteration}
    this.end = 0;
    this.now = 0; // where it is known to go on to, though nothing has ended; 0: it does not
    this.count = 0;
    this.query = "";
    this.version = (this.version || 0) + 1;
  }

  /** What a message says of this timeline. */
  apply({ tables, layout, idle_from }, { spans, idle, samples }) {
    if (tables) this.setTables(tables);
    if (spans) this.addSpans(layout, spans);
    if (idle) this.addIdle(idle, idle_from);
    if (samples) { addSamples(this.sampled, aligned(samples), (i) => this.name(i)); this.version++; }
    if (tables || spans || samples) this.listCounters();
  }

  /** A channel's depth is what the spans say, and what samples say only where spans of it are missing. */
  listCounters() {
    for (const [name, series] of this.sampled) if (!this.counters.has(name)) this.counters.set(name, series);
    for (const [channel, depth] of this.depths.of) {
      depth.name = `${this.name(channel)} items`;
      const series = this.tables.dropped ? this.sampled.get(depth.name) : null;
      if (depth.fed) this.counters.set(depth.name, series || depth);
    }
  }

  setTables(tables) {
    this.tables = tables;
    tables.tracks.forEach(([worker, rank, devices, host], number) => {
      if (this.tracks[number]) return;
      this.tracks[number] = { number, worker, rank, devices, host, label: `${isolated(worker)} ${rank}`, spans: new Stack(), labels: new Stack(), points: new Stack(InstantLane) };
      if (devices.length && !this.workers.includes(worker)) this.workers.push(worker);
    });
    this.version++;
    if (this.query) this.search(this.query);
  }

  /** Appends packed spans: columns as rlinf_lab/timeline/formats/packed.py lays them out (sorted by track and start), `layout` says where each is; or rows. */
  addSpans(layout, view) {
    const read = layout.columns ? packedColumns : columnsOfRows, columns = read(layout, aligned(view)), n = layout.count, c = columns;
    for (let first = 0, last; first < n; first = last) {
      last = first + 1;
      while (last < n && c.track[last] === c.track[first]) last++;
      const track = this.tracks[c.track[first]];
      if (track) this.addTrack(track, columns, first, last, layout.shift || 0); // else its table was in a lost delta: the history brings it
    }
    this.count += n;
    this.version++;
  }

  addTrack(track, columns, first, last, shift) {
    const { start, dur, kind, iteration, channel, items, length } = columns, rows = { spans: [], labels: [], points: [] };
    for (let i = first; i < last; i++) {
      const end = start[i] + shift + dur[i];
      if (end > this.end) this.end = end;
      if ((kind[i] === PUT || kind[i] === GET) && channel[i] >= 0 && items[i] > 0) {
        this.depths.add(channel[i], start[i] + shift + length(i), kind[i] === PUT ? items[i] : -items[i], iteration[i]);
      }
      if (kind[i] === MARK) { this.mark(start[i] + shift, dur[i], iteration[i]); this.depths.over(iteration[i], start[i] + shift + length(i)); }
      else if (kind[i] === LABEL) rows.labels.push(i);
      else if (dur[i] > 0) rows.spans.push(i);
      else rows.points.push(i);
    }
    for (const [stack, order] of Object.entries(rows)) if (order.length) track[stack].add(columns, sorted(columns, order), shift);
  }

  mark(start, dur, iteration) {
    let i = this.marks.length;
    while (i > 0 && this.marks[i - 1].start > start) i--;
    this.marks.splice(i, 0, { start, end: start + dur, iteration });
  }

  /** Device time from `from` on: rows of rlinf_lab/widgets/packing.py, each device's by start. */
  addIdle(view, from) {
    for (const lane of this.idle.values()) lane.cut(lane.at(from - 0.5) + 1);
    const buffer = aligned(view), n = buffer.byteLength / IDLE_BYTES;
    const f64 = new Float64Array(buffer), f32 = new Float32Array(buffer), i32 = new Int32Array(buffer), u16 = new Uint16Array(buffer), u8 = new Uint8Array(buffer);
    const columns = { start: new Float64Array(n), dur: new Float32Array(n), kind: new Uint8Array(n), waitKind: new Uint8Array(n), track: new Int32Array(n), channel: new Int32Array(n) };
    const rows = new Map();
    for (let i = 0; i < n; i++) {
      columns.start[i] = f64[i * 3];
      columns.dur[i] = f32[i * 6 + 2];
      columns.kind[i] = u8[i * 24 + 14];
      columns.waitKind[i] = u8[i * 24 + 15];
      columns.track[i] = i32[i * 6 + 4];
      columns.channel[i] = i32[i * 6 + 5];
      const device = this.tables.devices[u16[i * 12 + 6]];
      if (!rows.has(device)) rows.set(device, []);
      rows.get(device).push(i);
    }
    for (const [device, order] of rows) {
      if (!this.idle.has(device)) this.idle.set(device, new Lane(IDLE_COLUMNS));
      this.idle.get(device).append(columns, order, 0);
    }
    for (const lane of this.idle.values()) lane.settle();
    this.version++;
  }

  /** What is needed to find a span or a bubble again. */
  static marked(picked) {
    const { start, dur } = picked.lane.columns;
    return { ...picked, begins: start[picked.i], lasts: dur[picked.i] };
  }

  /** A marked span or bubble where it is now, null where it is no more: what comes late is put in between, and moves others to another number or line. */
  found(picked) {
    const { track, device, lane, i, begins, lasts } = picked, now = track && this.tracks[track.number];
    const isIt = ({ columns: { start, dur } }, j) => start[j] === begins && (!track || dur[j] === lasts);
    if ((now === track || this.idle.get(device) === lane) && i < lane.count && isIt(lane, i)) return picked;
    const lanes = now ? [now.spans, now.labels, now.points].flatMap((stack) => stack.lanes) : this.idle.has(device) ? [this.idle.get(device)] : [];
    for (const other of lanes) {
      for (let j = other.at(begins); j >= 0 && other.columns.start[j] === begins; j--) if (isIt(other, j)) return { ...picked, ...(now ? { track: now } : {}), lane: other, i: j };
    }
    return null;
  }

  name(i) { return i >= 0 && i < this.tables.names.length ? this.tables.names[i] : ""; }

  /** The iteration's mark at a time, or null. */
  markAt(time) { return this.marks.findLast((m) => m.start <= time && time < m.end) || null; }

  // ---- search: by worker, method, label, channel or kind

  /** Mark what contains `text`; returns how many spans that is. */
  search(text) {
    this.query = text.trim().toLowerCase();
    const query = this.query, hits = this.tables.names.map((n) => n.toLowerCase().includes(query)), kinds = KINDS.map((k) => k.includes(query));
    const keeper = (lane) => {
      const matches = (number) => hits[number] ?? (hits[number] = this.name(number).toLowerCase().includes(query));
      return (i) => { // the arrays are replaced when they grow
        const { kind, name, channel } = lane.columns;
        return kinds[kind[i]] || matches(name[i]) || (channel[i] >= 0 && matches(channel[i]));
      };
    };
    for (const track of this.tracks) {
      const all = () => () => true, own = !query ? null : `${track.worker} ${track.rank}`.toLowerCase().includes(query) ? all : keeper;
      for (const stack of [track.spans, track.labels, track.points]) stack.search(own);
    }
    return this.hits();
  }

  hits() {
    let total = 0;
    for (const [, lane] of this.lanes()) total += lane.found ? lane.found.hits : 0;
    return total;
  }

  /** [track, lane] of everything that a search looks at. */
  *lanes() {
    for (const track of this.tracks) for (const stack of [track.spans, track.labels, track.points]) for (const lane of stack.lanes) yield [track, lane];
  }

  /**
   * The nearest found span that starts after `time` (or before it): [track, lane, number], or null. Starting from a span, `from`: {lane, i}, also those
   * of the same start come, lane by lane.
   */
  nextHit(time, direction, from = null) {
    let best = null, bestStart = direction * Infinity, passed = false;
    for (const [track, lane] of this.lanes()) {
      const own = from !== null && lane === from.lane, same = from !== null && !own && passed === direction > 0;
      passed ||= own;
      const i = nextIn(lane, own ? from.i + direction : begin(lane, time, direction, same), direction), start = lane.columns.start[i];
      if (i >= 0 && ((bestStart - start) * direction > 0 || (direction < 0 && start === bestStart))) { best = [track, lane, i]; bestStart = start; }
    }
    return best;
  }
}

/** The first span of a lane to look at after `time` (or before it), with `same` also of those that start at it. */
function begin(lane, time, direction, same) {
  const until = lane.at(same === direction > 0 ? time - 0.5 : time); // times are whole ns
  return direction > 0 ? until + 1 : until;
}

/** The first found span from the i-th on, in this direction; -1 where there is none. */
function nextIn(lane, i, direction) {
  while (i >= 0 && i < lane.count && !lane.keep(i)) i += direction;
  return i < lane.count ? i : -1;
}

/** A message of rlinf_lab/widgets/feed.py: news of the first store, and of the one that is laid over it. */
export function applyTo(stores, content, parts) {
  stores[0].apply(content, parts);
  if (content.over) stores[1].apply(content.over, { spans: parts.over_spans, idle: parts.over_idle, samples: parts.over_samples });
}

/** The bytes as an ArrayBuffer of their own: what Jupyter hands over starts anywhere. */
function aligned(view) {
  if (view instanceof ArrayBuffer) return view;
  return view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);
}
