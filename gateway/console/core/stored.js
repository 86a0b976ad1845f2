// Small values that a browser keeps: preferences for good, what belongs to one tab for the tab's life.
import { effect, signal } from "./html.js";

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
