// Mouse and keyboard of a timeline. Keys as in Perfetto: W/S zoom, A/D pan.
import { keepKeys } from "./base.js";
import { describeSample } from "./counters.js";
import { NOTCH, sparse } from "./instants.js";
import { moves } from "./paint.js";
import { RULER, stripsOf } from "./rows.js";

const SEARCH_MS = 120, RESTS = 4, SCROLLS = /^(Arrow(Up|Down)|Page(Up|Down)|Home|End)$/;

/** Connect the view's elements to what they do. */
export function listen(view) {
  const c = view.canvas, search = view.search;
  c.addEventListener("wheel", (e) => onWheel(view, e), { passive: false });
  const scrolled = (e) => { if (!e.defaultPrevented) view.scrolledAt = [e.clientX, e.clientY]; };
  window.addEventListener("wheel", scrolled, { passive: true });
  view.forget = () => window.removeEventListener("wheel", scrolled);
  c.addEventListener("pointerdown", (e) => onDown(view, e));
  c.addEventListener("pointermove", (e) => onMove(view, e));
  c.addEventListener("pointerup", (e) => onUp(view, e));
  c.addEventListener("pointerleave", () => unhover(view));
  c.addEventListener("dblclick", () => view.fit());
  keepKeys(view.root, (e) => onKey(view, e)); // also after a click on a button
  let due = 0;
  search.addEventListener("input", () => { clearTimeout(due); due = setTimeout(() => view.find(search.value), SEARCH_MS); });
  search.addEventListener("keydown", (e) => {
    if (e.key === "Enter") { clearTimeout(due); if (view.store.query !== search.value.trim().toLowerCase()) view.find(search.value); view.next(e.shiftKey ? -1 : 1); }
    if (e.key === "Escape") { clearTimeout(due); e.preventDefault(); search.value = ""; view.find(""); c.focus(); }
  });
}

function scrolls(view) { return view.content > view.height; }

/** Nothing is pointed at: the pointer left, or the picture moved away from under it. */
function unhover(view) {
  view.tip.style.display = "none";
  if (view.hovered) { view.hovered = null; view.redraw(); }
}

/** Whether it is the page that is being scrolled: the timeline came under a pointer that has rested since. */
function passesBy(view, e) {
  const [x, y] = view.scrolledAt || [Infinity, 0];
  if (!e.ctrlKey && Math.hypot(e.clientX - x, e.clientY - y) < RESTS) return true;
  view.scrolledAt = null;
  return false;
}

function onWheel(view, e) {
  if (passesBy(view, e)) return;
  e.preventDefault();
  unhover(view);
  const x = e.offsetX;
  if (x < view.gutter || x > view.width - 9 || e.shiftKey) { view.scroll += e.deltaY || e.deltaX; view.redraw(); return; }
  if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) view.pan((e.deltaX / view.plot) * (view.to - view.from));
  else view.zoom(Math.exp(Math.max(-120, Math.min(120, e.deltaY)) * 0.0025), view.time(x));
}

function onDown(view, e) {
  view.scrolledAt = null;
  view.canvas.focus({ preventScroll: true });
  view.canvas.setPointerCapture(e.pointerId);
  const bar = scrolls(view) && e.offsetX > view.width - 9;
  view.drag = { x: e.offsetX, y: e.offsetY, bar, select: !bar && (e.shiftKey || e.offsetY < RULER), from: view.from, to: view.to, scroll: view.scroll, moved: false };
  if (view.drag.select) view.selection = [view.time(e.offsetX), view.time(e.offsetX)];
}

function onMove(view, e) {
  const drag = view.drag;
  if (!drag) { hover(view, e.offsetX, e.offsetY); return; }
  view.tip.style.display = "none";
  const dx = e.offsetX - drag.x, dy = e.offsetY - drag.y;
  if (Math.abs(dx) > 3 || Math.abs(dy) > 3) drag.moved = true;
  if (drag.bar) view.scroll = drag.scroll + (dy * view.content) / view.height;
  else if (drag.select) view.selection[1] = view.time(e.offsetX);
  else if (drag.moved) {
    if (Math.abs(dx) > 2) {
      if (view.follow) view.setFollow(false);
      const shift = (-dx / view.plot) * (drag.to - drag.from);
      view.look(drag.from + shift, drag.to + shift);
    }
    view.scroll = drag.scroll - dy;
  }
  view.redraw();
}

function onUp(view, e) {
  const drag = view.drag;
  view.drag = null;
  if (!drag) return;
  if (drag.select) {
    if (!drag.moved) view.selection = null;
    view.details.showSelection();
    view.redraw();
  } else if (!drag.moved && !drag.bar && e.offsetX >= view.gutter) view.pick(spanAt(view, e.offsetX, e.offsetY));
}

