// Short news in a corner: what went wrong with something that has no place of its own on the page.
import { html, signal } from "../core/html.js";
import { Icon } from "./icons.js";

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
