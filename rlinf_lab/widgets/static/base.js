// What every picture here shares: vocabulary, colours, theme, text, and the link to the kernel.

export const KINDS = ["run", "get", "put", "lock", "onload", "offload", "transfer", "wait", "label", "mark", "setup"];
export const RUN = 0, GET = 1, PUT = 2, LOCK = 3, WAIT = 7, LABEL = 8, MARK = 9, SETUP = 10;
export const CAUSES = ["starved", "blocked", "lock", "setup", "switch", "fill", "drain", "tail", "off"], BUSY = CAUSES.length;
// A waiting kind wears the colour of the bubble that it becomes on its device.
export const KIND_CAUSE = { get: "starved", put: "blocked", lock: "lock", onload: "switch", offload: "switch", transfer: "switch", wait: "starved", setup: "setup" };
export const CAUSE_TEXT = {
  starved: "waiting for input", blocked: "output channel is full", lock: "ready: waits for the device, or for its thread to wake",
  setup: "a worker is being built, once per run", switch: "onloading or offloading", fill: "pipeline filling", drain: "this device has done its part",
  tail: "the last items run elsewhere", off: "nothing placed or running here",
};
// Ten colours, kept apart for protan, deutan and tritan vision, 3:1 against their background; entries pair up by hue.
const WORKERS = {
  light: ["#1e69b4", "#3ca578", "#b40078", "#a587d2", "#ff5a00", "#785a00", "#003c00", "#0000c3", "#b400ff", "#4b005a"],
  dark: ["#4b96ff", "#2de169", "#ff4bb4", "#e1b4ff", "#c31e0f", "#a5960f", "#a5fff0", "#ffff0f", "#a500c3", "#5a6969"],
};
// Nine causes and "busy", likewise kept apart for all three (found by search from hand-picked hues).
const CAUSE_COLOURS = {
  light: { starved: "#b18f21", blocked: "#ae3719", lock: "#9a6cfb", setup: "#1d021a", switch: "#007bb6", fill: "#33c5f4", drain: "#c3bf55", tail: "#f984ab", off: "#dcdfe3" },
  dark: { starved: "#ffb700", blocked: "#e87a00", lock: "#a45aff", setup: "#d9fbf7", switch: "#1e89a9", fill: "#3b4f80", drain: "#744208", tail: "#ac5f53", off: "#2a2d31" },
};
const INK = {
  light: { bg: "#ffffff", panel: "#ffffff", line: "#e3e5e8", grid: "#eef0f2", text: "#1f2328", muted: "#656d76", busy: "#59636e", accent: "#1e69b4", good: "#1f7a4d", bad: "#b3261e" },
  dark: { bg: "#111111", panel: "#181a1c", line: "#2e3135", grid: "#232629", text: "#e6e8ea", muted: "#969da5", busy: "#aab2bb", accent: "#4b96ff", good: "#4cc38a", bad: "#ff8a7a" },
};

/** The colours of "light" or "dark". */
export function palette(mode) {
  return { mode, workers: WORKERS[mode], causes: CAUSE_COLOURS[mode], ...INK[mode] };
}

const FIRST = 5, SALT = 37888430, PRIME = 16777619;

/** Map of the number of each worker's colour, by its name: as `colour_numbers` in rlinf_lab/timeline/draw/palette.py, which says why. */
export function colourNumbers(workers, others = []) {
  const slots = WORKERS.light.length, taken = new Array(slots).fill(0), found = new Map();
  for (const group of [workers, others]) {
    const names = [...new Set(group)].filter((name) => !found.has(name)).map((name) => [hashOf(name), name]);
    for (const [hashed, name] of names.sort((a, b) => a[0] - b[0] || (a[1] < b[1] ? -1 : 1))) {
      let best = (hashed >>> 8) % FIRST;
      for (let step = 1, first = best; step < slots; step++) if (taken[(first + step) % slots] < taken[best]) best = (first + step) % slots;
      found.set(name, best);
      taken[best]++;
    }
  }
  return found;
}

/** FNV-1a, 32 bits. */
function hashOf(name) {
  let value = SALT;
  for (const byte of new TextEncoder().encode(name)) value = Math.imul(value ^ byte, PRIME);
  return value >>> 0;
}

