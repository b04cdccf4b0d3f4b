// One line of spans that do not overlap: typed columns and prefix sums, so that a frame costs pixels, not spans.

const BLOCK = 16, STEP = 8;
export const CATEGORIES = 12; // most kinds of time that one lane tells apart
export const OTHER = 11; // what a search did not find
const acc = new Float64Array(CATEGORIES);

export function grown(array, capacity) {
  const bigger = new array.constructor(capacity);
  bigger.set(array);
  return bigger;
}

// One function for each type of array: a loop that has seen several types is ten times slower in every engine.
const gatherers = new Map([
  [Float64Array, (target, at, source, order) => { for (let j = 0; j < order.length; j++) target[at + j] = source[order[j]]; }],
  [Float32Array, (target, at, source, order) => { for (let j = 0; j < order.length; j++) target[at + j] = source[order[j]]; }],
  [Int32Array, (target, at, source, order) => { for (let j = 0; j < order.length; j++) target[at + j] = source[order[j]]; }],
  [Uint32Array, (target, at, source, order) => { for (let j = 0; j < order.length; j++) target[at + j] = source[order[j]]; }],
  [Uint8Array, (target, at, source, order) => { for (let j = 0; j < order.length; j++) target[at + j] = source[order[j]]; }],
]);

function inARow(order) {
  for (let j = 1; j < order.length; j++) if (order[j] !== order[j - 1] + 1) return false;
  return order.length > 0;
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

/**
 * The spans of a lane in given colours: time and colour x time up to every 8th span, so that the mean colour of any range is a
 * difference of two rows and a few spans at its ends. Made when first drawn, extended when spans come.
 */
class Tint {
  constructor(paint) { this.paint = paint; this.rows = new Float64Array(4); this.heads = new Float64Array(1); this.covered = 0; }

  /** Bring it up to `count` spans; `category`: of each span. */
  extend({ start, dur }, category, count) {
    const { weight, red, green, blue } = this.paint, blocks = Math.floor(count / STEP) + 1;
    if (this.heads.length < blocks) {
      const room = Math.ceil(blocks * 1.4) + 4;
      this.heads = grown(this.heads, room);
      this.rows = grown(this.rows, 4 * room);
    }
    const { rows, heads } = this;
    for (let b = Math.floor(this.covered / STEP); b < blocks; b++) {
      if (b * STEP < count) heads[b] = start[b * STEP];
      if (b === blocks - 1) break;
      let time = rows[4 * b], r = rows[4 * b + 1], g = rows[4 * b + 2], v = rows[4 * b + 3];
      for (let i = b * STEP, last = i + STEP; i < last; i++) {
        const k = category[i], d = dur[i];
        time += d * weight[k]; r += d * red[k]; g += d * green[k]; v += d * blue[k];
      }
      rows[4 * b + 4] = time; rows[4 * b + 5] = r; rows[4 * b + 6] = g; rows[4 * b + 7] = v;
    }
    this.covered = count;
  }
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
    this.tints = []; // the colours it was drawn in lately, two at most: two views may differ
  }

  /** When the last span ends; a float32 duration may reach a little into the next span. */
  get end() { return this.count ? this.columns.start[this.count - 1] + this.columns.dur[this.count - 1] : -Infinity; }

  /** Append the rows `order` of `source` (columns of the same names), their starts shifted. Call `settle` when all are there. */
  append(source, order, shift) {
    const n = this.count, size = n + order.length, first = order[0], whole = inARow(order);
    for (const [key, column] of Object.entries(this.columns)) {
      const room = column.length >= size ? column : grown(column, Math.ceil(size * 1.3) + 16);
      this.columns[key] = room;
      if (whole) room.set(source[key].subarray(first, first + order.length), n);
      else gatherers.get(room.constructor)(room, n, source[key], order);
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
    for (const tint of this.tints) tint.covered = Math.min(tint.covered, count);
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
    this.tints = [];
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

  /** This lane in the colours of `paint`, up to date. */
  tint(paint, category) {
    let tint = this.tints.find((t) => t.paint === paint);
    if (!tint) this.tints = [(tint = new Tint(paint)), ...this.tints.slice(0, 1)];
    if (tint.covered < this.count) tint.extend(this.columns, category, this.count);
    return tint;
  }

  /**
   * One pixel row of [from, from + width * pixel): each pixel gets the mean colour of its spans, weighted by their time in it,
   * fainter where it is less than half full, but never so faint that a lone short span cannot be seen. Exact: no block is
   * counted that crosses a pixel's edge. What a search did not find counts only where nothing was found.
   * `paint`: colours of the categories, see `paintOf` in rows.js.
   */
  paint(from, pixel, width, paint, pixels, offset) {
    const n = this.count;
    if (!n) return;
    const { start, dur } = this.columns, category = this.found ? this.found.category : this.columns.kind;
    const { rows, heads } = this.tint(paint, category), { full, weight, red, green, blue, ground, veil } = paint, [groundRed, groundGreen, groundBlue] = ground;
    const to = from + width * pixel, most = Math.floor((n - 1) / STEP), nothing = Math.min(pixel * 1e-9, 0.49); // less of a pixel is rounding; a nanosecond on the edge of two is half in one of them
    let i = Math.max(0, this.at(from)), x = 0, leap = 1;
    while (x < width && i < n) {
      const t0 = from + x * pixel, t1 = t0 + pixel;
      let s = start[i], e = s + dur[i];
      if (e <= t0) { i++; continue; }
      if (s >= to) return;
      if (s >= t1) { x = Math.max(x + 1, Math.floor((s - from) / pixel)); continue; } // a gap
      if (s <= t0 && e >= t1) { // one span over whole pixels
        const last = Math.min(width, Math.max(x + 1, Math.floor((e - from) / pixel)));
        pixels.fill(full[category[i]], offset + x, offset + last);
        x = last;
        continue;
      }
      let k = category[i], d = (e < t1 ? e : t1) - (s > t0 ? s : t0);
      let time = d * weight[k], r = d * red[k], g = d * green[k], b = d * blue[k];
      if (e < t1) {
        for (i++; i < n;) {
          if (i % STEP === 0 && i + STEP < n && heads[i / STEP + 1] <= t1) {
            // Over all blocks that end before t1: about as many as in the pixel before.
            const a = i / STEP;
            let low = a + 1, step = leap;
            while (low + step <= most && heads[low + step] <= t1) { low += step; step *= 2; }
            for (step = Math.min(step, most - low); step >= 1;) { if (low + step <= most && heads[low + step] <= t1) low += step; step = step > 1 ? (step + 1) >> 1 : 0; }
            time += rows[4 * low] - rows[4 * a];
            r += rows[4 * low + 1] - rows[4 * a + 1];
            g += rows[4 * low + 2] - rows[4 * a + 2];
            b += rows[4 * low + 3] - rows[4 * a + 3];
            leap = Math.max(1, low - a - 1);
            i = low * STEP;
            continue;
          }
          s = start[i];
          if (s >= t1) break;
          e = s + dur[i];
          k = category[i];
          d = (e > t1 ? t1 : e) - s;
          time += d * weight[k]; r += d * red[k]; g += d * green[k]; b += d * blue[k];
          if (e > t1) break;
          i++;
        }
      }
      if (time > nothing) {
        const opacity = 2 * time >= pixel ? 1 : Math.max(0.35, (2 * time) / pixel), w = (veil ? 1 : opacity) / time, rest = veil ? 0 : 1 - opacity;
        pixels[offset + x] = ((veil ? Math.round(veil * opacity) : 255) << 24) | ((b * w + groundBlue * rest + 0.5) << 16) | ((g * w + groundGreen * rest + 0.5) << 8) | (r * w + groundRed * rest + 0.5);
      } else if (this.found) pixels[offset + x] = full[OTHER];
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
