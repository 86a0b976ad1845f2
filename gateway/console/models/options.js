// Options of a load, as the model's engine has them; and a copy of a model with other ones.
import { html, useEffect, useState } from "../vendor/preact.js";
import { call, learn } from "../core/server.js";
import { Bones, Code, Dialog, Field, Notice, say } from "../ui/parts.js";
import { fitWords } from "./sorting.js";

/** @typedef {{name: string, type: string, choices: string[] | null, minimum: number | null, nullable: boolean, default: unknown, value: unknown, description: string}} Option */

export function LoadDialog({ model, onClose }) {
  const [options, setOptions] = useState({});
  const [fault, setFault] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try {
      learn(await call("POST", "/v1/admin/models/load", { model: model.id, options: read(options) }));
      onClose();
    } catch (error) { setFault(error.message); }
  };
  const [fit, kind] = fitWords(model.fit);
  return html`<${Dialog} title=${`Load ${model.id}`} wide onClose=${onClose} foot=${html`<button class="button" onClick=${onClose}>Cancel</button><button class="button primary" form="load-form">Load</button>`}>
    <p class="soft">With its own options it <span class=${kind}>${fit}</span>. What is set here counts until it is unloaded.</p>
    <form id="load-form" onSubmit=${submit}><${OptionFields} model=${model.id} values=${options} onChange=${setOptions} /></form>
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
  if (made) {
    return html`<${Dialog} title=${`${made.model.id} is there`} onClose=${onClose} foot=${html`<button class="button primary" onClick=${onClose}>Done</button>`}>
      <p class="soft">It lasts until the server is started again. These lines under <code>models</code> in the configuration keep it:</p>
      <${Code} text=${made.yaml} label="configuration" /></${Dialog}>`;
  }
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

/** Fields for every option that may be changed here. `values`: texts that were written, by name. */
function OptionFields({ model, values, onChange }) {
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
  return html`<div class="options-grid">${list.map((option) => html`<${Field} key=${option.name} label=${option.name.replaceAll("_", " ")} hint=${html`<span title=${option.description}>${firstSentence(option.description)}</span>`}>
    <${OptionInput} option=${option} value=${values[option.name]?.value ?? null} onChange=${(value) => set(option, value)} /></${Field}>`)}</div>`;
}

/** The reasons behind it are shown when one points at it. */
const firstSentence = (words) => /^.*?[.](?=\s|$)/s.exec(words ?? "")?.[0] ?? words;

/** Empty: as it is. */
function OptionInput({ option, value, onChange }) {
  const choices = option.choices ?? (option.type === "boolean" ? ["true", "false"] : null);
  if (choices) {
    return html`<select class="input" value=${value ?? ""} onChange=${(event) => onChange(event.target.value || null)}><option value="">${text(option.value)}</option>
      ${choices.filter((one) => String(one) !== text(option.value)).map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select>`;
  }
  const isNumber = option.type === "integer" || option.type === "number";
  return html`<input class="input" type=${isNumber ? "number" : "text"} step=${option.type === "integer" ? 1 : "any"} min=${option.minimum} value=${value ?? ""} placeholder=${text(option.value)}
    onInput=${(event) => onChange(event.target.value === "" ? null : event.target.value)} />`;
}

const text = (value) => (value === null || value === undefined ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value));

/** What was written, as JSON has it. Raises Error for a list that is none. */
function read(values) {
  return Object.fromEntries(Object.entries(values).map(([name, { type, value }]) => {
    if (type === "integer" || type === "number") return [name, Number(value)];
    if (type === "boolean") return [name, value === "true"];
    if (type !== "array" && type !== "object") return [name, value];
    try { return [name, JSON.parse(value)]; } catch { throw new Error(`${name}: expected JSON, as [3, 1]`); }
  }));
}
