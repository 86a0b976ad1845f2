// A conversation: what it is and how it changes, what is sent of it, where it is kept.

// ------------------------------------------------------------------------------------------------------------
// What a conversation is, and how it changes. Pure: every function gives a new conversation and knows no server.
//
// A turn is the user's, the model's, or results of tools. Two models side by side are two lanes of one turn. A user's
// turn and each lane have versions, one for each time a text was edited or an answer made anew. What follows a turn
// belongs to its chosen version; another version keeps what followed it, and brings it back when it is chosen.

/** @typedef {{id: string, name: string, arguments: string}} ToolCall
 * @typedef {import("./files.js").Attachment} Attachment
 * @typedef {{id: string, content: string, reasoning: string, reasoningSeconds: number | null, toolCalls: ToolCall[],
 *   finish: string | null, error: string | null, usage: object | null, timings: object | null, ttft: number | null,
 *   seconds: number | null, probabilities: object[], notes: string[], sent: object | null, model: string | null,
 *   ran?: {server: string, name: string, arguments: string, output: string, isError: boolean}[],
 *   stream: {id: string, began: number, content: string, reasoning: string} | null, after: Turn[]}} Version
 *   `ran`: tools that the server ran within the answer
 *   `progress`, `place` and `rate`: of reading its prompt, in the line, and its tokens per second, while it is written
 *   `stream`: while it is written, the name of its stream on the server, its start (Unix time in ms) and the texts that
 *   it goes on from
 * @typedef {{model: string, versions: Version[], chosen: number}} Lane
 * @typedef {{id: string, role: "user", content: string, images: string[], files?: Attachment[],
 *     versions?: {content: string, images: string[], files?: Attachment[], after: Turn[]}[], chosen?: number}
 *   | {id: string, role: "assistant", lanes: Lane[]}
 *   | {id: string, role: "tool", results: {id: string, name: string, content: string}[][]}} Turn
 * @typedef {{id: string, title: string, created: number, updated: number, pinned?: boolean, models: string[], system: string,
 *   settings: object, turns: Turn[]}} Conversation */

export const PLAIN = Object.freeze({ sampling: {}, maxTokens: null, probabilities: false, thinking: "default", shape: "none", schema: "", tools: "", servers: [], without: [], allowed: [] });
const TITLE_LENGTH = 60;
const FORMAT = "roundhouse.conversations";
const DEEPEST = 100; // branches within branches of an imported file

export const newId = () => `${Date.now().toString(36)}${Math.random().toString(36).slice(2, 8)}`;

/** @returns {Conversation} */
export function fresh(models = [], settings = PLAIN, system = "") {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, models, system, settings: { ...settings }, turns: [] };
}

/** @returns {Version} */
export function emptyVersion(more = {}) {
  return {
    id: newId(), content: "", reasoning: "", reasoningSeconds: null, toolCalls: [], finish: null, error: null, usage: null,
    timings: null, ttft: null, seconds: null, probabilities: [], notes: [], ran: [], sent: null, model: null, stream: null,
    after: [], progress: null, place: null, rate: null, ...more,
  };
}

export const chosen = (lane) => lane.versions[lane.chosen];

export function withUser(conversation, content, images = [], files = []) {
  const title = conversation.title || titleOf(content) || files[0]?.name || "";
  return changed({ ...conversation, title, turns: [...conversation.turns, { id: newId(), role: "user", content, images, files }] });
}

export function titleOf(text) {
  const line = text.trim().split("\n", 1)[0];
  return line.length > TITLE_LENGTH ? `${line.slice(0, TITLE_LENGTH - 1)}…` : line;
}

export function withAnswer(conversation, versions) {
  const lanes = versions.map((version, lane) => ({ model: conversation.models[lane] ?? conversation.models[0], versions: [version], chosen: 0 }));
  return changed({ ...conversation, turns: [...conversation.turns, { id: newId(), role: "assistant", lanes }] });
}

export function withResults(conversation, results) {
  return changed({ ...conversation, turns: [...conversation.turns, { id: newId(), role: "tool", results }] });
}

