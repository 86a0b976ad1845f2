// A text token by token: neighbours in different colours, control tokens framed, ids on demand. Long ones come in parts.
import { html, useState } from "../vendor/preact.js";
import { count } from "./parts.js";
import { sheet } from "./sheet.js";

await sheet("tokens.css", import.meta.url);

const AT_ONCE = 2000; // tokens
const HUES = 5;

/** @param {{label: string, tokens: {text: string, ids: number[], kind?: string, part?: number | null}[], control?: string[],
 *   hasIds?: boolean, lit?: number | null, onLight?: (part: number | null) => void}} props
 * `kind`: a class in place of the token's turn in colours; `part`: what is lit together. */
export function TokenText({ label, tokens, control = [], hasIds = false, lit = null, onLight = null }) {
  const [most, setMost] = useState(AT_ONCE);
  const special = new Set(control);
  const over = onLight && ((event) => onLight(partOf(event.target)));
  return html`<div><pre class="tokens" tabindex="0" aria-label=${label} onMouseOver=${over} onMouseLeave=${onLight && (() => onLight(null))}>${tokens.slice(0, most).map((one, index) => html`<span key=${index}
      class=${`token ${one.kind ?? `hue-${index % HUES}`} ${special.has(one.text) ? "control" : ""} ${lit !== null && one.part === lit ? "lit" : ""}`}
      data-part=${one.part ?? null} title=${one.ids.length ? `token ${one.ids.join(", ")}` : null}>${shown(one.text)}${hasIds && html`<sub>${one.ids.join(" ")}</sub>`}</span>`)}</pre>
    ${tokens.length > most && html`<div class="row tokens-more"><button class="button quiet small" onClick=${() => setMost(most * 4)}>Show more of ${count(tokens.length)}</button></div>`}</div>`;
}

/** A line's end is seen, and still ends the line; a token without text of its own has a mark. */
const shown = (text) => (text === "" ? "·" : text.replaceAll("\n", "↵\n"));

function partOf(element) {
  const value = element.closest("[data-part]")?.dataset.part;
  return value === undefined ? null : Number(value);
}
