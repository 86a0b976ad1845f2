// What every page is made of: numbers, colours, icons, controls, short news, dialogs and menus.
import { html, signal, useEffect, useId, useLayoutEffect, useRef, useState } from "../vendor/preact.js";

// ------------------------------------------------------------------------------------------------------------
// Numbers as people read them. Every function takes null for "not known" and says it with a dash.

const NONE = "–";
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** Bytes in the powers of 1024 that the server's own messages use: "4.20 GiB". */
export function bytes(value) {
  if (!known(value)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let amount = Math.abs(value), unit = 0;
  while (amount >= 999.5 && unit < units.length - 1) { amount /= 1024; unit += 1; }
  const digits = unit === 0 || amount >= 100 ? 0 : amount >= 10 ? 1 : 2;
  return `${value < 0 ? "−" : ""}${amount.toFixed(digits)} ${units[unit]}`;
}

/** Seconds, at the precision that matters: "42 ms", "3.1 s", "4 min 10 s", "2 h 5 min". */
export function seconds(value) {
  if (!known(value)) return NONE;
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 60) return `${Math.round(value)} s`;
  if (value < 3600) return pair(value, 60, "min", 1, "s");
  if (value < 86400) return pair(value, 3600, "h", 60, "min");
  return pair(value, 86400, "d", 3600, "h");
}

function pair(value, large, largeName, small, smallName) {
  const whole = Math.floor(value / large), rest = Math.round((value % large) / small);
  return rest ? `${whole} ${largeName} ${rest} ${smallName}` : `${whole} ${largeName}`;
}

/** Whole numbers with thin spaces between thousands. */
export function count(value) {
  return known(value) ? Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, "\u202f") : NONE;
}

/** Lengths in tokens: "32k", "4096" stays "4.1k". */
export function tokens(value) {
  if (!known(value)) return NONE;
  if (value < 1000) return String(value);
  if (value % 1024 === 0) return `${value / 1024}k`;
  return value < 10000 ? `${(value / 1000).toFixed(1)}k` : `${Math.round(value / 1000)}k`;
}

/** Tokens per second. */
export function rate(value) {
  if (!known(value) || value <= 0) return NONE;
  return value >= 100 ? count(value) : value.toFixed(1);
}

export function percent(share) {
  return known(share) ? `${(share * 100).toFixed(share >= 0.0995 ? 0 : 1)} %` : NONE;
}

/** Time of day of a Unix time in seconds. */
export function clock(unix) {
  return known(unix) ? new Date(unix * 1000).toLocaleTimeString([], { hour12: false }) : NONE;
}

/** "just now", "12 min ago", "3 d ago", for a Unix time in milliseconds. */
export function ago(then, now = Date.now()) {
  const past = (now - then) / 1000;
  if (past < 45) return "just now";
  if (past < 3570) return `${Math.max(1, Math.round(past / 60))} min ago`;
  if (past < 86400) return `${Math.round(past / 3600)} h ago`;
  return `${Math.round(past / 86400)} d ago`;
}

// ------------------------------------------------------------------------------------------------------------
// A colour for each model, the same on every page: given in the order in which models are first drawn.

const HUES = 8; // of --model-0 … --model-7 in style/tokens.css
const given = new Map();

/** The number of a model's colour. @param {string} model */
export function hue(model) {
  if (!given.has(model)) given.set(model, given.size % HUES);
  return given.get(model);
}

/** As a value of a style. */
export const colour = (model) => `var(--model-${hue(model)})`;

