// The hub by words: what it lists with likes, sizes and whether it fits; a name or an address opens its repository.
import { html, useEffect, useState } from "../vendor/preact.js";
import { stored } from "../core/browser.js";
import { call } from "../core/server.js";
import { Bones, Icon, Notice, Search, Segments, bytes, count, sayError, tokens } from "../ui/parts.js";
import { sheet } from "../ui/sheet.js";
import { fitWords, speedWords } from "./sorting.js";

await sheet("hub.css", import.meta.url);

const FORMATS = [["gguf", "GGUF"], ["safetensors", "safetensors"], ["exl3", "EXL3"], ["exl2", "EXL2"]];
const SORTINGS = [["", "Popular"], ["downloads", "Downloads"], ["likes", "Likes"], ["trending", "Trending"], ["new", "Newest"]];
const PAUSE = 300; // milliseconds: words are asked for once nobody types
const format = stored("hub.format", "gguf", sessionStorage);
const sorting = stored("hub.sort", "", sessionStorage);

/** owner/name of what people paste: with hf: before it, a quantization behind it, or as the hub's address. */
export function repositoryOf(text) {
  const found = /^(?:hf:|https?:\/\/[^/]+\/)?([\w.-]+\/[\w.-]+?)(?::([\w.-]+))?\/?(?:\/tree\/.*)?$/.exec(text.trim());
  return found ? { repository: found[1], quantization: found[2] ?? null } : null;
}

export default function HubSearch({ onClose }) {
  const [text, setText] = useState("");
  const [open, setOpen] = useState(null); // the repository that is looked into
  const asked = repositoryOf(text);
  const submit = (event) => { event.preventDefault(); if (asked) setOpen(asked); };
  const change = (value) => { setText(value); setOpen(null); };
  if (open) return html`<${Repository} asked=${open} onBack=${() => setOpen(null)} onClose=${onClose} />`;
  return html`<form class="stack" onSubmit=${submit}>
      <div class="row"><${Search} label="Search the hub" value=${text} onInput=${change} autofocus spellcheck="false" />
        ${asked && html`<button class="button primary">Look</button>`}</div>
      <div class="row wrap"><${Segments} label="Format" options=${FORMATS} value=${format.value} onChange=${(value) => { format.value = value; }} />
        <label class="row"><span class="label">Order</span><select class="input" value=${sorting.value} onChange=${(event) => { sorting.value = event.target.value; }}>
          ${SORTINGS.map(([value, name]) => html`<option key=${value} value=${value}>${name}</option>`)}</select></label></div>
    </form>
    ${asked ? html`<p class="soft">${asked.repository} is the name of a repository.</p>` : html`<${Results} words=${text.trim()} onOpen=${(repository) => setOpen({ repository, quantization: null })} />`}`;
}

function Results({ words, onOpen }) {
  const [state, setState] = useState({ models: null, fault: null, isOld: true });
  useEffect(() => {
    const stop = new AbortController();
    setState((it) => ({ ...it, isOld: true }));
    const query = new URLSearchParams({ words, format: format.value, sort: sorting.value });
    const ask = () => call("GET", `/v1/admin/hub/search?${query}`, undefined, { signal: stop.signal }).then(
      ({ models }) => setState({ models, fault: null, isOld: false }),
      (error) => { if (error.name !== "AbortError") setState({ models: null, fault: error.message, isOld: false }); },
    );
    const timer = setTimeout(ask, words ? PAUSE : 0);
    return () => { clearTimeout(timer); stop.abort(); };
  }, [words, format.value, sorting.value]);
  if (state.fault) return html`<${Notice} kind="bad" icon="alert">${state.fault}</${Notice}>`;
  if (!state.models) return html`<div class="frame"><${Bones} rows="5" height="52" /></div>`;
  if (!state.models.length) return html`<p class="soft">${words ? "The hub has no such model in this format." : "The hub lists nothing that fits this machine."}</p>`;
  return html`<div aria-busy=${state.isOld}><p class="small soft">${words ? `${count(state.models.length)} found` : "What many take now, and this machine can hold"}</p>
    <ul class="frame scrolls hub-results" aria-label="Models on the hub" tabindex="0">${state.models.map((one) => html`<li key=${one.repository}><${Found} it=${one} onOpen=${onOpen} /></li>`)}</ul></div>`;
}

