// Quantities over time as curves below the lanes.
import { FONT, duration, figures } from "./base.js";
import { RULER } from "./rows.js";

export function paintCounters(view, g) {
  const c = view.colours;
  for (const row of view.rows) {
    if (row.kind !== "counter" || row.y > view.height || row.y + row.h < RULER) continue;
    const { series } = row, shift = view.shift(row.layer), first = Math.max(0, series.upto(view.from - shift) - 1), last = Math.min(series.times.length, series.upto(view.to - shift) + 1);
    const [low, high] = series.extent(first, last), y = (v) => row.y + row.h - 1.5 - ((v - low) / (high - low)) * (row.h - 3), x = (i) => view.x(series.times[i] + shift);
    g.fillStyle = c.grid;
    g.fillRect(view.gutter, row.y + row.h - 1, view.plot, 1);
    if (first >= last) continue;
    g.save();
    g.beginPath(); g.rect(view.gutter, row.y, view.plot, row.h); g.clip();
    const colour = row.layer ? c.muted : c.accent, step = Math.max(1, Math.floor((last - first) / (4 * view.plot)));
    g.beginPath();
    let drawn = 0;
    for (let i = first; i < last; i += step) {
      let least = i, most = i;
      for (let j = i; j < Math.min(last, i + step); j++) { if (series.values[j] < series.values[least]) least = j; if (series.values[j] > series.values[most]) most = j; }
      for (const k of least < most ? [least, most] : least > most ? [most, least] : [least]) {
        if (!Number.isFinite(series.values[k])) continue;
        if (drawn++) g.lineTo(x(k), y(series.values[k])); else g.moveTo(x(k), y(series.values[k]));
      }
    }
    g.strokeStyle = colour;
    g.lineWidth = 1.25;
    g.lineJoin = "round";
    g.stroke();
    g.lineTo(x(last - 1), row.y + row.h); g.lineTo(x(first), row.y + row.h); g.closePath();
    g.globalAlpha = 0.14; g.fillStyle = colour; g.fill(); g.globalAlpha = 1;
    g.font = `9.5px ${FONT}`; g.textAlign = "left"; g.textBaseline = "top"; g.fillStyle = c.muted;
    g.fillText(figures(high), view.gutter + 3, row.y + 1);
    g.restore();
  }
}

/** Lines of the tooltip of a counter at a time. */
export function describeSample({ series, time }) {
  const found = series.at(time);
  return found ? [`${series.name}: ${figures(found[1])}`, `at ${duration(found[0])}`] : [series.name, "no sample before this"];
}

/** What the gutter says: the value at the right edge. */
export function latest(view, row) { const found = row.series.at(view.to - view.shift(row.layer)); return found ? figures(found[1]) : ""; }
