// What the views of the playground share: a model of the right kind, one request at a time, and what is kept of the fields.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { stored } from "../core/browser.js";
import { byId, models, serverEvents } from "../core/server.js";
import { Empty, Icon, Notice } from "../ui/parts.js";
import { ModelPicker } from "../chat/picker.js";
import { talking, usable } from "../chat/room.js";

/** Models that write ("text"), embed ("embedding") or rank ("rerank"). */
export function ofKind(kind) {
  if (kind === "text") return usable.value;
  const isOfKind = (model) => Boolean(model.capabilities?.includes(kind)); // an upstream may tell nothing of its models: they are last
  return (models.value ?? []).filter((model) => isOfKind(model) || (model.remote && !model.capabilities?.length)).sort((a, b) => isOfKind(b) - isOfKind(a));
}

const last = { text: stored("playground.model", null), embedding: stored("playground.embedding", null), rerank: stored("playground.rerank", null) };

/** The model of a kind that was chosen last, while it is there; another of that kind where it isn't. */
export function chosenModel(kind) {
  const there = ofKind(kind), wished = last[kind].value;
  if (there.some((model) => model.id === wished)) return byId.value.get(wished);
  const first = kind === "text" ? byId.value.get(talking.value[0]) : there[0];
  return first ?? null;
}

export function ModelOf({ kind, isAtEnd = false }) {
  return html`<${ModelPicker} label="Model" value=${chosenModel(kind)?.id} list=${ofKind(kind)} isAtEnd=${isAtEnd} onPick=${(id) => { last[kind].value = id; }} />`;
}

export function NoModel({ kind }) {
  const words = { text: "No model yet", embedding: "No model that embeds", rerank: "No model that ranks" };
  const what = { text: "Models are added on the page Models.", embedding: "An encoder’s GGUF file or folder, such as all-MiniLM, gives vectors of texts.", rerank: "A cross-encoder’s GGUF file or folder, such as bge-reranker, ranks documents." };
  return html`<${Empty} icon="models" title=${words[kind]}><p>${what[kind]}</p></${Empty}>`;
}

/** One request at a time, which ends when the view is left: `run` gives it a signal to stop by. */
export function useRequest() {
  const [state, setState] = useState({ isRunning: false, error: null });
  const abort = useRef(null);
  useEffect(() => () => abort.current?.abort(), []);
  const run = async (work) => {
    abort.current?.abort();
    const mine = abort.current = new AbortController();
    setState({ isRunning: true, error: null });
    let error = null;
    try { await work(mine.signal); } catch (raised) { if (raised.name !== "AbortError") error = raised.message; }
    if (abort.current === mine) setState({ isRunning: false, error });
  };
  return { ...state, run, stop: () => abort.current?.abort() };
}

export function RunButton({ request, text = "Run", disabled = false }) {
  return request.isRunning
    ? html`<button type="button" class="button" onClick=${request.stop}><${Icon} name="stop" size="14" />Stop</button>`
    : html`<button class="button primary" disabled=${disabled} title="Ctrl+Enter"><${Icon} name="play" size="14" />${text}</button>`;
}

export const Failure = ({ request }) => request.error && html`<${Notice} kind="bad" icon="alert">${request.error}</${Notice}>`;

/** A form that Ctrl+Enter sends from any of its fields. */
export function Form({ label, onRun, children }) {
  const submit = (event) => { event.preventDefault(); onRun(); };
  const onKeyDown = (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event); };
  return html`<form class="stack" aria-label=${label} onSubmit=${submit} onKeyDown=${onKeyDown}>${children}</form>`;
}

export function Text({ label, value, onInput, rows = 6, mono = false, hint = null, ...rest }) {
  return html`<label class="field"><span class="label">${label}</span><textarea class=${`input ${mono ? "mono" : ""}`} rows=${rows} spellcheck="false" value=${value}
    onInput=${(event) => onInput(event.target.value)} ...${rest} />${hint && html`<span class="hint">${hint}</span>`}</label>`;
}

/** The JSON of each event of a streamed answer. Raises Error for one that says so. */
export async function* chunks(response) {
  for await (const { data } of serverEvents(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message ?? String(chunk.error));
    yield chunk;
  }
}
