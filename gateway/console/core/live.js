// The server's events: one stream for the whole page, a snapshot and then its changes.
import { batch, computed, signal } from "./html.js";
import { ApiError, call, key, remember, send } from "./api.js";
import { serverEvents } from "./sse.js";

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

/** Ask who we are, then follow the stream until the key is another one. */
export async function connect() {
  stop.abort();
  stop = new AbortController();
  const { signal: stopped } = stop;
  for (let pause = RETRY_FIRST; !stopped.aborted; pause = Math.min(pause * 2, RETRY_MOST)) {
    try {
      me.value = await call("GET", "/v1/admin/me", undefined, { signal: stopped });
      refused.value = null;
      await follow(stopped, () => { pause = RETRY_FIRST; });
    } catch (error) {
      if (stopped.aborted) return;
      if (error instanceof ApiError && error.status === 401) return lock(error);
    }
    if (stopped.aborted) return;
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

function lock(error) {
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
  const apply = () => batch(() => waiting.splice(0).forEach(applyOne));
  // A hidden tab has no frames, and must not collect events without end.
  if (document.hidden) setTimeout(apply, 250);
  else requestAnimationFrame(apply);
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
