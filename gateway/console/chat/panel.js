// The panel beside a conversation: presets, system prompt, sampling, thinking, structured output, tools.
import { effect, html, useEffect, useRef, useState } from "../vendor/preact.js";
import { stored } from "../core/browser.js";
import { byId, call, me, saveAs } from "../core/server.js";
import { Dialog, Menu, Segments, later, say, trying } from "../ui/parts.js";
import { PLAIN, cleanSettings, parsed } from "./conversation.js";
import { change, open, presets, setSettings, talking } from "./room.js";

// ------------------------------------------------------------------------------------------------------------
// Presets: a system prompt and settings by a name, kept in this browser. A model may have one that its conversations
// begin with.

const FORMAT = "roundhouse.presets";
const MOST = 500; // of one file
const LONGEST_NAME = 60;

const ofModels = stored("chat.presets.models", {}); // names of presets, by model

/** Those that come with the page; one's own of the same name takes its place. */
const PROVIDED = [
  { name: "Steady", system: "", settings: { sampling: { temperature: 0.2, top_p: 0.9 } } },
  { name: "Creative", system: "", settings: { sampling: { temperature: 1.1, min_p: 0.05 } } },
  { name: "Code", system: "You are an experienced programmer. Answer with code that works, then explain it in a few sentences.", settings: { sampling: { temperature: 0.2 } } },
  { name: "Translator", system: "Translate what the user writes into English; English into the language that the user wrote last, else into German. Answer with the translation alone.", settings: { sampling: { temperature: 0.3 } } },
];

const all = () => [...presets.value, ...PROVIDED.filter(({ name }) => !presets.value.some((one) => one.name === name))];
const named = (name) => all().find((one) => one.name === name);

/** What a preset holds of a conversation. What runs unasked is each conversation's own. */
const heldBy = ({ system, settings: { preset: _, allowed: __, ...settings } }) => {
  const { allowed, ...plain } = PLAIN;
  return { system, settings: { ...plain, ...settings } };
};

/** A conversation with a preset's values; without one, with none set. */
const dressed = (conversation, preset) => ({ ...conversation, system: preset?.system ?? "", settings: { ...PLAIN, ...preset?.settings, preset: preset?.name } });

const isChangedFrom = (preset, conversation) => !isSame(heldBy(conversation), heldBy(dressed(conversation, preset)));

/** A conversation in which nothing was said begins as its model's do. What was changed in it since stays. */
effect(() => {
  const [model] = talking.value;
  const now = open.value;
  if (!model || now.turns.length || now.suits === model) return;
  const isOwn = now.suits && isChangedFrom(named(now.settings.preset), now);
  open.value = { ...(isOwn ? now : suited(now, model)), suits: model };
});

/** With the model's preset; without one with the last that was chosen, unless that is another model's. */
function suited(conversation, model) {
  const tied = ofModels.peek(), last = named(conversation.settings.preset);
  if (tied[model]) return dressed(conversation, named(tied[model]));
  return last ? dressed(conversation, Object.values(tied).includes(last.name) ? null : last) : conversation;
}

function use(preset) {
  change((it) => dressed(it, preset));
  setSettings({});
}

function savePreset(name) {
  const preset = { name, ...heldBy(open.value) };
  presets.value = [...presets.value.filter((one) => one.name !== name), preset].sort((a, b) => a.name.localeCompare(b.name));
  setSettings({ preset: name });
}

function removePreset(name) {
  const before = presets.value, places = ofModels.value;
  presets.value = before.filter((one) => one.name !== name);
  ofModels.value = Object.fromEntries(Object.entries(places).filter(([, of]) => of !== name));
  say("Preset deleted.", { action: { text: "Undo", act: () => { presets.value = before; ofModels.value = places; } } });
}

const written = () => JSON.stringify({ format: FORMAT, version: 1, presets: presets.value, models: ofModels.value }, null, 1);

