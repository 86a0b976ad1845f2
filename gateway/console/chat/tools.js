// Tools of the server's own MCP servers in a chat: which of them a conversation has, and each call, which runs once its
// user has allowed it. To the model they are functions like any others, so what it called and what ran is in the conversation.
import { html, signal, useEffect, useRef, useState } from "../vendor/preact.js";
import { call, me } from "../core/server.js";
import { Icon, Progress, say } from "../ui/parts.js";
import { chosen } from "./conversation.js";
import { finishedHere, giveResults, open, setSettings, toggleServer } from "./room.js";

const MOST_ROUNDS = 16; // of calls that run without a question, after one message
const REFUSED = "The user did not allow this call.";

/** @typedef {{server: string, name: string, function: string, description: string, parameters: object, asks: boolean, reads_only: boolean}} ServedTool */

/** What each server has, once it was asked. @type {import("../vendor/preact.js").Signal<Map<string, ServedTool[]>>} */
const offers = signal(new Map());

/** A server's tools. Raises ApiError. */
async function readTools(server) {
  const { tools } = await call("GET", `/v1/admin/mcp/tools?server=${encodeURIComponent(server)}`);
  offers.value = new Map(offers.value).set(server, tools.map((tool) => ({ server, ...tool })));
}

const serversOf = (settings) => (settings.servers ?? []).filter((name) => me.value?.mcp?.includes(name));

/** All tools that a conversation's settings choose, as far as their servers were asked. */
const chosenTools = (settings) => serversOf(settings).flatMap((server) => offers.value.get(server) ?? [])
  .filter((tool) => !(settings.without ?? []).includes(tool.function));

/** The functions of a request with these settings. Raises ApiError where a server can't be asked. */
export async function functionsOf(settings) {
  await Promise.all(serversOf(settings).filter((server) => !offers.value.has(server)).map(readTools));
  return chosenTools(settings).map(({ function: name, description, parameters }) => ({ type: "function", function: { name, description, parameters } }));
}

// ------------------------------------------------------------------------------------------------------------
// The calls of the last answer. What runs goes on while another conversation is open.

/** @type {import("../vendor/preact.js").Signal<Map<string, {state: "running" | "done", text: string, isError: boolean, stop: () => void}>>} */
const runs = signal(new Map()); // by the answer's version and the call's place in it

const setRun = (id, run) => { runs.value = new Map(runs.value).set(id, run); };

/** Run a tool. What goes wrong is what the model is told. */
async function run(id, tool, given) {
  const abort = new AbortController();
  setRun(id, { state: "running", text: "", isError: false, stop: () => abort.abort() });
  const finish = (text, isError) => setRun(id, { state: "done", text, isError, stop: () => {} });
  try {
    const body = { server: tool.server, tool: tool.name, arguments: JSON.parse(given || "{}") };
    const { text, is_error: isError } = await call("POST", "/v1/admin/mcp/call", body, { signal: abort.signal });
    finish(text, isError);
  } catch (error) {
    if (error.name === "AbortError") finish("The user stopped this call.", true);
    else finish(error instanceof SyntaxError ? "Error: the arguments are not valid JSON." : `Error: ${error.message}`, true);
  }
}

const refuse = (id) => setRun(id, { state: "done", text: REFUSED, isError: true, stop: () => {} });

/** Rounds of calls since something was said. */
function rounds({ turns }) {
  const last = turns.findLastIndex((turn) => turn.role === "user");
  return turns.slice(last).filter((turn) => turn.role === "tool").length;
}

/** What is to be done with the calls of the last turn: those of this server's tools are run or refused, to others the user says
 * what their tools would have said. The answer goes on when all have their results. */
