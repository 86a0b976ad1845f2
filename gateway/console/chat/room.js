// The conversations of this browser, the one that is open, and what can be done with it.
import { batch, computed, signal } from "../core/html.js";
import { models } from "../core/live.js";
import { stored } from "../core/stored.js";
import { say } from "../ui/toast.js";
import { follow, release, stopAll, streams } from "./answering.js";
import {
  addVersion, assistantMessage, chosen, cutFrom, emptyVersion, fresh, PLAIN, setVersion, withAnswer, withLane, withResults, withTurn, withUser,
} from "./conversation.js";
import { abridged, requestBody } from "./request.js";
import { keep, readAll, remove } from "./shelf.js";

const lastSettings = stored("chat.settings", PLAIN);
const lastModels = stored("chat.models", []);

export const conversations = signal(null); // null: not read yet
export const open = signal(fresh());
/** Which conversations are being answered. */
export const answering = computed(() => new Set([...streams.value.values()].map((one) => one.conversation)));
export const isBusy = computed(() => answering.value.has(open.value.id));
export const sorted = computed(() => [...(conversations.value ?? [])].sort((a, b) => b.updated - a.updated));

export const stop = () => stopAll(open.value.id);

/** Models a chat can be held with: what failed to be read is in the list of models alone. */
export const usable = computed(() => (models.value ?? []).filter((model) => model.backend !== null || model.remote));

/** The models of the open conversation that are there; the server's default where none is. */
export const talking = computed(() => {
  const known = new Set(usable.value.map((model) => model.id));
  const wished = open.value.models.filter((name) => known.has(name));
  return wished.length ? wished : [preferred()].filter(Boolean);
});

function preferred() {
  const remembered = lastModels.value.find((name) => usable.value.some((model) => model.id === name));
  const first = usable.value.find((model) => model.state === "loaded") ?? usable.value.find((model) => model.default) ?? usable.value[0];
  return remembered ?? first?.id;
}

let reading = null;

/** What the shelf has, beside what was said while it was read. */
export function readConversations() {
  reading ??= readAll().then((kept) => {
    const present = conversations.value ?? [];
    const known = new Set(present.map((one) => one.id));
    conversations.value = [...present, ...kept.filter((one) => !known.has(one.id))];
  });
  return reading;
}

export function begin() {
  open.value = fresh([], { ...PLAIN, ...lastSettings.value, schema: "", shape: "none", tools: "" });
}

export function show(conversation) {
  open.value = conversation;
}

export async function forget(conversation) {
  stopAll(conversation.id);
  conversations.value = conversations.value.filter((one) => one.id !== conversation.id);
  if (open.value.id === conversation.id) begin();
  await remove(conversation.id);
  say("Conversation deleted.", { action: { text: "Undo", act: () => put(conversation) } });
}

export function add(list) {
  for (const conversation of list) put(conversation);
}

/** A changed conversation in place of what it was, on the page and on the shelf. */
function put(conversation) {
  const others = (conversations.value ?? []).filter((one) => one.id !== conversation.id);
  batch(() => {
    conversations.value = [conversation, ...others];
    if (open.value.id === conversation.id) open.value = conversation;
  });
  keep(conversation).catch(() => say("This browser keeps no more conversations: its storage is full.", { kind: "bad" }));
}

/** Change the open conversation; one without messages is not kept. */
export function change(make) {
  const next = make(open.value);
  if (next.turns.length) put(next);
  else open.value = next;
}

export function setModels(names) {
  lastModels.value = names.slice(0, 1);
  change((it) => ({ ...it, models: names }));
}

export function setSettings(more) {
  const settings = { ...open.value.settings, ...more };
  lastSettings.value = settings;
  change((it) => ({ ...it, settings }));
}

export const rename = (conversation, title) => put({ ...conversation, title });

// ---------------------------------------------------------------------------------------------- answers

/** Say something, and have it answered. False, and nothing changes, where the settings can't be sent. */
export async function ask(content, images) {
  return answer((it) => withUser(it, content, images));
}

/** Say something else in an earlier turn: what came behind it goes. */
export function askAgain(turn, content) {
  return answer((it) => withTurn(cutFrom(it, turn, false), turn, { content }));
}

/** Results of a turn's calls, by lane. */
export const giveResults = (results) => answer((it) => withResults(it, results));

async function answer(prepare) {
  const prepared = prepare({ ...open.value, models: talking.value });
  const bodies = tryBodies(() => prepared.models.map((_, lane) => requestBody(prepared, { lane })));
  if (!bodies) return false;
  const versions = bodies.map((body) => emptyVersion({ sent: abridged(body) }));
  const asked = withAnswer(prepared, versions);
  put(asked);
  if (open.value.id !== asked.id) open.value = asked;
  const turn = asked.turns.at(-1).id;
  bodies.forEach((body, lane) => { write(asked.id, turn, lane, body, versions[lane]); });
  return true;
}

/** A lane's answer once more, beside what it was. */
export function regenerate(turn, lane) {
  const now = open.value;
  const lanes = now.turns.find((one) => one.id === turn).lanes;
  const model = talking.value[lane] ?? lanes[lane].model;
  const bodies = tryBodies(() => [{ ...requestBody(now, { lane, before: turn }), model }]);
  if (!bodies) return;
  const version = emptyVersion({ sent: abridged(bodies[0]) });
  put(withLane(now, turn, lane, addVersion(version, model)));
  write(now.id, turn, lane, bodies[0], version);
}

/** A lane's answer goes on from its text, which may have been edited. */
export function goOn(turn, lane) {
  const now = open.value;
  const it = now.turns.find((one) => one.id === turn).lanes[lane];
  const version = { ...chosen(it), toolCalls: [], finish: null, error: null, probabilities: [] };
  const bodies = tryBodies(() => [{ ...requestBody(now, { lane, before: turn, prefix: assistantMessage(version) }), model: it.model }]);
  if (!bodies) return;
  const begun = { ...version, sent: abridged(bodies[0]) };
  put(withLane(now, turn, lane, setVersion(begun)));
  write(now.id, turn, lane, bodies[0], begun);
}

export const editAnswer = (turn, lane, content) => change((it) => withLane(it, turn, lane, (one) => setVersion({ ...chosen(one), content })(one)));

function tryBodies(make) {
  try { return make(); } catch (error) {
    say(error.message, { kind: "bad" });
    return null;
  }
}

async function write(conversation, turn, lane, body, version) {
  const finished = await follow(conversation, body, version);
  batch(() => {
    const home = conversations.value.find((one) => one.id === conversation);
    if (home) put(withLane(home, turn, lane, setVersion(finished)));
    release(version.id);
  });
}
