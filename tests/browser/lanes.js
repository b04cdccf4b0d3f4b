// In the page of test_timeline_lanes.py: the timeline's arithmetic against sums over all spans.
let state = 7;
const random = () => (state = (state * 16807) % 2147483647) / 2147483647;

/** Random spans without overlap, sparse and dense stretches. */
const madeSpans = (n, kinds = 9) => {
  const c = { start: new Float64Array(n), dur: new Float32Array(n), kind: new Uint8Array(n) };
  let t = 0;
  for (let i = 0; i < n; i++) {
    if (random() < 0.5) t += random() ** 4 * 400;
    c.start[i] = t;
    c.dur[i] = Math.fround(random() ** 3 * 90);
    c.kind[i] = Math.floor(random() * kinds);
    t += c.dur[i];
  }
  return [c, Array.from({ length: n }, (_, i) => i), t];
};

const filled = (c, order) => {
  const lane = new Lane();
  for (let i = 0; i < order.length; i += 777) { lane.append(c, order.slice(i, i + 777), 0); lane.settle(); }
  return lane;
};

/** Colours of the categories: far apart, so that a wrong share shows. */
const testPaint = () => {
  const channel = (seed) => Float64Array.from({ length: CATEGORIES }, (_, k) => (k * seed) % 256);
  const [red, green, blue] = [channel(83), channel(151), channel(211)], weight = new Float64Array(CATEGORIES).fill(1);
  const full = Uint32Array.from(red, (r, k) => ((255 << 24) | (blue[k] << 16) | (green[k] << 8) | r) >>> 0);
  for (const column of [red, green, blue, weight]) column[OTHER] = 0;
  return { red, green, blue, weight, full, ground: [255, 250, 245] };
};

/** The colour that a pixel with these times of each category must have. */
const rightColour = (paint, own, pixel) => {
  const total = own.reduce((a, b) => a + b, 0), opacity = Math.max(0.35, Math.min(1, (2 * total) / pixel));
  return [paint.red, paint.green, paint.blue].map((c, j) => own.reduce((sum, v, k) => sum + (v / total) * c[k], 0) * opacity + paint.ground[j] * (1 - opacity));
};

/** Pixels whose colour is not the mean of the colours in it, by time. */
const wrongPixels = () => {
  const [c, order, t] = madeSpans(30000), lane = filled(c, order), wrong = [], paint = testPaint();
  const views = [[0, t, 1], [0, t, 700], [-t, 2 * t, 900], [t * 0.313, t * 0.517, 333], [t * 0.5, t * 0.502, 800], [t * 0.7, t * 0.7004, 1000]];
  for (const [from, to, width] of views) {
    const pixel = (to - from) / width, pixels = new Uint32Array(width), exact = new Float64Array(width * CATEGORIES);
    lane.paint(from, pixel, width, paint, pixels, 0);
    for (let i = 0; i < lane.count; i++) {
      const s = c.start[i], e = s + c.dur[i];
      for (let x = Math.max(0, Math.floor((s - from) / pixel)); x < width && from + x * pixel < e; x++) {
        exact[x * CATEGORIES + c.kind[i]] += Math.max(0, Math.min(e, from + (x + 1) * pixel) - Math.max(s, from + x * pixel));
      }
    }
    for (let x = 0; x < width; x++) {
      const own = [...exact.slice(x * CATEGORIES, (x + 1) * CATEGORIES)], total = own.reduce((a, b) => a + b, 0);
      if (total < pixel * 1e-6) { if (pixels[x] && total === 0) wrong.push(["painted", from, x]); continue; }
      const seen = [pixels[x] & 255, (pixels[x] >> 8) & 255, (pixels[x] >> 16) & 255], right = rightColour(paint, own, pixel);
      if (!pixels[x] || seen.some((v, j) => Math.abs(v - right[j]) > 1.01)) wrong.push(["colour", from, x, seen, right]);
    }
  }
  return wrong.slice(0, 3);
};

/** Of a search that finds one span in a thousand: how many pixels of the whole range show one, and how many have one. */
const pixelsWithHits = () => {
  const [c, order, t] = madeSpans(30000), lane = filled(c, order), paint = testPaint(), width = 500, pixels = new Uint32Array(width);
  lane.search((i) => i % 1000 === 7);
  lane.paint(0, t / width, width, paint, pixels, 0);
  const there = new Set();
  for (let i = 7; i < lane.count; i += 1000) if (c.dur[i] > 0) there.add(Math.floor((c.start[i] / t) * width)).add(Math.floor(((c.start[i] + c.dur[i] * 0.999) / t) * width));
    return { missed: [...there].filter((x) => pixels[x] === paint.full[OTHER] || pixels[x] === 0).length, there: there.size };
};

