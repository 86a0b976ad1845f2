// Answers as they are written, and the conversation that is open.
import { batch, computed, effect, signal } from "../vendor/preact.js";
import { go, instead, route, stored } from "../core/browser.js";
import { ApiError, byId, call, me, models, refusalOf, send, serverEvents } from "../core/server.js";
import { say } from "../ui/parts.js";
import {
  PLAIN, abridged, answeredAgain, assistantMessage, chooseAnswer, chooseSaid, chosen, emptyVersion, forked, fresh, newId, requestBody,
  saidAgain, setVersion, shelf, unfinished, versionOf, watched, withAnswer, withLane, withResults, withUser,
} from "./conversation.js";

// ------------------------------------------------------------------------------------------------------------
// One streamed answer: from a request's body to a version that grows. Drawn at most every FRAME milliseconds, however
// fast the tokens come, so that four streams leave the page's thread to its user.

const FRAME = 50; // milliseconds
const SAVE = 1000; // milliseconds between two savings of what has come
const TRIES = 8, PAUSE = 1000; // to find the server again; milliseconds between two

/** Answers under way, by their version's id: what is drawn while the conversation itself stays as it is. They go on when
 * another conversation is opened. One tab reads an answer, the others see what it keeps.
 * @typedef {{version: import("../vendor/preact.js").Signal<object>, conversation: string, abort: AbortController}} AnswerStream
 * @type {import("../vendor/preact.js").Signal<Map<string, AnswerStream>>} */
export const streams = signal(new Map());

const stops = new BroadcastChannel("roundhouse.stops"); // versions that a tab wants no more of
stops.onmessage = ({ data: id }) => streams.value.get(id)?.abort.abort();

/** A version whose answer can be followed now, and from another page later. */
export const begun = (version) => ({ ...version, stream: { id: newId(), began: Date.now(), content: version.content, reasoning: version.reasoning } });

/** Follow an answer to its end, and give the finished version. The server keeps what it sends, so where the connection
 * breaks, or the page was left meanwhile, it is read again from its start. Never raises: what went wrong is in `error`.
 * @param {AnswerStream} stream @param {{body?: object, save: (version: object) => void}} options
 *   `body` of the request, where it was not sent before */
async function follow({ version: shown, abort: { signal: stopped } }, { body = null, save }) {
  const reader = new AnswerReader(shown, save);
  const { id } = shown.value.stream;
  const options = { signal: stopped, accept: "text/event-stream" };
  const ask = () => send("POST", "/v1/chat/completions", { ...options, body, more: { "x-conversation-id": id, "x-request-id": id } });
  const askAgain = () => send("GET", `${addressOf(shown.value)}&from=0`, options);
  if (body) await reader.read(ask, () => true);
  for (let tries = 1; !reader.isOver; tries += 1) {
    await reader.read(askAgain, (error) => error.status >= 400 || tries === TRIES);
    if (!reader.isOver) await new Promise((resume) => { setTimeout(resume, PAUSE); });
  }
  return reader.finished();
}

const addressOf = (version) => `/v1/stream?conv_id=${version.stream.id}`;

/** End an answer, whichever tab reads it. */
function stopStream({ version: { value: version }, abort }) {
  abort.abort();
  stops.postMessage(version.id);
  call("DELETE", addressOf(version)).catch(() => {}); // to leave it is not enough: it goes on without readers
}

/** The finished version is in its conversation: it is drawn from there now. */
function release(id) {
  streams.value = new Map([...streams.value].filter(([one]) => one !== id));
}

/** Every answer of a conversation ends here, and its request on the server. */
function stopAll(id) {
  for (const stream of streams.value.values()) if (stream.conversation === id) stopStream(stream);
}

/** Chunks to a version. */
class AnswerReader {
  constructor(shown, save) {
    this.version = shown.value;
    this.shown = shown;
    this.save = save;
    this.saved = performance.now();
    this.timer = 0;
    this.isOver = false; // nothing more comes: whole, stopped or failed
  }

