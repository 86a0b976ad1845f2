// An answer token by token: how likely each was, and what else could have come.
import { html, useLayoutEffect, useRef, useState } from "../core/html.js";
import { percent } from "../core/format.js";

const SURE = 0.9, LIKELY = 0.5, POSSIBLE = 0.15;

/** @param {{list: {token: string, logprob: number, top_logprobs: {token: string, logprob: number}[]}[]}} props */
export function Probabilities({ list }) {
  const area = useRef(null), text = useRef(null), drawn = useRef([]);
  const [at, setAt] = useState(null);
  useLayoutEffect(() => {
    // Spans are added for new tokens alone: there may be thousands.
    if (list.length < drawn.current.length || list[0] !== drawn.current[0]) text.current.replaceChildren();
    for (let index = text.current.childElementCount; index < list.length; index += 1) text.current.append(span(list[index], index));
    drawn.current = list;
  }, [list]);
  const show = (element) => {
    if (element?.dataset?.index === undefined) return setAt(null);
    const box = element.getBoundingClientRect(), frame = area.current.getBoundingClientRect();
    return setAt({ index: Number(element.dataset.index), left: Math.min(box.left - frame.left, Math.max(0, frame.width - 250)), top: box.bottom - frame.top + 4 });
  };
  const onKeyDown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show(text.current.children[Math.max(0, Math.min(list.length - 1, (at?.index ?? -1) + step))]);
  };
  return html`<div class="tokens-area" ref=${area}>
    <p class="tokens" ref=${text} tabindex="0" role="group" aria-label="Answer by tokens; arrow keys go from one to the next"
      onPointerOver=${(event) => show(event.target)} onPointerLeave=${() => setAt(null)} onKeyDown=${onKeyDown} onBlur=${() => setAt(null)} />
    ${at && list[at.index] && html`<${Alternatives} token=${list[at.index]} at=${at} />`}
  </div>`;
}

function span(token, index) {
  const element = document.createElement("span");
  const probability = Math.exp(token.logprob);
  element.dataset.index = index;
  element.className = probability >= SURE ? "" : probability >= LIKELY ? "likely" : probability >= POSSIBLE ? "possible" : "unlikely";
  element.textContent = token.token;
  return element;
}

function Alternatives({ token, at }) {
  const others = token.top_logprobs.some((one) => one.token === token.token) ? token.top_logprobs : [token, ...token.top_logprobs];
  return html`<div class="alternatives" role="status" style=${{ left: `${at.left}px`, top: `${at.top}px` }}>${others.map((one) => {
    const probability = Math.exp(one.logprob);
    return html`<div class=${`alternative ${one.token === token.token ? "taken" : ""}`} key=${one.token}>
      <code class="cut">${visible(one.token)}</code><span class="bar" aria-hidden="true"><i style=${{ width: `${probability * 100}%` }} /></span><span class="num">${percent(probability)}</span></div>`;
  })}</div>`;
}

/** White space as signs: else two tokens would look alike. */
const visible = (text) => text.replace(/ /g, "·").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "∅";