/** One lane of a turn replaced by what `change` makes of it. */
export function withLane(conversation, turn, lane, change) {
  const turns = conversation.turns.map((one) => one.id === turn && one.role === "assistant"
    ? { ...one, lanes: one.lanes.map((it, index) => (index === lane ? change(it) : it)) } : one);
  return changed({ ...conversation, turns });
}

export const setVersion = (version) => (lane) => ({ ...lane, versions: lane.versions.map((one) => (one.id === version.id ? version : one)) });

/** The versions of a user's turn, the chosen one with what follows it now. */
export const said = (turn) => turn.versions ?? [{ content: turn.content, images: turn.images, files: turn.files, after: [] }];

/** A user's turn said otherwise: a new version, chosen, which nothing follows. */
export function saidAgain(conversation, turn, content) {
  return at(conversation, turn, (it, after) => {
    const versions = keeping(said(it), it.chosen ?? 0, after);
    return [{ ...it, content, versions: [...versions, { content, images: it.images, files: it.files, after: [] }], chosen: versions.length }, []];
  });
}

/** Another version of a user's turn, with what followed it. */
export function chooseSaid(conversation, turn, index) {
  return at(conversation, turn, (it, after) => {
    const versions = keeping(said(it), it.chosen ?? 0, after);
    const { content, images, files, after: own } = versions[index];
    return [{ ...it, content, images, files, versions, chosen: index }, own];
  });
}

/** A lane's answer made anew: a new version, chosen, which nothing follows. */
export function answeredAgain(conversation, turn, lane, version) {
  return at(conversation, turn, (it, after) => {
    const lanes = it.lanes.map((one, place) => (place === lane
      ? { ...one, versions: [...keeping(one.versions, one.chosen, after), version], chosen: one.versions.length } : one));
    return [{ ...it, lanes }, []];
  });
}

/** Another version of a lane's answer, with what followed it. */
export function chooseAnswer(conversation, turn, lane, index) {
  return at(conversation, turn, (it, after) => {
    const versions = keeping(it.lanes[lane].versions, it.lanes[lane].chosen, after);
    const lanes = it.lanes.map((one, place) => (place === lane ? { ...one, versions, chosen: index } : one));
    return [{ ...it, lanes }, versions[index].after ?? []];
  });
}

const keeping = (versions, index, after) => versions.map((one, place) => (place === index ? { ...one, after } : one));

/** One turn and all that follows it, replaced by what `change` makes of them: [turn, what follows]. */
function at(conversation, turn, change) {
  const index = conversation.turns.findIndex((one) => one.id === turn);
  if (index < 0) return conversation;
  const [it, after] = change(conversation.turns[index], conversation.turns.slice(index + 1));
  return changed({ ...conversation, turns: [...conversation.turns.slice(0, index), it, ...after] });
}

/** A new conversation that begins as this one does, up to a turn. */
export function forked(conversation, turn) {
  const index = conversation.turns.findIndex((one) => one.id === turn);
  return changed({ ...conversation, id: newId(), created: Date.now(), turns: conversation.turns.slice(0, index + 1) });
}

/** A version of an answer, where it is the chosen one. */
export const versionOf = (conversation, id) => conversation.turns.flatMap((turn) => turn.lanes ?? []).map(chosen).find((one) => one.id === id);

/** The answers that were being written when the page was left. @returns {{turn: string, lane: number, version: Version}[]} */
export function unfinished(conversation) {
  return conversation.turns.flatMap((turn) => (turn.role !== "assistant" ? []
    : turn.lanes.flatMap((it, lane) => (chosen(it).stream ? [{ turn: turn.id, lane, version: chosen(it) }] : []))));
}

const changed = (conversation) => ({ ...conversation, updated: Date.now() });

/** The conversation as chat completions take it, for one lane, up to and without the turn `before`. */
export function messagesOf(conversation, lane = 0, before = null) {
  const messages = conversation.system.trim() ? [{ role: "system", content: conversation.system }] : [];
  for (const turn of conversation.turns) {
    if (turn.id === before) break;
    messages.push(...turnMessages(turn, lane));
  }
  return messages;
}

