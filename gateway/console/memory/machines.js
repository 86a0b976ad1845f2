// Other machines: those of the cluster, whose memory is this server's to give, those that the configuration names, and other
// servers that answer for it. Drain one to have it free; it gets work again when that is undone.
import { html, signal, useEffect } from "../vendor/preact.js";
import { call, gauges, reloads } from "../core/server.js";
import { Dot, bytes, count, seconds, trying } from "../ui/parts.js";

const nodes = signal([]), upstreams = signal([]);

async function fetchBoth() {
  const [machines, servers] = await Promise.allSettled([call("GET", "/v1/nodes"), call("GET", "/v1/upstreams")]);
  nodes.value = machines.value?.nodes ?? [];
  upstreams.value = servers.value ?? [];
}

const drainNode = (node) => trying(async () => { nodes.value = (await call("POST", "/v1/nodes/drain", { node: node.name, draining: !node.draining })).nodes; });
const drainServer = (upstream, { url, draining }) => trying(async () => { upstreams.value = await call("POST", "/v1/upstreams/drain", { upstream, url, draining: !draining }); });

export function Machines() {
  const devices = (gauges.value?.devices ?? []).map((one) => one.device).join(" "); // a machine that comes or goes brings its own or takes them
  useEffect(() => { fetchBoth(); }, [devices, reloads.value]);
  const servers = upstreams.value.flatMap(({ name, replicas }) => replicas.map((server) => ({ upstream: name, ...server })));
  return html`${nodes.value.length > 0 && html`<${Table} title="Other machines" heads=${["Machine", "Memory for models", "Models", ""]} rows=${nodes.value.map(nodeRow)} />`}
    ${servers.length > 0 && html`<${Table} title="Other servers" heads=${["Server", "State", "Requests", ""]} rows=${servers.map(serverRow)} />`}`;
}

function Table({ title, heads, rows }) {
  return html`<section class="card device" aria-label=${title}><div class="card-head"><h2>${title}</h2></div>
    <div class="table-scroll" tabindex="0" role="region" aria-label=${`Table: ${title}`}><table class="table"><thead><tr>${heads.map((head, place) => html`<th key=${place}>${head || html`<span class="unseen">Drain</span>`}</th>`)}</tr></thead>
    <tbody>${rows}</tbody></table></div></section>`;
}

function nodeRow(node) {
  const room = Object.entries(node.devices).map(([device, size]) => `${device} ${bytes(node.taken[device])} of ${bytes(size)}`).join(", ");
  return html`<tr key=${node.name}><td><span class="row"><${Dot} state=${node.draining ? "draining" : "live"} words=${node.draining ? "drained" : "in use"} /><span class="break">${node.name} <span class="faint small">${node.address}</span></span></span></td>
    <td class="soft num">${room || "–"}</td><td class="soft break">${node.models.join(", ") || "none"}</td>
    <td>${node.draining !== null && html`<${Drain} isDrained=${node.draining} name=${node.name} act=${() => drainNode(node)} />`}</td></tr>`;
}

const STATES = { up: "live", trial: "waiting" };

/** A server that refused the last request, or didn't answer it, gets further ones until too many fail; it isn't well. */
const stateOf = ({ draining, state, reason }) => (draining ? "draining" : reason ? "failed" : STATES[state] ?? "failed");

function serverRow({ upstream, ...server }) {
  const words = [server.draining ? "drained" : server.reason && server.state === "up" ? "fails" : server.state, server.reason, server.lease !== null && `announced, for ${seconds(server.lease)} more`].filter(Boolean).join(" · ");
  return html`<tr key=${`${upstream} ${server.url}`}><td><span class="row"><${Dot} state=${stateOf(server)} words=${stateOf(server) === "failed" ? "fails" : server.state} /><span class="break">${server.url} <span class="faint small">${upstream}</span></span></span></td>
    <td class="soft break">${words}</td><td class="soft num">${count(server.busy)} now, ${count(server.asked)} in all${server.failed ? html`, <span class="bad">${count(server.failed)} failed</span>` : null}</td>
    <td><${Drain} isDrained=${server.draining} name=${server.url} act=${() => drainServer(upstream, server)} /></td></tr>`;
}

function Drain({ isDrained, name, act }) {
  const title = isDrained ? "It gets work again" : "What runs there ends, and nothing new begins";
  return html`<button class="button small" title=${title} aria-label=${`${isDrained ? "Use again" : "Drain"} ${name}`} onClick=${act}>${isDrained ? "Use again" : "Drain"}</button>`;
}
