// Documents in the order of how well they answer a question, by a cross-encoder.
import { html, signal } from "../vendor/preact.js";
import { stored } from "../core/browser.js";
import { call } from "../core/server.js";
import { Field } from "../ui/parts.js";
import { Failure, Form, ModelOf, NoModel, RunButton, Text, chosenModel, useRequest } from "./trying.js";

const MOST = 100; // documents
const fields = stored("playground.rerank.texts", { query: "How does a heat pump work?", documents: "A heat pump moves heat from a cold place to a warm one.\nThe pump of the well is broken.\nHeat waves are more frequent now." });
const ranked = signal(null); // [{text, score}]

const set = (more) => { fields.value = { ...fields.value, ...more }; };
const lines = () => fields.value.documents.split("\n").map((line) => line.trim()).filter(Boolean);

export default function Rerank() {
  const request = useRequest();
  if (!chosenModel("rerank")) return html`<${NoModel} kind="rerank" />`;
  const number = lines().length;
  return html`<${Form} label="Rerank" onRun=${() => request.run(rank)}>
      <${Field} label="Question"><input class="input" value=${fields.value.query} onInput=${(event) => set({ query: event.target.value })} /></${Field}>
      <${Text} label="Documents, one in a line" rows="7" value=${fields.value.documents} onInput=${(text) => set({ documents: text })} hint=${number > MOST ? `The first ${MOST} of ${number} are ranked.` : null} />
      <div class="row wrap"><${ModelOf} kind="rerank" /><span class="grow" /><${RunButton} request=${request} text="Rank" disabled=${!fields.value.query.trim() || !number} /></div></${Form}>
    <${Failure} request=${request} />${ranked.value && html`<${Ranking} list=${ranked.value} />`}`;
}

async function rank(signal) {
  const documents = lines().slice(0, MOST);
  const { results } = await call("POST", "/v1/rerank", { model: chosenModel("rerank").id, query: fields.value.query, documents }, { signal });
  ranked.value = results.map(({ index, relevance_score: score }) => ({ index, text: documents[index], score }));
}

function Ranking({ list }) {
  const most = Math.max(...list.map((one) => one.score)), least = Math.min(0, ...list.map((one) => one.score));
  const share = (score) => (most > least ? (100 * (score - least)) / (most - least) : 100);
  return html`<section class="card" aria-label="Ranking"><div class="card-head"><h2>Ranking</h2></div>
    <ol>${list.map(({ index, text, score }, place) => html`<li class="ranked" key=${index}><span class="faint num">${place + 1}.</span><p>${text}</p>
      <div class="progress" aria-hidden="true"><div style=${{ width: `${share(score)}%` }} /></div><span class="number">${score.toFixed(3)}</span></li>`)}</ol></section>`;
}