function Found({ it, onOpen }) {
  const [fit, kind] = it.fit ? fitWords(it.fit) : ["size not known", ""];
  const facts = [it.parameters && `${billions(it.parameters)} parameters`, it.architecture, it.context_length && `${tokens(it.context_length)} context`, it.license, it.changed];
  return html`<button class="hub-model" onClick=${() => onOpen(it.repository)} title=${it.fit?.why ?? ""}>
    <span class="hub-name break">${it.repository}${it.gated && html` <span class="tag warn" title="Its terms are to be accepted on the hub first">gated</span>`}</span>
    <span class="hub-facts small soft">${facts.filter(Boolean).join(" · ")}</span>
    <span class="hub-size num">${it.size ? html`${it.format === "gguf" ? "Q4_K_M about " : "about "}${bytes(it.size)}` : ""}</span>
    <span class=${`hub-fit small ${kind}`}>${fit}</span>
    <span class="hub-likes small faint num">♥ ${short(it.likes)} · ↓ ${short(it.downloads)}</span></button>`;
}

const billions = (value) => (value >= 1e9 ? `${(value / 1e9).toFixed(value >= 1e10 ? 0 : 1)} B` : `${Math.round(value / 1e6)} M`);
const short = (value) => (value >= 1e6 ? `${(value / 1e6).toFixed(1)}M` : value >= 1e3 ? `${(value / 1e3).toFixed(value >= 1e4 ? 0 : 1)}k` : String(value));

function Repository({ asked, onBack, onClose }) {
  const [state, setState] = useState({ answer: null, fault: null });
  useEffect(() => {
    call("GET", `/v1/admin/hub/files?repository=${encodeURIComponent(asked.repository)}`).then(
      (answer) => setState({ answer, fault: null }), (error) => setState({ answer: null, fault: error.message }),
    );
  }, [asked.repository]);
  const fetchIt = async (model) => {
    try {
      await call("POST", "/v1/admin/downloads", { model });
      onClose();
    } catch (error) { sayError(error); }
  };
  return html`<div class="stack"><div class="row"><button class="button quiet small" onClick=${onBack}><${Icon} name="left" size="14" />Back</button><b class="break">${asked.repository}</b></div>
    ${state.fault && html`<${Notice} kind="bad" icon="alert">${state.fault}</${Notice}>`}
    ${!state.answer && !state.fault && html`<div class="frame"><${Bones} rows="4" height="42" /></div>`}
    ${state.answer && html`<${Quantizations} answer=${state.answer} wanted=${asked.quantization} onPick=${fetchIt} />`}</div>`;
}

function Quantizations({ answer, wanted, onPick }) {
  const list = answer.quantizations;
  if (!list.length) return html`<p class="soft">Nothing in it can be loaded.</p>`;
  const ordered = [...list].sort((a, b) => (b.name === wanted) - (a.name === wanted) || a.bytes - b.bytes);
  return html`<div><p class="small soft num">${answer.repository}: ${count(list.length)} to choose from</p>
    <div class="frame scrolls" role="list" aria-label="Quantizations" tabindex="0">${ordered.map((one) => html`<${Quantization} key=${one.model} it=${one} onPick=${onPick} />`)}</div></div>`;
}

function Quantization({ it, onPick }) {
  const [words, kind] = fitWords(it.fit);
  const needs = it.fit.needs ? `${bytes(it.fit.needs)}${it.fit.device ? ` of ${it.fit.device}` : ""}${it.fit.estimate === "size" ? ", by its size" : ""}` : "", speed = speedWords(it.fit);
  return html`<div class="quant" role="listitem"><strong class="break">${it.name ?? "all of it"}</strong><span class="num soft">${bytes(it.bytes)}</span>
    <span class="small"><span class=${kind}>${words}</span>${needs && html` <span class="faint num">${needs}${speed && ` · ${speed}`}</span>`}</span>
    ${it.here ? html`<span class="tag">here</span>` : html`<button class="button small" aria-label=${`Download ${it.name ?? it.model}`} onClick=${() => onPick(it.model)}><${Icon} name="download" size="14" />Download</button>`}</div>`;
}
