// One line of spans that do not overlap: typed columns and prefix sums, so that a frame costs pixels, not spans.

const BLOCK = 16;
export const CATEGORIES = 12; // most kinds of time that one lane tells apart
export const OTHER = 11; // what a search did not find
const acc = new Float64Array(CATEGORIES);

function grown(array, capacity) {
  const bigger = new array.constructor(capacity);
  bigger.set(array);
  return bigger;
}

function gather(target, at, source, order) {
  for (let j = 0; j < order.length; j++) target[at + j] = source[order[j]];
}

/** Time of each category up to every 16th span: any range is a difference of two rows and a few spans at its ends. */
class Prefix {
  constructor(width) { this.width = width; this.rows = new Float64Array(4 * width); this.covered = 0; }

  /** Bring it up to `count` spans; `category`: of each span. */
  extend(dur, category, count) {
    const K = this.width, blocks = Math.floor(count / BLOCK) + 1;
    if (this.rows.length < blocks * K) this.rows = grown(this.rows, Math.ceil(blocks * 1.6 + 4) * K);
    const first = Math.floor(this.covered / BLOCK), rows = this.rows;
    for (let b = first; b < blocks - 1; b++) {
      const at = b * K, next = at + K;
      for (let k = 0; k < K; k++) rows[next + k] = rows[at + k];
      for (let i = b * BLOCK; i < (b + 1) * BLOCK; i++) rows[next + category[i]] += dur[i];
    }
    this.covered = count;
  }

  cut(count) { this.covered = Math.min(this.covered, count); }
}

/** Spans sorted by start that do not overlap. `columns`: name to array type, beside start, dur and kind. */
export class Lane {
  constructor(columns = {}) {
    this.count = 0;
    const capacity = 48 + Math.floor(Math.random() * 32); // lanes that grow in step would all be copied in the same frame
    this.columns = { start: new Float64Array(capacity), dur: new Float32Array(capacity), kind: new Uint8Array(capacity) };
    for (const [name, type] of Object.entries(columns)) this.columns[name] = new type(capacity);
    this.prefix = new Prefix(CATEGORIES);
    this.keep = null; // while a search is on: which spans it found
    this.found = null; // and their {category, prefix, hits}
    this.longest = new Float32Array(4); // of each block
  }

  /** When the last span ends; a float32 duration may reach a little into the next span. */
  get end() { return this.count ? this.columns.start[this.count - 1] + this.columns.dur[this.count - 1] : -Infinity; }

  /** Append the rows `order` of `source` (columns of the same names), their starts shifted. Call `settle` when all are there. */
  append(source, order, shift) {
    const n = this.count, size = n + order.length;
    for (const [key, column] of Object.entries(this.columns)) {
      const room = column.length >= size ? column : grown(column, Math.ceil(size * 1.3) + 16);
      this.columns[key] = room;
      gather(room, n, source[key], order);
    }
    if (shift) for (let i = n, { start } = this.columns; i < size; i++) start[i] += shift;
    this.count = size;
  }

  /** Take off all spans from number `count` on; returns them as columns. */
  cut(count) {
    const off = {};
    for (const [key, column] of Object.entries(this.columns)) off[key] = column.slice(count, this.count);
    this.count = count;
    this.prefix.cut(count);
    this.found = null;
    return off;
  }

  /** Bring the sums up to date after appending. */
  settle() {
    const first = Math.floor(this.prefix.covered / BLOCK), { dur, kind } = this.columns;
    const blocks = Math.ceil(this.count / BLOCK);
    if (this.longest.length < blocks) this.longest = grown(this.longest, Math.ceil(blocks * 1.6) + 4);
    for (let b = first; b < blocks; b++) {
      let most = 0;
      for (let i = b * BLOCK, last = Math.min(this.count, i + BLOCK); i < last; i++) if (dur[i] > most) most = dur[i];
      this.longest[b] = most;
    }
    this.prefix.extend(dur, kind, this.count);
    if (this.keep) this.mark();
  }

  /** Spans that `keep(i)` rejects are drawn as category OTHER; null ends the search. */
  search(keep) {
    this.keep = keep;
    this.found = null;
    if (keep) this.mark();
  }

  mark() {
    const { kind, dur } = this.columns, old = this.found;
    const category = old && old.category.length >= this.count ? old.category : grown(old ? old.category : new Uint8Array(0), kind.length);
    const prefix = old ? old.prefix : new Prefix(CATEGORIES);
    let hits = old ? old.hits : 0;
    for (let i = prefix.covered; i < this.count; i++) {
      const hit = this.keep(i);
      category[i] = hit ? kind[i] : OTHER;
      if (hit) hits++;
    }
    prefix.extend(dur, category, this.count);
    this.found = { category, prefix, hits };
  }