/** As canvases want it: worked out for the theme in force. */
export function resolved(value) {
  const probe = document.createElement("span");
  probe.style.color = value;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

// ------------------------------------------------------------------------------------------------------------
// The icons: strokes on a grid of 16, drawn for this page. They are decoration: a control says its name in words.

const PATHS = {
  chat: "M2.5 3.5h11v7.500h-6l-3 2.500v-2.500h-2z",
  models: "M8 1.800 14 5 8 8.200 2 5zM2 8l6 3.200L14 8M2 11l6 3.200L14 11",
  memory: "M4 3.500h8v9H4zM6.500 6h3v4h-3zM6 1.500v2M10 1.500v2M6 12.500v2M10 12.500v2M1.500 6H4M1.500 10H4M12 6h2.500M12 10h2.500",
  activity: "M1.500 8.500h3l2-5.500 3 10 2-4.500h3",
  playground: "M6.500 2v4L2.500 12.500a1 1 0 0 0 .9 1.500h9.200a1 1 0 0 0 .9-1.500L9.500 6V2M5 2h6M4.500 10h7",
  usage: "M2 13.500h12M4 11V8M8 11V3M12 11V6",
  connect: "M6.500 9.500 9.500 6.500M5 7 3.300 8.700a2.830 2.830 0 0 0 4 4L9 11M7 5l1.700-1.700a2.830 2.830 0 0 1 4 4L11 9",
  settings: "M2 4.500h6.500M11.500 4.500H14M2 11.500h2.500M7.500 11.500H14M10 3v3M6 10v3",
  plus: "M8 3v10M3 8h10", close: "M4 4l8 8M12 4l-8 8", check: "M3 8.500 6.500 12 13 4.500",
  down: "M4 6l4 4 4-4", right: "M6 4l4 4-4 4", left: "M10 4 6 8l4 4", up: "M8 13V3M4 7l4-4 4 4",
  search: "M7 2.500a4.500 4.500 0 1 0 0 9 4.500 4.500 0 0 0 0-9zM10.500 10.500 14 14",
  more: "M3 8h.01M8 8h.01M13 8h.01", copy: "M5.500 5.500h8v8h-8zM3.500 10.500h-1v-8h8v1",
  send: "M8 13V3.500M4 7l4-4 4 4", stop: "M4.500 4.500h7v7h-7z", pause: "M5.500 3.500v9M10.500 3.500v9", play: "M5 3.500 12 8l-7 4.500z",
  retry: "M13 8a5 5 0 1 1-1.500-3.600M13 2v3h-3", edit: "M3 13l.6-2.600L10.800 3.200l2 2L5.600 12.400z",
  trash: "M3 4.500h10M6.500 4.500V3h3v1.500M4.500 4.500l.5 8.500h6l.5-8.500", image: "M2.500 3.500h11v9h-11zM2.500 11l3-3 2.500 2.500 2-2 3.500 3M10.500 6h.01",
  panel: "M2.500 3h11v10h-11zM10 3v10", list: "M2.500 3h11v10h-11zM6 3v10", columns: "M2.500 3h11v10h-11zM8 3v10",
  pin: "M6 2.500h4l-.5 4.500 2 2h-7l2-2zM8 9v4.500", eject: "M8 3 13 9H3zM3 12h10", load: "M8 2.500v7M5 7l3 3 3-3M3 13h10",
  alert: "M8 2 14.500 13.500h-13zM8 6.500v3M8 11.500h.01", info: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM8 7.500v3.500M8 5h.01",
  key: "M10 3a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 8l-5.500 5.500M4 12l1.500 1.500", code: "M5.500 4.500 2 8l3.500 3.500M10.500 4.500 14 8l-3.500 3.500",
  sun: "M8 5.200a2.800 2.800 0 1 0 0 5.600 2.800 2.800 0 0 0 0-5.600zM8 1.500v1.500M8 13v1.500M1.500 8H3M13 8h1.500M3.400 3.400l1 1M11.600 11.600l1 1M3.400 12.600l1-1M11.600 4.400l1-1",
  moon: "M13 9.500A5.500 5.500 0 0 1 6.500 3 5.500 5.500 0 1 0 13 9.500z", auto: "M8 2.500a5.500 5.500 0 1 0 0 11zM8 2.500a5.500 5.500 0 0 1 0 11z",
  download: "M8 2.500v8M4.500 7 8 10.500 11.500 7M3 13.500h10", tool: "M9.500 6.500 3.500 12.500M9 2.500a3.500 3.500 0 1 0 4.500 4.500l-2.200.7-1.800-1.800z",
  file: "M4 2h5l3.500 3.500V14H4zM9 2v3.500h3.500", written: "M2.500 4h11M2.500 8h7M2.500 12h9", clip: "M12.500 7 8 11.500a2.500 2.500 0 0 1-3.500-3.500l5-5a1.700 1.700 0 0 1 2.400 2.400L7 10.300",
  fork: "M5 3v10M5 9.500c4 0 6-1.500 6-5M9 6.500l2-2.500 2 2.500M3.500 3h3M3.500 13h3",
  thought: "M8 2.500a4.500 4.500 0 0 0-2.500 8.200V13h5v-2.300A4.500 4.500 0 0 0 8 2.500zM6.500 14.500h3",
};

/** @param {{name: keyof PATHS, size?: number}} props */
export function Icon({ name, size = 16 }) {
  return html`<svg width=${size} height=${size} viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width=${name === "more" ? 2 : 1.4}
    stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;
}

/** The server's mark. */
export function Mark({ size = 20 }) {
  return html`<svg width=${size} height=${size} viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="8" fill="#0f766e" />
    <g fill="none" stroke="#fff" stroke-width="2.600" stroke-linecap="round"><circle cx="16" cy="16" r="4.200" />
    <path d="M16 5.500v4M16 22.500v4M5.500 16h4M22.500 16h4M8.600 8.600l2.800 2.800M20.600 20.600l2.800 2.800M8.600 23.400l2.800-2.800M20.600 11.400l2.800-2.800" /></g></svg>`;
}

// ------------------------------------------------------------------------------------------------------------
// Small parts that every page is made of.

/** A state as a coloured dot; the word beside it, or for screen readers alone, says the same. */
export function Dot({ state, words = null }) {
  return html`<span class=${`dot ${state}`} aria-hidden="true" />${words === null ? null : html`<span class="unseen">${words}</span>`}`;
}

/** One of few, as a row. @param {{label: string, options: [string, any][], value: string, onChange: (value: string) => void}} props */
export function Segments({ label, options, value, onChange }) {
  const row = useRef(null);
  useEffect(() => { // on a narrow screen it may stand outside of its row
    const pressed = row.current.querySelector("[aria-pressed=true]");
    if (pressed && row.current.scrollWidth > row.current.clientWidth) row.current.scrollLeft = pressed.offsetLeft - row.current.clientWidth / 2;
  }, [value]);
  return html`<div class="segments" ref=${row} role="group" aria-label=${label}>${options.map(([name, text, title]) => html`<button key=${name} type="button"
    aria-pressed=${value === name} title=${title ?? ""} aria-label=${title ?? null} onClick=${() => onChange(name)}>${text}</button>`)}</div>`;
}

export function Search({ label, value, onInput, ...rest }) {
  return html`<div class="search grow"><${Icon} name="search" size="14" /><input class="input" type="search" aria-label=${label}
    placeholder=${label} value=${value} onInput=${(event) => onInput(event.target.value)} ...${rest} /></div>`;
}

/** How far something is: `done` of `total`, or that it goes on (`total` 0). */
export function Progress({ done, total, label }) {
  const share = total > 0 ? Math.min(1, done / total) : null;
  return html`<div class=${`progress ${share === null ? "unknown" : ""}`} role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax="100"
    aria-valuenow=${share === null ? null : Math.round(share * 100)}><div style=${{ width: share === null ? "" : `${share * 100}%` }} /></div>`;
}

/** Which of several versions is shown, with arrows to the others; nothing where there is one. */
export function Versions({ count, index, label, onChoose, disabled }) {
  if (count < 2) return null;
  return html`<span class="swipes" role="group" aria-label=${label}>
    <button class="button quiet small icon" aria-label="Version before" disabled=${disabled || index === 0} onClick=${() => onChoose(index - 1)}><${Icon} name="left" size="14" /></button>
    <span class="num small">${index + 1}/${count}</span>
    <button class="button quiet small icon" aria-label="Version after" disabled=${disabled || index === count - 1} onClick=${() => onChoose(index + 1)}><${Icon} name="right" size="14" /></button></span>`;
}

/** A component whose module is fetched when it is first shown: its default export. */
export function later(fetch) {
  let View = null;
  return function Later(props) {
    const [, draw] = useState(0);
    useEffect(() => { if (!View) fetch().then((module) => { View = module.default; draw(1); }); }, []);
    return View && html`<${View} ...${props} />`;
  };
}

export function Empty({ icon, title, children }) {
  return html`<div class="empty"><${Icon} name=${icon} size="28" /><h2>${title}</h2>${children}</div>`;
}

export function Notice({ kind = "", icon = "info", children }) {
  return html`<div class=${`notice ${kind}`} role=${kind === "bad" ? "alert" : null}><${Icon} name=${icon} /><div class="grow">${children}</div></div>`;
}

/** What is shown while nothing is known yet: as tall as what will come, so that nothing jumps. */
export function Bones({ rows = 5, height = 44 }) {
  return html`<div role="group" aria-busy="true" aria-label="Loading">${Array.from({ length: rows }, (_, row) => html`<div key=${row} class="row" style=${{ height: `${height}px` }}>
    <div class="bone" style=${{ width: `${28 + ((row * 17) % 30)}%` }} /><div class="bone" style=${{ width: "12%", marginLeft: "auto" }} /></div>`)}</div>`;
}

export function Copy({ text, label = "Copy" }) {
  const [isDone, setDone] = useState(false);
  const timer = useRef(0);
  const copy = async () => {
    try {
      await copyText(typeof text === "function" ? text() : text);
    } catch { return; }
    setDone(true);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setDone(false), 1500);
  };
  return html`<button type="button" class="button quiet small icon" onClick=${copy} title=${label} aria-label=${isDone ? "Copied" : label}>
    <${Icon} name=${isDone ? "check" : "copy"} size="14" /></button>`;
}

/** The clipboard's interface is there on localhost and over TLS alone; elsewhere a selection is copied. Raises Error where
 * nothing was copied. */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  (document.querySelector("dialog[open]") ?? document.body).append(area); // what is outside of a dialog takes no focus
  const before = document.activeElement;
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  before?.focus();
  if (!isCopied) throw new Error("The browser copies nothing here.");
  return undefined;
}

/** Text to be copied elsewhere. */
export function Code({ text, label }) {
  return html`<div class="code"><pre tabindex="0" aria-label=${label}>${text}</pre><${Copy} text=${text} label=${`Copy ${label}`} /></div>`;
}

export function Field({ label, hint = null, children }) {
  return html`<label class="field"><span class="label">${label}</span>${children}${hint && html`<span class="hint">${hint}</span>`}</label>`;
}

// ------------------------------------------------------------------------------------------------------------
// Short news in a corner: what went wrong with something that has no place of its own on the page.

const SHOWN_FOR = 7000; // milliseconds
const toasts = signal([]);
let last = 0;

/** @param {string} text @param {{kind?: "bad" | "good", action?: {text: string, act: () => void}}} [options] */
export function say(text, { kind = "good", action = null } = {}) {
  const id = ++last;
  toasts.value = [...toasts.value.slice(-3), { id, text, kind, action }];
  setTimeout(() => drop(id), SHOWN_FOR);
}

export const sayError = (error) => say(error.message, { kind: "bad" });

/** Run something, and report if it fails; whether it went well. */
export async function trying(work) {
  try {
    await work();
    return true;
  } catch (error) {
    sayError(error);
    return false;
  }
}

const drop = (id) => { toasts.value = toasts.value.filter((one) => one.id !== id); };

export function Toasts() {
  return html`<div class="toasts" role="status" aria-live="polite">${toasts.value.map((one) => html`<div class="toast" key=${one.id}>
    <span class=${one.kind}><${Icon} name=${one.kind === "bad" ? "alert" : "check"} /></span>
    <p>${one.text}</p>
    ${one.action && html`<button class="button small" onClick=${() => { drop(one.id); one.action.act(); }}>${one.action.text}</button>`}
    <button class="button quiet small icon" aria-label="Dismiss" onClick=${() => drop(one.id)}><${Icon} name="close" size="14" /></button>
  </div>`)}</div>`;
}

// ------------------------------------------------------------------------------------------------------------
// Modal dialogs and menus, on the browser's own: it keeps the focus inside, closes on Escape and gives the focus back.

/** @param {{title: string, onClose: () => void, children: any, foot?: any, wide?: boolean}} props */
export function Dialog({ title, onClose, children, foot, wide = false }) {
  const element = useRef(null);
  const id = useId();
  useEffect(() => {
    const dialog = element.current;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  const onBackdrop = (event) => { if (event.target === element.current) onClose(); };
  return html`<dialog ref=${element} class=${wide ? "wide" : ""} aria-labelledby=${id}
      onCancel=${(event) => { event.preventDefault(); onClose(); }} onMouseDown=${onBackdrop}>
    <div class="dialog-head"><h2 id=${id}>${title}</h2>
      <button type="button" class="button quiet icon" onClick=${onClose} aria-label="Close"><${Icon} name="close" /></button></div>
    <div class="dialog-body">${children}</div>
    ${foot && html`<div class="dialog-foot">${foot}</div>`}
  </dialog>`;
}

/** A button that opens a list of actions. @param {{label: string, icon?: string, text?: any, items: any[], end?: boolean, small?: boolean}} props
 * An item is {icon, text, act, disabled?, danger?, why?}, or null for a line. */
export function Menu({ label, icon = "more", text = null, items, end = true, small = true }) {
  const [isOpen, setOpen] = useState(false);
  const [isAbove, setAbove] = useState(false);
  const anchor = useRef(null), list = useRef(null);
  useDismiss(anchor, isOpen, () => setOpen(false));
  useLayoutEffect(() => { if (isOpen) setAbove(lacksRoom(anchor.current, list.current)); }, [isOpen]);
  const onKeyDown = (event) => { if (isOpen) moveFocus(event, anchor.current); };
  const pick = (item) => () => { setOpen(false); anchor.current.querySelector("button").focus(); item.act(); };
  return html`<div class="menu-anchor" ref=${anchor} onKeyDown=${onKeyDown}>
    <button class=${`button quiet ${small ? "small" : ""} ${text ? "" : "icon"}`} aria-label=${label} title=${label}
      aria-haspopup="menu" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}><${Icon} name=${icon} />${text}</button>
    ${isOpen && html`<div ref=${list} class=${`menu ${end ? "end" : ""} ${isAbove ? "above" : ""}`} role="menu" aria-label=${label}>${items.map((item, index) => item === null
      ? html`<hr key=${index} />`
      : html`<button key=${item.text} role="menuitem" disabled=${item.disabled} title=${item.why ?? ""} class=${item.danger ? "bad" : ""}
          onClick=${pick(item)}><${Icon} name=${item.icon} />${item.text}</button>`)}</div>`}
  </div>`;
}

/** Whether a list below its button would be cut off, and above it there is more room. */
export function lacksRoom(anchor, list) {
  const box = anchor.getBoundingClientRect(), frame = anchor.closest("main, dialog")?.getBoundingClientRect() ?? document.body.getBoundingClientRect();
  const below = frame.bottom - box.bottom;
  return list.offsetHeight + 8 > below && box.top - frame.top > below;
}

/** Whatever is outside of `anchor`, and Escape, closes it. */
export function useDismiss(anchor, isOpen, close) {
  useEffect(() => {
    if (!isOpen) return undefined;
    const outside = (event) => { if (!anchor.current?.contains(event.target)) close(); };
    const escape = (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      close();
      anchor.current?.querySelector("button")?.focus();
    };
    document.addEventListener("pointerdown", outside);
    document.addEventListener("keydown", escape, true);
    return () => {
      document.removeEventListener("pointerdown", outside);
      document.removeEventListener("keydown", escape, true);
    };
  }, [isOpen]);
}

function moveFocus(event, anchor) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const items = [...anchor.querySelectorAll("[role=menuitem]:not(:disabled)")];
  const now = items.indexOf(document.activeElement);
  items.at((now + step + items.length) % items.length)?.focus();
}