/** Instants, some at the same time, that come in batches: pixels without the right tick (also of a search), numbers that a search lists wrongly, wrong ranges. */
const wrongTicks = () => {
  const n = 20000, c = { start: new Float64Array(n), dur: new Float32Array(n), kind: new Uint8Array(n) }, lane = new InstantLane(), wrong = [];
  for (let i = 0, t = 0; i < n; i++) { c.start[i] = t; c.kind[i] = Math.floor(random() * 9); if (random() < 0.8) t += Math.floor(random() ** 6 * 4000); }
  const order = Array.from({ length: n }, (_, i) => i), t = c.start[n - 1], full = Uint32Array.from({ length: CATEGORIES }, (_, k) => k + 1), found = (i) => i % 97 === 5;
  const check = (hits) => {
    for (const [from, to, width] of [[0, t + 1, 700], [-t, 2 * t, 300], [t * 0.3, t * 0.31, 900], [t * 0.5, t * 0.5 + 50, 800]]) {
      const pixel = (to - from) / width, pixels = new Uint32Array(width + 9), right = new Uint32Array(width + 9);
      lane.paint(from, pixel, width, { full, hits }, pixels, 4);
      for (let i = lane.count - 1; i >= 0; i--) {
        const x = Math.floor((c.start[i] - from) / pixel);
        if (x >= 0 && x < width && (!hits || found(i))) right[4 + x] = full[lane.found && !hits ? OTHER : c.kind[i]];
      }
      right.forEach((v, x) => { if (v !== pixels[x]) wrong.push(["tick", from, width, x, v, pixels[x]]); });
      const [a, b] = lane.range(c.start[500], c.start[900]);
      if (a !== c.start.indexOf(c.start[500]) || b !== c.start.lastIndexOf(c.start[900]) + 1) wrong.push(["range", a, b]);
    }
  };
  for (let at = 0; at < n; at += 7001) {
    lane.append(c, order.slice(at, at + 7001), 0);
    lane.settle();
    if (at === 7001) lane.search(found); // goes on with what comes
  }
  if (lane.found.hits !== order.filter(found).length || lane.found.rows.some((i, j) => i !== 5 + 97 * j)) wrong.push(["rows", lane.found.hits]);
  check(true);
  check(false);
  const at = c.start[5 + 97 * 40], hit = lane.nearHit(at + 0.25, 1);
  if (c.start[hit] !== at || !found(hit) || lane.nearHit(-10, 9) !== -1) wrong.push(["near", hit]);
  lane.search(null);
  check(false);
  return wrong.slice(0, 3);
};

/** Numbers of all that a search finds, one after the other, forwards and backwards from the first and the last: [[label, lane's number, number], ...]. */
const walked = (query) => {
  const lanes = (track) => [...track.spans.lanes, ...track.labels.lanes, ...track.points.lanes], hits = store.search(query);
  return [1, -1].map((direction) => {
    const seen = [];
    let hit = store.nextHit(-direction * Infinity, direction);
    for (; hit && seen.length <= hits; hit = store.nextHit(hit[1].columns.start[hit[2]], direction, { lane: hit[1], i: hit[2] })) seen.push([hit[0].label, lanes(hit[0]).indexOf(hit[1]), hit[2]]);
    return seen;
  }).concat([hits]);
};

/** The largest error of a range's sums, as a share of the range. */
const worstSum = () => {
  const [c, order, t] = madeSpans(20000), lane = filled(c, order);
  let worst = 0;
  for (let k = 0; k < 200; k++) {
    const from = (random() - 0.1) * t, to = from + random() ** 3 * t;
    const sums = lane.sum(from, to, new Float64Array(CATEGORIES)), exact = new Float64Array(CATEGORIES);
    for (let i = 0; i < lane.count; i++) exact[c.kind[i]] += Math.max(0, Math.min(to, c.start[i] + c.dur[i]) - Math.max(from, c.start[i]));
    exact.forEach((v, j) => { worst = Math.max(worst, Math.abs(v - sums[j]) / (to - from)); });
  }
  return worst;
};

/** Rows [start, end] as the columns of a stack. */
const columnsOf = (rows) => {
  const n = rows.length, ints = () => new Int32Array(n);
  return {
    start: Float64Array.from(rows, (r) => r[0]), dur: Float32Array.from(rows, (r) => r[1] - r[0]), kind: new Uint8Array(n), name: new Uint32Array(n),
    iteration: ints(), items: ints(), channel: ints(), flow: ints(),
  };
};

