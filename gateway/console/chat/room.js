// The conversations of this browser, the one that is open, and what can be done with it.
import { batch, computed, effect, signal } from "../core/html.js";
import { byId, models } from "../core/live.js";
import { go, instead, route } from "../core/route.js";
import { stored } from "../core/stored.js";
import { say } from "../ui/toast.js";
import { begun, follow, release, stopAll, streams } from "./answering.js";
import {
  answeredAgain, assistantMessage, chooseAnswer, chooseSaid, chosen, emptyVersion, forked, fresh, PLAIN, saidAgain, setVersion, unfinished, withAnswer,
  withLane, withResults, withUser,
} from "./conversation.js";
import { abridged, requestBody, watched } from "./request.js";
import { keep, readAll, remove } from "./shelf.js";

const lastSettings = stored("chat.settings", PLAIN);
const lastModels = stored("chat.models", []);
/** Answers as they were when the page was left: the shelf writes nothing that late. */
const left = stored("chat.left", []);

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

/** What the shelf has, beside what was said while it was read. Answers that were being written go on. */
export function readConversations() {
  reading ??= readAll().then((kept) => {
    const present = conversations.value ?? [];
    const known = new Set(present.map((one) => one.id));
    const found = kept.filter((one) => !known.has(one.id)).map(asItWasLeft);
    left.value = [];
    conversations.value = [...present, ...found];
    for (const one of found) for (const { turn, lane, version } of unfinished(one)) write(one.id, turn, lane, null, version);
  });
  return reading;
}

/** With the answers that were being written when the page was left. */
function asItWasLeft(conversation) {
  const answers = left.value.filter((one) => one.conversation === conversation.id);
  return answers.reduce((it, { turn, lane, version }) => withLane(it, turn, lane, setVersion(version)), conversation);
}

/** The address names the conversation that is open: it is found again after a reload, and by the browser's history. */
effect(() => {
  const [page, id] = route.value;
  if (page !== "chat" && page !== undefined) return;
  const now = open.peek();
  if (id === undefined) {
    if (now.turns.length) instead("chat", now.id);
  } else if (id !== now.id && conversations.value !== null) {
    const there = conversations.value.find((one) => one.id === id);
    if (there) open.value = there;
    else instead("chat", ...(now.turns.length ? [now.id] : []));
  }
});

export function begin() {
  open.value = fresh([], { ...PLAIN, ...lastSettings.value, schema: "", shape: "none", tools: "" });
  go("chat");
}

export function show(conversation) {
  open.value = conversation;
  go("chat", conversation.id);
}

/** A new conversation from the beginning of the open one. */
export function fork(turn) {
  const conversation = forked(open.value, turn);
  put(conversation);
  show(conversation);
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

/** At the head of the list, or among the others again. */
export const pin = (conversation) => put({ ...conversation, pinned: !conversation.pinned });

export const rename = (conversation, title) => put({ ...conversation, title });

// ---------------------------------------------------------------------------------------------- answers

/** Say something, and have it answered. False, and nothing changes, where the settings can't be sent. */
export async function ask(content, images) {
  return answer((it) => withUser(it, content, images));
}

/** Say something else in an earlier turn: what followed it stays with what was said before. */
export function askAgain(turn, content) {
  return answer((it) => saidAgain(it, turn, content));
}

export const toSaid = (turn, index) => change((it) => chooseSaid(it, turn, index));
export const toAnswer = (turn, lane, index) => change((it) => chooseAnswer(it, turn, lane, index));

/** Results of a turn's calls, by lane. */
export const giveResults = (results) => answer((it) => withResults(it, results));

async function answer(prepare) {
  const prepared = prepare({ ...open.value, models: talking.value });
  const bodies = tryBodies(() => prepared.models.map((model, lane) => bodyOf(prepared, model, { lane })));
  if (!bodies) return false;
  const versions = bodies.map((body) => begun(emptyVersion({ sent: abridged(body), model: body.model })));
  const asked = withAnswer(prepared, versions);
  put(asked);
  show(asked);
  const turn = asked.turns.at(-1).id;
  bodies.forEach((body, lane) => { write(asked.id, turn, lane, body, versions[lane]); });
  return true;
}

/** A lane's answer once more, beside what it was; by another model where one is named. */
export function regenerate(turn, lane, other = null) {
  const now = open.value;
  const lanes = now.turns.find((one) => one.id === turn).lanes;
  const model = other ?? talking.value[lane] ?? lanes[lane].model;
  const bodies = tryBodies(() => [bodyOf(now, model, { lane, before: turn })]);
  if (!bodies) return;
  const version = begun(emptyVersion({ sent: abridged(bodies[0]), model }));
  put(answeredAgain(now, turn, lane, version));
  write(now.id, turn, lane, bodies[0], version);
}

/** A lane's answer goes on from its text, which may have been edited. */
export function goOn(turn, lane) {
  const now = open.value;
  const it = now.turns.find((one) => one.id === turn).lanes[lane];
  const version = { ...chosen(it), toolCalls: [], finish: null, error: null, probabilities: [] };
  const bodies = tryBodies(() => [bodyOf(now, version.model ?? it.model, { lane, before: turn, prefix: assistantMessage(version) })]);
  if (!bodies) return;
  const going = begun({ ...version, sent: abridged(bodies[0]) });
  put(withLane(now, turn, lane, setVersion(going)));
  write(now.id, turn, lane, bodies[0], going);
}

export const editAnswer = (turn, lane, content) => change((it) => withLane(it, turn, lane, (one) => setVersion({ ...chosen(one), content })(one)));

const bodyOf = (conversation, model, options) => watched({ ...requestBody(conversation, options), model }, byId.value.get(model));

function tryBodies(make) {
  try { return make(); } catch (error) {
    say(error.message, { kind: "bad" });
    return null;
  }
}

const places = new Map(); // of the answers under way: their turns and lanes, by their version's id

addEventListener("pagehide", () => {
  left.value = [...streams.value].map(([id, { conversation, version }]) => ({ conversation, ...places.get(id), version: version.value }));
});

/** Follow an answer into its conversation. What has come is kept meanwhile, and drawn from where it comes. */
async function write(conversation, turn, lane, body, version) {
  const save = (part) => {
    const home = conversations.value.find((one) => one.id === conversation);
    if (home) keep(withLane(home, turn, lane, setVersion(part))).catch(() => {}); // said when it is whole
  };
  places.set(version.id, { turn, lane });
  const finished = await follow(conversation, version, { body, save });
  places.delete(version.id);
  batch(() => {
    const home = conversations.value.find((one) => one.id === conversation);
    if (home) put(withLane(home, turn, lane, setVersion(finished)));
    release(version.id);
  });
}