/** Presets from a file, in place of those of the same names. Raises Error for a file that holds none. */
async function bring(file) {
  let given;
  try { given = JSON.parse(await file.text()); } catch { throw new Error("This file is not JSON."); }
  if (given?.format !== FORMAT || !Array.isArray(given.presets)) throw new Error("This file holds no presets of this page.");
  const found = given.presets.slice(0, MOST).filter((one) => typeof one?.name === "string" && one.name.trim())
    .map((one) => ({ name: one.name.slice(0, LONGEST_NAME), system: String(one.system ?? ""), settings: heldBy({ settings: cleanSettings(one.settings) }).settings }));
  const byName = new Map([...presets.value, ...found].map((one) => [one.name, one]));
  presets.value = [...byName.values()];
  ofModels.value = { ...ofModels.value, ...Object.fromEntries(Object.entries(given.models ?? {}).filter(([, name]) => byName.has(name))) };
  say(`${found.length} preset${found.length === 1 ? "" : "s"} imported.`);
}

const isSame = (one, other) => JSON.stringify(sorted(one)) === JSON.stringify(sorted(other));

/** The same value, whatever the order of its fields. */
function sorted(value) {
  if (typeof value !== "object" || value === null) return value;
  return Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, one]) => [name, sorted(one)]);
}

function Presets() {
  const [isNaming, setNaming] = useState(false);
  const chooser = useRef(null);
  const [model] = talking.value;
  const now = named(open.value.settings.preset);
  const isChanged = isChangedFrom(now, open.value);
  const title = now ? now.name : isChanged ? "Custom" : "None: as the model recommends";
  const isOfModel = now && ofModels.value[model] === now.name;
  const items = [
    ...all().map((one) => ({ icon: one === now ? "check" : "settings", text: one.name, act: () => use(one) })),
    { icon: now || isChanged ? "close" : "check", text: "None: as the model recommends", act: () => use(null) },
    null,
    { icon: "plus", text: "Save as a preset…", act: () => setNaming(true) },
    ...(now ? [
      { icon: "retry", text: `Save the changes to ${now.name}`, act: () => savePreset(now.name), disabled: !isChanged },
      { icon: "pin", text: isOfModel ? `No longer begin with it for ${model}` : `Begin with it for ${model}`, disabled: !model, act: () => setOfModel(model, isOfModel ? null : now.name) },
      { icon: "trash", text: `Delete ${now.name}`, danger: true, disabled: !presets.value.includes(now), act: () => removePreset(now.name) },
    ] : []),
    null,
    { icon: "up", text: "Export presets", disabled: !presets.value.length, act: () => saveAs("presets.json", written()) },
    { icon: "download", text: "Import presets…", act: () => chooser.current.click() },
  ];
  return html`<section class="presets"><h2>Preset</h2>
    <${Menu} label=${`Preset: ${title}`} icon="settings" end=${false} small=${false} items=${items} text=${html`<span class="cut grow">${title}</span>${now && isChanged && html`<span class="tag">changed</span>`}`} />
    ${isOfModel && html`<p class="hint">New conversations with ${model} begin with it.</p>`}
    <input ref=${chooser} type="file" accept=".json,application/json" hidden aria-label="File of presets" onChange=${(event) => { const [file] = event.target.files; event.target.value = ""; if (file) trying(() => bring(file)); }} />
    ${isNaming && html`<${Naming} onClose=${() => setNaming(false)} />`}</section>`;
}

function setOfModel(model, name) {
  const { [model]: _, ...others } = ofModels.value;
  ofModels.value = name ? { ...others, [model]: name } : others;
}

function Naming({ onClose }) {
  const [name, setName] = useState("");
  const isThere = Boolean(named(name.trim()));
  const save = (event) => { event.preventDefault(); savePreset(name.trim()); onClose(); };
  return html`<${Dialog} title="Save as a preset" onClose=${onClose}><form class="stack" onSubmit=${save}>
    <p class="soft">The system prompt, sampling, thinking, form of the answer and tools of this conversation.</p>
    <input class="input" aria-label="Name of the preset" maxlength=${LONGEST_NAME} value=${name} onInput=${(event) => setName(event.target.value)} />
    <div class="row"><button class="button primary" disabled=${!name.trim()}>${isThere ? "Replace" : "Save"}</button></div></form></${Dialog}>`;
}

// ------------------------------------------------------------------------------------------------------------
// The values themselves, as the model's engine takes them.

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

