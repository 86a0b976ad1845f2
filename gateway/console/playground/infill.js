// What stands between two texts, by models that were trained for it.
import { html, signal } from "../vendor/preact.js";
import { stored } from "../core/browser.js";
import { me, send } from "../core/server.js";
import { Copy, Field, Notice } from "../ui/parts.js";
import { Failure, Form, ModelOf, NoModel, RunButton, Text, chosenModel, chunks, useRequest } from "./trying.js";

const fields = stored("playground.infill", { before: "def fibonacci(n):\n    ", after: "\n    return a\n", most: 64 });
const middle = signal(null); // {before, text, after}

const set = (more) => { fields.value = { ...fields.value, ...more }; };

export default function Infill() {
  const request = useRequest();
  if (!chosenModel("text")) return html`<${NoModel} kind="text" />`;
  if (!me.value.apis.includes("llamaserver")) return html`<${Notice}>Infill is part of the API <code>llamaserver</code>, which the configuration has switched off (<code>apis</code>).</${Notice}>`;
  const { before, after, most } = fields.value;
  return html`<div class="beside"><${Form} label="Infill" onRun=${() => request.run(fill)}>
      <${Text} label="Before" mono rows="7" value=${before} onInput=${(text) => set({ before: text })} />
      <${Text} label="After" mono rows="5" value=${after} onInput=${(text) => set({ after: text })} />
      <div class="numbers"><${Field} label="Max tokens"><input class="input" type="number" min="1" max="100000" value=${most} onInput=${(event) => set({ most: event.target.valueAsNumber || "" })} /></${Field}></div>
      <div class="row wrap"><${ModelOf} kind="text" /><span class="grow" /><${RunButton} request=${request} text="Fill in" disabled=${!before && !after} /></div>
      <p class="hint">For models that have tokens for it: Qwen Coder, StarCoder, Codestral, DeepSeek Coder, CodeGemma.</p>
    </${Form}>
    <div class="result" aria-busy=${request.isRunning}><${Failure} request=${request} />
      ${middle.value && html`<div class="result-head"><span class="grow" /><${Copy} text=${middle.value.text} /></div>
        <pre class="written" tabindex="0" aria-label="The whole text">${middle.value.before}<mark>${middle.value.text}</mark>${middle.value.after}</pre>`}</div></div>`;
}

async function fill(signal) {
  const { before, after, most } = fields.value;
  const body = { model: chosenModel("text").id, input_prefix: before, input_suffix: after, stream: true, ...(most ? { n_predict: most } : {}) };
  middle.value = null;
  const response = await send("POST", "/infill", { body, signal, accept: "text/event-stream" });
  let text = "";
  for await (const chunk of chunks(response)) {
    text += chunk.content ?? "";
    middle.value = { before, text, after };
  }
}
