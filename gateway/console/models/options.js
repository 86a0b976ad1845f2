// Options of a load, as the model's engine has them; and a copy of a model with other ones.
import { html, useEffect, useState } from "../vendor/preact.js";
import { call, learn } from "../core/server.js";
import { Bones, Code, Dialog, Field, Notice, say, tokens } from "../ui/parts.js";
import { Estimate, useEstimate } from "./estimate.js";

/** @typedef {{name: string, type: string, choices: string[] | null, minimum: number | null, nullable: boolean, default: unknown, value: unknown, description: string}} Option */

/** What people change, in this order; the first that the engine has of each. */
const BASIC = [["context_length"], ["cache_type_k", "cache_type", "quantization"], ["cache_type_v"], ["max_concurrent"], ["gpu_layers", "device", "gpu_split"]];

export function LoadDialog({ model, onClose }) {
  const [options, setOptions] = useState({});
  const [fault, setFault] = useState(null);
  const estimate = useEstimate(model.id, readable(options));
  const submit = async (event) => {
    event.preventDefault();
    try {
      learn(await call("POST", "/v1/admin/models/load", { model: model.id, options: read(options) }));
      onClose();
    } catch (error) { setFault(error.message); }
  };
  return html`<${Dialog} title=${`Load ${model.id}`} wide onClose=${onClose} foot=${html`<button class="button" onClick=${onClose}>Cancel</button><button class="button primary" form="load-form">Load</button>`}>
    <${Estimate} model=${model.id} state=${estimate} />
    <form id="load-form" onSubmit=${submit}><${OptionFields} model=${model.id} values=${options} onChange=${setOptions} most=${estimate.found?.trained_context} /></form>
    <p class="hint">What is set here counts until it is unloaded.</p>
    ${fault && html`<${Notice} kind="bad" icon="alert">${fault}</${Notice}>`}
  </${Dialog}>`;
}

export function DuplicateDialog({ model, onClose }) {
  const [name, setName] = useState(`${model.id}-2`);
  const [pinned, setPinned] = useState(false);
  const [options, setOptions] = useState({});
  const [fault, setFault] = useState(null);
  const [made, setMade] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try {
      const done = await call("POST", "/v1/admin/models/duplicate", { model: model.id, name: name.trim(), options: read(options), pinned, ttl: null });
      learn(done.model);
      setMade(done);
      say(`${done.model.id} is there.`);
    } catch (error) { setFault(error.message); }
  };
  if (made) return html`<${Added} made=${made} onClose=${onClose} />`;
  return html`<${Dialog} title=${`Duplicate ${model.id}`} wide onClose=${onClose} foot=${html`<button class="button" onClick=${onClose}>Cancel</button><button class="button primary" form="duplicate-form" disabled=${!name.trim()}>Duplicate</button>`}>
    <form id="duplicate-form" class="stack" onSubmit=${submit}>
      <p class="soft">The same files under another name, with other options.</p>
      <div class="options-grid"><${Field} label="Name"><input class="input" value=${name} onInput=${(event) => setName(event.target.value)} /></${Field}>
        <label class="check"><input type="checkbox" checked=${pinned} onChange=${(event) => setPinned(event.target.checked)} />Pinned: stays in memory</label></div>
      <${OptionFields} model=${model.id} values=${options} onChange=${setOptions} />
    </form>
    ${fault && html`<${Notice} kind="bad" icon="alert">${fault}</${Notice}>`}
  </${Dialog}>`;
}

/** A model that was added while the server runs, and how to keep it. */
export function Added({ made, onClose }) {
  return html`<${Dialog} title=${`${made.model.id} is there`} onClose=${onClose} foot=${html`<button class="button primary" onClick=${onClose}>Done</button>`}>
    <p class="soft">It lasts until the server is started again. These lines under <code>models</code> in the configuration keep it:</p>
    <${Code} text=${made.yaml} label="configuration" /></${Dialog}>`;
}