  /**
   * One pixel row of [from, from + width * pixel): each pixel gets the colour of the category that has most of its time.
   * `colours`: for each category 16 colours, from nearly empty to full. Exact: no block is counted that crosses a pixel's edge.
   */
  paint(from, pixel, width, colours, pixels, offset) {
    const n = this.count;
    if (!n) return;
    const { start, dur } = this.columns;
    const category = this.found ? this.found.category : this.columns.kind, prefix = this.found ? this.found.prefix : this.prefix;
    const to = from + width * pixel;
    let i = this.at(from), x = 0;
    if (i < 0) i = 0;
    while (x < width && i < n) {
      const t0 = from + x * pixel, s = start[i], e = s + dur[i];
      if (e <= t0) { i++; continue; }
      if (s >= to) return;
      if (s >= t0 + pixel) { x = Math.max(x + 1, Math.floor((s - from) / pixel)); continue; } // a gap
      if (s <= t0 && e >= t0 + pixel) { // one span over whole pixels
        const last = Math.min(width, Math.max(x + 1, Math.floor((e - from) / pixel)));
        pixels.fill(colours[category[i] * 16 + 15], offset + x, offset + last);
        x = last;
        continue;
      }
      i = this.mix(i, t0, t0 + pixel, category, prefix);
      const colour = winner(colours, pixel);
      if (colour) pixels[offset + x] = colour;
      x++;
    }
  }

  /** Adds up in `acc` the time of each category in [t0, t1), from span `i` on; returns the span that reaches t1 or is the first after it. */
  mix(i, t0, t1, category, prefix) {
    const n = this.count, { start, dur } = this.columns;
    acc.fill(0);
    const head = Math.min(start[i] + dur[i], t1) - Math.max(start[i], t0);
    if (head > 0) acc[category[i]] += head;
    if (start[i] + dur[i] >= t1) return i;
    i++;
    while (i < n && start[i] < t1) {
      if (i % BLOCK === 0 && i + BLOCK < n && start[i + BLOCK] <= t1) { i = this.leap(i, t1, prefix); continue; }
      const e = start[i] + dur[i];
      if (e > t1) { acc[category[i]] += t1 - start[i]; return i; }
      acc[category[i]] += dur[i];
      i++;
    }
    return i;
  }

  /** From the beginning of a block over all blocks that end before t1, by their prefix sums. */
  leap(i, t1, prefix) {
    const { start } = this.columns, K = prefix.width, rows = prefix.rows;
    const a = i / BLOCK, most = Math.floor((this.count - 1) / BLOCK);
    let low = a + 1, step = 1; // the block `low` begins at t1 or before
    while (low + step <= most && start[(low + step) * BLOCK] <= t1) { low += step; step *= 2; }
    for (; step >= 1; step >>= 1) while (low + step <= most && start[(low + step) * BLOCK] <= t1) low += step;
    for (let k = 0; k < K; k++) acc[k] += rows[low * K + k] - rows[a * K + k];
    return low * BLOCK;
  }

  /** Time of each category in [from, to), ns, added to `sums`. */
  sum(from, to, sums) {
    if (!this.count || to <= from) return sums;
    let i = Math.max(0, this.at(from));
    if (this.columns.start[i] + this.columns.dur[i] <= from) i++;
    if (i < this.count && this.columns.start[i] < to) {
      this.mix(i, from, to, this.columns.kind, this.prefix);
      for (let k = 0; k < CATEGORIES; k++) sums[k] += acc[k];
    }
    return sums;
  }

  /** Number of the last span that starts at `time` or before; -1 where none does. */
  at(time) {
    const { start } = this.columns;
    let low = 0, high = this.count;
    while (low < high) {
      const mid = (low + high) >> 1;
      if (start[mid] <= time) low = mid + 1; else high = mid;
    }
    return low - 1;
  }

  /** The span at `time`, or the nearest within `slack` ns of it; -1 where there is none. */
  near(time, slack = 0) {
    const i = this.at(time), { start, dur } = this.columns;
    if (i >= 0 && start[i] + dur[i] >= time) return i;
    const before = i >= 0 ? time - start[i] - dur[i] : Infinity, after = i + 1 < this.count ? start[i + 1] - time : Infinity;
    if (Math.min(before, after) > slack) return -1;
    return before <= after ? i : i + 1;
  }

  /** [first, last) of the spans that touch [from, to). */
  range(from, to) {
    let first = Math.max(0, this.at(from));
    if (first < this.count && this.columns.start[first] + this.columns.dur[first] < from) first++;
    return [first, this.at(to) + 1];
  }

  /** Calls `visit(i)` for the spans of [from, to) that last at least `least` ns. */
  wide(from, to, least, visit) {
    const [first, last] = this.range(from, to), { dur } = this.columns;
    for (let i = first; i < last;) {
      if (i % BLOCK === 0 && this.longest[i / BLOCK] < least) { i += BLOCK; continue; }
      if (dur[i] >= least) visit(i);
      i++;
    }
  }
}

/** The colour of the category that has most in `acc`, fainter where the pixel is mostly empty. */
function winner(colours, pixel) {
  let best = 0, most = acc[0], share = most;
  for (let k = 1; k < CATEGORIES; k++) {
    const v = acc[k];
    share += v;
    if (v > most) { most = v; best = k; }
  }
  if (share <= 0) return 0;
  return colours[best * 16 + Math.min(15, Math.floor((share / pixel) * 16))];
}
