// What an engine wrote beside what became of it: every character of the raw text has the colour of its part.
import { html, useState } from "../vendor/preact.js";
import { Copy, Segments, count } from "../ui/parts.js";
import { TokenText } from "../ui/tokens.js";
import { pretty } from "./handover.js";

const NAMES = { reasoning: "Reasoning", content: "Content", call: "Call" };
const ENDS = {
  stop: "It ended.", length: "It was cut off: no more tokens were allowed.", tool_calls: "It ended with calls.", content_filter: "It was filtered.",
};

export function Split({ answer, split, control, title }) {
  const [lit, setLit] = useState(null);
  const [view, setView] = useState("phases");
  const views = [["phases", "Text"], ["tokens", "Tokens"], ["ids", "Ids"]];
  const isWhole = answer.raw !== null;
  return html`<section class="card" aria-label=${title}><div class="card-head"><h2>${title}</h2>
      ${split && html`<span class="tag" title=${split.why}>${split.format}</span>`}
      ${isWhole && html`<${Segments} label="How the raw output is shown" options=${views} value=${view} onChange=${setView} /><${Copy} label="Copy the raw output" text=${answer.raw} />`}</div>
    <div class=${`split ${isWhole ? "" : "alone"}`}>
      ${isWhole && html`<div class="split-raw"><h3>As the engine wrote it</h3>
        ${answer.raw ? html`<${TokenText} label="Raw output" tokens=${view === "phases" ? byPart(answer) : byToken(answer)} control=${view === "phases" ? [] : control}
          hasIds=${view === "ids"} lit=${lit} onLight=${setLit} />` : html`<p class="soft inspected-hint">Nothing yet.</p>`}</div>`}
      <div class="split-parts"><h3>As the client got it</h3><ol aria-label="Parts of the answer">${answer.parts.map((part, index) => html`<${Part} key=${index} part=${part}
          isLit=${lit === index} onLight=${(isOver) => setLit(isOver ? index : null)} />`)}</ol>
        ${!isWhole && html`<p class="hint">The model runs on another server, which split its output itself.</p>`}
        <p class="hint">${endOf(answer)}</p></div>
    </div></section>`;
}

function Part({ part, isLit, onLight }) {
  return html`<li class=${`part ${part.kind} ${isLit ? "lit" : ""}`} onMouseEnter=${() => onLight(true)} onMouseLeave=${() => onLight(false)}>
    <div class="part-head"><span class="swatch" aria-hidden="true" /><b>${NAMES[part.kind]}</b>${part.name && html`<code>${part.name}</code>`}
      ${!part.whole && html`<span class="tag bad">broke off</span>`}<span class="faint grow">${count(part.text.length)} characters</span><${Copy} label=${`Copy ${NAMES[part.kind].toLowerCase()}`} text=${part.text} /></div>
    <pre tabindex="0" aria-label=${NAMES[part.kind]}>${part.kind === "call" ? pretty(part.text) : part.text}</pre></li>`;
}

function endOf({ finish, stop, end_token: token, warning, cut }) {
  const said = finish === null ? "It goes on." : stop ? `It ended at the stop string ${JSON.stringify(stop)}.` : ENDS[finish] ?? finish;
  const more = [token === null ? "" : ` End token ${token}.`, warning ? ` ${warning}` : "", cut ? " More was written than is kept." : ""];
  return said + more.join("");
}

/** The raw text in spans of one part each. Pure. */
export function byPart({ raw, spans, parts }) {
  return spans.map((span) => ({ text: raw.slice(span.from, span.to), ids: [], part: span.part, kind: kindOf(parts, span.part) }));
}

/** The raw text by its pieces, each with the part that most of it became; neighbours differ in shade. Pure. */
export function byToken({ pieces, spans, parts }) {
  let place = 0, current = 0;
  return pieces.map(([text, ids], index) => {
    const middle = place + text.length / 2;
    place += text.length;
    while (current < spans.length - 1 && spans[current].to <= middle) current += 1;
    const part = spans[current]?.part ?? null;
    return { text, ids, part, kind: `${kindOf(parts, part)} ${index % 2 ? "odd" : ""}` };
  });
}

const kindOf = (parts, part) => (part === null ? "marker" : parts[part].kind);
