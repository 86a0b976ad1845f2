// The configuration in force and where each value comes from; a text checked as the file is; a reload's effects before it is done.
import { html, signal, useEffect, useState } from "../vendor/preact.js";
import { go, route, stored } from "../core/browser.js";
import { call, reloads } from "../core/server.js";
import { Bones, Empty, Icon, Notice, Search, Segments } from "../ui/parts.js";
import { ReloadDialog } from "./reload.js";
import { ConfigText, draft } from "./text.js";

const settings = signal(null);
const onlyGiven = stored("settings.given", false, sessionStorage);

export default function SettingsPage() {
  const [fault, setFault] = useState(null);
  const [isReloading, setReloading] = useState(false);
  useEffect(() => {
    call("GET", "/v1/admin/settings").then((it) => { settings.value = it; setFault(null); }, (error) => setFault(error.message));
  }, [reloads.value]);
  const it = settings.value;
  const view = route.value[1] === "file" ? "file" : "values";
  return html`<div class="page">
    <header class="page-head"><h1>Settings</h1>
      <${Segments} label="View" options=${[["values", "Current"], ["file", "Configuration file"]]} value=${view} onChange=${(value) => go("settings", value)} />
      ${it?.reload && html`<button class="button" onClick=${() => setReloading(true)}><${Icon} name="retry" />Reload…</button>`}</header>
    ${fault && html`<${Notice} kind="bad" icon="alert">${fault}</${Notice}>`}
    ${it === null ? !fault && html`<div class="card"><${Bones} rows="8" /></div>` : view === "file" ? html`<${ConfigText} settings=${it} />` : html`<${Values} settings=${it} />`}
    ${isReloading && html`<${ReloadDialog} hasDraft=${draft.value !== null} onClose=${() => setReloading(false)} />`}
  </div>`;
}

function Values({ settings: { options, file } }) {
  const [text, setText] = useState("");
  const words = text.toLowerCase();
  const found = options.filter((one) => (!onlyGiven.value || one.source !== "default") && (!words || `${one.option} ${one.description} ${shown(one.value)}`.toLowerCase().includes(words)));
  const given = options.filter((one) => one.source !== "default").length;
  return html`<p class="soft page-intro">${file ? html`Read from <code class="break">${file}</code>; ${given} of ${options.length} options are not at their default.` : "This server was started without a configuration file."}</p>
    <div class="toolbar"><${Search} label="Search options" value=${text} onInput=${setText} />
      <label class="check"><input type="checkbox" checked=${onlyGiven.value} onChange=${(event) => { onlyGiven.value = event.target.checked; }} />Only what was set</label></div>
    ${sections(found).map(([name, list]) => html`<section class="section" key=${name} aria-label=${name}><h2>${name}<span class="count">${list.length}</span></h2>
      <div class="card">${list.map((one) => html`<${Option} key=${one.option} option=${one} />`)}</div></section>`)}
    ${!found.length && html`<${Empty} icon="search" title="No such option"><p>No option ${onlyGiven.value ? "that was set " : ""}has these words.</p></${Empty}>`}`;
}

/** By the part of the configuration that they stand in. */
function sections(options) {
  const groups = new Map();
  for (const option of options) {
    const parts = option.option.split(/[.[]/);
    const name = parts.length === 1 ? "general" : parts[0] === "engines" ? `engines.${parts[1]}` : parts[0];
    groups.set(name, [...(groups.get(name) ?? []), option]);
  }
  return [...groups];
}

function Option({ option }) {
  const { source, where } = option;
  return html`<div class=${`option ${source === "default" ? "" : "given"}`}><code>${option.option}</code><span class="value" title=${`Default: ${shown(option.default)}`}>${shown(option.value)}</span>
    <span class="small soft break">${source === "default" ? "default" : `${source}${where ? `: ${where}` : ""}`}</span>
    <span class="small faint" title="What a change of it takes">${{ live: "live", models: "reloads models", restart: "restart" }[option.effect] ?? option.effect}</span>
    ${option.description && html`<span class="description">${option.description}</span>`}</div>`;
}

const shown = (value) => (typeof value === "string" ? value || '""' : JSON.stringify(value) ?? "–");
