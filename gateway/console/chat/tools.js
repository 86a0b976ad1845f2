// Tools of the server's own MCP servers in a chat: which of them a conversation has, and each call, which runs once its
// user has allowed it. To the model they are functions like any others, so what it called and what ran is in the conversation.
import { html, signal, useEffect, useRef } from "../vendor/preact.js";
import { call, me } from "../core/server.js";
import { Notice, Progress, say } from "../ui/parts.js";
import { chosen } from "./conversation.js";
import { finishedHere, giveResults, makeCall, open, setSettings, toggleServer } from "./room.js";
import { chosenTools, functionsOf, offers, serversOf } from "./served.js";

const MOST_ROUNDS = 16; // of calls that run without a question, after one message
const REFUSED = "The user did not allow this call.";

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

/** What the user says that tools said which this server doesn't run, by the call. */
const texts = signal({});

const toolOf = (name, settings) => chosenTools(settings).find((tool) => tool.function === name);

/** What is to be done with the calls of the last turn: those of this server's tools are run or refused, to others the user says
 * what their tools would have said. The answer goes on when all have their results. */
export default function Calls({ turn }) {
  const { settings } = open.value;
  const isSent = useRef(false);
  const calls = turn.lanes.flatMap((lane, index) => chosen(lane).toolCalls.map((one, place) => {
    const id = `${chosen(lane).id}-${place}`;
    return { ...one, id, call: one.id, lane: index, tool: toolOf(one.name, settings), run: runs.value.get(id) };
  }));
  const served = calls.filter((one) => one.tool), others = calls.filter((one) => !one.tool);
  const waiting = served.filter((one) => !one.run);
  const send = async () => {
    if (isSent.current) return;
    isSent.current = true;
    const results = turn.lanes.map((_, lane) => calls.filter((one) => one.lane === lane).map(({ id, call: number, name, run: ran }) => ({ id: number, name, content: ran ? ran.text : texts.value[id] ?? "" })));
    isSent.current = await giveResults(results);
  };
  useEffect(() => { functionsOf(settings).catch((error) => say(error.message, { kind: "bad" })); }, []);
  useEffect(() => {
    const isHere = turn.lanes.every((lane) => finishedHere.has(chosen(lane).id)); // after a reload it may have run already
    if (!isHere || rounds(open.value) >= MOST_ROUNDS) return;
    for (const { id, tool, arguments: given } of waiting) if (!tool.asks && settings.allowed?.includes(tool.function)) run(id, tool, given);
  }, [waiting.length, settings.allowed]);
  const isDone = served.every((one) => one.run?.state === "done");
  const isReady = served.length > 0 && !others.length && isDone;
  useEffect(() => { if (isReady) send(); }, [isReady]);
  return html`<div class="row wrap">
    ${waiting.length > 1 && html`<button class="button small" onClick=${() => waiting.forEach(({ id, tool, arguments: given }) => run(id, tool, given))}>Run all ${waiting.length}</button>`}
    ${others.length > 0 && html`<button class="button primary" disabled=${!isDone} onClick=${send}>Send results</button>`}</div>`;
}

/** A call of one of `names` in a text that a model wrote as its answer. Pure. @returns {{name: string, arguments: string} | null} */
export function callIn(text, names) {
  let it;
  try { it = JSON.parse(/\{[^]*\}/.exec(text)?.[0]); } catch { return null; }
  const { name, arguments: given = it.parameters ?? {} } = it.function?.name ? it.function : it;
  return names.includes(name) ? { name, arguments: typeof given === "string" ? given : JSON.stringify(given) } : null;
}

/** The functions that the user has written down. */
function ownNames({ tools }) {
  try { return JSON.parse(tools).map((tool) => (tool.function ?? tool).name); } catch { return []; }
}

/** An answer that reads like a call, which it becomes where its user wants that. */
export function LooksLikeCall({ turn, lane, version }) {
  const { settings } = open.value;
  useEffect(() => { functionsOf(settings).catch(() => {}); }, []);
  const found = callIn(version.content, [...chosenTools(settings).map((tool) => tool.function), ...ownNames(settings)]);
  if (!found) return null;
  const tool = toolOf(found.name, settings);
  const accept = () => {
    makeCall(turn.id, lane, { id: `call_${version.id}`, ...found });
    if (tool) run(`${version.id}-0`, tool, found.arguments);
  };
  return html`<${Notice}><div class="row wrap"><span class="grow">This looks like a call of <code>${tool?.name ?? found.name}</code>.</span>
    <button class="button small" onClick=${accept}>${tool ? "Run it" : "Make it one"}</button></div></${Notice}>`;
}

/** Within the card of a call that has no result yet: it waits for its user, runs, or has been run. */
export function Permission({ call: { name, arguments: given }, id }) {
  const { settings } = open.value;
  const tool = toolOf(name, settings), now = runs.value.get(id);
  if (!tool) {
    return html`<label class="field permission"><span class="label">Result of <span class="mono break">${name}</span></span>
      <textarea class="input mono" rows="2" value=${texts.value[id] ?? ""} onInput=${(event) => { texts.value = { ...texts.value, [id]: event.target.value }; }} /></label>`;
  }
  const start = () => run(id, tool, given);
  const always = () => { setSettings({ allowed: [...(settings.allowed ?? []), tool.function] }); start(); };
  return html`<div class="permission stack" role="group" aria-label=${`Call of ${tool.name}`}>
    ${!now && html`<p class="faint small">${tool.server} · ${tool.description}</p><div class="row wrap"><button class="button primary small" onClick=${start}>Run</button>
      ${!tool.asks && html`<button class="button small" title="In this conversation" onClick=${always}>Run, and don’t ask again</button>`}
      <button class="button quiet small" onClick=${() => refuse(id)}>Don’t run</button></div>`}
    ${now?.state === "running" && html`<div class="row"><div class="grow"><${Progress} done=${0} total=${0} label=${`${tool.name} runs`} /></div>
      <button class="button small" onClick=${now.stop}>Stop</button></div>`}
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
