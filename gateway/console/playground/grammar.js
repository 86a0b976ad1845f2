// A schema, a regex or a grammar, checked while it is written; a text held against it, and a model that keeps to it.
import { html, signal, useEffect } from "../vendor/preact.js";
import { stored } from "../core/browser.js";
import { call, send } from "../core/server.js";
import { Copy, Field, Icon, Notice, Segments } from "../ui/parts.js";
import { Failure, Form, ModelOf, RunButton, Text, chosenModel, chunks, useRequest } from "./trying.js";

const PAUSE = 300; // milliseconds of rest before what was typed is checked
const MOST = 512; // tokens of an answer
const KINDS = [["schema", "JSON schema"], ["regex", "Regex"], ["grammar", "GBNF or Lark"]];
const SAMPLES = {
  schema: '{\n  "type": "object",\n  "properties": {\n    "name": {"type": "string"},\n    "age": {"type": "integer", "minimum": 0}\n  },\n  "required": ["name", "age"]\n}',
  regex: "[A-Z][a-z]+, [0-9]{4}",
  grammar: 'root ::= "yes" | "no" | "it depends on " [a-z ]+',
};
const fields = stored("playground.grammar", { kind: "schema", ...SAMPLES, text: "", prompt: "Invent a person." });
const checked = signal(null); // what was asked, and what the server said of it
const answer = signal(null);

const set = (more) => { fields.value = { ...fields.value, ...more }; };

export default function Grammar() {
  const checking = useRequest(), asking = useRequest();
  const { kind, text, prompt } = fields.value;
  const grammar = fields.value[kind];
  const asked = checked.value?.asked;
  const verdict = asked?.kind === kind && asked.grammar === grammar ? checked.value.verdict : null; // none of what stood there before
  useEffect(() => {
    const timer = setTimeout(() => checking.run(async (signal) => {
      const now = { kind, grammar, text: text || null };
      checked.value = grammar.trim() ? { asked: now, verdict: await call("POST", "/v1/admin/grammar/check", now, { signal }) } : null;
    }), PAUSE);
    return () => clearTimeout(timer);
  }, [kind, grammar, text]);
  return html`<div class="beside"><div class="stack">
      <${Segments} label="Kind" options=${KINDS} value=${kind} onChange=${(value) => set({ kind: value })} />
      <${Text} label=${KINDS.find(([name]) => name === kind)[1]} mono rows="13" value=${grammar} onInput=${(value) => set({ [kind]: value })} aria-invalid=${verdict?.ok === false ? "true" : null} />
      <div role="status"><${Verdict} it=${verdict} /></div><${Failure} request=${checking} />
    </div><div class="stack">
      <${Text} label="Text to check" mono rows="5" value=${text} onInput=${(value) => set({ text: value })} />
      <div role="status">${text && text === asked?.text && verdict?.ok && html`<${TextVerdict} fault=${verdict.fault} />`}</div>
      ${chosenModel("text") && html`<${Form} label="A model keeps to it" onRun=${() => asking.run((signal) => ask(signal))}>
        <${Field} label="A message, to be answered in this form"><input class="input" value=${prompt} onInput=${(event) => set({ prompt: event.target.value })} /></${Field}>
        <div class="row wrap"><${ModelOf} kind="text" /><span class="grow" /><${RunButton} request=${asking} text="Answer" disabled=${!prompt.trim() || verdict?.ok !== true} /></div></${Form}>`}
      <${Failure} request=${asking} />
      ${answer.value !== null && html`<div class="result"><div class="result-head"><span class="grow" /><button class="button quiet small" onClick=${() => set({ text: answer.value })}>Check this text</button><${Copy} text=${answer.value} /></div>
        <pre class="written" tabindex="0" aria-label="Answer">${answer.value}</pre></div>`}
    </div></div>`;
}

function Verdict({ it }) {
  if (!it) return null;
  if (!it.ok) return html`<${Notice} kind="bad" icon="alert">${it.error}</${Notice}>`;
  return html`<div class="stack"><p class="row good"><${Icon} name="check" size="14" />It can be enforced.</p>
    ${it.relaxed.length > 0 && html`<ul class="small soft" aria-label="Relaxed">${it.relaxed.map((note) => html`<li key=${note} class="break">${note}</li>`)}</ul>`}</div>`;
}

function TextVerdict({ fault }) {
  return fault ? html`<${Notice} kind="warn" icon="alert">The text: ${fault}</${Notice}>` : html`<p class="row good"><${Icon} name="check" size="14" />The text has this form.</p>`;
}

/** A request's field for a form. Raises SyntaxError for a schema that is no JSON. */
function shape(kind, grammar) {
  if (kind === "schema") return { response_format: { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(grammar) } } };
  return kind === "regex" ? { regex_pattern: grammar } : { grammar };
}

async function ask(signal) {
  const { kind, prompt } = fields.value;
  const body = { model: chosenModel("text").id, messages: [{ role: "user", content: prompt }], stream: true, max_tokens: MOST, ...shape(kind, fields.value[kind]) };
  let text = "";
  answer.value = "";
  const response = await send("POST", "/v1/chat/completions", { body, signal, accept: "text/event-stream" });
  for await (const chunk of chunks(response)) {
    text += chunk.choices?.[0]?.delta?.content ?? "";
    answer.value = text;
  }
}
