// Small parts that every page is made of.
import { html, useRef, useState } from "../core/html.js";
import { Icon } from "./icons.js";

/** A state as a coloured dot; the word beside it, or for screen readers alone, says the same. */
export function Dot({ state, words = null }) {
  return html`<span class=${`dot ${state}`} aria-hidden="true" />${words === null ? null : html`<span class="unseen">${words}</span>`}`;
}

/** One of few, as a row. @param {{label: string, options: [string, any][], value: string, onChange: (value: string) => void}} props */
export function Segments({ label, options, value, onChange }) {
  return html`<div class="segments" role="group" aria-label=${label}>${options.map(([name, text, title]) => html`<button key=${name} type="button"
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