function turnMessages(turn, lane) {
  if (turn.role === "user") return [userMessage(turn)];
  if (turn.role === "tool") return (turn.results[lane] ?? turn.results[0]).map((one) => ({ role: "tool", tool_call_id: one.id, content: one.content }));
  const version = chosen(turn.lanes[lane] ?? turn.lanes[0]);
  const isEmpty = !version.content && !version.toolCalls.length;
  return isEmpty ? [] : [assistantMessage(version)];
}

/** Files stand before what is said of them. */
function userMessage({ content, images, files = [] }) {
  const text = [...files.map(documentOf), content].filter(Boolean).join("\n\n");
  const urls = [...files.flatMap((file) => file.pictures), ...images];
  if (!urls.length) return { role: "user", content: text };
  const pictures = urls.map((url) => ({ type: "image_url", image_url: { url } }));
  return { role: "user", content: [{ type: "text", text }, ...pictures] };
}

/** A file as models are used to it. */
function documentOf({ name, text, pictures }) {
  const title = name.replace(/["<>\n]/g, " ");
  if (!text) return `<document name="${title}" pages="${pictures.length}">The pages are pictures.</document>`;
  return `<document name="${title}">\n${text.replace(/\n$/, "")}\n</document>`;
}

export function assistantMessage({ content, toolCalls }) {
  const calls = toolCalls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
  return { role: "assistant", content, ...(calls.length ? { tool_calls: calls } : {}) };
}

/** Whether a conversation has all words of a text, in its title or in what was said on its branch. */
export function holding(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return (conversation) => words.every((word) => textOf(conversation).includes(word));
}

const texts = new WeakMap(); // a conversation never changes: another one takes its place

function textOf(conversation) {
  if (!texts.has(conversation)) texts.set(conversation, [conversation.title, ...conversation.turns.flatMap(wordsOf)].join("\n").toLowerCase());
  return texts.get(conversation);
}

function wordsOf(turn) {
  if (turn.role === "user") return [turn.content, ...(turn.files ?? []).map((file) => file.name)];
  if (turn.role === "tool") return turn.results.flat().map((one) => one.content);
  return turn.lanes.map((lane) => chosen(lane).content);
}

/** Conversations by their last change: the pinned ones, today's, and so on. @returns {[string, Conversation[]][]} */
export function groups(conversations, now = new Date()) {
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime();
  const day = 86400 * 1000;
  const names = [["Today", midnight], ["Yesterday", midnight - day], ["Previous 7 days", midnight - 7 * day], ["Previous 30 days", midnight - 30 * day], ["Older", -Infinity]];
  const nameOf = (one) => (one.pinned ? "Pinned" : names.find(([, from]) => one.updated >= from)[0]);
  return ["Pinned", ...names.map(([name]) => name)].map((name) => [name, conversations.filter((one) => nameOf(one) === name)]).filter(([, list]) => list.length);
}

export const exported = (conversations) => JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);

/** Conversations from a file, under new ids. Raises Error for a file that holds none; what isn't theirs is left out. */
export function imported(text) {
  let file;
  try { file = JSON.parse(text); } catch { throw new Error("This file is not JSON."); }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) throw new Error("This file holds no conversations of this page.");
  return file.conversations.map(cleaned);
}

function cleaned(given) {
  const it = { ...fresh(), ...pick(given, { title: "string", created: "number", updated: "number", pinned: "boolean", system: "string" }) };
  it.models = list(given.models).filter(isText);
  it.settings = cleanSettings(given.settings);
  it.turns = cleanTurns(given.turns);
  return it;
}

/** Nothing that comes from a file runs unasked: `allowed` stays empty. */
export function cleanSettings(given) {
  const settings = { ...PLAIN, ...pick(given ?? {}, { maxTokens: "number", probabilities: "boolean", thinking: "string", shape: "string", schema: "string", tools: "string", preset: "string" }) };
  for (const name of ["servers", "without"]) settings[name] = list(given?.[name]).filter(isText);
  settings.sampling = Object.fromEntries(Object.entries(given?.sampling ?? {}).filter(([, value]) => typeof value === "number"));
  return settings;
}

