// One streamed answer: from a request's body to a version that grows. Drawn at most every FRAME milliseconds, however
// fast the tokens come, so that four streams leave the page's thread to its user.
import { signal } from "../core/html.js";
import { ApiError, call, refusalOf, send } from "../core/api.js";
import { serverEvents } from "../core/sse.js";
import { newId } from "./conversation.js";

const FRAME = 50; // milliseconds
const SAVE = 1000; // milliseconds between two savings of what has come
const TRIES = 8, PAUSE = 1000; // to find the server again; milliseconds between two

/** Answers under way, by their version's id: what is drawn while the conversation itself stays as it is. They go on when
 * another conversation is opened.
 * @type {import("../core/html.js").Signal<Map<string, {version: object, conversation: string, stop: () => void}>>} */
export const streams = signal(new Map());

/** A version whose answer can be followed now, and from another page later. */
export const begun = (version) => ({ ...version, stream: { id: newId(), began: Date.now(), content: version.content, reasoning: version.reasoning } });

/** Follow an answer to its end, and give the finished version. The server keeps what it sends, so where the connection
 * breaks, or the page was left meanwhile, it is read again from its start. Never raises: what went wrong is in `error`.
 * @param {string} conversation its id @param {import("./conversation.js").Version} version as `begun` makes it
 * @param {{body?: object, save: (version: object) => void}} options `body` of the request, where it was not sent before */
export async function follow(conversation, version, { body = null, save }) {
  const abort = new AbortController();
  const shown = signal(version);
  const reader = new AnswerReader(version, shown, save);
  const address = `/v1/stream?conv_id=${version.stream.id}`;
  const stop = () => {
    abort.abort();
    call("DELETE", address).catch(() => {}); // to leave it is not enough: it goes on without readers
  };
  streams.value = new Map(streams.value).set(version.id, { version: shown, conversation, stop });
  const options = { signal: abort.signal, accept: "text/event-stream" };
  const ask = () => send("POST", "/v1/chat/completions", { ...options, body, more: { "x-conversation-id": version.stream.id } });
  const askAgain = () => send("GET", `${address}&from=0`, options);
  if (body) await reader.read(ask, () => true);
  for (let tries = 1; !reader.isOver; tries += 1) {
    await reader.read(askAgain, (error) => error.status >= 400 || tries === TRIES);
    if (!reader.isOver) await new Promise((resume) => { setTimeout(resume, PAUSE); });
  }
  return reader.finished();
}

/** The finished version is in its conversation: it is drawn from there now. */
export function release(id) {
  streams.value = new Map([...streams.value].filter(([one]) => one !== id));
}

/** Every answer of a conversation ends here, and its request on the server. */
export function stopAll(id) {
  for (const { conversation, stop } of streams.value.values()) if (conversation === id) stop();
}

/** Chunks to a version. */
class AnswerReader {
  constructor(begun, shown, save) {
    this.version = begun;
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
    this.version = { ...this.version, content, reasoning, toolCalls: [], probabilities: [], finish: null, error: null };
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
    else if (error.status === 404 && error.param === "conv_id") this.version.error = "The connection ended before the answer did, and the server no longer has the rest.";
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