export default function Panel() {
  const { system, settings } = open.value;
  const [first, second] = talking.value;
  const abilities = [useAbilities(first), useAbilities(second)];
  const parameters = (abilities[0] ?? abilities[1])?.parameters ?? [];
  return html`<div class="panel-body">
    <${Presets} />
    <section><h2 id="system-label">System prompt</h2><textarea class="input" rows="4" aria-labelledby="system-label" placeholder="None" value=${system}
      onInput=${(event) => change((it) => ({ ...it, system: event.target.value }))} /></section>
    ${grouped(parameters).map((group) => html`<${Group} key=${group.title} ...${group} abilities=${abilities} />`)}
    <details open><summary>Answer</summary><div class="panel-rows">
      <${NumberRow} label="Max tokens" value=${settings.maxTokens} placeholder="no limit" step="1" from="1" onChange=${(value) => setSettings({ maxTokens: value })} />
      <${ThinkingRow} abilities=${abilities[0]} />
      <label class="panel-row"><span>Token probabilities</span><input type="checkbox" checked=${settings.probabilities} disabled=${abilities[0]?.logprobs === false}
        onChange=${(event) => setSettings({ probabilities: event.target.checked })} /></label>
    </div></details>
    <${Shape} settings=${settings} isOff=${abilities[0]?.schemas === false} />
    <${Tools} settings=${settings} isOff=${abilities[0]?.tools === false} />
  </div>`;
}

// The groups that the server's sliders have, in the order in which people need them; numbers without a slider are last.
const TITLES = ["Sampling", "Repetition", "Advanced"];

const grouped = (parameters) => TITLES
  .map((title) => ({ title, isOpen: title === "Sampling", parameters: parameters.filter((one) => titleOf(one) === title) }))
  .filter((group) => group.parameters.length > 0);

const titleOf = (parameter) => parameter.slider?.group ?? (typeof parameter.default === "number" ? "Advanced" : null);

/** Where a parameter has no slider: a field for a number. */
const plain = ({ name, default: value }) => ({ label: name.replaceAll("_", " "), step: Number.isInteger(value) ? 1 : 0.01 });

function Group({ title, isOpen, parameters, abilities }) {
  const { sampling } = open.value.settings;
  const set = parameters.filter((one) => one.name in sampling).length;
  const recommend = () => setSettings({ sampling: Object.fromEntries(Object.entries(sampling).filter(([name]) => !parameters.some((one) => one.name === name))) });
  return html`<details open=${isOpen || set > 0}><summary>${title}${set > 0 && html`<span class="tag accent">${set} set</span>`}</summary>
    <div class="panel-rows">${parameters.map((one) => html`<${ParameterRow} key=${one.name} parameter=${one} abilities=${abilities} />`)}
    ${set > 0 && html`<button class="button small" onClick=${recommend}>As the model recommends</button>`}</div></details>`;
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
  const options = [["default", "Auto"], ["on", "On"], ["off", "Off"]];
  return html`<div class="panel-row tall"><span>Thinking</span><${Segments} label="Thinking" options=${options} value=${thinking} onChange=${(value) => setSettings({ thinking: value })} /></div>`;
}

const Servers = later(() => import("./tools.js").then(({ Servers: View }) => ({ default: View })));

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
  const hasServers = me.value?.mcp?.length > 0;
  const hasSome = settings.tools.trim() !== "" || settings.servers?.length > 0;
  const [isOpen, setOpen] = useState(hasSome); // what is folded isn't fetched
  return html`<details open=${hasSome} onToggle=${(event) => setOpen(event.target.open)}><summary>Tools</summary><div class="panel-rows">
    ${isOff && html`<p class="hint">This model knows no tools: they have no effect.</p>`}
    ${hasServers && isOpen && html`<div class="stack"><p class="hint">Run by this server (MCP), once you allow a call:</p><${Servers} /></div>`}
    <${JsonArea} label="Functions, as OpenAI lists them" what="The list of tools" rows="6" value=${settings.tools} hint=${TOOLS_HINT} onChange=${(value) => setSettings({ tools: value })} />
    <p class="hint">${hasServers ? "Of these, nothing" : "Nothing"} is run: you give the results.</p></div></details>`;
}

function JsonArea({ label, what, rows, value, hint, onChange }) {
  const fault = value.trim() ? faultOf(value, what) : null;
  return html`<label class="field"><span class="label">${label}</span><textarea class="input mono" rows=${rows} spellcheck="false" placeholder=${hint} value=${value}
    aria-invalid=${fault ? "true" : null} onInput=${(event) => onChange(event.target.value)} />${fault && html`<span class="hint bad">${fault}</span>`}</label>`;
}

function faultOf(text, what) {
  try { parsed(text, what); return null; } catch (error) { return error.message; }
}
