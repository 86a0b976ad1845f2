// What a model reads: a conversation as its template writes it, or any text, token by token.
import { html, signal, useEffect } from "../vendor/preact.js";
import { stored } from "../core/browser.js";
import { byId, call, me } from "../core/server.js";
import { Copy, Icon, Notice, Segments, count } from "../ui/parts.js";
import { TokenText } from "../ui/tokens.js";
import { parsed } from "../chat/conversation.js";
import { Failure, Form, ModelOf, NoModel, RunButton, Text, chosenModel, useRequest } from "./trying.js";

const PAUSE = 350; // milliseconds of rest before what was typed is shown
const ROLES = ["system", "user", "assistant", "tool"];
const MOST = 64; // messages
const fields = stored("playground.prompt", {
  form: "conversation", text: "Tokens are the letters of models.", thinking: "default", opens: true, tools: "",
  messages: [{ role: "system", content: "You are brief." }, { role: "user", content: "What is a token?" }],
});
const hasIds = stored("playground.ids", false);
const seen = signal(null); // {tokens, count, control, room, text}

const set = (more) => { fields.value = { ...fields.value, ...more }; };

export default function Prompt() {
  const request = useRequest();
  const model = chosenModel("text");
  const isLoaded = model?.state === "loaded";
  const run = () => request.run(read);
  useEffect(() => {
    if (!isLoaded) return undefined; // to look loads no model
    const timer = setTimeout(run, PAUSE);
    return () => clearTimeout(timer);
  }, [fields.value, model?.id, isLoaded]);
  if (!model) return html`<${NoModel} kind="text" />`;
  if (!me.value.apis.includes("llamaserver")) return html`<${Notice}>Tokens are part of the API <code>llamaserver</code>, which the configuration has switched off (<code>apis</code>).</${Notice}>`;
  const { form, text } = fields.value;
  return html`<div class="beside"><${Form} label="Prompt" onRun=${run}>
      <div class="row wrap"><${ModelOf} kind="text" /><span class="grow" /><${Segments} label="What is read" value=${form} onChange=${(value) => set({ form: value })} options=${[["conversation", "Conversation"], ["text", "Text"]]} /></div>
      ${form === "text" ? html`<${Text} label="Text" mono rows="10" value=${text} onInput=${(value) => set({ text: value })} />` : html`<${Conversation} />`}
      ${!isLoaded && html`<div class="row"><p class="hint grow">The model isn’t loaded: to look at its tokens loads it.</p><${RunButton} request=${request} text="Load and show" /></div>`}
    </${Form}>
    <div class="result"><${Failure} request=${request} />${seen.value && html`<${Tokens} seen=${seen.value} />`}</div></div>`;
}

function Conversation() {
  const { messages, thinking, opens, tools } = fields.value;
  const change = (place, more) => set({ messages: messages.map((one, index) => (index === place ? { ...one, ...more } : one)) });
  const next = messages.at(-1)?.role === "user" ? "assistant" : "user";
  return html`<div class="messages">${messages.map(({ role, content }, place) => html`<div class="message" key=${place}>
      <select class="input" aria-label=${`Role of message ${place + 1}`} value=${role} onChange=${(event) => change(place, { role: event.target.value })}>${ROLES.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select>
      <textarea class="input" rows=${Math.min(8, content.split("\n").length + 1)} aria-label=${`Message ${place + 1}`} value=${content} onInput=${(event) => change(place, { content: event.target.value })} />
      <button type="button" class="button quiet small icon" aria-label=${`Remove message ${place + 1}`} disabled=${messages.length < 2} onClick=${() => set({ messages: messages.filter((_, index) => index !== place) })}><${Icon} name="close" size="12" /></button></div>`)}</div>
    <div class="row wrap"><button type="button" class="button small" disabled=${messages.length >= MOST} onClick=${() => set({ messages: [...messages, { role: next, content: "" }] })}><${Icon} name="plus" size="14" />Message</button>
      <label class="check"><input type="checkbox" checked=${opens} onChange=${(event) => set({ opens: event.target.checked })} />The answer is begun</label>
      <span class="grow" /><${Segments} label="Thinking" value=${thinking} onChange=${(value) => set({ thinking: value })} options=${[["default", "Auto"], ["on", "Thinks"], ["off", "Doesn’t"]]} /></div>
    <details open=${tools !== ""}><summary class="label">Tools</summary><${Text} label="Functions, as OpenAI lists them" mono rows="5" value=${tools} onInput=${(value) => set({ tools: value })}
      placeholder='[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]' /></details>`;
}

function bodyOf({ form, text, messages, thinking, opens, tools }) {
  if (form === "text") return { content: text };
  return {
    messages, add_generation_prompt: opens, ...(thinking === "default" ? {} : { chat_template_kwargs: { enable_thinking: thinking === "on" } }),
    ...(tools.trim() ? { tools: parsed(tools, "The list of tools") } : {}),
  };
}

async function read(signal) {
  const model = chosenModel("text").id;
  const body = { model, with_pieces: true, ...bodyOf(fields.value) };
  const [answer, info] = await Promise.all([
    call("POST", "/tokenize", body, { signal }),
    call("GET", `/tokenizer_info?model=${encodeURIComponent(model)}`, undefined, { signal }).catch(() => null),
  ]);
  const tokens = spelled(answer.tokens);
  seen.value = { tokens, count: answer.count, control: info?.additional_special_tokens ?? [], room: byId.value.get(model)?.context_length, text: tokens.map((one) => one.text).join("") };
}

/** Tokens with their texts; those that only together are a character stand together. Pure.
 * @param {{id: number, piece: string | number[]}[]} list */
export function spelled(list) {
  const found = [];
  let ids = [], bytes = [];
  const flush = (text) => { if (ids.length) found.push({ text, ids }); ids = []; bytes = []; };
  for (const { id, piece } of list) {
    if (typeof piece === "string") {
      flush("�");
      found.push({ text: piece, ids: [id] });
      continue;
    }
    ids.push(id);
    bytes.push(...piece);
    try { flush(new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(bytes))); } catch { /* its next bytes are in the next token */ }
  }
  flush("�");
  return found;
}

function Tokens({ seen: it }) {
  return html`<div class="result-head"><b class="num">${count(it.count)} tokens</b>${it.room ? html`<span class="faint small num">of ${count(it.room)}</span>` : null}<span class="grow" />
      <label class="check small"><input type="checkbox" checked=${hasIds.value} onChange=${(event) => { hasIds.value = event.target.checked; }} />Numbers</label><${Copy} text=${it.text} /></div>
    <div class="card"><${TokenText} label="Prompt by tokens" tokens=${it.tokens} control=${it.control} hasIds=${hasIds.value} /></div>`;
}
