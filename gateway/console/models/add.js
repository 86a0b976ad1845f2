// A model more: from the hub by its name, a file from this computer, or a path on the server's disk.
import { html, useRef, useState } from "../vendor/preact.js";
import { call, learn, me } from "../core/server.js";
import { Dialog, Field, Icon, Notice, later } from "../ui/parts.js";
import { Added } from "./options.js";
import { upload } from "./transfers.js";

const HubSearch = later(() => import("./hub.js"));

export function AddDialog({ onClose }) {
  const chooser = useRef(null);
  const choose = (event) => { [...event.target.files].forEach(upload); if (event.target.files.length) onClose(); };
  const [made, setMade] = useState(null);
  if (made) return html`<${Added} made=${made} onClose=${onClose} />`;
  return html`<${Dialog} title="Add a model" wide onClose=${onClose}>
    ${me.value.downloads ? html`<${HubSearch} onClose=${onClose} />` : html`<${Notice}>Nothing can be downloaded: name a folder for it in the configuration (<code>hub.folder</code>, or <code>model_dirs</code>).</${Notice}>`}
    ${me.value.uploads && html`<div class="row wrap"><input ref=${chooser} type="file" accept=".gguf" multiple hidden onChange=${choose} aria-label="GGUF files" />
      <button class="button" onClick=${() => chooser.current.click()}><${Icon} name="up" />A GGUF file from this computer</button><span class="hint">or drag it onto the page</span></div>`}
    ${me.value.paths.length > 0 && html`<${ByPath} onMade=${setMade} />`}
  </${Dialog}>`;
}

/** A file or folder where the server runs, below one of the folders that its configuration allows. */
function ByPath({ onMade }) {
  const [path, setPath] = useState(`${me.value.paths[0].replace(/\/$/, "")}/`);
  const [fault, setFault] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try {
      const made = await call("POST", "/v1/admin/models/add", { path: path.trim() });
      learn(made.model);
      onMade(made);
    } catch (error) { setFault(error.message); }
  };
  return html`<form class="stack" onSubmit=${submit}><${Field} label="Path on the server" hint=${`A GGUF file or a model's folder below ${me.value.paths.join(" or ")}`}>
      <div class="row"><input class="input grow mono" value=${path} onInput=${(event) => { setPath(event.target.value); setFault(null); }} /><button class="button" disabled=${!path.trim()}>Add</button></div></${Field}>
    ${fault && html`<${Notice} kind="bad" icon="alert">${fault}</${Notice}>`}</form>`;
}
