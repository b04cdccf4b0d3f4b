// Nothing moves: who waits for whom as a graph, from left to right, with each cycle in a row at its end; and the same in words.
import { FONT, make } from "./base.js";

const WIDE = 150, HIGH = 38, BETWEEN = 84, BELOW = 10, ARC = 40, EDGE = 2;

/** An SVG element: svg("path", {d: "..."}, child). */
function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const pen = document.createElement("canvas").getContext("2d");

/** The text, or as much of it as is `width` px wide with an ellipsis. */
function cutToWidth(text, font, width) {
  pen.font = font;
  if (pen.measureText(text).width <= width) return text;
  let n = text.length - 1;
  while (n > 1 && pen.measureText(`${text.slice(0, n)}…`).width > width) n--;
  return `${text.slice(0, n)}…`;
}

/** How many waits lie between each node and what everybody waits for in the end: the cycles, and those who wait for nobody. */
function waitDepths({ nodes, edges, cycles }) {
  const depth = nodes.map(() => -1), waits = new Set(edges.map(([from]) => from)), ring = new Set(cycles.flat());
  let front = nodes.map((_, i) => i).filter((i) => ring.has(i) || !waits.has(i)), d = 0;
  for (; front.length; d++) {
    for (const i of front) depth[i] = d;
    front = [...new Set(edges.filter(([from, to]) => depth[to] === d && depth[from] < 0).map(([from]) => from))];
  }
  return depth.map((found) => (found < 0 ? d : found));
}

/** Each cycle from the one for whom most of the others wait: their arrows are short then. */
function turned({ nodes, edges, cycles }) {
  const ring = new Set(cycles.flat()), awaited = nodes.map((_, i) => edges.filter(([a, b]) => b === i && !ring.has(a)).length);
  return cycles.map((one) => {
    const first = one.reduce((best, i, k) => (awaited[i] > awaited[one[best]] ? k : best), 0);
    return [...one.slice(first), ...one.slice(0, first)];
  });
}

/** Where each node lies: {at: [[x, y], ...], column: [...], width, height}. Each cycle is a row that begins in the last column and goes on to the right. */
export function placeWaits(graph) {
  const { nodes, edges, cycles } = graph, depth = waitDepths(graph), most = Math.max(0, ...depth), ring = new Set(cycles.flat()), at = [], column = [];
  const columns = Array.from({ length: most + 1 }, () => []);
  nodes.forEach((_, i) => { if (!ring.has(i)) columns[most - depth[i]].push(i); });
  const tall = (x) => columns[x].length * (HIGH + BELOW) + (x === most ? cycles.length * (HIGH + ARC) : 0), total = Math.max(...columns.map((_, x) => tall(x)));
  const set = (i, x, y) => { column[i] = x; at[i] = [EDGE + x * (WIDE + BETWEEN), EDGE + y]; };
  columns.forEach((inside, x) => {
    let y = (total - tall(x) - (x < most && cycles.length ? ARC : 0)) / 2; // beside the boxes of a cycle, not beside its way back
    y = Math.max(0, y);
    for (const i of inside) { set(i, x, y); y += HIGH + BELOW; }
    if (x === most) for (const one of cycles) { one.forEach((i, k) => set(i, most + k, y)); y += HIGH + ARC; }
  });
  const over = edges.some(([a, b]) => waitWay(column, cycles, a, b) === "over") ? ARC : 0;
  for (const place of at) place[1] += over;
  return { at, column, width: 2 * EDGE + Math.max(0, ...column) * (WIDE + BETWEEN) + WIDE, height: 2 * EDGE + over + total - (cycles.length ? 0 : BELOW) };
}

/** How an arrow goes: "straight" to the next column, "back" below a cycle from its end to its beginning, "over" everything else. */
function waitWay(column, cycles, a, b) {
  if (cycles.some((one) => one[one.length - 1] === a && one[0] === b)) return "back";
  return column[b] === column[a] + 1 ? "straight" : "over";
}