/** What lies at a point: {layer, track or device, lane, i}, or null. */
export function spanAt(view, x, y) {
  const row = view.rowAt(y);
  if (!row || x < view.gutter || row.kind === "worker" || row.kind === "counter") return null;
  const time = view.time(x) - view.shift(row.layer), slack = ((view.to - view.from) / view.plot) * 1.5;
  if (row.kind === "device") {
    const i = row.lane ? row.lane.near(time, slack) : -1;
    return i < 0 ? null : { layer: row.layer, device: row.device, lane: row.lane, i };
  }
  const { spans, labels, points } = row.track, deep = spans.lanes.length, picked = (lane, i) => ({ layer: row.layer, track: row.track, lane, i });
  const shift = view.shift(row.layer), there = points.lanes.map((lane) => [lane, lane.found ? lane.nearHit(time, slack) : lane.near(time, slack)]).find(([, i]) => i >= 0);
  const notched = there && y < row.y + NOTCH + 2 && sparse(there[0], view.from - shift, view.to - shift, view.plot);
  if (there && (there[0].found || notched)) return picked(...there);
  const strip = labels.lanes.length > 1 && stripsOf(row).find((s) => s.paint === "label" && y >= s.y && y <= s.y + s.h + 0.5), own = strip ? strip.lane.near(time, slack) : -1;
  if (own >= 0) return picked(strip.lane, own); // of bars side by side the one under the pointer
  if (labels.lanes.length && y > row.y + row.h * 0.64) {
    const hit = labels.near(time, 0);
    if (hit) return picked(...hit);
  }
  if (deep > 1) { // the lane under the pointer, else the ones around it
    const lane = spans.lanes[Math.min(deep - 1, Math.floor(((y - row.y) / row.h) * deep))], i = lane.near(time, slack);
    if (i >= 0) return picked(lane, i);
  }
  const hit = spans.near(time, 0) || points.near(time, slack) || spans.near(time, slack);
  return hit && picked(...hit);
}

function hover(view, x, y) {
  const at = spanAt(view, x, y), row = view.rowAt(y), counter = row && row.kind === "counter" && x >= view.gutter;
  const lines = counter ? describeSample({ series: row.series, time: view.time(x) - view.shift(row.layer) })
    : at ? view.details.describe(at) : row && x < view.gutter && [row.title, ...(row.track?.devices.length ? [`on ${row.track.devices.join(", ")}`] : [])]; // the gutter may have cut it
  if ((at && moves(at)) || (view.hovered && moves(view.hovered))) view.redraw();
  view.hovered = at;
  if (!lines) { view.tip.style.display = "none"; return; }
  view.details.fillTip(view.tip, lines);
  view.tip.style.display = "block";
  const left = x + 14 + view.tip.offsetWidth > view.stage.clientWidth ? x - view.tip.offsetWidth - 10 : x + 14;
  const top = Math.max(0, Math.min(y + 12, view.stage.clientHeight - view.tip.offsetHeight));
  view.tip.style.transform = `translate(${Math.max(0, left)}px, ${top}px)`;
}

function onKey(view, e) {
  const step = (view.to - view.from) * 0.12, page = view.height - RULER - 20;
  const down = (px) => { view.scroll += px; view.redraw(); };
  const actions = {
    w: () => view.zoom(0.8), s: () => view.zoom(1.25), a: () => view.pan(-step), d: () => view.pan(step),
    ArrowLeft: () => view.pan(-step), ArrowRight: () => view.pan(step), ArrowUp: () => down(-24), ArrowDown: () => down(24),
    PageUp: () => down(-page), PageDown: () => down(page), Home: () => down(-1e9), End: () => down(1e9),
    f: () => view.fit(), l: () => view.setFollow(!view.follow), o: () => view.details.showOutliers(), r: () => view.setArrows(!view.arrows),
    g: () => view.buttons.by.click(), c: () => view.buttons.colour.click(), n: () => view.next(1), p: () => view.next(-1),
    k: () => view.setCounters(!view.counters), m: () => view.details.selectPicked(), "/": () => view.search.focus(),
  };
  if (view.selection || view.picked || view.details.open) actions.Escape = () => view.details.close();
  const action = actions[e.key.length === 1 ? e.key.toLowerCase() : e.key];
  if (!action || (SCROLLS.test(e.key) && e.target.closest(".rl-details"))) return; // a panel that has the focus scrolls by itself
  e.preventDefault();
  unhover(view);
  action();
}
