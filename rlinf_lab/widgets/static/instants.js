// Spans that took no time, as a put that finds room: a tick each. A frame of them costs pixels, too, not spans.
import { Lane, OTHER } from "./lane.js";

export const NOTCH = 4; // px at the top of a lane where instants lie over its spans
const APART = 24; // columns: nearer to each other, ticks over spans would be a line that hides them

/** Spans without a length on one line, by start. */
export class InstantLane extends Lane {
  /** What a search found is listed by number: `found.rows`. */
  mark() {
    const before = this.found, rows = before ? before.rows : [];
    for (let i = before ? before.prefix.covered : 0; i < this.count; i++) if (this.keep(i)) rows.push(i);
    super.mark();
    this.found.rows = rows;
  }

  /** One pixel row of [from, from + width * pixel): a tick where an instant is; `paint.hits`: of those that a search found only. */
  paint(from, pixel, width, { full, hits }, pixels, offset) {
    const { start, kind } = this.columns, rows = hits ? this.found.rows : null, n = rows ? rows.length : this.count, missed = this.found && !hits;
    const thick = Math.max(1, Math.round(window.devicePixelRatio || 1));
    for (let j = this.first(rows, n, 0, from); j < n;) {
      const i = rows ? rows[j] : j, x = Math.floor((start[i] - from) / pixel);
      if (x >= width) return;
      pixels.fill(full[missed ? OTHER : kind[i]], offset + x, offset + Math.min(width, x + thick));
      j = Math.max(j + 1, this.first(rows, n, j, from + (x + 1) * pixel));
    }
  }

  /** The first of `rows` (null: of all), from the j-th of `n` on, at `time` or later: found in steps that double, for the next pixel's is near. */
  first(rows, n, j, time) {
    const { start } = this.columns;
    let low = j - 1, step = 1, high = j;
    while (high < n && start[rows ? rows[high] : high] < time) { low = high; high += step; step *= 2; }
    high = Math.min(high, n);
    while (high - low > 1) {
      const mid = (low + high) >> 1;
      if (start[rows ? rows[mid] : mid] < time) low = mid; else high = mid;
    }
    return high;
  }

  /** [first, last) of those in [from, to], ns: there may be several at `from`. */
  range(from, to) { return [this.first(null, this.count, 0, from), this.at(to) + 1]; }

  /** The instant that is nearest to `time` within `slack` ns, of those that a search found; -1 where there is none, or no search. */
  nearHit(time, slack) {
    const rows = this.found ? this.found.rows : [], { start } = this.columns, j = this.first(rows, rows.length, 0, time);
    const best = [j - 1, j].filter((k) => k >= 0 && k < rows.length).sort((a, b) => Math.abs(start[rows[a]] - time) - Math.abs(start[rows[b]] - time))[0];
    return best !== undefined && Math.abs(start[rows[best]] - time) <= slack ? rows[best] : -1;
  }
}

/** Whether ticks of [from, to) ns over the spans of a lane that is `width` wide are told apart. */
export function sparse(lane, from, to, width) {
  const [first, last] = lane.range(from, to);
  return last - first <= width / APART;
}