  /** All events of a response, if there is one; `isOver` is false where its connection broke.
   * @param {() => Promise<Response>} open @param {(error: Error) => boolean} isFinal whether it is in vain to open again */
  async read(open, isFinal) {
    let response = null;
    try {
      response = await open();
      this.restart();
      this.notes(response.headers);
      for await (const event of serverEvents(response, true)) this.take(event);
      this.isOver ||= this.version.finish !== null;
    } catch (error) {
      if (error.name === "AbortError" || (response === null && isFinal(error))) this.fail(error);
    }
  }

  /** Back to what was there before the answer; its times stay as they were seen first. */
  restart() {
    const { content, reasoning } = this.version.stream;
    this.version = { ...this.version, content, reasoning, toolCalls: [], ran: [], probabilities: [], finish: null, error: null };
  }

  /** What the server did with the request, by the answer's headers. */
  notes(headers) {
    const kinds = { "x-roundhouse-ignored": "Not applied", "x-roundhouse-relaxed": "Relaxed" };
    for (const [name, words] of Object.entries(kinds)) {
      const note = `${words}: ${headers.get(name)}`;
      if (headers.get(name) && !this.version.notes.includes(note)) this.version.notes = [...this.version.notes, note];
    }
  }

  take({ event, data }) {
    if (event === "comment") return this.comment(data);
    if (data === "[DONE]") return undefined;
    const chunk = JSON.parse(data);
    if (chunk.error) return this.fail(refusalOf(0, data));
    if (chunk.usage) this.used(chunk.usage);
    if (chunk.prompt_progress) this.version.progress = chunk.prompt_progress;
    if (chunk.timings) this.version.timings = chunk.timings;
    const choice = chunk.choices?.[0];
    if (choice) this.choice(choice);
    return this.draw();
  }

  /** While it waits, the server tells its place in line in comments. */
  comment(text) {
    this.version.place = Number(/\bposition (\d+)/.exec(text)?.[1]) || null;
    return this.draw();
  }

  used(usage) {
    this.version.usage = usage;
    const { ttft } = this.version;
    if (ttft === null) return;
    this.first ??= usage.completion_tokens; // those of the first piece took the time to the first token
    const spent = this.elapsed() - ttft;
    this.version.rate = spent > 0 ? (usage.completion_tokens - this.first) / spent : null;
  }

  choice({ delta, finish_reason: finish, logprobs, schema_fault: fault }) {
    const { version } = this;
    const elapsed = this.elapsed();
    if (delta.reasoning_content || delta.content || delta.tool_calls) version.ttft ??= elapsed;
    if (delta.reasoning_content) version.reasoning += delta.reasoning_content;
    else if ((delta.content || delta.tool_calls) && version.reasoning) version.reasoningSeconds ??= elapsed - version.ttft;
    if (delta.content) version.content += delta.content;
    delta.tool_calls?.forEach((call) => this.call(call));
    delta.executed_tools?.forEach((it) => { version.ran = [...(version.ran ?? []), { server: it.server_label, name: it.name, arguments: it.arguments, output: it.output, isError: Boolean(it.is_error) }]; });
    if (logprobs?.content) version.probabilities = version.probabilities.concat(logprobs.content);
    if (finish) version.finish = finish;
    if (fault) version.notes = [...version.notes, `Misses its schema: ${fault}`];
  }

  call({ index, id, function: { name, arguments: text } = {} }) {
    const call = this.version.toolCalls[index] ??= { id: "", name: "", arguments: "" };
    if (id) call.id = id;
    if (name) call.name += name;
    if (text) call.arguments += text;
  }

  draw() {
    this.timer ||= setTimeout(() => {
      this.timer = 0;
      this.shown.value = { ...this.version };
      if (performance.now() - this.saved < SAVE) return;
      this.saved = performance.now();
      this.save(this.version);
    }, FRAME);
  }

  /** Seconds since the request was sent, maybe by a page before this one. */
  elapsed() { return (Date.now() - this.version.stream.began) / 1000; }

