// How other programs reach this server, with its own address and key, and a button that tries it.
import { html, useState } from "../vendor/preact.js";
import { address, byId, key, me } from "../core/server.js";
import { Code, Copy, Icon, seconds } from "../ui/parts.js";
import { ModelPicker } from "../chat/picker.js";
import { talking } from "../chat/room.js";
import { CLIENTS } from "./clients.js";

export default function ConnectPage() {
  const [model, setModel] = useState(null);
  const [showsKey, setShowsKey] = useState(false);
  const chosen = model ?? me.value.default_model ?? talking.value[0] ?? "default";
  const shownKey = key.value && !showsKey ? "YOUR-KEY" : key.value ?? "";
  const place = { server: address, key: shownKey, model: chosen, context: byId.value.get(chosen)?.context_length };
  const clients = CLIENTS.filter((client) => me.value.apis.includes(client.api));
  return html`<div class="page">
    <header class="page-head"><h1>Connect</h1>
      ${key.value && html`<label class="check"><input type="checkbox" checked=${showsKey} onChange=${(event) => setShowsKey(event.target.checked)} />Show the key</label>`}
      <${ModelPicker} label="Model" value=${chosen} onPick=${setModel} isAtEnd /></header>
    <p class="soft page-intro">This server is <code>${address}</code>${me.value.keys ? "." : ", and needs no key: any text will do where a program insists on one."}</p>
    <div class="connect-grid">${clients.map((client) => html`<${Client} key=${client.name} client=${client} place=${place} />`)}</div>
  </div>`;
}

function Client({ client, place }) {
  const steps = client.steps(place);
  return html`<section class="card client" aria-label=${client.title}>
    <${Head} client=${client} place=${place} />
    <div class="card-body stack">
      <p class="soft">${client.intro}</p>
      ${steps.length > 0 && html`<dl class="settings-list">${steps.map((step) => (Array.isArray(step) ? html`<${Setting} key=${step[0]} name=${step[0]} value=${step[1]} />`
        : html`<div key=${step}><dt class="unseen">Step</dt><dd class="plain">${step}</dd></div>`))}</dl>`}
      ${client.code && html`<${Code} text=${client.code(place)} label=${client.codeName} />`}
    </div>
  </section>`;
}

function Setting({ name, value }) {
  return html`<div><dt>${name}</dt><dd><code class="break">${value}</code><${Copy} text=${value} label=${`Copy ${name}`} /></dd></div>`;
}

/** The title with a button that asks as the client would, from this page and with this page's key. */
function Head({ client, place }) {
  const [result, setResult] = useState(null);
  const isRunning = result?.state === "running";
  const run = async () => {
    setResult({ state: "running" });
    const began = performance.now();
    try {
      const words = await client.test(place);
      setResult({ state: "good", words, took: (performance.now() - began) / 1000 });
    } catch (error) {
      setResult({ state: "bad", words: error.message });
    }
  };
  return html`<div class="card-head"><h2>${client.title}</h2>
    <button class="button small" disabled=${isRunning} onClick=${run} aria-label=${`Test ${client.title}`}>${isRunning ? "Testing…" : "Test"}</button>
    <div class="tested" role="status">${result?.words && html`<p class=${`small ${result.state}`}><${Icon} name=${result.state === "good" ? "check" : "alert"} size="14" />
      <span class="break">${result.words}${result.took ? html` <span class="faint num">${seconds(result.took)}</span>` : null}</span></p>`}</div></div>`;
}
