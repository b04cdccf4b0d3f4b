// What the dashboard remembers of iterations, so that a redraw costs what is new and what is seen, not what there is.

/** What the kernel writes for a number that is none (JSON has no such). */
export const DIVERGED = new Set(["NaN", "∞", "−∞"]);

/** Rows of metrics by iteration, and of each number the points of its curve. */
export class Rows {
  constructor() {
    this.all = [];
    this.at = new Map(); // iteration: place of its row
    this.names = new Map(); // of numbers, also diverged ones: how many rows have one
    this.curves = new Map(); // name: {points: [[iteration, value], ...], upto: how many rows are in}
  }

  get last() { return this.all[this.all.length - 1]; }

  /** A row replaces the one of its iteration: some numbers come later than others, and a name may get its worker's before it. */
  put(row) {
    let place = this.at.get(row.iteration);
    if (place !== undefined) { this.count(this.all[place], -1); this.all[place] = row; }
    else if (!this.all.length || row.iteration > this.last.iteration) {
      place = this.all.push(row) - 1;
      this.at.set(row.iteration, place);
    } else { // out of turn, which is rare
      place = this.all.findIndex((other) => other.iteration > row.iteration);
      this.all.splice(place, 0, row);
      for (let i = place; i < this.all.length; i++) this.at.set(this.all[i].iteration, i);
    }
    this.count(row, 1);
    for (const curve of this.curves.values()) {
      while (curve.points.length && curve.points[curve.points.length - 1][0] >= row.iteration) curve.points.pop();
      curve.upto = Math.min(curve.upto, place);
    }
  }

  count(row, by) {
    for (const key in row) {
      if (typeof row[key] !== "number" && !DIVERGED.has(row[key])) continue;
      const rows = (this.names.get(key) || 0) + by;
      if (rows) this.names.set(key, rows);
      else this.names.delete(key);
    }
  }

  /** What was said of a number the last time that it was measured: the number, or the text of one that diverged; undefined before that. */
  latest(name) {
    for (let i = this.all.length - 1; i >= 0; i--) {
      const value = this.all[i][name];
      if (Number.isFinite(value) || DIVERGED.has(value)) return value;
    }
    return undefined;
  }

  /** [[iteration, value], ...] of a number, where it was measured and is one. */
  points(name) {
    let curve = this.curves.get(name);
    if (!curve) this.curves.set(name, (curve = { points: [], upto: 0 }));
    for (; curve.upto < this.all.length; curve.upto++) {
      const row = this.all[curve.upto];
      if (Number.isFinite(row[name])) curve.points.push([row.iteration, row[name]]);
    }
    return curve.points;
  }
}

/** Rows of amounts, in order, added up: the sum of any stretch of them in two steps. */
export class Sums {
  constructor(keys) {
    this.keys = keys;
    this.upto = Object.fromEntries(keys.map((key) => [key, [0]]));
    this.length = 0;
    this.last = null; // the last row itself
  }

  add(row) {
    for (const key of this.keys) this.upto[key].push(this.upto[key][this.length] + (row[key] || 0));
    this.length += 1;
    this.last = row;
  }

  of(key, from = 0, to = this.length) { return this.upto[key][to] - this.upto[key][from]; }

  /** At most `most` rows: neighbours added up. */
  merged(most) {
    const size = Math.max(1, Math.ceil(this.length / Math.max(1, most))), out = [];
    for (let from = 0; from < this.length; from += size) {
      const to = Math.min(from + size, this.length);
      out.push(Object.fromEntries(this.keys.map((key) => [key, this.of(key, from, to)])));
    }
    return out;
  }
}