export default function Calls({ turn }) {
  const { settings } = open.value;
  const [texts, setTexts] = useState({});
  const isSent = useRef(false);
  const calls = turn.lanes.flatMap((lane, index) => chosen(lane).toolCalls.map((one, place) => {
    const id = `${chosen(lane).id}-${place}`;
    return { ...one, id, call: one.id, lane: index, tool: chosenTools(settings).find((tool) => tool.function === one.name), run: runs.value.get(id) };
  }));
  const served = calls.filter((one) => one.tool), others = calls.filter((one) => !one.tool);
  const waiting = served.filter((one) => !one.run);
  const send = async () => {
    if (isSent.current) return;
    isSent.current = true;
    const results = turn.lanes.map((_, lane) => calls.filter((one) => one.lane === lane).map(({ id, call: number, name, run: ran }) => ({ id: number, name, content: ran ? ran.text : texts[id] ?? "" })));
    isSent.current = await giveResults(results);
  };
  useEffect(() => { functionsOf(settings).catch((error) => say(error.message, { kind: "bad" })); }, []);
  useEffect(() => {
    const isHere = turn.lanes.every((lane) => finishedHere.has(chosen(lane).id)); // after a reload it may have run already
    if (!isHere || rounds(open.value) >= MOST_ROUNDS) return;
    for (const { id, tool, arguments: given } of waiting) if (!tool.asks && settings.allowed?.includes(tool.function)) run(id, tool, given);
  }, [waiting.length, settings.allowed]);
  const isReady = served.length > 0 && !others.length && served.every((one) => one.run?.state === "done");
  useEffect(() => { if (isReady) send(); }, [isReady]);
  return html`<form class="results-form" onSubmit=${(event) => { event.preventDefault(); send(); }}>
    ${served.map((one) => html`<${ServedCall} key=${one.id} call=${one} />`)}
    ${waiting.length > 1 && html`<div><button type="button" class="button small" onClick=${() => waiting.forEach(({ id, tool, arguments: given }) => run(id, tool, given))}>Run all ${waiting.length}</button></div>`}
    ${others.map(({ id, name }) => html`<label class="field" key=${id}><span class="label">Result of <code class="break">${name}</code></span>
      <textarea class="input mono" rows="2" value=${texts[id] ?? ""} onInput=${(event) => setTexts({ ...texts, [id]: event.target.value })} /></label>`)}
    ${others.length > 0 && html`<div><button class="button primary" disabled=${served.some((one) => one.run?.state !== "done")}>Send results</button></div>`}
  </form>`;
}

/** One call: it waits for its user, runs, or has its result. */
function ServedCall({ call: { id, tool, run: now, arguments: given } }) {
  const { allowed = [] } = open.value.settings;
  const start = () => run(id, tool, given);
  const always = () => { setSettings({ allowed: [...allowed, tool.function] }); start(); };
  return html`<div class="served-call" role="group" aria-label=${`Call of ${tool.name}`}>
    <div class="row"><${Icon} name="tool" size="14" /><b class="break">${tool.name}</b><span class="faint small cut grow" title=${tool.description}>${tool.server} · ${tool.description}</span></div>
    ${!now && html`<div class="row wrap"><button type="button" class="button primary small" onClick=${start}>Run</button>
      ${!tool.asks && html`<button type="button" class="button small" title="In this conversation" onClick=${always}>Run, and don’t ask again</button>`}
      <button type="button" class="button quiet small" onClick=${() => refuse(id)}>Don’t run</button></div>`}
    ${now?.state === "running" && html`<div class="row"><div class="grow"><${Progress} done=${0} total=${0} label=${`${tool.name} runs`} /></div>
      <button type="button" class="button small" onClick=${now.stop}>Stop</button></div>`}
    ${now?.state === "done" && html`<pre tabindex="0" aria-label=${`Result of ${tool.name}`} class=${now.isError ? "bad" : ""}>${now.text}</pre>`}</div>`;
}

// ------------------------------------------------------------------------------------------------------------
// The choice of servers and tools, in the panel.

export function Servers() {
  return html`${(me.value?.mcp ?? []).map((server) => html`<${Server} key=${server} server=${server} />`)}`;
}

function Server({ server }) {
  const { settings } = open.value;
  const isOn = serversOf(settings).includes(server);
  useEffect(() => { if (isOn) functionsOf({ servers: [server] }).catch((error) => say(error.message, { kind: "bad" })); }, [isOn]);
  return html`<div class="server-tools"><label class="panel-row"><span class="break">${server}</span><input type="checkbox" checked=${isOn} aria-label=${`Tools of ${server}`} onChange=${() => toggleServer(server)} /></label>
    ${isOn && html`<ul aria-label=${`Tools of ${server}`}>${(offers.value.get(server) ?? []).map((tool) => html`<${OneTool} key=${tool.function} tool=${tool} settings=${settings} />`)}</ul>`}</div>`;
}

function OneTool({ tool, settings }) {
  const { without = [], allowed = [] } = settings;
  const isOn = !without.includes(tool.function), runsUnasked = allowed.includes(tool.function) && !tool.asks;
  const change = () => setSettings({ without: isOn ? [...without, tool.function] : without.filter((one) => one !== tool.function) });
  const ask = () => setSettings({ allowed: allowed.filter((one) => one !== tool.function) });
  return html`<li><label class="check" title=${tool.description}><input type="checkbox" checked=${isOn} onChange=${change} /><span class="break">${tool.name}</span></label>
    ${runsUnasked && html`<button class="button quiet small" title="Ask before it runs again" onClick=${ask}>runs unasked</button>`}</li>`;
}
