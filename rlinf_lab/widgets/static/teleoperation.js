// anywidget entry: an environment at somebody's hands. Keys, sliders and a gamepad are told to the kernel as they change; it steps and draws.
import { GONE, applyTheme, connect, figures, keepKeys, make, tellKernel, themeMode, watchTheme } from "./base.js";

const STICK = 0.12; // of a gamepad's way that counts as rest
const CAPS = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Space: "space" };
const cap = (code) => CAPS[code] ?? code.replace(/^(Key|Digit|Numpad)/, "");

/** The first gamepad; none where this frame may not look for one. */
function gamepad() {
  try { return [...navigator.getGamepads()].find((pad) => pad?.connected); } catch { return undefined; }
}

/** Calls back when the pointer that has come down is let go of, wherever that is. */
function untilUp(down, done) {
  const once = new AbortController();
  const up = (e) => { if (e.pointerId === down.pointerId) { once.abort(); done(); } };
  for (const kind of ["pointerup", "pointercancel"]) window.addEventListener(kind, up, { signal: once.signal });
}

/** What the kernel has told so far. */
class Seen {
  constructor() { this.reset(); }

  reset() { this.now = { state: "starting", step: 0, return: 0, success: null, by: "", action: {}, message: "", numbers: [], kept: 0, last: [], corrections: [0, 0], speed: 10, goes: false }; }

  apply(message, parts) {
    Object.assign(this.now, message);
    if (!parts.picture) return;
    const fresh = URL.createObjectURL(new Blob([parts.picture], { type: "image/jpeg" }));
    if (this.older) URL.revokeObjectURL(this.older); // not the last one: a view may still be reading it
    [this.older, this.url] = [this.url, fresh];
  }
}

/** What is held: keys, sliders, a stick. `told()` is what the kernel takes. */
class Held {
  constructor(controls) {
    this.controls = controls;
    this.keys = new Set();
    this.dragged = new Map(); // axis -> place, while a slider or a button is held
    this.stick = null; // of a gamepad: the place of each axis
    this.rest = controls.names.map(() => 0); // of axes that stay where they were put
    this.waits = false; // for the stick to be let go of
    this.gain = 1;
  }

  /** Bindings whose keys are all held, those of more keys first; what a larger one has used is not used again. */
  bound() {
    const free = new Set(this.keys), found = [];
    for (const b of [...this.controls.bindings].sort((a, c) => c.keys.length - a.keys.length)) {
      if (b.keys.every((key) => free.has(key))) { found.push(b); b.keys.forEach((key) => free.delete(key)); }
    }
    return found;
  }

  get engaged() { return this.dragged.size > 0 || this.bound().length > 0 || (this.stick !== null && this.stick.some((x) => x !== 0)); }

  told() {
    const bound = this.bound();
    if (this.controls.kind === "choices") {
      const choice = this.dragged.size ? [...this.dragged.keys()].at(-1) : bound.length ? bound[0].does : null;
      return { choice, engaged: choice !== null };
    }
    const moved = this.controls.names.map((_, i) => bound.reduce((sum, b) => sum + b.does[i], 0) * (this.controls.stays[i] ? 1 : this.gain) + (this.stick ? this.stick[i] : 0));
    const axes = moved.map((by, i) => Math.max(-1, Math.min(1, this.dragged.has(i) ? this.dragged.get(i) : by || this.rest[i])));
    this.controls.stays.forEach((stays, i) => { if (stays) this.rest[i] = axes[i]; });
    return { axes, engaged: this.engaged };
  }

  letGo() { this.keys.clear(); this.dragged.clear(); this.stick = null; }

  /** Who takes over from a policy holds what it held: axes that stay are where it has put them. */
  follow(axes) { if (!this.engaged) this.controls.stays.forEach((stays, i) => { if (stays) this.rest[i] = axes[i]; }); }

  /** For another episode: what was held to the end of one does not begin the next. */
  reset() { this.waits ||= this.stick !== null; this.letGo(); this.rest.fill(0); }
}

