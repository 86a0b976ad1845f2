// The panel beside a conversation: system prompt, sampling, thinking, structured output, tools.
import { html, useEffect, useState } from "../vendor/preact.js";
import { byId, call } from "../core/server.js";
import { Segments } from "../ui/parts.js";
import { parsed } from "./conversation.js";
import { change, open, setSettings, talking } from "./room.js";

/** What each model's engine does with each parameter. Asked anew once a model is loaded: then it is known for sure. */
function useAbilities(model) {
  const [abilities, setAbilities] = useState(null);
  const state = byId.value.get(model)?.state;
  useEffect(() => {
    let isWanted = true;
    if (model) {
      call("GET", `/v1/admin/sampling?model=${encodeURIComponent(model)}`).then((it) => { if (isWanted) setAbilities(it); }, () => { if (isWanted) setAbilities(null); });
    }
    return () => { isWanted = false; };
  }, [model, state === "loaded"]);
  return abilities;
}

export function Panel() {
  const { system, settings } = open.value;
  const [first, second] = talking.value;
  const abilities = [useAbilities(first), useAbilities(second)];
  const parameters = (abilities[0] ?? abilities[1])?.parameters ?? [];
  return html`<div class="panel-body">
    <section><h3 id="system-label">System prompt</h3><textarea class="input" rows="4" aria-labelledby="system-label" placeholder="None" value=${system}
      onInput=${(event) => change((it) => ({ ...it, system: event.target.value }))} /></section>
    ${grouped(parameters).map((group) => html`<${Group} key=${group.title} ...${group} abilities=${abilities} />`)}
    <details open><summary>Answer</summary><div class="panel-rows">
      <${NumberRow} label="Most tokens" value=${settings.maxTokens} placeholder="no limit" step="1" from="1" onChange=${(value) => setSettings({ maxTokens: value })} />
      <${ThinkingRow} abilities=${abilities[0]} />
      <label class="panel-row"><span>Token probabilities</span><input type="checkbox" checked=${settings.probabilities} disabled=${abilities[0]?.logprobs === false}
        onChange=${(event) => setSettings({ probabilities: event.target.checked })} /></label>
    </div></details>
    <${Shape} settings=${settings} isOff=${abilities[0]?.schemas === false} />
    <${Tools} settings=${settings} isOff=${abilities[0]?.tools === false} />
  </div>`;
}

// The groups that the server's sliders have, in the order in which people need them; numbers without a slider are last.
const TITLES = ["Sampling", "Repetition", "Further samplers", "Others"];

const grouped = (parameters) => TITLES
  .map((title) => ({ title, isOpen: title === "Sampling", parameters: parameters.filter((one) => titleOf(one) === title) }))
  .filter((group) => group.parameters.length > 0);

const titleOf = (parameter) => parameter.slider?.group ?? (typeof parameter.default === "number" ? "Others" : null);

/** Where a parameter has no slider: a field for a number. */
const plain = ({ name, default: value }) => ({ label: name.replaceAll("_", " "), step: Number.isInteger(value) ? 1 : 0.01 });

function Group({ title, isOpen, parameters, abilities }) {
  const { sampling } = open.value.settings;
  const set = parameters.filter((one) => one.name in sampling).length;
  return html`<details open=${isOpen || set > 0}><summary>${title}${set > 0 && html`<span class="tag accent">${set} set</span>`}</summary>
    <div class="panel-rows">${parameters.map((one) => html`<${ParameterRow} key=${one.name} parameter=${one} abilities=${abilities} />`)}</div></details>`;
}

