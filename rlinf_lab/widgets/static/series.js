// Quantities over time: samples of load, memory, metrics; and depths of channels where no spans tell them (depths.js).

export const SAMPLE_BYTES = 24;

/** Samples of one counter, by time: ns after the origin. */
export class Series {
  constructor(name) { this.name = name; this.times = []; this.values = []; this.steps = false; }

  get count() { return this.times.length; }

  value(i) { return this.values[i]; }

  add(time, value) {
    let i = this.times.length;
    while (i > 0 && this.times[i - 1] > time) i--; // another host's come a little late
    if (i === this.times.length) { this.times.push(time); this.values.push(value); } else { this.times.splice(i, 0, time); this.values.splice(i, 0, value); }
  }

  /** How many samples are at `time` or before. */
  upto(time) {
    let low = 0, high = this.times.length;
    while (low < high) { const mid = (low + high) >> 1; if (this.times[mid] <= time) low = mid + 1; else high = mid; }
    return low;
  }

  /** [time, value] of the last sample at `time` or before, or null. */
  at(time) { const i = this.upto(time) - 1; return i < 0 ? null : [this.times[i], this.values[i]]; }

  /** [lowest, highest] of samples [first, last), but those that are no number. */
  bounds(first, last) {
    const { values } = this;
    let low = Infinity, high = -Infinity;
    for (let i = first; i < last; i++) { const v = values[i]; if (!Number.isFinite(v)) continue; if (v < low) low = v; if (v > high) high = v; }
    return [low, high];
  }

  /**
   * [lowest, highest] of a scale for these numbers, and whether one of them is none (NaN, infinite). A share reaches from 0 to 100, or as far as it
   * goes beyond; what is never negative begins at 0, if that leaves something to be seen.
   */
  extent(first, last) {
    const [low, high] = this.bounds(first, last);
    let odd = false;
    for (let i = first; i < last && !odd; i++) odd = !Number.isFinite(this.values[i]);
    if (this.name.endsWith("%")) return [Math.min(0, low), Math.max(100, high), odd];
    if (!(low <= high) || (low === 0 && high === 0)) return [0, 1, odd];
    if (low === high) return [Math.min(0, low), Math.max(0, high), odd];
    return [low >= 0 && low < 0.7 * high ? 0 : low, high, odd];
  }
}

/** Appends rows of rlinf_lab/widgets/packing.py to `counters`: a Map from name to Series. */
export function addSamples(counters, buffer, name) {
  const n = buffer.byteLength / SAMPLE_BYTES, f64 = new Float64Array(buffer), i32 = new Int32Array(buffer);
  for (let i = 0; i < n; i++) {
    const text = name(i32[i * 6 + 4]);
    if (!counters.has(text)) counters.set(text, new Series(text));
    counters.get(text).add(f64[i * 3], f64[i * 3 + 1]);
  }
}
