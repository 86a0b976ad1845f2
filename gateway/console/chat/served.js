// The tools of the server's own MCP servers: which there are, and which of them a conversation's settings choose.
import { signal } from "../vendor/preact.js";
import { call, me } from "../core/server.js";

/** @typedef {{server: string, name: string, function: string, description: string, parameters: object, asks: boolean, reads_only: boolean}} ServedTool */

/** What each server has, once it was asked. @type {import("../vendor/preact.js").Signal<Map<string, ServedTool[]>>} */
export const offers = signal(new Map());

/** A server's tools. Raises ApiError. */
async function readTools(server) {
  const { tools } = await call("GET", `/v1/admin/mcp/tools?server=${encodeURIComponent(server)}`);
  offers.value = new Map(offers.value).set(server, tools.map((tool) => ({ server, ...tool })));
}

export const serversOf = (settings) => (settings.servers ?? []).filter((name) => me.value?.mcp?.includes(name));

/** All tools that a conversation's settings choose, as far as their servers were asked. */
export const chosenTools = (settings) => serversOf(settings).flatMap((server) => offers.value.get(server) ?? [])
  .filter((tool) => !(settings.without ?? []).includes(tool.function));

/** The functions of a request with these settings. Raises ApiError where a server can't be asked. */
export async function functionsOf(settings) {
  await Promise.all(serversOf(settings).filter((server) => !offers.value.has(server)).map(readTools));
  return chosenTools(settings).map(({ function: name, description, parameters }) => ({ type: "function", function: { name, description, parameters } }));
}
