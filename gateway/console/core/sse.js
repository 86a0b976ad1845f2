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
