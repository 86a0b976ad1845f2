// Conversations on the server, where its configuration and this browser's user want it: what the key's browsers have is
// brought together. Each text there has a number. Only who has seen the newest one replaces or deletes it; where both sides
// were changed both are kept. So nothing that was written is lost, whoever was offline.
import { computed, effect, untracked } from "../vendor/preact.js";
import { call, link, me } from "../core/server.js";
import { bytes, say } from "../ui/parts.js";
import { exported, imported, unfinished } from "./conversation.js";
import { alone, answering, conversations, forgotten, put, readConversations, removed, sync, who } from "./room.js";

const PATH = "/v1/admin/console/conversations";
const PAUSE = 1000; // milliseconds after a change
const LONGEST_TITLE = 200;
const SUFFIX = " (from another device)";

const isChosen = computed(() => Boolean(me.value?.sync) && sync.value === who.value);
const isOn = computed(() => isChosen.value && link.value === "live");

// ---------------------------------------------------------------------------------------------- what was seen of the server
// By conversation: the number there of what is here, its mark as it was then, and whether it was deleted here. Tabs share it.

const KNOWN = "roundhouse.chat.synced";
let inMemory = {}; // where the browser stores nothing

function allKnown() {
  try { return JSON.parse(localStorage.getItem(KNOWN)) ?? {}; } catch { return inMemory; }
}

/** @param {string} id @param {{changed: number, mark: number | null, isGone?: boolean} | null} entry */
function know(id, entry) {
  const { [id]: _, ...others } = allKnown();
  inMemory = entry ? { ...others, [id]: { ...entry, owner: who.value } } : others;
  try { localStorage.setItem(KNOWN, JSON.stringify(inMemory)); } catch { /* it lives on in the page */ }
}

/** What another key has seen of it is of no use. */
function known(id, all = allKnown()) { return all[id]?.owner === who.value ? all[id] : null; }

/** What tells a changed conversation: its texts change its time. */
function markOf({ updated, title, pinned, models, system, settings }) {
  let hash = 5381;
  for (const code of JSON.stringify([updated, title, Boolean(pinned), models, system, settings])) hash = ((hash * 33) ^ code.codePointAt(0)) | 0;
  return hash;
}

const here = (id) => conversations.value.find((one) => one.id === id);
const isAtRest = (one) => !answering.value.has(one.id) && !unfinished(one).length;
const isChanged = (one, all) => known(one.id, all)?.mark !== markOf(one);

// ---------------------------------------------------------------------------------------------- bringing both together

let largest = Infinity; // bytes of one
const refused = new Map(); // marks of what the server doesn't take: it is said once

const ask = (method, id = "", body = undefined) => {
  if (!isOn.value) throw new Error("no longer wished");
  return call(method, id ? `${PATH}/${id}` : PATH, body);
};

async function bringTogether() {
  const listed = await ask("GET");
  largest = listed.largest;
  await readConversations();
  const there = new Set(listed.conversations.map((one) => one.id));
  for (const one of listed.conversations) await meet(one);
  for (const one of conversations.value) if (!there.has(one.id)) await give(one);
  for (const [id, { isGone }] of Object.entries(allKnown())) if (isGone && !there.has(id)) know(id, null);
}

async function meet({ id, changed, size }) {
  const mine = here(id), before = known(id);
  if (mine && !isAtRest(mine)) return; // afterwards
  if (!mine && before?.isGone) {
    const isSeen = before.changed === changed;
    if (isSeen && size) await ask("DELETE", `${id}?changed=${changed}`);
    know(id, null);
    if (isSeen) return;
  }
  if (!size) await meetDeleted(mine, before);
  else if (!mine) await take(id);
  else if (before?.changed === changed) { if (isChanged(mine)) await give(mine); }
  else if (before && !isChanged(mine)) await take(id);
  else await keepBoth(mine);
}

/** It goes here, too, unless it was changed here. */
async function meetDeleted(mine, before) {
  if (mine && (!before || isChanged(mine))) await give(mine);
  else if (mine) {
    know(mine.id, null);
    await removed(mine);
  }
}

async function take(id) {
  const before = here(id);
  const { changed, conversation: text } = await ask("GET", id);
  const theirs = read(text);
  if (!theirs || here(id) !== before) return; // it was changed meanwhile
  const taken = { ...theirs, id };
  know(id, { changed, mark: markOf(taken) });
  await put(taken);
}

async function give(mine, number = known(mine.id)?.changed ?? null) {
  const mark = markOf(mine);
  if (!isAtRest(mine) || refused.get(mine.id) === mark) return;
  const text = exported([mine]);
  const size = new Blob([text]).size;
  const title = mine.title || "Untitled";
  if (size > largest) {
    refused.set(mine.id, mark);
    say(`“${title}” stays in this browser: with its attachments it has ${bytes(size)}, and the server keeps ${bytes(largest)} of a conversation.`, { kind: "bad" });
    return;
  }
  try {
    const { changed } = await ask("PUT", mine.id, { title: title.slice(0, LONGEST_TITLE).toWellFormed(), conversation: text, changed: number });
    know(mine.id, { changed, mark });
  } catch (error) {
    if (error.status === 409) soon(PAUSE); // another was faster: both are kept
    else if (error.status === 400 || error.status === 413) {
      refused.set(mine.id, mark);
      say(`“${title}” stays in this browser: ${error.message}`, { kind: "bad" });
    } else throw error;
  }
}

/** Changed here and there: theirs becomes a conversation of its own, and mine stays what it is. */
async function keepBoth(mine) {
  const { changed, conversation: text } = await ask("GET", mine.id);
  const theirs = read(text);
  if (!theirs || here(mine.id) !== mine) return;
  if (bare(theirs) === bare(read(exported([mine])))) know(mine.id, { changed, mark: markOf(mine) });
  else {
    await put({ ...theirs, title: `${theirs.title || "Untitled"}${SUFFIX}` });
    know(mine.id, { changed, mark: null });
    await give(mine);
  }
}

let isTold = false; // that one can't be read

/** A text from the server, under ids of its own; another program may have put it there. */
function read(text) {
  try { return imported(text)[0] ?? null; } catch (error) {
    if (!isTold) say(`A conversation on the server can’t be read: ${error.message}`, { kind: "bad" });
    isTold = true;
    return null;
  }
}

const bare = (conversation) => JSON.stringify(conversation, (name, value) => (name === "id" ? undefined : value));

// ---------------------------------------------------------------------------------------------- when

let timer = null, running = Promise.resolve();

function soon(pause) {
  clearTimeout(timer);
  timer = setTimeout(() => {
    running = running.then(() => alone("roundhouse.sync", bringTogether)).catch(() => {}); // away: once it is back
  }, pause);
}

effect(() => {
  if (!isChosen.value || !forgotten.value.length) return;
  for (const id of forgotten.value) if (known(id)) know(id, { ...known(id), isGone: true });
  forgotten.value = [];
  soon(PAUSE);
});

effect(() => {
  if (!isOn.value) return;
  const all = allKnown();
  const isDue = (one) => isChanged(one, all) && isAtRest(one) && refused.get(one.id) !== markOf(one);
  if (conversations.value?.some(isDue)) soon(PAUSE);
});

effect(() => { if (isOn.value) untracked(() => soon(0)); });
document.addEventListener("visibilitychange", () => { if (!document.hidden && isOn.value) soon(0); });
