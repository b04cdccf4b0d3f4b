// How many items wait in a channel, exactly: read from the puts and gets among the spans, not from samples of it.

const STRIDE = 64; // steps of which the lowest and the highest depth are kept

function roomy(array, size) {
  if (array.length >= size) return array;
  const bigger = new array.constructor(Math.ceil(size * 1.5) + 64);
  bigger.set(array);
  return bigger;
}

/**
 * The first `count` of `times` and what moves then, from the earliest on. Spans come sorted by track: ascending stretches are merged, which takes a tenth of
 * the time that sorting does.
 */
function ascending(times, items, count) {
  let cuts = [0], fromTimes = times, fromItems = items, toTimes = null, toItems = null;
  for (let i = 1; i < count; i++) if (times[i] < times[i - 1]) cuts.push(i);
  for (cuts.push(count); cuts.length > 2;) {
    toTimes ||= new Float64Array(count);
    toItems ||= new Int32Array(count);
    const next = [];
    for (let c = 0; c < cuts.length - 1; c += 2) {
      const middle = cuts[c + 1], end = cuts[c + 2] ?? middle;
      next.push(cuts[c]);
      mergeStretches(fromTimes, fromItems, toTimes, toItems, cuts[c], middle, end);
    }
    next.push(count);
    [fromTimes, toTimes, fromItems, toItems, cuts] = [toTimes, fromTimes === times ? null : fromTimes, toItems, fromItems === items ? null : fromItems, next];
  }
  return [fromTimes, fromItems];
}

/** Stretches [i, middle) and [middle, end), each ascending, into one at the same place. */
function mergeStretches(fromTimes, fromItems, toTimes, toItems, i, middle, end) {
  let j = middle, at = i;
  while (i < middle && j < end) {
    if (fromTimes[j] < fromTimes[i]) { toItems[at] = fromItems[j]; toTimes[at++] = fromTimes[j++]; } else { toItems[at] = fromItems[i]; toTimes[at++] = fromTimes[i++]; }
  }
  for (; i < middle; i++) { toItems[at] = fromItems[i]; toTimes[at++] = fromTimes[i]; }
  for (; j < end; j++) { toItems[at] = fromItems[j]; toTimes[at++] = fromTimes[j]; }
}

/**
 * The depth of one channel as steps: `times` (ns after the origin, ascending, each once) and `values`, the depth from there on. A put's items are there at
 * its end, a get's are taken at its end; what is left of an iteration goes with it. Brought up to date when one looks at it.
 */
export class Depth {
  constructor(ends) {
    this.name = "";
    this.ends = ends; // iteration -> when it was over, shared by all channels
    this.steps = true; // it holds from one to the next, to the end of what is known
    this.fed = false; // whether there is a put: what was only ever taken tells no depth
    this.size = 0;
    this.times = new Float64Array(64);
    this.sums = new Int32Array(64); // put less taken: below 0 where the clocks of two hosts differ
    this.waiting = 0; // of movements that are not among the steps yet
    this.waitingTimes = new Float64Array(64);
    this.waitingItems = new Int32Array(64);
    this.left = new Map(); // iteration -> items put and not taken
    this.gone = new Map(); // iteration -> [when, how many of them] went with it
    this.touched = new Set(); // iterations of which more is known than `gone` says
    this.present = null; // the iteration that `balance` items are to be added to
    this.balance = 0;
    this.lows = new Int32Array(8);
    this.highs = new Int32Array(8);
  }

  /** At `time` so many items more are there. */
  add(time, items, iteration) {
    if (items > 0) this.fed = true;
    this.move(time, items);
    if (iteration !== this.present) { this.book(); this.present = iteration; }
    this.balance += items;
  }

  /** What moved in the iteration of the spans that came last: most follow one of the same. */
  book() {
    if (this.present === null) return;
    this.left.set(this.present, (this.left.get(this.present) || 0) + this.balance);
    this.touched.add(this.present);
    this.present = null;
    this.balance = 0;
  }

  move(time, items) {
    const n = this.waiting++;
    if (n === this.waitingTimes.length) { this.waitingTimes = roomy(this.waitingTimes, n + 1); this.waitingItems = roomy(this.waitingItems, n + 1); }
    this.waitingTimes[n] = time;
    this.waitingItems[n] = items;
  }

  /** Its end came. */
  over(iteration) { if (this.left.has(iteration)) this.touched.add(iteration); }

