// Before an answer's first word: its place in line, whom it waits for and how long that may take, and which loaded model
// could answer instead. All by what the server tells of its models and of the requests that this key may see.
import { html } from "../vendor/preact.js";
import { byId, requests } from "../core/server.js";
import { Dot, count, seconds } from "../ui/parts.js";
import { answerBy, hasPictures, isBusy, open, usable } from "./room.js";

const LEAST = 3; // answers of late, for an estimate by them
const OFFERED = 2; // other models

/** @param {{turn: object, lane: number, model: string, version: import("./conversation.js").Version}} props */
export function Waiting({ turn, lane, model, version }) {
  const it = byId.value.get(model);
  const request = requests.value.find((one) => one.request === version.stream?.id);
  const stage = stageOf(version, request, it);
  const place = request?.place ?? version.place;
  const reasons = stage === "queued" ? reasonsOf(it, place, byId.value, requests.value) : [];
  const others = stage === "prompt" ? [] : instead(model);
  return html`<div class="awaited"><p class="thinking-now"><${Dot} state="waiting" /><span>${headline(stage, model, it, place, version.progress, request)}…</span></p>
    ${reasons.map((reason) => html`<p class="soft" key=${reason}>${reason}</p>`)}
    ${others.length > 0 && isBusy.value && html`<div class="row wrap">${others.map(({ id }) => html`<button class="button small" key=${id} onClick=${() => answerBy(turn.id, lane, id)}>Use ${id} instead</button>`)}</div>`}</div>`;
}

/** "queued", "loading" or "prompt". */
function stageOf({ progress, place }, request, it) {
  if (progress) return "prompt";
  const isWaiting = request ? request.state === "queued" || request.state === "loading" : place || it?.waiting;
  if (it?.state === "loading" && (isWaiting || !request)) return "loading";
  return isWaiting ? "queued" : "prompt";
}

function headline(stage, model, it, place, progress, request) {
  if (stage === "prompt" && request?.state === "prompt" && request.place) {
    const read = requests.value.find((one) => one.model === model && one.state === "prompt" && !one.place);
    return `Reading ${read?.prompt_tokens ? `${count(read.prompt_tokens)} tokens` : "a prompt"} for another request; yours is ${request.place === 1 ? "next" : `number ${request.place}`}`;
  }
  if (stage === "queued") return place ? `Waiting in line, place ${place}` : "Waiting in line";
  if (stage === "prompt") return `Reading the prompt${progress?.total ? ` ${Math.floor((100 * progress.processed) / progress.total)} % of ${count(progress.total)} tokens` : ""}`;
  const share = it.progress?.total ? ` ${Math.floor((100 * it.progress.done) / it.progress.total)} %` : "";
  return `Loading ${model}${share}${it.progress?.seconds_left ? `, about ${seconds(it.progress.seconds_left)} left` : ""}`;
}

/** Whom a queued request waits for, and how long. Pure. @returns {string[]} */
function reasonsOf(it, place, models, all) {
  if (!it) return [];
  if (it.state === "loaded" && it.in_use) {
    const turns = Math.ceil((place ?? 1) / (it.slots || 1));
    return [`${it.id} ${answers(it, all)}${it.slots ? `, as many as it can at a time (${it.slots})` : ""}.`, about(usual(it.id, all), turns, 0)].filter(Boolean);
  }
  const holders = (it.fit?.unload ?? []).map((id) => models.get(id)).filter((one) => one?.in_use);
  if (!holders.length) return it.state === "loaded" ? [] : ["It is loaded as soon as there is room for it in memory."];
  const times = holders.map((one) => usual(one.id, all));
  const slowest = times.includes(null) ? null : Math.max(...times);
  return [`It needs the memory of ${holders.map((one) => `${one.id}, which ${answers(one, all)}`).join(", and of ")}.`, about(slowest, 1, it.load_seconds ?? 0)].filter(Boolean);
}

/** "answers 2 requests (laptop, open-webui)". */
function answers(it, all) {
  const keys = all.filter((one) => one.model === it.id && (one.state === "answering" || one.state === "prompt")).map((one) => one.key).filter(Boolean);
  const whose = keys.length ? ` (${[...new Set(keys)].join(", ")})` : "";
  return `answers ${it.in_use} request${it.in_use === 1 ? "" : "s"}${whose}`;
}

/** Seconds that an answer of a model took of late, half of them less and half more; null where too few are known. */
function usual(model, all) {
  const times = all.filter((one) => one.model === model && one.outcome === "ok").map((one) => one.seconds - one.queued_seconds - one.load_seconds).sort((a, b) => a - b);
  return times.length < LEAST ? null : times[Math.floor(times.length / 2)];
}

function about(time, turns, load) {
  if (time === null) return load ? `Then it is loaded, in about ${seconds(load)}.` : null;
  return `About ${seconds(time * turns + load)}, judging by recent answers${load ? " and its last load" : ""}.`;
}

/** Loaded models that could answer this conversation, those that are least busy first. */
function instead(model) {
  const able = (one) => one.id !== model && one.state === "loaded" && (!hasPictures(open.value) || one.modalities.includes("image"));
  return usable.value.filter(able).sort((a, b) => a.in_use - b.in_use).slice(0, OFFERED);
}