class TeleoperationView {
  constructor(model, seen, el) {
    Object.assign(this, { model, seen, lastTold: "", controls: model.get("controls") });
    this.held = new Held(this.controls);
    this.chip = make("span.chip", { role: "status" });
    this.image = make("img", { alt: "the environment" });
    this.numbers = make("pre.numbers");
    this.over = make("div.over");
    this.stage = make("div.view", {}, this.image, this.numbers, this.over);
    this.facts = make("div.facts");
    this.keptRow = make("div.kept");
    this.problem = make("p.message", { role: "alert" });
    this.goes = make("button.button", { onclick: () => this.go(!this.going) }, "Start");
    this.end = make("button.button", { onclick: () => this.ask("end"), title: "end this episode here (Enter)" }, "End");
    this.drop = make("button.button.danger", { onclick: () => this.ask("discard"), title: "forget this episode and begin another one (Backspace)" }, "Discard");
    this.speed = make("select.speed", { "aria-label": "steps a second", title: "steps a second" }, ...model.get("speeds").map((s) => make("option", { value: s }, `${s} steps/s`)));
    this.speed.addEventListener("change", () => { tellKernel(model, { type: "speed", speed: +this.speed.value }); this.focus(); });
    this.rows = this.controls.kind === "choices" ? this.choices() : this.axes();
    this.going = false;
    const hint = (code, words) => make("span", {}, make("kbd", {}, code), ` ${words}`);
    const idle = this.controls.bindings.some((b) => b.keys.includes("Space") && (Array.isArray(b.does) ? b.does.every((x) => x === 0) : b.does === this.controls.idle));
    this.help = make("div.help", {}, ...(idle ? [hint("space", "lets time go on")] : []), hint("Enter", "ends, keeps"), hint("⌫", "discards"), ...(this.controls.kind === "axes" ? [make("span", {}, "a gamepad works, too")] : []));
    const buttons = make("span.buttons", {}, ...(model.get("autonomous") ? [this.goes] : []), this.end, this.drop);
    this.root = make("div.teleop", { role: "application", "aria-label": `controls of ${model.get("title")}` },
      make("header.top", {}, make("h2", { title: model.get("title") }, model.get("title")), this.chip, make("span.who"), this.speed, buttons), this.problem,
      make("div.halves", {}, this.stage, make("aside.side", {}, this.rows, this.facts, this.help)), this.keptRow);
    this.who = this.root.querySelector(".rl-who");
    keepKeys(this.root, (e) => this.press(e));
    this.root.tabIndex = 0; // it takes the keys itself
    this.letGo = () => { this.held.letGo(); this.tell(); };
    this.root.addEventListener("keyup", (e) => {
      if (e.key === "Meta") this.letGo(); // macOS tells of no key that comes up while this one is down
      else if (this.held.keys.delete(e.code)) this.tell();
    });
    this.root.addEventListener("focusout", (e) => { if (!this.root.contains(e.relatedTarget)) { this.letGo(); this.refresh(); } });
    this.root.addEventListener("focusin", () => this.refresh());
    this.stage.addEventListener("pointerdown", () => this.focus());
    window.addEventListener("blur", this.letGo);
    this.leave = () => { this.letGo(); tellKernel(model, { type: "go", goes: false }); }; // a page that goes away leaves nobody at the controls
    window.addEventListener("pagehide", this.leave);
    el.append(make("div.host", {}, this.root));
    this.setTheme(themeMode());
    this.stopTheme = watchTheme((mode) => this.setTheme(mode));
    this.poll = setInterval(() => this.pad(), 33);
    this.tell(); // that nothing is held: a page before this one may have ended with a key down
    this.heard();
  }

  destroy() { clearInterval(this.poll); window.removeEventListener("blur", this.letGo); window.removeEventListener("pagehide", this.leave); this.stopTheme(); this.letGo(); }

  focus() { this.root.focus({ preventScroll: true }); }

  setTheme(mode) { applyTheme(this.root, mode); }

  // --- to the kernel ---------------------------------------------------------------------------------------------------
  tell() {
    const told = this.held.told(), text = JSON.stringify(told);
    if (text === this.lastTold) return;
    this.lastTold = text;
    if (told.engaged && !this.going && this.model.get("autonomous")) this.go(true);
    if (!tellKernel(this.model, { type: "hold", ...told })) this.gone();
  }

  go(goes) {
    this.going = goes;
    if (!tellKernel(this.model, { type: "go", goes })) this.gone();
    this.focus();
    this.refresh();
  }

  ask(what) {
    if (!tellKernel(this.model, { type: "ask", what })) this.gone();
    this.letGo();
    this.focus();
  }

  gone() { this.seen.now.message = GONE; this.refresh(); }

  press(e) {
    if (e.target.matches("button") && ["Enter", "Space"].includes(e.code)) return; // they press it
    const isOver = this.seen.now.state === "over";
    if (e.code === "Enter") { e.preventDefault(); if (!e.repeat) this.ask(isOver ? "keep" : "end"); return; }
    if (e.code === "Backspace") { e.preventDefault(); if (!e.repeat) this.ask("discard"); return; }
    if (!this.controls.bindings.some((b) => b.keys.includes(e.code))) return;
    e.preventDefault(); // arrows and Space would scroll the page
    if (e.repeat || isOver) return;
    this.held.keys.add(e.code);
    this.tell();
    this.refresh();
  }

