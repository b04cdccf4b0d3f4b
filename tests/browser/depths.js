// In the page of test_channel_depths.py: the depths that the browser reads from spans, and what of them is on the screen.
const bytes = (text) => Uint8Array.from(atob(text), (ch) => ch.charCodeAt(0));

/** Channel -> [[time, depth], ...] at every change, after messages of the kernel; with `each` they are also looked at after every one. */
const stepsAfter = (messages, each) => {
  const store = new Store(), found = {};
  for (const [content, parts] of messages) {
    store.apply(content, Object.fromEntries(Object.entries(parts).map(([name, text]) => [name, bytes(text)])));
    if (each) for (const depth of store.counters.values()) depth.count;
  }
  for (const [name, depth] of store.counters) {
    if (!(depth instanceof Depth)) continue;
    const steps = Array.from({ length: depth.count }, (_, i) => [depth.times[i], depth.value(i)]);
    found[name] = steps.filter(([, value], i) => !i || value !== steps[i - 1][1]);
  }
  return found;
};

/** Ranges of random depths whose lowest and highest value is another than that of all steps in them. */
const wrongBounds = () => {
  const ends = new Map([[0, 700], [1, 9000]]), depth = new Depth(ends), wrong = [];
  let state = 5;
  const random = () => (state = (state * 16807) % 2147483647) / 2147483647;
  for (let i = 0; i < 6000; i++) { depth.add(Math.floor(random() * 9000), random() < 0.55 ? 2 : -2, Math.floor(random() * 3)); if (i % 700 === 0) depth.settle(); }
  for (let k = 0; k < 500; k++) {
    const first = Math.floor(random() * depth.count), last = first + Math.floor(random() ** 3 * (depth.count - first + 1));
    const values = Array.from({ length: last - first }, (_, i) => depth.value(first + i));
    const right = [Math.min(...values), Math.max(...values)], got = depth.bounds(first, last);
    if (right.some((v, i) => v !== got[i])) wrong.push([first, last, right, got]);
  }
  return [depth.count, wrong.slice(0, 3)];
};

/** Shows a timeline; returns the titles of its rows of counters. */
const show = async (content, parts) => {
  const store = new Store(), root = document.getElementById("timeline");
  store.apply(content, Object.fromEntries(Object.entries(parts).map(([name, text]) => [name, bytes(text)])));
  root.replaceChildren();
  window.view = new TimelineView(root, store, { follow: false });
  await drawn();
  return view.rows.filter((row) => row.kind === "counter").map((row) => row.title);
};
const drawn = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 60)));

/** Of each iteration the highest value that the curve of a counter reaches on the screen while it goes on, read from the pixels. */
const highestDrawn = async (title) => {
  const found = [];
  for (const mark of view.store.marks) {
    view.look(mark.start - 0.1 * (mark.end - mark.start), mark.end); // the text of the scale lies over the left end
    await drawn();
    const row = view.rows.find((r) => r.title === title), ratio = window.devicePixelRatio || 1, { series } = row;
    const high = series.extent(Math.max(0, series.upto(view.from) - 1), series.upto(view.to))[1];
    const x0 = Math.round(view.x(mark.start)), x1 = Math.round(view.x(mark.end)), ink = rgb(view.colours.accent);
    const { data, width, height } = view.canvas.getContext("2d").getImageData(x0 * ratio, row.y * ratio, (x1 - x0) * ratio, row.h * ratio);
    let top = NaN;
    for (let y = 0; y < height && Number.isNaN(top); y++) for (let x = 0; x < width; x++) if (ink.every((v, k) => Math.abs(data[4 * (y * width + x) + k] - v) < 60)) { top = y / ratio; break; }
    const level = (row.h - 3 - Math.max(0, top - 0.5)) / (row.h - 3); // the line is 1.25 px wide around 1.5 px from the top
    found.push(Math.round(high * level * 10) / 10);
  }
  return found;
};

window.checks = { stepsAfter, wrongBounds, show, highestDrawn };
