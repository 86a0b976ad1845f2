// Measures a model from this page: streams at a time and prompt sizes, each a run of its own, one after another.
//
// All streams of a run are one request, /v1/completions with as many prompts: a browser opens six connections to a server at
// most, so sixteen requests would wait for each other in the browser. The prompts differ from their first words on, so that
// nothing of them is cached; answers don't end before their length.
import { send } from "../core/server.js";
import { chunks } from "./trying.js";

export const LONGEST_RUN = 120; // seconds
const PROBE = 200; // words, to learn how many tokens a word is
const WORDS = "time people way water day part number sound place year work back thing name sentence man line boy farm end men land home hand high year school tree plant cover food sun city eye thought head story light country father night earth wind question sea rock fire problem space north".split(" ");

/** @typedef {{streams: number, size: number, prompt: number, first: number, worst: number, rate: number, each: number, reading: number, error?: undefined}
 *   | {streams: number, size: number, error: string}} Row
 * `size`: tokens of a prompt that were wished, `prompt`: those that it had; `first`, `worst`: seconds to the first token, in the middle of
 * the streams and of the last; `rate`: tokens per second of all streams, `each` of one; `reading`: prompt tokens per second. */

/** All runs with one model, told as they end. Raises AbortError, and ApiError where the model can't answer at all.
 * @param {object} model @param {{streams: number[], sizes: number[], answer: number}} plan
 * @param {AbortSignal} signal @param {(row: Row) => void} tell */
export async function measure(model, plan, signal, tell) {
  const perWord = await tokensPerWord(model, signal);
  for (const size of plan.sizes) {
    for (const streams of plan.streams) tell(await oneRun(model, { size, streams, answer: plan.answer, perWord }, signal));
  }
}

/** Loads the model, too: that is no part of what is measured. A stream, since that may take long, and proxies end what is silent. */
async function tokensPerWord(model, signal) {
  const body = { model: model.id, prompt: promptOf(PROBE), max_tokens: 1, stream: true, stream_options: { include_usage: true } };
  const { usage } = await timed(body, signal, 1);
  return (usage?.prompt_tokens || PROBE) / PROBE;
}

function promptOf(words) {
  const draw = () => WORDS[Math.floor(Math.random() * WORDS.length)];
  return `${Math.random().toString(36).slice(2, 8)} ${Array.from({ length: Math.max(1, words - 1) }, draw).join(" ")}`;
}

async function oneRun(model, { size, streams, answer, perWord }, signal) {
  if (model.context_length && size + answer > model.context_length) return { streams, size, error: "longer than its context" };
  const body = {
    model: model.id, prompt: Array.from({ length: streams }, () => promptOf(Math.round(size / perWord))), max_tokens: answer, temperature: 1,
    stream: true, stream_options: { include_usage: true }, ...(model.remote ? {} : { ignore_eos: true }),
  };
  const limit = AbortSignal.timeout(LONGEST_RUN * 1000);
  try {
    return { streams, size, ...figures(await timed(body, AbortSignal.any([signal, limit]), streams), streams) };
  } catch (error) {
    if (signal.aborted) throw error;
    return { streams, size, error: limit.aborted ? `took longer than ${LONGEST_RUN} s` : error.message };
  }
}

/** When each stream's pieces came, in seconds since the request. */
async function timed(body, signal, streams) {
  const began = performance.now();
  const seen = Array.from({ length: streams }, () => ({ first: null, last: null, pieces: 0 }));
  let usage = null, timings = null;
  const response = await send("POST", "/v1/completions", { body, signal, accept: "text/event-stream" });
  for await (const chunk of chunks(response)) {
    const at = (performance.now() - began) / 1000;
    for (const { index, text } of chunk.choices ?? []) if (text) note(seen[index], at);
    usage = chunk.usage ?? usage;
    timings = chunk.timings ?? timings;
  }
  return { seen: seen.filter((one) => one.pieces > 0), usage, timings };
}

function note(stream, at) {
  stream.first ??= at;
  stream.last = at;
  stream.pieces += 1;
}

/** Pure. Pieces that come together look faster than they were written, so one stream is as fast as its server says at most. */
export function figures({ seen, usage, timings }, streams) {
  if (!seen.length) throw new Error("nothing was answered");
  const firsts = seen.map((one) => one.first).sort((a, b) => a - b);
  const start = firsts[0], end = Math.max(...seen.map((one) => one.last));
  const written = usage?.completion_tokens ?? seen.reduce((sum, one) => sum + one.pieces, 0);
  const prompt = (usage?.prompt_tokens ?? 0) / streams;
  const later = written - seen.length; // the first of each came with its prompt
  const most = (streams === 1 && timings?.predicted_per_second) || Infinity;
  const each = seen.map((one) => (one.last > one.first ? (written / seen.length - 1) / (one.last - one.first) : null)).filter(Boolean).sort((a, b) => a - b);
  return {
    prompt, first: middle(firsts), worst: firsts.at(-1), rate: end > start ? Math.min(most, later / (end - start)) : null,
    each: each.length ? Math.min(most, middle(each)) : null, reading: prompt && firsts.at(-1) > 0 ? (prompt * streams) / firsts.at(-1) : null,
  };
}

const middle = (sorted) => sorted[Math.floor((sorted.length - 1) / 2)];