/** JupyterLab says its theme on the body; elsewhere the system's preference counts. */
export function themeMode() {
  const said = document.body && document.body.getAttribute("data-jp-theme-light");
  if (said === "true") return "light";
  if (said === "false") return "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Calls back with "light" or "dark" at every switch; returns the function that ends it. */
export function watchTheme(callback) {
  const tell = () => callback(themeMode());
  const observer = new MutationObserver(tell);
  observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name"] });
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", tell);
  return () => { observer.disconnect(); media.removeEventListener("change", tell); };
}

/** Puts the colours on an element as CSS variables, for what is not drawn on a canvas. */
export function applyTheme(root, mode) {
  const colours = palette(mode);
  root.dataset.theme = mode;
  for (const key of Object.keys(INK.light)) root.style.setProperty(`--rl-${key}`, colours[key]);
  for (const [cause, colour] of Object.entries(colours.causes)) root.style.setProperty(`--rl-cause-${cause}`, colour);
  return colours;
}

/** An element: make("div.a.b", {title: "x"}, child, "text"). */
export function make(spec, attributes = {}, ...children) {
  const [tag, ...classes] = spec.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.map((c) => `rl-${c}`).join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

/**
 * Keys that are pressed within `root` stay there: a notebook has a shortcut for nearly every letter (x cuts the cell). What goes with Ctrl, Alt or
 * Meta, and Tab, are the page's. `act(event)` gets those that are not typed into a field. An Escape that nobody had a use for gives the keys back to
 * the cell; a click on any part of `root` takes them.
 */
export function keepKeys(root, act = () => {}) {
  root.tabIndex = -1;
  root.dataset.keepsKeys = "true";
  window.addEventListener("keydown", spareNotebook, true); // the same one each time: it is there once
  root.addEventListener("keydown", (e) => {
    if (isForPage(e)) return;
    e.stopPropagation();
    if (!e.target.matches("input, select, textarea, [contenteditable]")) act(e);
    if (e.key === "Escape" && !e.defaultPrevented) root.closest(".jp-Cell")?.focus({ preventScroll: true });
  });
}

const isForPage = (e) => e.ctrlKey || e.metaKey || e.altKey || e.key === "Tab";

let withoutShortcuts = null; // what says so

/**
 * Notebook 7 looks for shortcuts before the key gets to what has the focus, unless that, or what is around it, says that it has none. Whoever said so for the key
 * before does no more: it may be around what has the focus now.
 */
function spareNotebook(e) {
  withoutShortcuts?.removeAttribute("data-lm-suppress-shortcuts");
  withoutShortcuts = e.target.closest?.("[data-keeps-keys]") && !isForPage(e) ? e.target : null;
  withoutShortcuts?.setAttribute("data-lm-suppress-shortcuts", "");
}

/** Nanoseconds for people: three figures and a unit. */
export function duration(ns) {
  const abs = Number(Math.abs(ns).toPrecision(3)); // 999.7 ms is a second
  if (abs < 1e3) return `${Math.round(ns)} ns`;
  if (abs < 1e6) return `${figures(ns / 1e3)} µs`;
  if (abs < 1e9) return `${figures(ns / 1e6)} ms`;
  if (Math.abs(ns) < 120e9) return `${figures(ns / 1e9)} s`;
  return clock(ns / 1e9);
}

/** Seconds as 3:07 or 1:02:03. */
export function clock(seconds) {
  const s = Math.max(0, Math.round(seconds));
  const two = (x) => String(x).padStart(2, "0");
  return s < 3600 ? `${Math.floor(s / 60)}:${two(s % 60)}` : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
}

/** Three significant figures, with a letter for large numbers; an exponent only where nothing else is short. */
export function figures(x) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  const abs = Math.abs(x), sign = x < 0 ? "−" : "", rounded = Number(abs.toPrecision(3)); // 999.7 is a thousand
  if (abs === 0) return "0";
  if (abs === Infinity) return `${sign}∞`;
  if (rounded < 1e-3 || rounded >= 1e15) return sign + abs.toExponential(1).replace("e+", "e").replace("e-", "e−");
  if (rounded < 1000) return sign + rounded.toPrecision(3);
  if (rounded < 1e4) return sign + abs.toFixed(0);
  const [unit, letter] = rounded >= 1e12 ? [1e12, "T"] : rounded >= 1e9 ? [1e9, "G"] : rounded >= 1e6 ? [1e6, "M"] : [1e3, "k"];
  return `${sign}${(rounded / unit).toPrecision(3)} ${letter}`;
}

export function rgb(hex) {
  const n = parseInt(hex.slice(1), 16);
  return [n >> 16, (n >> 8) & 255, n & 255];
}

/** `over`, of which so much covers `hex`. */
export function blend(hex, over, part) {
  const [a, b] = [rgb(hex), rgb(over)];
  return `#${a.map((v, i) => Math.round(v * (1 - part) + b[i] * part).toString(16).padStart(2, "0")).join("")}`;
}

/** A name that is written from right to left, or turns what follows it, as a part of its own within a line: a number after it stays after it. */
export function isolated(name) { return /[\u0590-\u08ff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufb1d-\ufefc]/.test(name) ? `\u2068${name}\u2069` : name; }

const END = 7; // letters at the end of a name that are kept: they say which device of a node it is
const HALVES = /([\ud800-\udbff][\udc00-\udfff])|[\ud800-\udfff]/g; // whole characters, and those that were cut in two (older browsers know no lookbehind)

/**
 * Map of each of `names` to as much of it as `fits(text)` lets through: its beginning and its end, and of those that are alike there what begins where
 * they differ.
 */
export function shortNames(names, fits) {
  const short = new Map();
  const shorten = (group, from) => {
    const alike = new Map();
    for (const name of group) {
      const text = shortName(name, fits, from);
      short.set(name, text);
      alike.set(text, [...(alike.get(text) || []), name]);
    }
    for (const same of alike.values()) {
      if (same.length < 2) continue;
      let first = from;
      while (same.every((name) => first < name.length && name[first] === same[0][first])) first++;
      const word = same[0].slice(0, Math.max(0, first - 1)).search(/[^\W_]*[\W_]*$/), start = word > first - 14 ? word : first - 3; // of the word where they begin to differ, or a little of a long one
      if (start > from) shorten(same, start);
    }
  };
  shorten([...new Set(names)], 0);
  return short;
}

/** A name from letter `from` on, without letters of its middle where that is too long. */
function shortName(name, fits, from) {
  const before = from ? "…" : "", cut = (n) => `${before}${name.slice(from, n)}…${name.slice(-END)}`.replace(HALVES, "$1");
  if (fits(before + name.slice(from))) return before + name.slice(from);
  let low = from + 1, high = Math.max(low, name.length - END); // so many letters fit, or it is the least; so many do not
  while (high - low > 1) { const mid = (low + high) >> 1; if (fits(cut(mid))) low = mid; else high = mid; }
  return cut(low);
}

/** Dark or light ink, whichever reads better on this colour. */
export function inkOn(hex) {
  const [r, g, b] = rgb(hex).map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.22 ? "#111111" : "#ffffff";
}

/** A canvas sized in CSS pixels with a context scaled for the display. */
export function fitCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const w = Math.max(1, Math.round(width * ratio)), h = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

/**
 * A function that has `paint` called at the next frame, once, however often it is asked. A node without a size (its cell is
 * scrolled away, the page's style sheets are being exchanged) is looked at again until it has one: observers of size and of
 * visibility compare whole frames, and miss what was gone for a moment within one.
 */
export function painter(node, paint) {
  let frame = 0, timer = 0;
  const turn = () => {
    frame = 0;
    if (node.clientWidth && node.clientHeight) paint();
    else if (!timer) timer = setTimeout(() => { timer = 0; ask(); }, 200);
  };
  const ask = () => { if (!frame) frame = requestAnimationFrame(turn); };
  ask.stop = () => { cancelAnimationFrame(frame); clearTimeout(timer); };
  return ask;
}

export const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif';

export const GONE = "the kernel of this view is gone: run the cell again";

/** Send a message to the kernel; false where there is none to hear it any more (restarted, or the widget was closed): Jupyter throws then. */
export function tellKernel(model, message) {
  try { model.send(message); } catch { return false; }
  return true;
}

/**
 * The link to the kernel. Deltas carry a sequence number. The history is asked for once at the start and again
 * after a gap; it replaces everything, and deltas newer than it are applied on top.
 */
export function connect(model, { reset, apply }) {
  let seq = 0, waiting = true, pending = [];
  const ask = () => { waiting = true; pending = []; tellKernel(model, { type: "history", have: seq }); };
  const unpack = (message, buffers) => {
    const parts = {};
    (message.parts || []).forEach((name, i) => { parts[name] = buffers[i]; });
    return parts;
  };
  model.on("msg:custom", (message, buffers) => {
    if (message.type === "history") {
      if (!waiting) return;
      waiting = false;
      reset();
      apply(message, unpack(message, buffers));
      seq = message.seq;
      for (const [m, b] of pending) if (m.seq > seq) { apply(m, unpack(m, b)); seq = m.seq; }
      pending = [];
    } else if (message.type === "delta") {
      if (seq === 0 && message.seq === 1) waiting = false; // seen from the very first one: no history needed
      const gap = message.seq !== seq + 1;
      if (!waiting && message.seq <= seq) return;
      if (waiting) pending.push([message, buffers]);
      else if (gap) { ask(); pending.push([message, buffers]); }
      // While a busy kernel cannot answer, what comes is drawn all the same; the history replaces it later.
      apply(message, unpack(message, buffers));
      seq = message.seq;
    }
  });
  ask();
}