  /** A gamepad: sticks for right, forward and up, shoulders for the gripper, see `places` in controls.py. It is looked at while this view has the keys. */
  pad() {
    if (this.controls.kind !== "axes" || !this.hasFocus) return;
    const pad = gamepad();
    if (!pad) { if (this.held.stick) { this.held.stick = null; this.tell(); } return; }
    const soft = (x) => (Math.abs(x) < STICK ? 0 : x), pressed = (i) => pad.buttons[i]?.value ?? 0;
    const ways = [soft(pad.axes[0] ?? 0), -soft(pad.axes[1] ?? 0), -soft(pad.axes[3] ?? 0), pressed(7) - pressed(6), soft(pad.axes[2] ?? 0), pressed(5) - pressed(4)];
    if (ways.every((x) => x === 0)) this.held.waits = false;
    if (this.held.waits) return;
    this.held.stick = this.controls.names.map((_, i) => Math.round((ways[this.controls.places[i]] ?? 0) * 100) / 100 * (this.controls.stays[i] ? 1 : this.held.gain));
    this.tell();
  }

  get hasFocus() { return this.root.matches(":focus-within"); } // also within somebody's shadow root

  // --- controls --------------------------------------------------------------------------------------------------------
  hold(i, place) { this.held.dragged.set(i, place); this.tell(); }

  release(i) { this.held.dragged.delete(i); this.tell(); }

  choices() {
    this.marks = this.controls.names.map((name, i) => {
      const keys = this.controls.bindings.filter((b) => b.does === i).map((b) => make("kbd", {}, b.keys.map(cap).join(" ")));
      const button = make("button.choice", { title: name }, make("span", {}, name), ...keys);
      button.addEventListener("pointerdown", (e) => { e.preventDefault(); this.focus(); this.hold(i, 1); untilUp(e, () => this.release(i)); });
      button.addEventListener("click", (e) => { if (!e.detail) { this.hold(i, 1); this.release(i); } }); // by Enter or Space
      return button;
    });
    return make("div.choices", {}, ...this.marks);
  }

  axes() {
    const single = (i, sign) => this.controls.bindings.filter((b) => b.does.every((x, k) => (k === i ? Math.sign(x) === sign : x === 0))).map((b) => make("kbd", {}, b.keys.map(cap).join(" ")));
    const least = this.controls.signed ? -1 : 0;
    this.marks = this.controls.names.map((name, i) => {
      const input = make("input", { type: "range", min: least, max: 1, step: 0.01, value: 0, "aria-label": name });
      input.addEventListener("input", () => this.hold(i, +input.value));
      const free = () => {
        if (this.controls.stays[i]) this.held.rest[i] = this.held.dragged.get(i) ?? this.held.rest[i];
        this.release(i);
      };
      input.addEventListener("change", free); // by a key of its own; none comes of a slider that is back where it was
      input.addEventListener("pointerdown", (e) => untilUp(e, () => { free(); this.focus(); }));
      const shown = make("output", {}, "0");
      const row = make("div.axis", { title: this.controls.stays[i] ? `${name}: stays where it was put` : name }, make("span.name", {}, name), make("span.keys", {}, ...single(i, -1).slice(0, 1)), input, make("span.keys", {}, ...single(i, 1).slice(0, 1)), shown);
      return { row, input, shown };
    });
    const gain = make("input", { type: "range", min: 0.1, max: 1, step: 0.1, value: 1, "aria-label": "how far a key goes", title: "how far a key goes" }), said = make("output", {}, "100 %");
    gain.addEventListener("input", () => { this.held.gain = +gain.value; said.textContent = `${Math.round(100 * gain.value)} %`; });
    gain.addEventListener("pointerdown", (e) => untilUp(e, () => this.focus()));
    return make("div.axes", {}, ...this.marks.map((m) => m.row), make("div.axis.gain", {}, make("span.name", {}, "strength"), make("span.keys"), gain, make("span.keys"), said));
  }

  // --- drawing ---------------------------------------------------------------------------------------------------------
  heard() {
    const { now } = this.seen;
    if (now.state !== "running" && now.state !== this.state) { this.held.reset(); this.tell(); }
    if (now.by === "policy" && now.action.axes) this.held.follow(now.action.axes);
    this.going = now.goes;
    this.state = now.state;
    tellKernel(this.model, { type: "seen", number: now.number });
    this.refresh();
  }