/** Call trees whose spans arrive when they end, 50 at a time. */
const nestedStack = () => {
  const rows = [];
  const nest = (from, to, depth) => {
    rows.push([from, to]);
    if (depth === 0) return;
    for (let at = from; at < to - 10;) {
      const end = Math.min(to, at + (to - from) * (0.1 + 0.4 * random()));
      nest(at, end, depth - 1);
      at = end + random() * 3;
    }
  };
  for (let k = 0; k < 30; k++) nest(k * 1e5, k * 1e5 + 8e4, 4);
  rows.sort((a, b) => a[1] - b[1] || b[0] - a[0]);
  const stack = new Stack();
  for (let at = 0; at < rows.length; at += 50) {
    const part = rows.slice(at, at + 50).sort((a, b) => a[0] - b[0] || b[1] - a[1]);
    stack.add(columnsOf(part), part.map((_, i) => i), 0);
  }
  let overlaps = 0, inverted = 0, count = 0;
  stack.lanes.forEach((lane, d) => {
    const { start, dur } = lane.columns, above = stack.lanes[d - 1];
    count += lane.count;
    for (let i = 1; i < lane.count; i++) if (start[i] < start[i - 1] + dur[i - 1] - 1.1 - dur[i - 1] * 2e-7) overlaps++;
    for (let i = 0; i < lane.count && d; i++) {
      const j = above.at(start[i]);
      if (j < 0 || above.columns.start[j] + above.columns.dur[j] < start[i] + dur[i] - 2) inverted++;
    }
  });
  return { n: rows.length, count, overlaps, inverted, depth: stack.lanes.length };
};

/** [hits counted, hits there are, hits drawn] of a search that was on while spans came. */
const searchHits = () => {
  const [c, order] = madeSpans(5000), lane = new Lane(), third = (i) => lane.columns.start[i] % 3 < 1;
  lane.append(c, order.slice(0, 1000), 0);
  lane.settle();
  lane.search(third);
  lane.append(c, order.slice(1000), 0);
  lane.settle();
  return [lane.found.hits, order.filter((i) => c.start[i] % 3 < 1).length, order.filter((i) => lane.found.category[i] !== OTHER).length];
};

/** Fills window.store from a message of the kernel. */
const fill = (content, parts) => {
  window.store = new Store();
  more(content, parts);
};

/** Adds what another one says. */
const more = (content, parts) => {
  const bytes = (text) => Uint8Array.from(atob(text), (ch) => ch.charCodeAt(0));
  store.apply(content, Object.fromEntries(Object.entries(parts).map(([name, text]) => [name, bytes(text)])));
};

/** All arrows as "put track > get track: first item", sorted. */
const arrowTexts = () => {
  const texts = new Set();
  for (const mark of store.marks) {
    for (const { puts, gets } of movements(store, mark.iteration).values()) {
      for (const get of gets) {
        for (const put of puts) {
          if (put.low < get.high && put.high > get.low && put.start <= get.end) texts.add(`${mark.iteration} ${put.track.label} ${put.low} > ${get.track.label} ${get.low}`);
        }
      }
    }
  }
  const fast = new Set();
  for (const mark of store.marks) {
    for (const [put, get] of arrows(store, mark.iteration, 0, Infinity, 1e6)) fast.add(`${mark.iteration} ${put.track.label} ${put.low} > ${get.track.label} ${get.low}`);
  }
  return [[...texts].sort(), [...fast].sort()];
};

/** The explanation of the longest bubble of a device with this cause. */
const explained = (device, cause) => {
  const lane = store.idle.get(device), { kind, dur } = lane.columns;
  let best = -1;
  for (let i = 0; i < lane.count; i++) if (kind[i] === CAUSES.indexOf(cause) && (best < 0 || dur[i] > dur[best])) best = i;
  const { title, lines, chain } = explain(store, device, lane, best);
  return { title, lines, chain: chain.map((c) => c.text) };
};

/** What the store holds: of each lane every column. */
const held = () => {
  const lanes = (stack) => stack.lanes.map(columnsOfLane);
  return store.tracks.map((track) => [track.label, lanes(track.spans), lanes(track.labels), lanes(track.points)]).concat([[store.count, store.end, store.marks]]);
};
const columnsOfLane = (lane) => Object.fromEntries(Object.entries(lane.columns).map(([name, values]) => [name, [...values.subarray(0, lane.count)]]));

/** Of the span of a track at a time: the panel's numbers on what is like it, [[median, how many, ns, parts, how], ...]. */
const likeAt = (label, at) => {
  const track = store.tracks.find((t) => t.label === label), [lane, i] = track.spans.near(at, 0);
  return likeIt(store, track, lane, i).map(({ sorted, count, ns, parts, how }) => [sorted[Math.floor(sorted.length / 2)], count, ns, parts, how]);
};

/** [lane's number, start, dur] of the first outlier, when all that is told to `meanwhile` happens after the first track. */
const outlierWhile = async (meanwhile) => {
  let paused = 0;
  const breath = { pause: () => (paused++ ? null : Promise.resolve().then(() => { meanwhile(store); return true; })) };
  const found = await outliers(store, 8, breath);
  return found && found.map(({ track, lane, i }) => [track.spans.lanes.indexOf(lane), lane.columns.start[i], lane.columns.dur[i]])[0];
};

window.checks = { outlierWhile, held, wrongTicks, walked, wrongPixels, pixelsWithHits, worstSum, nestedStack, searchHits, fill, more, arrowTexts, explained, outliers: async () => (await outliers(store)).map((o) => [pieceName(store, o), o.ns, o.median, o.count, o.lane.columns.iteration[o.i], o.more]),
  like: (label, at) => likeAt(label, at), statistics: (from, to) => rangeStatistics(store, from, to) };