export function drawWaits(given) {
  const graph = { ...given, cycles: turned(given) }, { nodes, edges, cycles } = graph, { at, column, width, height } = placeWaits(graph);
  const after = new Map(cycles.flatMap((one) => one.map((i, k) => [i, one[(k + 1) % one.length]])));
  const labels = new Map(); // of several channels between the same two one arrow
  for (const [a, b, label] of edges) labels.set(`${a},${b}`, [...(labels.get(`${a},${b}`) || []), label].filter(Boolean));
  const arrows = [...labels].map(([key, texts]) => {
    const [a, b] = key.split(",").map(Number), ring = after.get(a) === b;
    return { ring, node: waitArrow(at[a], at[b], waitWay(column, cycles, a, b), texts.join(", "), { "data-edge": `${nodes[a].name} > ${nodes[b].name}`, "data-cycle": ring }) };
  }).sort((a, b) => a.ring - b.ring);
  const boxes = nodes.map((node, i) => waitBox(node, at[i], { "data-node": node.name, "data-cycle": after.has(i), "data-computes": node.computes }));
  const said = cycles.map((one) => [...one, one[0]].map((i) => nodes[i].name).join(" waits for ")).join("; ");
  return svg("svg", { class: "rl-waits", role: "img", "aria-label": said || "Who waits for whom", viewBox: `0 0 ${width} ${height}`, width, height }, ...arrows.map((a) => a.node), ...boxes);
}

function waitBox({ name, text }, [x, y], data) {
  const line = (words, cls, font, dy) => svg("text", { x: 9, y: dy, class: cls }, cutToWidth(words, font, WIDE - 18));
  return svg("g", { transform: `translate(${x},${y})`, ...data }, svg("title", {}, `${name}: ${text}`), svg("rect", { width: WIDE, height: HIGH, rx: 4 }),
    line(name, "rl-who", `600 11px ${FONT}`, 15.5), line(text, "rl-what", `10.5px ${FONT}`, 29.5));
}

function waitArrow([ax, ay], [bx, by], way, label, data) {
  const mid = (x) => x + WIDE / 2;
  let line, tip, words;
  if (way === "straight") {
    const x0 = ax + WIDE, y0 = ay + HIGH / 2, y1 = by + HIGH / 2, bend = BETWEEN / 2;
    line = `M${x0},${y0}C${x0 + bend},${y0} ${bx - 6 - bend},${y1} ${bx - 6},${y1}`;
    tip = `M${bx},${y1}l-7,-4v8z`;
    words = [x0 + BETWEEN / 2, (y0 + y1) / 2 - 5, BETWEEN - 10];
  } else {
    const side = way === "back" ? 1 : -1, from = ax < bx ? 16 : ax > bx ? -16 : 44, y0 = side > 0 ? ay + HIGH : ay, y1 = side > 0 ? by + HIGH : by, far = side * ARC * 1.1;
    line = `M${mid(ax) + from},${y0}C${mid(ax) + from},${y0 + far} ${mid(bx)},${y1 + far} ${mid(bx)},${y1 + side * 6}`;
    tip = `M${mid(bx)},${y1}l-4,${side * 7}h8z`;
    words = [(mid(ax) + mid(bx) + from) / 2, (y0 + y1) / 2 + side * ARC * 0.82 - (side > 0 ? 4 : 5), Math.max(60, Math.abs(ax - bx) - 40)];
  }
  return svg("g", { ...data }, svg("path", { d: line, class: "rl-line" }), svg("path", { d: tip, class: "rl-tipmark" }),
    ...(label ? [svg("text", { x: words[0], y: words[1], "text-anchor": "middle" }, cutToWidth(label, `10.5px ${FONT}`, words[2]))] : []));
}

/** The panel over lanes that do not move. Its heading folds the rest away. */
export class Standstill {
  constructor() {
    this.since = make("span");
    this.ring = make("span.cycle");
    this.graph = make("div.waitgraph");
    this.words = make("div.waitwords");
    this.node = make("aside.still", { role: "status" }, make("details", { open: "" }, make("summary", {}, this.since, this.ring), make("div.stillbody", {}, this.graph, this.words)));
  }

  /** `lines`: since when, then who waits for what; none: something moves. `graph`: as rlinf_lab.runtime.host.liveness.wait_graph has it drawn. */
  set([title, ...lines], graph) {
    this.node.dataset.open = String(Boolean(title));
    if (!title) return;
    this.since.textContent = title;
    const said = JSON.stringify([lines, graph]);
    if (said === this.said) return; // only the time has gone on
    this.said = said;
    const rings = lines.filter((line) => line.startsWith("a cycle: "));
    this.ring.textContent = rings.join("; ");
    const picture = graph && graph.nodes && graph.nodes.length ? [drawWaits(graph)] : [];
    this.graph.replaceChildren(...picture);
    this.words.replaceChildren(...lines.filter((line) => !rings.includes(line)).map((line) => make("div", {}, line)));
  }
}