function ParameterRow({ parameter, abilities }) {
  const { name } = parameter;
  const { label, low, high, step, hint } = parameter.slider ?? plain(parameter);
  const { sampling } = open.value.settings;
  const reported = abilities.map((one) => one?.parameters.find((it) => it.name === name));
  const refused = reported.findIndex((one) => one?.applied === false);
  const set = (value) => {
    const { [name]: _, ...rest } = sampling;
    setSettings({ sampling: value === null ? rest : { ...rest, [name]: value } });
  };
  // With two models a parameter stays while one of them has it.
  const isOff = reported[0]?.applied === false && (!reported[1] || reported[1].applied === false);
  const why = refused < 0 ? null : `${talking.value.length > 1 ? `${talking.value[refused]}: ` : ""}${reported[refused].why}`;
  return html`<${NumberRow} label=${label} name=${name} value=${sampling[name] ?? null} placeholder=${shown(reported[0]?.default) ?? hint ?? ""} hint=${hint}
    from=${low} to=${high} step=${step} slides=${typeof high === "number"} fallback=${reported[0]?.default} isOff=${isOff} why=${why} onChange=${set} />`;
}

const shown = (value) => (typeof value === "number" ? String(value) : null);

function NumberRow({ label, name, value, placeholder, from, to, step, slides = false, fallback = null, isOff = false, why = null, onChange }) {
  const read = (event) => onChange(event.target.value === "" || !Number.isFinite(event.target.valueAsNumber) ? null : event.target.valueAsNumber);
  return html`<div class=${`panel-row ${isOff ? "off" : ""}`} title=${why ?? ""}>
    <label class="grow"><span class=${value === null ? "" : "set"}>${label}</span>
      <input class="input number" type="number" name=${name} disabled=${isOff} value=${value ?? ""} placeholder=${placeholder} min=${slides ? null : from} step=${step ?? "any"} onInput=${read} /></label>
    ${slides && !isOff && html`<input type="range" class=${value === null ? "" : "set"} tabindex="-1" aria-hidden="true" min=${from} max=${to} step=${step} value=${value ?? fallback ?? from} onInput=${read} />`}
    ${why && html`<span class="hint why">${why}</span>`}
  </div>`;
}

function ThinkingRow({ abilities }) {
  const { thinking } = open.value.settings;
  if (abilities?.reasoning === false) return html`<div class="panel-row off"><span>Thinking</span><span class="hint">this model does not think</span></div>`;
  const options = [["default", "As it likes"], ["on", "On"], ["off", "Off"]];
  return html`<div class="panel-row tall"><span>Thinking</span><${Segments} label="Thinking" options=${options} value=${thinking} onChange=${(value) => setSettings({ thinking: value })} /></div>`;
}

const SCHEMA_HINT = '{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}';
const TOOLS_HINT = '[{"name": "weather", "description": "…", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]';

function Shape({ settings, isOff }) {
  const options = [["none", "Free"], ["json", "JSON"], ["schema", "Schema"]];
  return html`<details open=${settings.shape !== "none"}><summary>Structured output</summary><div class="panel-rows">
    ${isOff ? html`<p class="hint">This model’s engine can’t be constrained.</p>` : html`<${Segments} label="Form of the answer" options=${options} value=${settings.shape} onChange=${(value) => setSettings({ shape: value })} />`}
    ${settings.shape === "schema" && html`<${JsonArea} label="JSON schema" what="The schema" rows="8" value=${settings.schema} hint=${SCHEMA_HINT} onChange=${(value) => setSettings({ schema: value })} />`}
  </div></details>`;
}

function Tools({ settings, isOff }) {
  return html`<details open=${settings.tools.trim() !== ""}><summary>Tools</summary><div class="panel-rows">
    ${isOff && html`<p class="hint">This model knows no tools: they have no effect.</p>`}
    <${JsonArea} label="Functions, as OpenAI lists them" what="The list of tools" rows="6" value=${settings.tools} hint=${TOOLS_HINT} onChange=${(value) => setSettings({ tools: value })} />
    <p class="hint">Nothing is run: you give the results.</p></div></details>`;
}

function JsonArea({ label, what, rows, value, hint, onChange }) {
  const fault = value.trim() ? faultOf(value, what) : null;
  return html`<label class="field"><span class="label">${label}</span><textarea class="input mono" rows=${rows} spellcheck="false" placeholder=${hint} value=${value}
    aria-invalid=${fault ? "true" : null} onInput=${(event) => onChange(event.target.value)} />${fault && html`<span class="hint bad">${fault}</span>`}</label>`;
}

function faultOf(text, what) {
  try { parsed(text, what); return null; } catch (error) { return error.message; }
}
