// Calls of the server's documented API. The key lives in this tab's session, or in this browser where that is wished, and
// goes out as a header: no cookies, so no other page can use it.
import { stored } from "./stored.js";

const remembered = stored("key", null); // in all tabs, where that is wished
export const key = stored("key", remembered.value, sessionStorage);

/** Keep the key in this browser, for other tabs and for later; or forget it there. */
export function remember(isWished) { remembered.value = isWished ? key.value : null; }

/** The server's address as clients write it. */
export const address = location.origin;

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
    response = await fetch(path, { method, signal, headers: headers(sent), body: isJson ? JSON.stringify(body) : body, cache: "no-store" });
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
