// The spans in the browser: typed columns per lane and a tree of blocks over them, so that a frame costs pixels, not spans.
import { KINDS, LABEL, MARK } from "./base.js";

const FAN = 16;
export const IDLE_BYTES = 16;
const COLUMN_TYPES = { "<f8": Float64Array, "<f4": Float32Array, "<i4": Int32Array, "<u4": Uint32Array, "<u2": Uint16Array, u1: Uint8Array };

function grown(array, capacity) {
  const bigger = new array.constructor(capacity);
  bigger.set(array);
  return bigger;
}

/** Spans sorted by start, in columns. `kinds` is how many kinds (or causes) a block keeps sums of. */
export class Lane {
  constructor(kinds) {
    this.kinds = kinds;
    this.count = 0;
    this.columns = {
      start: new Float64Array(64), dur: new Float32Array(64), kind: new Uint8Array(64), name: new Uint32Array(64),
      iteration: new Int32Array(64), items: new Int32Array(64), channel: new Int32Array(64),
    };
    this.levels = [];
    this.indexed = 0; // spans that the tree already covers
    this.sortedTo = 0;
  }

  add(start, dur, kind, name, iteration, items, channel) {
    let c = this.columns;
    const i = this.count;
    if (i === c.start.length) {
      const capacity = Math.ceil(i * 1.6) + 64;
      for (const key of Object.keys(c)) c[key] = grown(c[key], capacity);
    }
    c.start[i] = start; c.dur[i] = dur; c.kind[i] = kind; c.name[i] = name;
    c.iteration[i] = iteration; c.items[i] = items; c.channel[i] = channel;
    this.count = i + 1;
  }

  /** Sort what came out of order (spans are recorded when they end) and bring the tree up to date. */
  settle() {
    const { start } = this.columns;
    let from = this.sortedTo;
    let ordered = true;
    for (let i = Math.max(1, from); i < this.count; i++) if (start[i] < start[i - 1]) { ordered = false; break; }
    if (!ordered) {
      let least = Infinity;
      for (let i = from; i < this.count; i++) least = Math.min(least, start[i]);
      while (from > 0 && start[from - 1] > least) from--;
      const order = Array.from({ length: this.count - from }, (_, i) => from + i).sort((a, b) => start[a] - start[b]);
      for (const key of Object.keys(this.columns)) {
        const column = this.columns[key];
        column.set(column.constructor.from(order, (i) => column[i]), from);
      }
      this.indexed = Math.min(this.indexed, from);
    }
    this.sortedTo = this.count;
    this.index();
  }

  index() {
    if (this.indexed === this.count) return;
    const K = this.kinds, { start, dur, kind } = this.columns;
    let below = this.count, firstBlock = Math.floor(this.indexed / FAN), level = 0;
    do {
      const blocks = Math.ceil(below / FAN);
      let L = this.levels[level];
      if (!L) L = this.levels[level] = { end: new Float64Array(16), sums: new Float32Array(16 * K), count: 0 };
      if (L.end.length < blocks) {
        const capacity = Math.ceil(blocks * 1.6) + 16;
        L.end = grown(L.end, capacity);
        L.sums = grown(L.sums, capacity * K);
      }
      L.count = blocks;
      const under = level ? this.levels[level - 1] : null;
      for (let b = firstBlock; b < blocks; b++) {
        let end = -Infinity;
        L.sums.fill(0, b * K, b * K + K);
        const last = Math.min(below, (b + 1) * FAN);
        for (let i = b * FAN; i < last; i++) {
          if (under) {
            end = Math.max(end, under.end[i]);
            for (let k = 0; k < K; k++) L.sums[b * K + k] += under.sums[i * K + k];
          } else {
            end = Math.max(end, start[i] + dur[i]);
            L.sums[b * K + kind[i]] += dur[i];
          }
        }
        L.end[b] = end;
      }
      firstBlock = Math.floor(firstBlock / FAN);
      below = blocks;
      level++;
    } while (below > 1);
    this.levels.length = level;
    this.indexed = this.count;
  }

  /**
   * Adds the time of each kind in each of `width` pixel columns of [from, to) to `sums` (width x kinds, ns).
   * With `keep` (a predicate on span numbers) spans that it rejects count as kind `other`.
   */
  rasterise(from, to, width, sums, keep = null, other = 0) {
    if (!this.count) return;
    const pixel = (to - from) / width, K = this.kinds;
    const { start, dur, kind } = this.columns;
    const stride = sums.length / width;
    const leaf = (i) => {
      const s = start[i], d = dur[i], e = s + d;
      if (e <= from && d > 0 || s >= to) return;
      const k = keep && !keep(i) ? other : kind[i];
      const x0 = Math.max(0, (s - from) / pixel), x1 = Math.min(width, (e - from) / pixel);
      const a = Math.floor(x0), b = Math.floor(x1);
      if (a >= width) return;
      if (a === b) { sums[a * stride + k] += Math.max((x1 - x0) * pixel, 0); return; }
      sums[a * stride + k] += (a + 1 - x0) * pixel;
      for (let x = a + 1; x < b; x++) sums[x * stride + k] += pixel;
      if (b < width) sums[b * stride + k] += (x1 - b) * pixel;
    };
    const visit = (level, block) => {
      const L = this.levels[level];
      const first = block * FAN ** (level + 1);
      const s = start[first], e = L.end[block];
      if (e <= from || s >= to) return;
      if (!keep && e - s <= pixel && s >= from && e <= to) {
        const x = Math.min(width - 1, Math.max(0, Math.floor((s - from) / pixel)));
        for (let k = 0; k < K; k++) sums[x * stride + k] += L.sums[block * K + k];
        return;
      }
      const low = block * FAN;
      if (level === 0) {
        const high = Math.min(this.count, low + FAN);
        for (let i = low; i < high; i++) leaf(i);
      } else {
        const high = Math.min(this.levels[level - 1].count, low + FAN);
        for (let b = low; b < high; b++) visit(level - 1, b);
      }
    };
    visit(this.levels.length - 1, 0);
  }