  fail(error) {
    this.isOver = true;
    if (error.name === "AbortError") this.version.finish = "stopped";
    else if (error.status === 404 && error.param === "conv_id") this.version.error = "The connection broke here, and the server no longer has the rest.";
    else if (error.status === 0 && this.version.content) this.version.error = `The connection broke here: ${error.message}`;
    else this.version.error = error instanceof ApiError ? error.message : `The answer broke off: ${error.message}`;
  }

  finished() {
    clearTimeout(this.timer);
    const { version } = this;
    version.seconds = this.elapsed();
    if (version.reasoning) version.reasoningSeconds ??= version.seconds - (version.ttft ?? version.seconds);
    version.toolCalls = version.toolCalls.filter(Boolean);
    version.stream = version.progress = version.place = version.rate = null;
    return version;
  }
}

// ------------------------------------------------------------------------------------------------------------
// The conversations of this browser, the one that is open, and what can be done with it.

const lastSettings = stored("chat.settings", PLAIN);
const lastModels = stored("chat.models", []);
/** Whether the model writes the titles of conversations: `titles.js` does it. */
export const titled = stored("chat.titled", false);
/** Whose conversations are kept on the server, too: `sync.js` does it. By the key's label, so that another key's aren't. */
export const sync = stored("chat.sync", null);
export const who = computed(() => me.value?.label ?? "");
export const forgotten = signal([]); // conversations that were deleted here, until `sync.js` has taken note
/** What `panel.js` keeps, which is fetched once it is seen or there are some.
 * @type {{value: {name: string, system: string, settings: object}[]}} */
export const presets = stored("chat.presets", []);
/** Answers as they were when the page was left: the shelf writes nothing that late. */
const left = stored("chat.left", []);

export const conversations = signal(null); // null: not read yet
export const open = signal(fresh());
/** Which conversations are being answered. */
export const answering = computed(() => new Set([...streams.value.values()].map((one) => one.conversation)));
export const isBusy = computed(() => answering.value.has(open.value.id));
export const sorted = computed(() => [...(conversations.value ?? [])].sort((a, b) => b.updated - a.updated));

export const stop = () => stopAll(open.value.id);

const QUIET = ["embedding", "rerank"]; // what models do that write nothing

/** Models a chat can be held with: what failed to be read, or writes nothing, is in the list of models alone. */
export const usable = computed(() => (models.value ?? [])
  .filter((model) => (model.backend !== null || model.remote) && !model.capabilities?.some((one) => QUIET.includes(one))));

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

/** What the shelf has, beside what was said while it was read. Answers that were being written go on.
 * @returns {Promise<number>} how many conversations can't be read */
export function readConversations() {
  reading ??= shelf.readAll().catch(() => ({ found: [], lost: 1 })).then(({ found: kept, lost }) => {
    const present = conversations.value ?? [];
    const known = new Set(present.map((one) => one.id));
    const found = kept.filter((one) => !known.has(one.id)).map(asItWasLeft);
    left.value = [];
    conversations.value = [...present, ...found];
    found.forEach(goOnWriting);
    if (lost) say(`${lost === 1 ? "A conversation" : `${lost} conversations`} can’t be read from this browser’s storage.`, { kind: "bad" });
    return lost;
  });
  return reading;
}

/** With the answers that were being written when the page was left. */
function asItWasLeft(conversation) {
  const answers = left.value.filter((one) => one.conversation === conversation.id && versionOf(conversation, one.version.id)?.stream);
  return answers.reduce((it, { turn, lane, version }) => withLane(it, turn, lane, setVersion(version)), conversation);
}

/** What another tab did to a conversation is done here, too. */
shelf.others.onmessage = async ({ data: id }) => {
  await reading;
  if (conversations.value === null) return; // all are read later
  const there = await shelf.read(id).catch(() => null);
  if (there) taken(there);
  else if (there === undefined) dropped(id);
};

