// Which page is shown: the part of the address behind "#/", so that the server needs to know of none.
import { computed, signal } from "./html.js";

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
