// A model more: from the hub by its name, or a file from this computer.
import { html, useRef } from "../vendor/preact.js";
import { me } from "../core/server.js";
import { Dialog, Icon, Notice, bytes, count, later } from "../ui/parts.js";
import { fitWords } from "./sorting.js";
import { upload } from "./transfers.js";

const HubSearch = later(() => import("./hub.js"));

/** owner/name of what people paste: with hf: before it, a quantization behind it, or as the hub's address. */
export function repositoryOf(text) {
  const found = /^(?:hf:|https?:\/\/[^/]+\/)?([\w.-]+\/[\w.-]+?)(?::([\w.-]+))?\/?(?:\/tree\/.*)?$/.exec(text.trim());
  return found ? { repository: found[1], quantization: found[2] ?? null } : null;
}

export function AddDialog({ onClose }) {
  const chooser = useRef(null);
  const choose = (event) => { [...event.target.files].forEach(upload); if (event.target.files.length) onClose(); };
  return html`<${Dialog} title="Add a model" wide onClose=${onClose}>
    ${me.value.downloads ? html`<${HubSearch} onClose=${onClose} />` : html`<${Notice}>Nothing can be downloaded: name a folder for it in the configuration (<code>hub.folder</code>, or <code>model_dirs</code>).</${Notice}>`}
    ${me.value.uploads && html`<div class="row wrap"><input ref=${chooser} type="file" accept=".gguf" multiple hidden onChange=${choose} aria-label="GGUF files" />
      <button class="button" onClick=${() => chooser.current.click()}><${Icon} name="up" />A GGUF file from this computer</button><span class="hint">or drag it onto the page</span></div>`}
  </${Dialog}>`;
}

export function Quantizations({ answer, wanted, onPick }) {
  const list = answer.quantizations;
  if (!list.length) return html`<p class="soft">Nothing in it can be loaded.</p>`;
  const ordered = [...list].sort((a, b) => (b.name === wanted) - (a.name === wanted) || a.bytes - b.bytes);
  return html`<div><p class="small soft num">${answer.repository}: ${count(list.length)} to choose from</p>
    <div class="frame scrolls" role="list" aria-label="Quantizations" tabindex="0">${ordered.map((one) => html`<${Quantization} key=${one.model} it=${one} onPick=${onPick} />`)}</div></div>`;
}

function Quantization({ it, onPick }) {
  const [words, kind] = fitWords(it.fit);
  const needs = it.fit.needs ? `${bytes(it.fit.needs)}${it.fit.device ? ` of ${it.fit.device}` : ""}${it.fit.estimate === "size" ? ", by its size" : ""}` : "";
  return html`<div class="quant" role="listitem"><strong class="break">${it.name ?? "all of it"}</strong><span class="num soft">${bytes(it.bytes)}</span>
    <span class="small"><span class=${kind}>${words}</span>${needs && html` <span class="faint num">${needs}</span>`}</span>
    ${it.here ? html`<span class="tag">here</span>` : html`<button class="button small" aria-label=${`Download ${it.name ?? it.model}`} onClick=${() => onPick(it.model)}><${Icon} name="download" size="14" />Download</button>`}</div>`;
}
