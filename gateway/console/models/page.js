// Every model: what it is, what it costs where, what it does now, and what can be done with it.
import { computed, html, useRef, useState } from "../vendor/preact.js";
import { stored } from "../core/browser.js";
import { downloads, isAdmin, me, models } from "../core/server.js";
import { Empty, Icon, Search, Segments, later } from "../ui/parts.js";
import { matching } from "../chat/picker.js";
import { AddDialog } from "./add.js";
import { ModelRow, RowHead } from "./row.js";
import { VIEWS, failedGroups, parted } from "./sorting.js";
import { Transfers, upload, uploads } from "./transfers.js";

const HubSearch = later(() => import("./hub.js"));
const view = stored("models.view", "all", sessionStorage);
const shown = computed(() => models.value.filter(VIEWS[view.value] ?? VIEWS.all));
const AT_FIRST = 150; // rows; more are drawn when asked for

export default function ModelsPage() {
  const [text, setText] = useState("");
  const [isAdding, setAdding] = useState(false);
  const [isOver, drop] = useDrop();
  const canUpload = isAdmin.value && me.value.uploads;
  return html`<div class="page" ...${canUpload ? drop : {}}>
    <header class="page-head"><h1>Models<span class="sub">${summary()}</span></h1>
      ${isAdmin.value && html`<button class="button primary" onClick=${() => setAdding(true)}><${Icon} name="plus" />Add a model</button>`}</header>
    ${isAdmin.value && (downloads.value.length > 0 || uploads.value.length > 0) && html`<${Transfers} />`}
    <${Content} text=${text} setText=${setText} onAdd=${() => setAdding(true)} />
    ${isAdding && html`<${AddDialog} onClose=${() => setAdding(false)} />`}
    ${isOver && html`<div class="dropping">Drop a GGUF file to add it</div>`}
  </div>`;
}

/** Files that are dragged over the page. */
function useDrop() {
  const [isOver, setOver] = useState(false);
  const depth = useRef(0); // enters without a leave: children count, too
  const end = () => { depth.current = 0; setOver(false); };
  return [isOver, {
    onDragEnter: (event) => { if (event.dataTransfer.types.includes("Files")) { depth.current += 1; setOver(true); } },
    onDragLeave: () => { depth.current -= 1; if (depth.current <= 0) end(); },
    onDragOver: (event) => { if (event.dataTransfer.types.includes("Files")) event.preventDefault(); },
    onDrop: (event) => { event.preventDefault(); end(); [...event.dataTransfer.files].forEach(upload); },
  }];
}

function summary() {
  const { present } = parted(models.value);
  return `${models.value.length}, ${present.length} in memory`;
}

function Content({ text, setText, onAdd }) {
  if (!models.value.length) return html`<${NoModels} onAdd=${onAdd} />`;
  const { present, absent } = parted(matching(shown.value, text));
  const views = [["all", "All"], ["memory", "In memory"], ["fits", "Fits"], ["failed", "Failed"]];
  return html`<div class="toolbar"><${Search} label="Search models" value=${text} onInput=${setText} />
      <${Segments} label="Which models" options=${views} value=${view.value} onChange=${(value) => { view.value = value; }} /></div>
    <${Section} title="In memory" list=${present} />
    <${Section} title=${present.length || view.value !== "all" ? "Not loaded" : "Models"} list=${absent.filter((model) => model.state !== "failed")} />
    <${Failed} list=${absent.filter((model) => model.state === "failed")} />
    ${!present.length && !absent.length && html`<${Empty} icon="search" title="No such model"><p>None of the ${models.value.length} models is like that.</p>
      <div class="row"><button class="button" onClick=${() => { setText(""); view.value = "all"; }}>Show all</button></div></${Empty}>`}`;
}

function Section({ title, list }) {
  const [most, setMost] = useState(AT_FIRST);
  if (!list.length) return null;
  return html`<section class="section" aria-label=${title}><h2>${title}<span class="count">${list.length}</span></h2>
    <div class="card" role="table" aria-label=${title}><${RowHead} />${list.slice(0, most).map((model) => html`<${ModelRow} key=${model.id} model=${model} />`)}</div>
    ${list.length > most && html`<div class="row"><button class="button quiet" onClick=${() => setMost(most + AT_FIRST)}>Show ${Math.min(AT_FIRST, list.length - most)} more</button></div>`}</section>`;
}

/** What failed, by its reason, so that twenty broken downloads are one line. */
function Failed({ list }) {
  if (!list.length) return null;
  return html`<section class="section" aria-label="Failed"><h2>Failed<span class="count">${list.length}</span></h2>
    ${failedGroups(list).map(([reason, models]) => html`<div class="card failed-group" key=${reason}>
      ${models.length > 1 && html`<div class="card-head"><span class="bad break">${reason}</span><span class="count soft">${models.length} models</span></div>`}
      <div role="table" aria-label=${reason}>${models.slice(0, AT_FIRST).map((model) => html`<${ModelRow} key=${model.id} model=${model} isExplained=${models.length > 1} />`)}</div></div>`)}</section>`;
}

function NoModels({ onAdd }) {
  if (!isAdmin.value) return html`<${Empty} icon="models" title="No models"><p>No available model can be used with this key.</p></${Empty}>`;
  return html`<${Empty} icon="models" title="No models yet">
    <p>Drag a GGUF file onto this page, type the name of one on the hub, or name a folder under <code>model_dirs</code> in the configuration.</p>
    <div class="row"><button class="button primary" onClick=${onAdd}><${Icon} name="plus" />Add a model</button></div></${Empty}>
    ${me.value.downloads && html`<section class="card suggestions" aria-label="From the hub"><div class="card-head"><h2>From the hub</h2></div><div class="card-body stack"><${HubSearch} onClose=${() => {}} /></div></section>`}`;
}
