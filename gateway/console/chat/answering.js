// One streamed answer: from a request's body to a version that grows. Drawn at most every FRAME milliseconds, however
// fast the tokens come, so that four streams leave the page's thread to its user.
import { signal } from "../core/html.js";
import { ApiError, refusalOf, send } from "../core/api.js";
import { serverEvents } from "../core/sse.js";

const FRAME = 50; // milliseconds

/** Answers under way, by their version's id: what is drawn while the conversation itself stays as it is. They go on when
 * another conversation is opened.
 * @type {import("../core/html.js").Signal<Map<string, {version: object, conversation: string, stop: () => void}>>} */
export const streams = signal(new Map());

/** Follow an answer to its end, and give the finished version. Never raises: what went wrong is in `error`.
 * @param {string} conversation its id @param {object} body @param {import("./conversation.js").Version} begun */
export async function follow(conversation, body, begun) {
  const abort = new AbortController();
  const shown = signal(begun);
  streams.value = new Map(streams.value).set(begun.id, { version: shown, conversation, stop: () => abort.abort() });
  const reader = new AnswerReader(begun, shown);
  try {
    const response = await send("POST", "/v1/chat/completions", { body, signal: abort.signal, accept: "text/event-stream" });
    reader.notes(response.headers);
    for await (const event of serverEvents(response)) reader.take(event);
    reader.end();
  } catch (error) {
    reader.fail(error);
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
  constructor(begun, shown) {
    this.version = { ...begun, toolCalls: begun.toolCalls.map((call) => ({ ...call })), probabilities: [...begun.probabilities] };
    this.shown = shown;
    this.began = performance.now();
    this.timer = 0;
  }

  /** What the server did with the request, by the answer's headers. */
  notes(headers) {
    const kinds = { "x-roundhouse-ignored": "Not applied", "x-roundhouse-relaxed": "Relaxed" };
    for (const [name, words] of Object.entries(kinds)) {
      if (headers.get(name)) this.version.notes = [...this.version.notes, `${words}: ${headers.get(name)}`];
    }
  }

  take({ data }) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw refusalOf(0, data);
    if (chunk.usage) this.version.usage = chunk.usage;
    if (chunk.timings) this.version.timings = chunk.timings;
    const choice = chunk.choices?.[0];
    if (choice) this.choice(choice);
    this.draw();
  }

  choice({ delta, finish_reason: finish, logprobs, schema_fault: fault }) {
    const { version } = this;
    const elapsed = (performance.now() - this.began) / 1000;
    if (delta.reasoning_content) {
      version.ttft ??= elapsed;
      this.thoughtFrom ??= elapsed;
      version.reasoning += delta.reasoning_content;
    }
    if (delta.content || delta.tool_calls) {
      version.ttft ??= elapsed;
      if (this.thoughtFrom !== undefined) version.reasoningSeconds ??= elapsed - this.thoughtFrom;
    }
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
    }, FRAME);
  }

  end() {
    if (!this.version.finish) this.version.error = "The connection ended before the answer did.";
  }

  fail(error) {
    if (error.name === "AbortError") this.version.finish = "stopped";
    else this.version.error = error instanceof ApiError ? error.message : `The answer broke off: ${error.message}`;
  }

  finished() {
    clearTimeout(this.timer);
    const { version } = this;
    version.seconds = (performance.now() - this.began) / 1000;
    if (this.thoughtFrom !== undefined) version.reasoningSeconds ??= version.seconds - this.thoughtFrom;
    version.toolCalls = version.toolCalls.filter(Boolean);
    return version;
  }
}
