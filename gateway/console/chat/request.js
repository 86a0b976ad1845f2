// From a conversation and its settings to the body of a request, and the same as curl and as Python. Pure.
import { messagesOf } from "./conversation.js";

const ALTERNATIVES = 8; // of each token, where probabilities are wanted

/** What the page itself wants to know of an answer while it is written; of another server's model it isn't asked. */
export function watched(body, model) {
  if (!model || model.remote) return body;
  const counts = { ...body, stream_options: { ...body.stream_options, continuous_usage_stats: true } };
  return model.backend === "llamacpp" ? { ...counts, return_progress: true } : counts;
}

/** The body for one lane's answer. Raises Error where the settings hold a text that is no JSON.
 * @param {import("./conversation.js").Conversation} conversation
 * @param {{lane?: number, before?: string | null, prefix?: object | null}} [options] `prefix`: a message to go on from */
export function requestBody(conversation, { lane = 0, before = null, prefix = null } = {}) {
  const { settings } = conversation;
  const messages = messagesOf(conversation, lane, before);
  return {
    model: conversation.models[lane] ?? conversation.models[0],
    messages: prefix ? [...messages, prefix] : messages,
    stream: true,
    stream_options: { include_usage: true },
    ...(prefix ? { continue_final_message: true } : {}),
    ...(settings.maxTokens ? { max_tokens: settings.maxTokens } : {}),
    ...settings.sampling,
    ...(settings.probabilities ? { logprobs: true, top_logprobs: ALTERNATIVES } : {}),
    ...thinking(settings.thinking),
    ...shape(settings),
    ...tools(settings.tools),
  };
}

function thinking(wish) {
  return wish === "default" ? {} : { chat_template_kwargs: { enable_thinking: wish === "on" } };
}

function shape({ shape: kind, schema }) {
  if (kind === "json") return { response_format: { type: "json_object" } };
  if (kind !== "schema") return {};
  return { response_format: { type: "json_schema", json_schema: { name: "answer", schema: parsed(schema, "The schema") } } };
}

function tools(text) {
  if (!text.trim()) return {};
  const list = parsed(text, "The list of tools");
  if (!Array.isArray(list)) throw new Error("The list of tools is not a JSON array.");
  return { tools: list.map((tool) => (tool.function ? tool : { type: "function", function: tool })) };
}

/** The JSON in `text`. Raises Error that begins with `what`. */
export function parsed(text, what) {
  try { return JSON.parse(text); } catch (error) { throw new Error(`${what} is not valid JSON: ${error.message}`); }
}

/** A body without the bytes of its pictures, to be kept and shown. */
export function abridged(body) {
  const messages = body.messages.map((message) => (Array.isArray(message.content)
    ? { ...message, content: message.content.map(abridgedPart) } : message));
  return { ...body, messages };
}

function abridgedPart(part) {
  const url = part.image_url?.url;
  return url ? { ...part, image_url: { url: `${url.slice(0, url.indexOf(",") + 1)}…` } } : part;
}

/** @param {object} body @param {string} address of the server @param {boolean} hasKey */
export function asCurl(body, address, hasKey) {
  const lines = [`curl -N ${address}/v1/chat/completions`, "-H 'content-type: application/json'"];
  if (hasKey) lines.push('-H "authorization: Bearer $KEY"');
  lines.push(`-d '${JSON.stringify(body, null, 2).replaceAll("'", "'\\''")}'`);
  return lines.join(" \\\n  ");
}

const OPENAI = new Set(["model", "messages", "stream", "stream_options", "max_tokens", "temperature", "top_p", "seed", "frequency_penalty",
  "presence_penalty", "logprobs", "top_logprobs", "response_format", "tools", "logit_bias"]);

/** With the openai client, which takes what OpenAI doesn't know in `extra_body`. */
export function asPython(body, address, hasKey) {
  const known = Object.entries(body).filter(([name]) => OPENAI.has(name));
  const extra = Object.entries(body).filter(([name]) => !OPENAI.has(name));
  const lines = known.map(([name, value]) => `    ${name}=${python(value, 1)},`);
  if (extra.length) lines.push(`    extra_body=${python(Object.fromEntries(extra), 1)},`);
  return `${hasKey ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url="${address}/v1", api_key=${hasKey ? 'os.environ["KEY"]' : '"none"'})
stream = client.chat.completions.create(
${lines.join("\n")}
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
`;
}

const INDENT = "    ";

/** A JSON value as Python writes it. JSON's strings are Python's, but for what is outside of the first plane. */
export function python(value, depth = 0) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const isList = Array.isArray(value);
  const items = isList ? value.map((one) => python(one, depth + 1))
    : Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${python(one, depth + 1)}`);
  const [open, close] = isList ? "[]" : "{}";
  if (!items.length) return open + close;
  const inner = INDENT.repeat(depth + 1);
  return `${open}\n${items.map((item) => `${inner}${item},\n`).join("")}${INDENT.repeat(depth)}${close}`;
}
