// The server: calls of its documented API, streams of events, and what the page knows of it.
import { batch, computed, signal } from "../vendor/preact.js";
import { stored } from "./browser.js";

// ------------------------------------------------------------------------------------------------------------
// Calls of the server's documented API. The key lives in the sessions of this page's tabs, or in this browser where that
// is wished, and goes out as a header: no cookies, so no other page can use it.

const remembered = stored("key", null); // in all tabs, where that is wished
export const key = stored("key", remembered.value, sessionStorage);

/** A tab that has no key asks the others for theirs; one that forgets it has them forget it, too. */
const tabs = new BroadcastChannel("roundhouse.key");
tabs.onmessage = ({ data: { told = null, forgotten = null } }) => {
  if (told && link.value === "locked") useKey(told);
  else if (forgotten && forgotten === key.value) useKey(null);
  else if (!told && !forgotten && key.value) tabs.postMessage({ told: key.value });
};

/** Keep the key in this browser, for other tabs and for later; or forget it there. */
export function remember(isWished) { remembered.value = isWished ? key.value : null; }

/** The server's address as clients write it: the page lies below it, behind a proxy's path perhaps. */
export const address = new URL("..", document.baseURI).href.replace(/\/$/, "");

/** What the server said against a request, or that it wasn't reached (`status` 0). */
export class ApiError extends Error {
  constructor(status, message, { param = null, code = null } = {}) {
    super(message);
    this.status = status;
    this.param = param;
    this.code = code;
  }
}

/** Headers with the key, if there is one. @param {Record<string, string>} [more] */
export function headers(more = {}) {
  return key.value ? { ...more, authorization: `Bearer ${key.value}` } : more;
}

/** The response to a call. Raises ApiError for every status from 400 on.
 * @param {string} method @param {string} path @param {object} [options] */