const cleanTurns = (turns, depth = 0) => (depth > DEEPEST ? [] : list(turns).map((turn) => cleanTurn(turn, depth)).filter(Boolean));

function cleanTurn(turn, depth) {
  if (turn?.role === "user") return { id: newId(), role: "user", ...cleanSaid(turn), ...cleanVersions(turn, depth) };
  if (turn?.role === "tool") {
    const results = list(turn.results).map((lane) => list(lane).map((one) => ({ id: String(one?.id), name: String(one?.name), content: String(one?.content) })));
    return results.length ? { id: newId(), role: "tool", results } : null;
  }
  const lanes = list(turn?.lanes).map((lane) => cleanLane(lane, depth)).filter((lane) => lane.versions.length);
  return turn?.role === "assistant" && lanes.length ? { id: newId(), role: "assistant", lanes } : null;
}

const cleanSaid = ({ content, images, files }) => ({ content: String(content ?? ""), images: cleanPictures(images), files: list(files).map(cleanFile) });

const cleanPictures = (urls) => list(urls).filter((one) => isText(one) && one.startsWith("data:image/"));

const cleanFile = (one) => ({ name: String(one?.name ?? ""), text: String(one?.text ?? ""), pictures: cleanPictures(one?.pictures), facts: String(one?.facts ?? "") });

function cleanVersions(turn, depth) {
  const versions = list(turn.versions).map((one) => ({ ...cleanSaid(one ?? {}), after: cleanTurns(one?.after, depth + 1) }));
  return versions.length ? { versions, chosen: within(turn.chosen, versions) } : {};
}

function cleanLane(lane, depth) {
  const versions = list(lane?.versions).map((one) => ({
    ...emptyVersion(), ...pick(one ?? {}, { content: "string", reasoning: "string", reasoningSeconds: "number", finish: "string", error: "string", ttft: "number", seconds: "number", model: "string" }),
    toolCalls: list(one?.toolCalls).map((call) => ({ id: String(call?.id), name: String(call?.name), arguments: String(call?.arguments) })),
    notes: list(one?.notes).filter(isText),
    ran: list(one?.ran).map((it) => ({ ...Object.fromEntries(["server", "name", "arguments", "output"].map((name) => [name, String(it?.[name])])), isError: it?.isError === true })),
    after: cleanTurns(one?.after, depth + 1),
  }));
  return { model: String(lane?.model ?? ""), versions, chosen: within(lane?.chosen, versions) };
}

const within = (index, versions) => (Number.isInteger(index) ? Math.max(0, Math.min(index, versions.length - 1)) : 0);
const list = (value) => (Array.isArray(value) ? value : []);
const isText = (value) => typeof value === "string";
const pick = (from, types) => Object.fromEntries(Object.entries(types).filter(([name, type]) => typeof from[name] === type).map(([name]) => [name, from[name]]));

// ------------------------------------------------------------------------------------------------------------
// From a conversation and its settings to the body of a request, and the same as curl and as Python. Pure.

const ALTERNATIVES = 8; // of each token, where probabilities are wanted

/** What the page itself wants to know of an answer while it is written; of another server's model it isn't asked. A load is shown
 * as one, not as a thought. */
export function watched(body, model) {
  if (!model || model.remote) return { ...body, loading_text: false };
  const counts = { ...body, loading_text: false, stream_options: { ...body.stream_options, continuous_usage_stats: true } };
  return model.backend === "llamacpp" ? { ...counts, return_progress: true } : counts;
}

/** The body for one lane's answer. Raises Error where the settings hold a text that is no JSON.
 * @param {import("./conversation.js").Conversation} conversation
 * @param {{lane?: number, before?: string | null, prefix?: object | null, served?: object[]}} [options] `prefix`: a message to go
 *   on from; `served`: functions that this server can run */