  /** Number of the first span that starts after `time`. */
  after(time) {
    let low = 0, high = this.count;
    while (low < high) {
      const mid = (low + high) >> 1;
      if (this.columns.start[mid] <= time) low = mid + 1; else high = mid;
    }
    return low;
  }

  /** The span at `time`, or within `slack` ns of it; -1 where there is none. */
  at(time, slack = 0) {
    let best = -1, bestGap = slack;
    for (let i = this.after(time + slack) - 1, steps = 0; i >= 0 && steps < 64; i--, steps++) {
      const s = this.columns.start[i], e = s + this.columns.dur[i];
      const gap = time < s ? s - time : time > e ? time - e : 0;
      if (gap === 0) return i;
      if (gap < bestGap) { best = i; bestGap = gap; }
    }
    return best;
  }

  /** [first, last) of the spans that may touch [from, to). */
  range(from, to) {
    let first = this.after(from);
    for (let steps = 0; first > 0 && steps < 64; steps++) { // async spans overlap a little: look some back
      if (this.columns.start[first - 1] + this.columns.dur[first - 1] <= from && steps > 8) break;
      first--;
    }
    return [first, this.after(to)];
  }
}

/** Everything that a timeline shows. Times are ns after `origin`. */
export class Store {
  constructor() { this.reset(); }

  reset() {
    this.tables = { origin: 0, devices: [], tracks: [], names: [] };
    this.tracks = []; // {worker, rank, devices, spans: Lane, labels: Lane}
    this.workers = []; // in order of appearance: the order of colours
    this.idle = new Map(); // device -> Lane of causes
    this.marks = []; // {start, end, iteration}
    this.end = 0;
    this.count = 0;
    this.version = (this.version || 0) + 1;
  }

  setTables(tables) {
    this.tables = tables;
    tables.tracks.forEach(([worker, rank, devices, host], i) => {
      if (this.tracks[i]) return;
      this.tracks[i] = { worker, rank, devices, host, spans: new Lane(KINDS.length), labels: new Lane(KINDS.length) };
      if (devices.length && !this.workers.includes(worker)) this.workers.push(worker);
    });
    this.version++;
  }

  /** Appends packed spans: columns as rlinf_lab/timeline/packed.py lays them out, `layout` says where each one is. */
  addSpans(layout, view) {
    const buffer = aligned(view), n = layout.count, c = {};
    for (const [name, type, offset] of layout.columns) c[name] = new COLUMN_TYPES[type](buffer, offset, n);
    const touched = new Set();
    for (let i = 0; i < n; i++) {
      const start = c.start[i] + layout.shift, dur = c.duration[i], kind = c.kind[i];
      if (start + dur > this.end) this.end = start + dur;
      if (kind === MARK) { this.mark(start, dur, c.iteration[i]); continue; }
      const track = this.tracks[c.track[i]];
      if (!track) continue; // its table was in a delta that was lost: the history brings it
      const lane = kind === LABEL ? track.labels : track.spans;
      lane.add(start, dur, kind, c.name[i], c.iteration[i], c.items[i], c.channel[i] - 1);
      touched.add(lane);
    }
    for (const lane of touched) lane.settle();
    this.count += n;
    this.version++;
  }

  mark(start, dur, iteration) {
    let i = this.marks.length;
    while (i > 0 && this.marks[i - 1].start > start) i--;
    this.marks.splice(i, 0, { start, end: start + dur, iteration });
  }

  /** Appends packed bubbles (16-byte rows) of devices. */
  addIdle(view) {
    const buffer = aligned(view), n = buffer.byteLength / IDLE_BYTES;
    const f64 = new Float64Array(buffer), f32 = new Float32Array(buffer), u16 = new Uint16Array(buffer), u8 = new Uint8Array(buffer);
    for (let i = 0; i < n; i++) {
      const device = this.tables.devices[u16[i * 8 + 6]];
      if (!this.idle.has(device)) this.idle.set(device, new Lane(9));
      this.idle.get(device).add(f64[i * 2], f32[i * 4 + 2], u8[i * 16 + 14], 0, -1, 0, -1);
    }
    for (const lane of this.idle.values()) lane.settle();
    this.version++;
  }

  name(i) { return i >= 0 && i < this.tables.names.length ? this.tables.names[i] : ""; }
}

/** The bytes as an ArrayBuffer of their own: what Jupyter hands over starts anywhere. */
function aligned(view) {
  if (view instanceof ArrayBuffer) return view;
  return view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);
}
