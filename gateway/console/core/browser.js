// The browser: what it keeps, light or dark, and the address.
import { computed, effect, signal } from "../vendor/preact.js";

// ------------------------------------------------------------------------------------------------------------
// Small values that a browser keeps: preferences for good, what belongs to one tab for the tab's life.

/** A signal that outlives the page. Storage may be forbidden or full: then it lives as long as the page.
 * @template T @param {string} name @param {T} initial @param {Storage} [area] */
export function stored(name, initial, area = localStorage) {
  const key = `roundhouse.${name}`;
  const value = signal(read(area, key) ?? initial);
  effect(() => write(area, key, value.value));
  return value;
}

function read(area, key) {
  try { return JSON.parse(area.getItem(key)); } catch { return null; }
}

function write(area, key, value) {
  try {
    if (value === null || value === undefined) area.removeItem(key);
    else area.setItem(key, JSON.stringify(value));
  } catch { /* the value lives on in the page */ }
}

// ------------------------------------------------------------------------------------------------------------
// Light, dark, or as the system has it.

const SAVED = "theme"; // theme.js reads the same name before the page is drawn

export const theme = stored(SAVED, "auto");

effect(() => {
  const chosen = theme.value;
  if (chosen === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
});

// ------------------------------------------------------------------------------------------------------------
// Which page is shown: the part of the address behind "#/", so that the server needs to know of none.

const hash = signal(location.hash);
addEventListener("hashchange", () => { hash.value = location.hash; });

/** The words of the address: ["models", "qwen3-8b"]. */
export const route = computed(() => hash.value.replace(/^#\/?/, "").split("/").filter(Boolean).map(decoded));

function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

/** The address of a page. @param {...string} parts */
export const to = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

export function go(...parts) { location.hash = to(...parts); }

/** Another address for what is shown already: no step of the browser's history. */
export function instead(...parts) {
  history.replaceState(null, "", to(...parts));
  hash.value = location.hash;
}