/** Fields for every option that may be changed here. `values`: texts that were written, by name. */
function OptionFields({ model, values, onChange, most = null }) {
  const [list, setList] = useState(null);
  const [fault, setFault] = useState(null);
  useEffect(() => {
    call("GET", `/v1/admin/models/options?model=${encodeURIComponent(model)}`).then((it) => setList(it.options), (error) => setFault(error.message));
  }, [model]);
  if (fault) return html`<${Notice} kind="bad" icon="alert">${fault}</${Notice}>`;
  if (list === null) return html`<${Bones} rows="4" />`;
  if (!list.length) return html`<p class="soft">This engine has no options that can be changed here.</p>`;
  const set = (option, value) => {
    const { [option.name]: _, ...rest } = values;
    onChange(value === null ? rest : { ...rest, [option.name]: { type: option.type, value } });
  };
  const basic = BASIC.map((names) => names.map((name) => list.find((option) => option.name === name)).find(Boolean)).filter(Boolean);
  const rest = list.filter((option) => !basic.includes(option));
  const field = (option) => html`<${Field} key=${option.name} label=${option.name.replaceAll("_", " ")} hint=${html`<span title=${option.description}>${firstSentence(option.description)}</span>`}>
    <${option.name === "context_length" && most ? ContextInput : OptionInput} option=${option} most=${most} value=${values[option.name]?.value ?? null} onChange=${(value) => set(option, value)} /></${Field}>`;
  return html`<div class="options-grid">${basic.map(field)}</div>
    ${rest.length > 0 && html`<details class="more-options"><summary>${rest.length} more ${rest.length === 1 ? "option" : "options"}</summary><div class="options-grid">${rest.map(field)}</div></details>`}`;
}

/** A length from 512 tokens to what the model was trained with: along the powers of two and what is between them. */
function ContextInput({ option, most, value, onChange }) {
  const steps = lengthsUpTo(most);
  const now = Number(value ?? option.value ?? most);
  const place = steps.findIndex((step) => step >= now);
  return html`<div class="option-range"><${OptionInput} option=${{ ...option, value: option.value ?? most }} value=${value} onChange=${onChange} />
    <input type="range" aria-label="Context" class=${value === null ? "" : "set"} min="0" max=${steps.length - 1} value=${place < 0 ? steps.length - 1 : place}
      aria-valuetext=${`${tokens(now)} tokens`} onInput=${(event) => onChange(String(steps[event.target.value]))} /></div>`;
}

/** Pure. */
export function lengthsUpTo(most) {
  const found = [];
  for (let step = 512; step < most; step *= 2) found.push(step, step * 1.5);
  return [...found.filter((step) => step < most), most];
}

/** The reasons behind it are shown when one points at it. */
const firstSentence = (words) => /^.*?[.](?=\s|$)/s.exec(words ?? "")?.[0] ?? words;

/** Empty: as it is. */
function OptionInput({ option, value, onChange }) {
  const choices = option.choices ?? (option.type === "boolean" ? ["true", "false"] : null);
  if (choices && option.type !== "any") {
    return html`<select class="input" value=${value ?? ""} onChange=${(event) => onChange(event.target.value || null)}><option value="">${text(option.value)}</option>
      ${choices.filter((one) => String(one) !== text(option.value)).map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select>`;
  }
  const isNumber = option.type === "integer" || option.type === "number"; // `any` may be a number, or a word
  return html`<input class="input" type=${isNumber ? "number" : "text"} step=${option.type === "integer" ? 1 : "any"} min=${option.minimum} value=${value ?? ""} placeholder=${text(option.value)}
    onInput=${(event) => onChange(event.target.value === "" ? null : event.target.value)} />`;
}

const text = (value) => (value === null || value === undefined ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value));

/** What was written, as JSON has it. Raises Error for a list that is none. */
function read(values) {
  return Object.fromEntries(Object.entries(values).map(([name, { type, value }]) => {
    if (type === "integer" || type === "number") return [name, Number(value)];
    if (type === "boolean") return [name, value === "true"];
    if (type === "any") return [name, /^-?\d+(\.\d+)?$/.test(value) ? Number(value) : value];
    if (type !== "array" && type !== "object") return [name, value];
    try { return [name, JSON.parse(value)]; } catch { throw new Error(`${name}: expected JSON, as [3, 1]`); }
  }));
}

/** The same of what can be read now: a list may be half written. */
const readable = (values) => Object.assign({}, ...Object.entries(values).map(([name, value]) => {
  try { return read({ [name]: value }); } catch { return {}; }
}));
