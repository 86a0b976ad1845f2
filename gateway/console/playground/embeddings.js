// How near texts are to each other, by a model's vectors of them.
import { html, signal } from "../vendor/preact.js";
import { stored } from "../core/browser.js";
import { call } from "../core/server.js";
import { Copy, count } from "../ui/parts.js";
import { Failure, Form, ModelOf, NoModel, RunButton, Text, chosenModel, useRequest } from "./trying.js";

const MOST = 24; // texts
const SHORT = 40; // characters of a text at the matrix's edge
const texts = stored("playground.texts", "A cat sleeps on the sofa.\nThe kitten naps.\nStock markets fell today.");
const found = signal(null); // {texts, vectors, tokens}

const lines = () => texts.value.split("\n").map((line) => line.trim()).filter(Boolean);

export default function Embeddings() {
  const request = useRequest();
  if (!chosenModel("embedding")) return html`<${NoModel} kind="embedding" />`;
  const number = lines().length;
  return html`<${Form} label="Embeddings" onRun=${() => request.run(embed)}>
      <${Text} label="Texts, one in a line" rows="6" value=${texts.value} onInput=${(text) => { texts.value = text; }} hint=${number > MOST ? `The first ${MOST} of ${number} are compared.` : null} />
      <div class="row wrap"><${ModelOf} kind="embedding" /><span class="grow" /><${RunButton} request=${request} text="Compare" disabled=${!number} /></div></${Form}>
    <${Failure} request=${request} />${found.value && html`<${Matrix} it=${found.value} />`}`;
}

async function embed(signal) {
  const input = lines().slice(0, MOST);
  const answer = await call("POST", "/v1/embeddings", { model: chosenModel("embedding").id, input }, { signal });
  const vectors = answer.data.toSorted((a, b) => a.index - b.index).map((one) => one.embedding);
  found.value = { texts: input, vectors, tokens: answer.usage?.prompt_tokens ?? null };
}

/** The cosine of two vectors' angle. Pure. */
export function cosine(one, other) {
  let dot = 0, first = 0, second = 0;
  for (let index = 0; index < one.length; index += 1) {
    dot += one[index] * other[index];
    first += one[index] ** 2;
    second += other[index] ** 2;
  }
  return first && second ? dot / Math.sqrt(first * second) : 0;
}

function Matrix({ it }) {
  const short = (text) => (text.length > SHORT ? `${text.slice(0, SHORT - 1)}…` : text);
  const shade = (value) => `color-mix(in srgb, var(--model-0) ${Math.round(Math.max(0, value) * 45)}%, transparent)`;
  return html`<section class="card" aria-label="Similarity"><div class="card-head"><h2>Similarity</h2><span class="faint small num">${it.vectors[0].length} dimensions${it.tokens === null ? "" : ` · ${count(it.tokens)} tokens`}</span>
      <${Copy} text=${() => JSON.stringify(it.vectors)} label="Copy the vectors" /></div>
    <div class="table-scroll" tabindex="0" role="region" aria-label="Similarity of the texts"><table class="table matrix">
      <thead><tr><th>Cosine</th>${it.texts.map((text, place) => html`<th key=${place} title=${text}>${place + 1}</th>`)}</tr></thead>
      <tbody>${it.texts.map((text, row) => html`<tr key=${row}><th class="cut" scope="row" title=${text}>${row + 1}. ${short(text)}</th>${it.vectors.map((vector, place) => {
        const value = cosine(it.vectors[row], vector);
        return html`<td key=${place} style=${{ background: shade(value) }}>${value.toFixed(2)}</td>`;
      })}</tr>`)}</tbody></table></div></section>`;
}
