// Entry of the one-file page: the data is in the document, nothing is asked of anybody.
import { applyTheme, themeMode, watchTheme } from "./base.js";
import { Store, applyTo } from "./store.js";
import { TimelineView } from "./timeline.js";

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

async function openPage() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const stores = data.labels.map(() => new Store()), parts = {};
  for (const [name, text] of Object.entries(data.parts)) parts[name] = await inflate(text);
  applyTo(stores, data.content, parts);
  const paint = (mode) => {
    const colours = applyTheme(document.body, mode);
    Object.assign(document.body.style, { background: colours.bg, color: colours.text });
  };
  paint(themeMode());
  watchTheme(paint);
  new TimelineView(document.getElementById("timeline"), stores, { labels: data.labels, follow: false });
}

openPage();