export function requestBody(conversation, { lane = 0, before = null, prefix = null, served = [] } = {}) {
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
    ...tools(settings.tools, served),
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

function tools(text, served) {
  const own = text.trim() ? parsed(text, "The list of tools") : [];
  if (!Array.isArray(own)) throw new Error("The list of tools is not a JSON array.");
  const all = [...own.map((tool) => (tool.function ? tool : { type: "function", function: tool })), ...served];
  return all.length ? { tools: all } : {};
}

/** The JSON in `text`. Raises Error that begins with `what`. */
export function parsed(text, what) {
  try { return JSON.parse(text); } catch (error) { throw new Error(`${what} is not valid JSON: ${error.message}`); }
}

const LONGEST_FILE = 2000; // characters of one in a body that is kept

/** A body without the bytes of its pictures and the rest of long files, to be kept and shown. */
export function abridged(body) {
  const messages = body.messages.map((message) => {
    if (isText(message.content)) return { ...message, content: abridgedText(message.content) };
    return Array.isArray(message.content) ? { ...message, content: message.content.map(abridgedPart) } : message;
  });
  return { ...body, messages };
}

function abridgedPart(part) {
  const url = part.image_url?.url;
  if (url) return { ...part, image_url: { url: `${url.slice(0, url.indexOf(",") + 1)}…` } };
  return part.type === "text" ? { ...part, text: abridgedText(part.text) } : part;
}

const abridgedText = (text) => text.replace(/(<document name="[^"\n]*">\n)([^]*?)(\n<\/document>)/g,
  (all, begin, inner, end) => (inner.length > LONGEST_FILE ? `${begin}${inner.slice(0, LONGEST_FILE)}…${end}` : all));

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

// ------------------------------------------------------------------------------------------------------------
// Where conversations are kept: this browser's IndexedDB, because pictures are too large for anything smaller.
// Without it (a private window may forbid it) they live as long as the page.

const STORE = "conversations";

/** A database of things with an `id`; what changes in it is told to this server's other tabs. */
class Shelf {
  constructor(name) {
    this.name = name;
    this.fallback = new Map();
    this.opened = null;
    this.others = new BroadcastChannel(name);
  }

  /** What is there, and how much of it can't be read. One after the other: a broken thing takes no other with it. */
  async readAll() {
    const ids = await this.within("readonly", (store) => store.getAllKeys(), () => [...this.fallback.keys()]);
    const read = await Promise.allSettled(ids.map((id) => this.read(id)));
    const found = read.filter((one) => one.status === "fulfilled");
    return { found: found.map((one) => one.value).filter(Boolean), lost: read.length - found.length };
  }

  read(id) { return this.within("readonly", (store) => store.get(id), () => this.fallback.get(id)); }
  keep(thing) { return this.change(thing.id, (store) => store.put(thing), () => this.fallback.set(thing.id, thing)); }
  remove(id) { return this.change(id, (store) => store.delete(id), () => this.fallback.delete(id)); }

  async change(id, act, without) {
    await this.within("readwrite", act, without);
    this.others.postMessage(id);
  }

  /** @returns {Promise<IDBDatabase | null>} */
  open() {
    this.opened ??= new Promise((resolve) => {
      let request;
      try { request = indexedDB.open(this.name, 1); } catch { return resolve(null); }
      request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => resolve(null);
      return undefined;
    });
    return this.opened;
  }

  async within(mode, act, without) {
    const database = await this.open();
    if (database === null) return without();
    return new Promise((resolve, reject) => {
      const transaction = database.transaction(STORE, mode);
      const request = act(transaction.objectStore(STORE));
      transaction.onabort = () => reject(transaction.error ?? request.error); // also where the storage is full
      // A large value that is read comes after a transaction that was committed early; one that is written waits else for
      // this page, which may be left before.
      if (mode === "readonly") request.onsuccess = () => resolve(request.result);
      else { transaction.oncomplete = () => resolve(); transaction.commit(); }
    });
  }
}

export const shelf = new Shelf("roundhouse");

/** Pictures and files of messages that are being written, by conversation. */
export const drafts = new Shelf("roundhouse.drafts");