function taken(conversation) {
  replace(conversation);
  for (const { version } of unfinished(conversation)) {
    const stream = streams.value.get(version.id);
    if (stream && !places.has(version.id)) stream.version.value = version;
  }
  goOnWriting(conversation);
}

function goOnWriting(conversation) {
  for (const { turn, lane, version } of unfinished(conversation)) if (!streams.value.has(version.id)) write(conversation.id, turn, lane, null, version);
}

function dropped(id) {
  conversations.value = conversations.value.filter((one) => one.id !== id);
  if (open.value.id === id) begin();
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
  open.value = fresh([], { ...PLAIN, ...lastSettings.value, schema: "", shape: "none", tools: "", allowed: [] });
  go("chat");
}

export function beginWith(model) {
  begin();
  setModels([model]);
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
  if (sync.value !== null) forgotten.value = [...forgotten.value, conversation.id];
  await removed(conversation);
  say("Conversation deleted.", { action: { text: "Undo", act: () => put(conversation) } });
}

export async function removed({ id }) {
  stopAll(id);
  dropped(id);
  await shelf.remove(id);
}

export function add(list) {
  for (const conversation of list) put(conversation);
}

/** A changed conversation in place of what it was, on the page and on the shelf. */
export function put(conversation) {
  replace(conversation);
  return shelf.keep(conversation).catch(() => say("This browser keeps no more conversations: its storage is full.", { kind: "bad" }));
}