  /** What is left of iterations that are over goes with them; of those that are found empty nothing is kept. */
  retire() {
    for (const iteration of this.touched) {
      const end = this.ends.get(iteration), left = this.left.get(iteration), [before, gone] = this.gone.get(iteration) || [end, 0];
      if (end === undefined) continue; // it goes on
      this.touched.delete(iteration);
      if (before === end && gone === left) continue;
      if (gone) this.move(before, gone); // more was known of it than was thought
      if (left) this.move(end, -left);
      this.gone.set(iteration, [end, left]);
    }
  }

  /** Everything that came becomes steps; those from its first time on are made anew. */
  settle() {
    this.book();
    if (this.touched.size) this.retire();
    if (!this.waiting) return;
    const count = this.waiting, [come, items] = ascending(this.waitingTimes, this.waitingItems, count), kept = this.upto(come[0] - 0.5, this.size);
    const oldTimes = this.times.slice(kept, this.size), oldSums = this.sums.slice(kept, this.size), olds = oldTimes.length, most = kept + olds + count;
    const times = (this.times = roomy(this.times, most)), sums = (this.sums = roomy(this.sums, most));
    let sum = kept ? sums[kept - 1] : 0, old = sum, n = kept;
    for (let i = 0, j = 0; i < olds || j < count;) {
      const time = j === count || (i < olds && oldTimes[i] < come[j]) ? oldTimes[i] : come[j];
      if (i < olds && oldTimes[i] === time) { sum += oldSums[i] - old; old = oldSums[i++]; }
      while (j < count && come[j] === time) sum += items[j++];
      times[n] = time;
      sums[n++] = sum;
    }
    this.size = n;
    this.waiting = 0;
    if (this.waitingTimes.length > 4096) { this.waitingTimes = new Float64Array(64); this.waitingItems = new Int32Array(64); } // room for all of a long run
    this.reduce(kept);
  }

  reduce(from) {
    const blocks = Math.ceil(this.size / STRIDE), { sums } = this;
    this.lows = roomy(this.lows, blocks);
    this.highs = roomy(this.highs, blocks);
    for (let b = Math.floor(from / STRIDE); b < blocks; b++) {
      let low = Infinity, high = -Infinity;
      for (let i = b * STRIDE, end = Math.min(this.size, i + STRIDE); i < end; i++) { if (sums[i] < low) low = sums[i]; if (sums[i] > high) high = sums[i]; }
      this.lows[b] = low;
      this.highs[b] = high;
    }
  }

  get count() { this.settle(); return this.size; }

  value(i) { return Math.max(0, this.sums[i]); }

  /** How many steps are at `time` or before. */
  upto(time, count = this.count) {
    let low = 0, high = count;
    while (low < high) { const mid = (low + high) >> 1; if (this.times[mid] <= time) low = mid + 1; else high = mid; }
    return low;
  }

  /** [time, depth] of the last step at `time` or before, or null. */
  at(time) { const i = this.upto(time) - 1; return i < 0 ? null : [this.times[i], this.value(i)]; }

  /** [lowest, highest] of steps [first, last). */
  bounds(first, last) {
    const { sums, lows, highs } = this;
    let low = Infinity, high = -Infinity;
    for (let i = first; i < last;) {
      if (i % STRIDE === 0 && i + STRIDE <= last) { const b = i / STRIDE; if (lows[b] < low) low = lows[b]; if (highs[b] > high) high = highs[b]; i += STRIDE; continue; }
      if (sums[i] < low) low = sums[i];
      if (sums[i] > high) high = sums[i];
      i++;
    }
    return first < last ? [Math.max(0, low), Math.max(0, high)] : [Infinity, -Infinity];
  }

  /** [lowest, highest] of a scale for steps [first, last), and that all of them are numbers. */
  extent(first, last) { return [0, Math.max(1, this.bounds(first, last)[1]), false]; }
}

/** The depths of all channels of a timeline. */
export class Depths {
  constructor() { this.of = new Map(); this.ends = new Map(); } // number of a channel -> Depth; iteration -> when it was over

  /** The end of a put (`items` > 0) or of a get (< 0). */
  add(channel, time, items, iteration) {
    let depth = this.of.get(channel);
    if (!depth) this.of.set(channel, (depth = new Depth(this.ends)));
    depth.add(time, items, iteration);
  }

  /** An iteration was over at `time`; of two that have its number, the later one counts. */
  over(iteration, time) {
    if (this.ends.get(iteration) >= time) return;
    this.ends.set(iteration, time);
    for (const depth of this.of.values()) depth.over(iteration);
  }
}
