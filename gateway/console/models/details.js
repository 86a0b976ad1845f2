// What is known of a model beside its state: what its makers wrote, its template, its files; and what to do where it failed.
import { html, useEffect, useState } from "../vendor/preact.js";
import { call, isAdmin, me } from "../core/server.js";
import { Bones, Copy, Dialog, Icon, Notice, bytes, count, say, trying } from "../ui/parts.js";
import { sheet } from "../ui/sheet.js";

await sheet("details.css", import.meta.url);

export default function Makers({ model }) {
  const [state, setState] = useState({ found: null, fault: null });
  useEffect(() => {
    call("GET", `/v1/admin/models/details?model=${encodeURIComponent(model.id)}`).then(
      (found) => setState({ found, fault: null }), (error) => setState({ found: null, fault: error.message }),
    );
  }, [model.id, model.state]);
  if (state.fault) return html`<${Notice} kind="bad" icon="alert">${state.fault}</${Notice}>`;
  return state.found ? html`<${Known} it=${state.found} model=${model} />` : html`<${Bones} rows="3" height="26" />`;
}

function Known({ it, model }) {
  const facts = [
    ["Licence", it.license], ["From the hub", it.repository], ["Trained context", it.trained_context && `${count(it.trained_context)} tokens`],
    ["Layers", it.layers], ["Vocabulary", it.vocabulary && `${count(it.vocabulary)} tokens`],
    ...Object.entries(it.described).map(([name, value]) => [name.replaceAll(/[._]/g, " "), value]),
  ];
  const sampling = Object.entries(it.sampling);
  return html`<section class="makers" aria-label=${`About ${model.id}`}>
    ${model.state === "failed" && html`<${Remedies} it=${it} model=${model} />`}
    <dl class="facts-list makers-facts">${facts.filter(([, value]) => value).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${it.template && html`<p class="row wrap"><span class="soft">${sampling.length > 0 ? "It recommends" : "Nothing is recommended: defaults"}</span>${sampling.map(([name, value]) => html`<span class="tag mono" key=${name}>${name} ${JSON.stringify(value)}</span>`)}</p>`}
    ${it.split && html`<p class="small soft">Its answers are split as <code>${it.split.format}</code>: ${it.split.why}</p>`}
    ${it.template && html`<details class="template"><summary>Chat template<span class="faint"> ${count(it.template.length)} characters</span></summary>
      <div class="code"><pre tabindex="0" aria-label="Chat template">${it.template}</pre><${Copy} text=${it.template} label="Copy the template" /></div></details>`}
    ${it.files.length > 0 && html`<p class="small soft break">${it.files.map((file) => `${file.name} (${bytes(file.bytes)})`).join(", ")}${it.folder && html` in <code>${it.folder}</code>`}</p>`}
    ${isAdmin.value && model.state !== "failed" && it.files.length > 0 && html`<${DeleteFiles} it=${it} model=${model} />`}
  </section>`;
}

/** What can be done about a model that can't be used. */
function Remedies({ it, model }) {
  const [isAsking, setAsking] = useState(false);
  const again = async () => {
    await call("DELETE", `/v1/admin/models?model=${encodeURIComponent(model.id)}`);
    await call("POST", "/v1/admin/downloads", { model: it.download });
    say(`${it.download} is being downloaded again.`);
  };
  return html`<${Notice} kind="bad" icon="alert"><p class="break">${model.why_failed}</p>
    ${isAdmin.value && html`<div class="row wrap remedies">
      ${it.download && me.value.downloads && html`<button class="button small" disabled=${!it.deletable} title=${it.why_not ?? ""} onClick=${() => setAsking(true)}><${Icon} name="download" size="14" />Download again…</button>`}
      <${DeleteFiles} it=${it} model=${model} /></div>`}
    ${isAsking && html`<${Sure} title=${`Download ${it.download} again`} files=${it.files} verb="Delete and download" act=${again} onClose=${() => setAsking(false)} />`}</${Notice}>`;
}

function DeleteFiles({ it, model }) {
  const [isAsking, setAsking] = useState(false);
  const remove = async () => {
    await call("DELETE", `/v1/admin/models?model=${encodeURIComponent(model.id)}`);
    say(`${model.id} is deleted.`);
  };
  return html`<div class="row wrap"><button class="button small danger" disabled=${!it.deletable} onClick=${() => setAsking(true)}><${Icon} name="trash" size="14" />Delete files…</button>
    ${!it.deletable && it.why_not && html`<span class="small faint">${it.why_not}</span>`}
    ${isAsking && html`<${Sure} title=${`Delete ${model.id}`} files=${it.files} verb="Delete" act=${remove} onClose=${() => setAsking(false)} />`}</div>`;
}

function Sure({ title, files, verb, act, onClose }) {
  const [isBusy, setBusy] = useState(false);
  const go = async () => { setBusy(true); await trying(act); onClose(); };
  return html`<${Dialog} title=${title} onClose=${onClose} foot=${html`<button class="button" onClick=${onClose}>Cancel</button><button class="button primary" disabled=${isBusy} onClick=${go}>${verb}</button>`}>
    <p>These files are deleted from the server’s disk, and can’t be brought back:</p>
    <ul class="break">${files.map((file) => html`<li key=${file.name}><code>${file.name}</code> <span class="soft num">${bytes(file.bytes)}</span></li>`)}</ul></${Dialog}>`;
}