function replace(conversation) {
  const others = (conversations.value ?? []).filter((one) => one.id !== conversation.id);
  batch(() => {
    conversations.value = [conversation, ...others];
    if (open.value.id === conversation.id) open.value = conversation;
  });
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

/** One of this server's own tool servers, chosen or not. The choice counts at once: a message that is sent now waits for its
 * list. One that has none is not chosen any more. */
export function toggleServer(name) {
  const { servers = [] } = open.value.settings;
  const others = servers.filter((one) => one !== name);
  setSettings({ servers: servers.includes(name) ? others : [...servers, name] });
  if (servers.includes(name)) return;
  import("./served.js").then((served) => served.functionsOf({ servers: [name] })).catch((error) => {
    say(error.message, { kind: "bad" });
    setSettings({ servers: (open.value.settings.servers ?? []).filter((one) => one !== name) });
  });
}

/** At the head of the list, or among the others again. */
export const pin = (conversation) => put({ ...conversation, pinned: !conversation.pinned });

export const rename = (conversation, title) => put({ ...conversation, title });

// ---------------------------------------------------------------------------------------------- answers

/** Say something, and have it answered. False, and nothing changes, where the settings can't be sent. */
export async function ask(content, images, files = []) {
  return answer((it) => withUser(it, content, images, files));
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
  const served = await servedNow();
  if (!served) return false;
  const prepared = prepare({ ...open.value, models: talking.value });
  const bodies = tryBodies(() => prepared.models.map((model, lane) => bodyOf(prepared, model, { lane, served })));
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
export async function regenerate(turn, lane, other = null) {
  const served = await servedNow();
  const now = open.value;
  if (!served) return;
  const lanes = now.turns.find((one) => one.id === turn).lanes;
  const model = other ?? talking.value[lane] ?? lanes[lane].model;
  const bodies = tryBodies(() => [bodyOf(now, model, { lane, before: turn, served })]);
  if (!bodies) return;
  const version = begun(emptyVersion({ sent: abridged(bodies[0]), model }));
  put(answeredAgain(now, turn, lane, version));
  write(now.id, turn, lane, bodies[0], version);
}

/** Another model answers in place of one that is waited for, and from then on. */
export async function answerBy(turn, lane, other) {
  const served = await servedNow();
  const now = open.value;
  if (!served) return;
  const waited = chosen(now.turns.find((one) => one.id === turn).lanes[lane]);
  const bodies = tryBodies(() => [bodyOf(now, other, { lane, before: turn, served })]);
  if (!bodies) return;
  const version = begun(emptyVersion({ sent: abridged(bodies[0]), model: other }));
  if (streams.value.has(waited.id)) stopStream(streams.value.get(waited.id));
  const replaced = withLane(now, turn, lane, (it) => ({ ...it, model: other, versions: it.versions.map((one) => (one.id === waited.id ? version : one)) }));
  put({ ...replaced, models: talking.value.with(lane, other) });
  write(now.id, turn, lane, bodies[0], version);
}

/** Whether a model must see, to answer it. */
export const hasPictures = ({ turns }) => turns.some((turn) => turn.images?.length || turn.files?.some((file) => file.pictures.length));

/** A lane's answer goes on from its text, which may have been edited. */
export async function goOn(turn, lane) {
  const served = await servedNow();
  const now = open.value;
  if (!served) return;
  const it = now.turns.find((one) => one.id === turn).lanes[lane];
  const version = { ...chosen(it), toolCalls: [], finish: null, error: null, probabilities: [] };
  const bodies = tryBodies(() => [bodyOf(now, version.model ?? it.model, { lane, before: turn, prefix: assistantMessage(version), served })]);
  if (!bodies) return;
  const going = begun({ ...version, sent: abridged(bodies[0]) });
  put(withLane(now, turn, lane, setVersion(going)));
  write(now.id, turn, lane, bodies[0], going);
}

export const editAnswer = (turn, lane, content) => change((it) => withLane(it, turn, lane, (one) => setVersion({ ...chosen(one), content })(one)));

/** An answer's text, which is a call. */
export const makeCall = (turn, lane, call) => change((it) => withLane(it, turn, lane, (one) => setVersion({ ...chosen(one), content: "", toolCalls: [call], finish: "tool_calls" })(one)));

const bodyOf = (conversation, model, options) => watched({ ...requestBody(conversation, options), model }, byId.value.get(model));

/** The functions of the open conversation that this server can run; null, and it is said why, where they can't be had. */
async function servedNow() {
  const { settings } = open.value;
  if (!settings.servers?.length) return [];
  try { return await (await import("./served.js")).functionsOf(settings); } catch (error) {
    say(error.message, { kind: "bad" });
    return null;
  }
}

function tryBodies(make) {
  try { return make(); } catch (error) {
    say(error.message, { kind: "bad" });
    return null;
  }
}

/** Answers whose end this page has seen, by their version's id: their calls haven't run yet. */
export const finishedHere = new Set();

const places = new Map(); // of the answers that this tab reads: their turns and lanes, by their version's id

addEventListener("pagehide", () => {
  left.value = [...places].map(([id, { turn, lane }]) => {
    const { conversation, version } = streams.value.get(id);
    return { conversation, turn, lane, version: version.value };
  });
});

/** One tab at a time does this. Without TLS a browser can't tell, and each does it. */
export const alone = (name, work) => (navigator.locks ? navigator.locks.request(name, work) : work());

/** An answer comes into its conversation: read here, or by another tab, whose place is taken once that is closed. */
async function write(conversation, turn, lane, body, version) {
  const stream = { version: signal(version), conversation, abort: new AbortController() };
  streams.value = new Map(streams.value).set(version.id, stream);
  await alone(`roundhouse.answer.${version.stream.id}`, async () => {
    const there = body ? null : await shelf.read(conversation).catch(() => null);
    if (there && !versionOf(there, version.id)?.stream) replace(there); // another tab has seen its end
    else await writeHere(stream, turn, lane, body);
  });
  release(version.id);
}

/** What has come is kept meanwhile, and drawn from where it comes. */
async function writeHere(stream, turn, lane, body) {
  const { id } = stream.version.value;
  const home = () => conversations.value.find((one) => one.id === stream.conversation);
  const save = (part) => {
    if (home()) shelf.keep(withLane(home(), turn, lane, setVersion(part))).catch(() => {}); // said when it is whole
  };
  places.set(id, { turn, lane });
  const finished = await follow(stream, { body, save });
  places.delete(id);
  finishedHere.add(id);
  if (home()) await batch(() => { release(id); return put(withLane(home(), turn, lane, setVersion(finished))); });
}