export async function send(method, path, { body, signal, accept = "application/json", more = {} } = {}) {
  const sent = { accept, ...more };
  const isJson = body !== undefined && !(body instanceof Blob);
  if (isJson) sent["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(address + path, { method, signal, headers: headers(sent), body: isJson ? JSON.stringify(body) : body, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server can’t be reached.");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

/** The JSON that a call is answered with. */
export async function call(method, path, body, options = {}) {
  const response = await send(method, path, { body, ...options });
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

async function refusal(response) {
  const text = await response.text().catch(() => "");
  return refusalOf(response.status, text);
}

/** An error from its body: OpenAI's envelope, or whatever a proxy on the way wrote. */
export function refusalOf(status, text) {
  try {
    const { error, detail } = JSON.parse(text);
    const message = typeof error === "string" ? error : error?.message ?? detail;
    if (message) return new ApiError(status, String(message), error ?? {});
  } catch { /* no JSON */ }
  return new ApiError(status, text.slice(0, 300) || `The server answered with status ${status}.`);
}

/** A download of something made in the page. */
export function saveAs(name, text, type = "application/json") {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// ------------------------------------------------------------------------------------------------------------
// Server-sent events over fetch: an EventSource can send no key.

/** @typedef {{event: string, data: string, id: string | null}} ServerEvent */

/** The events of a response's body, as they come (HTML standard, 9.2.6 "Interpreting an event stream"); comments too, as
 * events of that name, where `hasComments`.
 * @param {Response} response @param {boolean} [hasComments] @returns {AsyncGenerator<ServerEvent>} */
export async function* serverEvents(response, hasComments = false) {
  let event = "message", data = [], id = null;
  for await (const line of lines(response.body)) {
    if (line === "") {
      if (data.length) yield { event, data: data.join("\n"), id };
      event = "message"; data = [];
      continue;
    }
    if (line[0] === ":") {
      if (hasComments) yield { event: "comment", data: line.slice(1).trim(), id };
      continue;
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    if (name === "data") data.push(value);
    else if (name === "event") event = value;
    else if (name === "id") id = value;
  }
}

/** The lines of a stream of bytes. What was read is looked at once, however long a line gets. */
async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const parts = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      let from = 0;
      for (let end = value.indexOf("\n"); end >= 0; end = value.indexOf("\n", from)) {
        parts.push(value.slice(from, end));
        yield parts.join("").replace(/\r$/, "");
        parts.length = 0;
        from = end + 1;
      }
      if (from < value.length) parts.push(value.slice(from));
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// ------------------------------------------------------------------------------------------------------------
// The server's events: one stream for the whole page, a snapshot and then its changes.

const LOG_KEPT = 2000; // lines
const REQUESTS_KEPT = 200; // that are over
const RETRY_FIRST = 500, RETRY_MOST = 8000; // milliseconds

/** "asking" before anything is known, "locked" without a key that counts, else how the stream does. */
export const link = signal("asking"); // asking | locked | live | lost
export const me = signal(null);
export const refused = signal(null); // why the key was not taken
export const models = signal(null); // null: not received yet
export const requests = signal([]); // by number, the newest first
export const gauges = signal(null);
export const history = signal(null);
export const downloads = signal([]);
export const logLines = signal([]);
export const reloads = signal(0); // how often another configuration came into force

export const isAdmin = computed(() => me.value?.role === "admin");
export const byId = computed(() => new Map((models.value ?? []).map((model) => [model.id, model])));
export const running = computed(() => requests.value.filter((one) => one.state !== "done"));

let stop = new AbortController();

/** Ask who we are, then follow the stream until the key is another one; only while the tab is seen, because a browser
 * allows six connections to a server, for all of its tabs. */
export async function connect() {
  stop.abort();
  stop = new AbortController();
  const { signal: stopped } = stop;
  for (let pause = RETRY_FIRST; !stopped.aborted; pause = Math.min(pause * 2, RETRY_MOST)) {
    if (document.hidden) await new Promise((resolve) => { document.addEventListener("visibilitychange", resolve, { once: true }); });
    const left = new AbortController(), until = AbortSignal.any([stopped, left.signal]);
    document.addEventListener("visibilitychange", () => left.abort(), { signal: until });
    try {
      me.value = await call("GET", "/v1/admin/me", undefined, { signal: until });
      refused.value = null;
      await follow(until, () => { pause = RETRY_FIRST; });
    } catch (error) {
      if (stopped.aborted) return;
      if (error instanceof ApiError && error.status === 401) return lock(error);
    }
    if (stopped.aborted) return;
    const isLeft = left.signal.aborted;
    left.abort();
    if (isLeft) continue;
    if (link.value !== "asking" || models.value) link.value = "lost";
    await new Promise((resume) => setTimeout(resume, pause));
  }
}

/** Another key, or none. Nothing that the last one was shown stays. */
export function useKey(value, isRemembered = false) {
  batch(() => {
    key.value = value || null;
    remember(isRemembered);
    forget();
    link.value = "asking";
  });
  lastId = null;
  return connect();
}

/** The key goes, in all tabs that have it. */
export function forgetKey() {
  tabs.postMessage({ forgotten: key.value });
  return useKey(null);
}

function lock(error) {
  if (!key.value) tabs.postMessage({});
  batch(() => {
    forget();
    refused.value = key.value ? error.message : null;
    key.value = null;
    link.value = "locked";
  });
}

function forget() {
  me.value = null; models.value = null; gauges.value = null; history.value = null;
  requests.value = []; downloads.value = []; logLines.value = [];
}

let lastId = null;

async function follow(stopped, begun) {
  const more = lastId === null ? {} : { "last-event-id": lastId };
  const response = await send("GET", "/v1/admin/events", { accept: "text/event-stream", signal: stopped, more });
  link.value = "live";
  begun();
  for await (const event of serverEvents(response)) {
    if (event.id !== null) lastId = event.id;
    take(event);
  }
}

/** Events that come together change the page together, once in a frame. */
const waiting = [];

function take(event) {
  waiting.push(event);
  if (waiting.length > 1) return;
  requestAnimationFrame(() => batch(() => waiting.splice(0).forEach(applyOne)));
}

function applyOne({ event, data }) {
  const change = CHANGES[event];
  if (change) change(JSON.parse(data));
}

const CHANGES = {
  snapshot: (it) => {
    me.value = it.me; models.value = it.models; gauges.value = it.gauges; history.value = it.history;
    requests.value = sorted(it.requests); downloads.value = it.downloads ?? []; logLines.value = it.log ?? [];
  },
  model: (it) => { models.value = placed(models.value ?? [], it, "id"); },
  model_removed: (it) => { models.value = (models.value ?? []).filter((one) => one.id !== it.id); },
  request: (it) => { requests.value = sorted(placed(requests.value, it, "number")); },
  gauges: (it) => { gauges.value = it; },
  download: (it) => { downloads.value = placed(downloads.value, it, "id"); },
  download_removed: (it) => { downloads.value = downloads.value.filter((one) => one.id !== it.id); },
  log: (it) => { logLines.value = [...logLines.value, it].slice(-LOG_KEPT); },
  reloaded: () => { reloads.value += 1; },
};

/** `item` in place of the one with its name, or at the end. */
export function placed(list, item, name) {
  const index = list.findIndex((one) => one[name] === item[name]);
  return index < 0 ? [...list, item] : list.with(index, item);
}

function sorted(list) {
  const running = list.filter((one) => one.state !== "done");
  const done = list.filter((one) => one.state === "done");
  const newest = (a, b) => b.number - a.number;
  return [...running.sort(newest), ...done.sort(newest).slice(0, REQUESTS_KEPT)];
}

/** A reply with a model's new state, before the stream does. */
export function learn(model) {
  if (model?.id) models.value = placed(models.value ?? [], model, "id");
}
