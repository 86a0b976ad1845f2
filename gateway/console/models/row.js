// One model in the list, and what unfolds below it.
import { html, useState } from "../vendor/preact.js";
import { call, gauges, isAdmin, learn } from "../core/server.js";
import { Dot, Menu, Progress, bytes, clock, count, later, seconds, tokens, trying } from "../ui/parts.js";
import { beginWith } from "../chat/room.js";
import { DuplicateDialog, LoadDialog } from "./options.js";
import { doing, fitWords, reasonOf } from "./sorting.js";

const Makers = later(() => import("./details.js"));

export function RowHead() {
  // The classes hide on narrow screens what the rows hide there.
  const columns = [["Model", ""], ["Engine", "engine"], ["Context", "context"], ["Size", "size"], ["Memory", "costs"], ["State", ""], ["", ""]];
  return html`<div class="model model-head" role="row">${columns.map(([name, kind]) => html`<span key=${name} class=${kind} role="columnheader">${name || html`<span class="unseen">Actions</span>`}</span>`)}</div>`;
}

/** `isExplained`: why it failed is said above it. */
export function ModelRow({ model, isExplained = false }) {
  const [isOpen, setOpen] = useState(false);
  const [dialog, setDialog] = useState(null);
  return html`<div class="model-frame" role="rowgroup">
    <div class="model" role="row">
      <div class="model-name" role="cell"><${Dot} state=${model.state} words=${model.state} /><div class="grow">
        <button class="name" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>${model.id}</button>
        <div class="model-tags"><${Tags} model=${model} /></div></div></div>
      <div class="engine soft" role="cell"><div class="cut">${model.remote ? "remote" : model.backend ?? "–"}</div><div class="faint small cut" title=${model.library ?? ""}>${[model.format, model.library?.split(":")[0]].filter(Boolean).join(", ")}</div></div>
      <div class="context num soft" role="cell">${tokens(model.context_length)}</div>
      <div class="size num soft" role="cell">${bytes(model.size_bytes)}</div>
      <div class="costs num" role="cell">${Object.entries((!model.same_as && model.cost) || {}).map(([device, cost]) => html`<span key=${device}><span>${device}</span><span>${bytes(cost)}</span></span>`)}</div>
      <div class="model-doing" role="cell">${!isExplained && html`<${Doing} model=${model} />`}</div>
      <div class="model-actions" role="cell"><${Actions} model=${model} onDialog=${setDialog} /></div>
    </div>
    ${isOpen && html`<${Details} model=${model} />`}
    ${dialog === "load" && html`<${LoadDialog} model=${model} onClose=${() => setDialog(null)} />`}
    ${dialog === "duplicate" && html`<${DuplicateDialog} model=${model} onClose=${() => setDialog(null)} />`}
  </div>`;
}

function Tags({ model }) {
  const tags = [
    model.default && "default", model.pinned && "pinned", model.copy_of && `from ${model.copy_of}`, model.same_as && `same as ${model.same_as}`,
    ...(model.capabilities ?? []), model.modalities.includes("image") && !model.capabilities?.includes("vision") && "vision",
  ];
  return tags.filter(Boolean).map((tag) => html`<span class=${`tag ${tag === "default" || tag === "pinned" ? "accent" : ""}`} key=${tag}>${tag}</span>`);
}

function Doing({ model }) {
  const words = doing(model, gauges.value?.time);
  if (model.state === "loading") {
    return html`<${Progress} done=${model.progress?.done ?? 0} total=${model.progress?.total ?? 0} label=${`Loading ${model.id}`} /><span class="num">${words}</span>`;
  }
  if (words) return html`<span class="num">${words}</span>`;
  if (model.state === "failed") return html`<span class="bad" title=${model.why_failed}>${reasonOf(model)}</span>`;
  const [fit, kind] = fitWords(model.fit);
  return html`<span class=${kind === "good" ? "" : kind} title=${model.fit?.why ?? model.memory ?? ""}>${fit}</span>`;
}

const act = (name, body) => () => trying(async () => { learn(await call("POST", `/v1/admin/models/${name}`, body)); });

function Actions({ model, onDialog }) {
  const chat = () => beginWith(model.id);
  if (!isAdmin.value) return model.state === "failed" ? null : html`<button class="button small" onClick=${chat}>Chat</button>`;
  if (model.remote) return html`<button class="button small" onClick=${chat}>Chat</button>`;
  const isThere = model.state !== "unloaded" && model.state !== "failed";
  const cannot = model.backend === null;
  const items = [
    { icon: "chat", text: "Chat with it", act: chat, disabled: cannot },
    !isThere && { icon: "load", text: "Load with options…", act: () => onDialog("load"), disabled: cannot },
    isThere && { icon: "eject", text: "Unload at once", why: "Running answers are cut off", act: act("unload", { model: model.id, force: true }) },
    { icon: "pin", text: model.pinned ? "Unpin" : "Pin", act: act("pin", { model: model.id, pinned: !model.pinned }), disabled: cannot },
    { icon: "copy", text: "Duplicate…", act: () => onDialog("duplicate"), disabled: cannot },
    model.copy_of && null,
    model.copy_of && { icon: "trash", text: "Remove from the list", danger: true, act: () => trying(() => call("POST", "/v1/admin/models/remove", { model: model.id })) },
  ].filter((item) => item !== false && item !== undefined && item !== "" && !(item === null && !model.copy_of));
  return html`${isThere ? html`<button class="button small" aria-label=${`Unload ${model.id}`} disabled=${model.state === "draining"} onClick=${act("unload", { model: model.id, force: false })}>${model.state === "loading" ? "Stop" : "Unload"}</button>`
    : html`<button class="button small" aria-label=${`Load ${model.id}`} disabled=${cannot || model.fit?.verdict === "too_large"} onClick=${act("load", { model: model.id, options: {} })}>Load</button>`}
    <${Menu} label=${`Actions for ${model.id}`} items=${items} />`;
}

function Details({ model }) {
  const { parts } = model;
  const facts = [
    ["File", model.file], ["Other names", model.aliases.join(", ")], ["Architecture", model.architecture], ["Computed by", model.library], ["Context", model.context_length && `${count(model.context_length)} tokens`],
    ["Parallel requests", model.slots], ["Idle time", model.ttl < 0 ? "never unloaded" : seconds(model.ttl)],
    ["Loaded at", model.loaded_at && clock(model.loaded_at)], ["Load time", model.load_seconds && seconds(model.load_seconds)],
  ];
  const memory = [
    ["Weights", parts && bytes(parts.weights)], ["Cache", parts && bytes(parts.cache)], ["Projector", parts?.projector ? bytes(parts.projector) : null],
    ["Engine", parts && bytes(parts.engine)], ["Memory known by", model.cost && (model.measured ? "an earlier load" : "an estimate")],
  ];
  return html`<div role="row"><div class="model-details" role="cell"><${Facts} facts=${facts} /><div><${Facts} facts=${memory} />${model.memory && html`<p class="small faint break">${model.memory}</p>`}</div><${Makers} model=${model} /></div></div>`;
}

function Facts({ facts }) {
  return html`<dl class="facts-list">${facts.filter(([, value]) => value).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

