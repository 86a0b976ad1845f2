// What a conversation is, and how it changes. Pure: every function gives a new conversation and knows no server.
//
// A turn is the user's, the model's, or results of tools. Two models side by side are two lanes of one turn; a lane has
// versions, one for each time its answer was made anew, and the chosen one is what later requests go on from.

/** @typedef {{id: string, name: string, arguments: string}} ToolCall
 * @typedef {{id: string, content: string, reasoning: string, reasoningSeconds: number | null, toolCalls: ToolCall[],
 *   finish: string | null, error: string | null, usage: object | null, timings: object | null, ttft: number | null,
 *   seconds: number | null, probabilities: object[], notes: string[], sent: object | null}} Version
 * @typedef {{model: string, versions: Version[], chosen: number}} Lane
 * @typedef {{id: string, role: "user", content: string, images: string[]}
 *   | {id: string, role: "assistant", lanes: Lane[]}
 *   | {id: string, role: "tool", results: {id: string, name: string, content: string}[][]}} Turn
 * @typedef {{id: string, title: string, created: number, updated: number, models: string[], system: string,
 *   settings: object, turns: Turn[]}} Conversation */

export const PLAIN = Object.freeze({ sampling: {}, maxTokens: null, probabilities: false, thinking: "default", shape: "none", schema: "", tools: "" });
const TITLE_LENGTH = 60;
const FORMAT = "roundhouse.conversations";

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
    timings: null, ttft: null, seconds: null, probabilities: [], notes: [], sent: null, ...more,
  };
}

export const chosen = (lane) => lane.versions[lane.chosen];

export function withUser(conversation, content, images = []) {
  const title = conversation.title || titleOf(content);
  return changed({ ...conversation, title, turns: [...conversation.turns, { id: newId(), role: "user", content, images }] });
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

export const addVersion = (version, model) => (lane) => ({ ...lane, model: model ?? lane.model, versions: [...lane.versions, version], chosen: lane.versions.length });
export const setVersion = (version) => (lane) => ({ ...lane, versions: lane.versions.map((one) => (one.id === version.id ? version : one)) });
export const choose = (index) => (lane) => ({ ...lane, chosen: Math.max(0, Math.min(index, lane.versions.length - 1)) });

/** Everything behind a turn gone, and the turn itself unless `inclusive` is false. */
export function cutFrom(conversation, turn, inclusive = true) {
  const index = conversation.turns.findIndex((one) => one.id === turn);
  return index < 0 ? conversation : changed({ ...conversation, turns: conversation.turns.slice(0, index + (inclusive ? 0 : 1)) });
}

export function withTurn(conversation, turn, change) {
  return changed({ ...conversation, turns: conversation.turns.map((one) => (one.id === turn ? { ...one, ...change } : one)) });
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

function userMessage({ content, images }) {
  if (!images.length) return { role: "user", content };
  const pictures = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return { role: "user", content: [{ type: "text", text: content }, ...pictures] };
}

export function assistantMessage({ content, toolCalls }) {
  const calls = toolCalls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
  return { role: "assistant", content, ...(calls.length ? { tool_calls: calls } : {}) };
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
  const it = { ...fresh(), ...pick(given, { title: "string", created: "number", updated: "number", system: "string" }) };
  it.models = list(given.models).filter(isText);
  it.settings = { ...PLAIN, ...pick(given.settings ?? {}, { maxTokens: "number", probabilities: "boolean", thinking: "string", shape: "string", schema: "string", tools: "string" }) };
  it.settings.sampling = Object.fromEntries(Object.entries(given.settings?.sampling ?? {}).filter(([, value]) => typeof value === "number"));
  it.turns = list(given.turns).map(cleanTurn).filter(Boolean);
  return it;
}

function cleanTurn(turn) {
  if (turn?.role === "user") {
    const images = list(turn.images).filter((one) => isText(one) && one.startsWith("data:image/"));
    return { id: newId(), role: "user", content: String(turn.content ?? ""), images };
  }
  if (turn?.role === "tool") {
    const results = list(turn.results).map((lane) => list(lane).map((one) => ({ id: String(one?.id), name: String(one?.name), content: String(one?.content) })));
    return results.length ? { id: newId(), role: "tool", results } : null;
  }
  const lanes = list(turn?.lanes).map(cleanLane).filter((lane) => lane.versions.length);
  return turn?.role === "assistant" && lanes.length ? { id: newId(), role: "assistant", lanes } : null;
}

function cleanLane(lane) {
  const versions = list(lane?.versions).map((one) => ({
    ...emptyVersion(), ...pick(one ?? {}, { content: "string", reasoning: "string", reasoningSeconds: "number", finish: "string", error: "string", ttft: "number", seconds: "number" }),
    toolCalls: list(one?.toolCalls).map((call) => ({ id: String(call?.id), name: String(call?.name), arguments: String(call?.arguments) })),
    notes: list(one?.notes).filter(isText),
  }));
  const index = Number.isInteger(lane?.chosen) ? lane.chosen : 0;
  return { model: String(lane?.model ?? ""), versions, chosen: Math.max(0, Math.min(index, versions.length - 1)) };
}

const list = (value) => (Array.isArray(value) ? value : []);
const isText = (value) => typeof value === "string";
const pick = (from, types) => Object.fromEntries(Object.entries(types).filter(([name, type]) => typeof from[name] === type).map(([name]) => [name, from[name]]));