  refresh() {
    const { now, url } = this.seen, has = this.hasFocus;
    this.root.dataset.state = now.state;
    this.root.dataset.step = now.step;
    this.root.dataset.kept = now.kept;
    this.chip.textContent = now.state;
    this.chip.dataset.state = now.state === "over" ? "finished" : now.state;
    this.problem.textContent = now.message;
    this.goes.textContent = this.going ? "Pause" : "Start";
    this.end.disabled = now.state !== "running";
    this.drop.disabled = !["running", "over"].includes(now.state);
    if (+this.speed.value !== now.speed && document.activeElement !== this.speed) this.speed.value = now.speed;
    if (url && this.image.src !== url) this.image.src = url;
    this.image.hidden = !url;
    this.numbers.hidden = !now.numbers.length;
    this.numbers.textContent = now.numbers.join("\n");
    this.who.textContent = now.by === "person" ? "you" : now.by ? "policy" : "";
    this.who.dataset.by = now.by;
    this.who.hidden = !this.model.get("policy") || !now.by;
    this.drawOver(now, has);
    this.drawAction(now);
    this.facts.replaceChildren(...this.facts_(now));
    this.drawKept(now);
  }

  facts_(now) {
    const fact = (name, value) => make("div.fact", { "data-good": String(value === "yes") }, make("span", {}, name), make("b", {}, value));
    return [fact("step", String(now.step)), fact("return", figures(now.return)), ...(now.success === null ? [] : [fact("success", now.success ? "yes" : "not yet")])];
  }

  drawOver(now, has) {
    const say = (words, ...buttons) => this.over.replaceChildren(make("div", {}, words), ...(buttons.length ? [make("div.asks", {}, ...buttons)] : []));
    const key = now.state === "over" ? `over ${now.step}` : `${now.state} ${has} ${now.step} ${this.going}`; // a button stays the same while it is pressed
    if (key === this.overKey) return;
    this.overKey = key;
    this.over.hidden = false;
    if (now.state === "over") {
      const end = now.success === null ? "The episode is over" : now.success ? "Success" : "No success";
      const button = (words, what, code) => make("button.button", { onclick: () => this.ask(what) }, words, " ", make("kbd", {}, code));
      say(`${end} · ${now.step} steps · return ${figures(now.return)}`, button("Keep", "keep", "Enter"), button("Discard", "discard", "⌫"));
    } else if (now.state === "starting") say("The environment is being made …");
    else if (now.state === "closed" || now.state === "failed") say(now.state === "closed" ? "closed" : "The environment or the policy failed");
    else if (!has) say("Click here to take the controls");
    else if (now.state === "ready") say(this.model.get("autonomous") && !this.going ? "Start, or hold a key" : this.model.get("policy") ? "The policy acts; hold a key to take over" : "Hold a key: time stands still while nothing is held");
    else this.over.hidden = true;
  }

  drawAction(now) {
    const mine = now.by === "person" || !now.by;
    if (this.controls.kind === "choices") {
      this.marks.forEach((button, i) => { button.dataset.on = String(now.state === "running" && now.action.choice === i); button.dataset.by = now.by; });
      return;
    }
    const shown = now.action.axes ?? this.controls.names.map(() => 0);
    this.marks.forEach(({ row, input, shown: text }, i) => {
      if (!this.held.dragged.has(i)) input.value = shown[i] ?? 0;
      text.textContent = (shown[i] ?? 0).toFixed(2).replace("-", "−");
      row.dataset.by = mine ? "person" : "policy";
    });
  }

  drawKept(now) {
    const key = JSON.stringify([now.kept, now.last, now.corrections]);
    if (key === this.keptKey) return;
    this.keptKey = key;
    const first = now.kept - now.last.length, [stretches, steps] = now.corrections;
    const chips = now.last.map((e, i) => make("span.episode", { title: `episode ${first + i}: ${e.steps} steps, return ${figures(e.return)}`, "data-success": String(e.success) }, `${e.steps}`));
    const where = now.folder ? ` in ${now.folder}` : "";
    const words = now.kept ? `${now.kept} kept${where}${now.last.length ? ", steps of each:" : ""}` : `nothing is kept${where} yet`;
    const corrected = stretches ? [make("span.muted", {}, `${stretches} ${stretches === 1 ? "correction" : "corrections"}, ${steps} steps`)] : [];
    this.keptRow.replaceChildren(make("span.muted", {}, words), ...chips, ...corrected);
  }
}

export default () => {
  const seen = new Seen(), views = new Set();
  return {
    initialize({ model }) {
      connect(model, {
        reset: () => seen.reset(),
        apply: (message, parts) => { seen.apply(message, parts); views.forEach((view) => view.heard()); },
      });
    },
    render({ model, el }) {
      const view = new TeleoperationView(model, seen, el);
      views.add(view);
      return () => { views.delete(view); view.destroy(); };
    },
  };
};
