// In the page of timeline_fps.py: packed spans on four devices, all lanes in sight, and a flight over them.
// Shapes: `random` (64 ranks, 8 kinds, 500 names) and `nested` (12 ranks with overlapping call trees of up to six levels, bursts, long gaps).
window.makeSpans = (n, shape) => {
  let state = 20260101;
  const random = () => (state = (state * 16807) % 2147483647) / 2147483647;
  const ranks = shape === "random" ? 64 : 12, each = Math.floor(n / ranks), span = 600e9;
  const start = new Float64Array(n), duration = new Float32Array(n), iteration = new Int32Array(n), items = new Int32Array(n), flow = new Int32Array(n);
  const track = new Uint16Array(n), name = new Uint16Array(n), channel = new Uint16Array(n), kind = new Uint8Array(n);
  let at = 0;
  const put = (r, s, d, k) => { start[at] = s; duration[at] = d; kind[at] = k; name[at] = Math.floor(random() * 500); track[at] = r; flow[at] = -1; at++; };
  for (let r = 0; r < ranks; r++) {
    const last = r === ranks - 1 ? n : at + each;
    if (shape === "random") {
      const mean = span / (last - at);
      for (let t = 0; at < last;) { const d = mean * (0.2 + 1.2 * random()); put(r, t, d, Math.floor(random() * 8)); t += d + mean * 0.4 * random() ** 2; }
    } else {
      const rows = [];
      let t = span * 0.01 * random();
      const nest = (from, length, depth) => {
        if (rows.length >= last - at) return;
        rows.push([from, length, depth]);
        if (depth === 5) return;
        const parts = 1 + Math.floor(random() * 4);
        for (let p = 0, s = from; p < parts; p++) { const own = (length / parts) * (0.5 + 0.45 * random()); nest(s, own, depth + 1); s += length / parts; }
      };
      const burst = span / ((last - at) / 150);
      while (rows.length < last - at) { nest(t, burst * (0.3 + random()), 0); t += burst * (random() < 0.02 ? 6 * random() : 1.35); }
      rows.sort((a, b) => a[0] - b[0] || b[1] - a[1]);
      for (const [s, d, depth] of rows) put(r, s, d, depth % 2 ? 0 : Math.floor(random() * 3) ? 0 : 1);
    }
  }
  const names = Array.from({ length: 500 }, (_, i) => `method_${i}`), devices = [0, 1, 2, 3].map((i) => `cuda:${i}`);
  const store = new Store();
  store.setTables({ origin: 0, devices, tracks: Array.from({ length: ranks }, (_, i) => [`worker${i % 6}`, i, [devices[i % 4]], "local"]), names });
  const columns = { start, duration, iteration, items, flow, track, name, channel, kind },
    types = { Float64Array: "<f8", Float32Array: "<f4", Int32Array: "<i4", Uint16Array: "<u2", Uint8Array: "u1" };
  let size = 0;
  const layout = { count: n, shift: 0, columns: [] };
  for (const [key, c] of Object.entries(columns)) {
    layout.columns.push([key, types[c.constructor.name], size]);
    size += c.byteLength;
  }
  const buffer = new Uint8Array(size);
  for (const [i, c] of Object.values(columns).entries()) buffer.set(new Uint8Array(c.buffer), layout.columns[i][2]);
  const began = performance.now();
  store.addSpans(layout, buffer.buffer);
  window.ingestMs = performance.now() - began;
  return show(store);
};
// A recorded trace, as the kernel sends it; with arrows.
window.takeTrace = async () => {
  const { content, parts } = await (await fetch("content.json")).json(), store = new Store(), bytes = {};
  for (const name of parts) bytes[name] = new Uint8Array(await (await fetch(`${name}.bin`)).arrayBuffer());
  const began = performance.now();
  store.apply(content, bytes);
  window.ingestMs = performance.now() - began;
  const lanes = await show(store), counted = { lanes, spans: store.count, marks: store.marks.length, counters: store.counters.size };
  counted.idle = [...store.idle.values()].reduce((n, lane) => n + lane.count, 0);
  view.setArrows(true);
  return counted;
};
const show = (store) => {
  const root = document.getElementById("timeline");
  root.replaceChildren();
  window.view = new TimelineView(root, store, { follow: false });
  view.fit();
  return new Promise((done, fail) => requestAnimationFrame(() => setTimeout(() => {
    if (view.content > view.height) fail(`only ${view.height} of ${view.content} px of lanes are in sight`);
    done(view.rows.reduce((n, row) => n + (row.track ? row.track.spans.lanes.length : 0), 0));
  }, 100)));
};
window.fly = (frames, part) => new Promise((done) => {
  const spacing = [], draw = [], end = view.end;
  let before = 0, i = 0, arrows = 0;
  const step = (now) => {
    if (i > 3) { spacing.push(now - before); draw.push(view.drawMs); }
    before = now;
    if (i++ === frames + 4) { done({ spacing, draw, arrows }); return; }
    const width = end * part * (1 + 0.45 * Math.sin(i / 9)), mid = end * (0.5 + 0.5 * Math.max(0, 1 - part) * Math.sin(i / 23));
    view.look(mid - width / 2, mid + width / 2);
    view.redraw.stop(); // drawn here, in this very frame, and only once
    view.draw();
    arrows = Math.max(arrows, view.arrowCount || 0);
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
});
