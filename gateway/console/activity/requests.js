// Requests under way with what each waits for, and the last ones that are over.
import { html, useState } from "../vendor/preact.js";
import { call, gauges, me, requests } from "../core/server.js";
import { Dialog, Dot, Empty, Icon, clock, count, rate, seconds, trying } from "../ui/parts.js";

const OUTCOMES = { ok: ["done", "good"], left: ["client left", ""], cancelled: ["cancelled", "warn"], send_timeout: ["client read nothing", "warn"] };

export function Requests() {
  const [shown, setShown] = useState(null);
  const now = requests.value.filter((one) => one.state !== "done");
  const done = requests.value.filter((one) => one.state === "done");
  const open = requests.value.find((one) => one.number === shown);
  return html`<${Totals} />
    <section class="section" aria-label="Now"><h2>Now<span class="count">${now.length}</span></h2>
      <div class="card">${now.length ? html`<${Table} list=${now} isNow onShow=${setShown} />` : html`<${Empty} icon="activity" title="No requests"><p>Requests appear here while they wait, load and are answered.</p></${Empty}>`}</div></section>
    ${done.length > 0 && html`<section class="section" aria-label="Lately"><h2>Lately<span class="count">${done.length}</span></h2>
      <div class="card"><${Table} list=${done} isNow=${false} onShow=${setShown} /></div></section>`}
    ${open && html`<${Details} request=${open} onClose=${() => setShown(null)} />`}`;
}

function Totals() {
  const it = gauges.value;
  if (!it) return null;
  const busiest = [...it.models].sort((a, b) => b.tokens_per_second - a.tokens_per_second)[0];
  const figures = [["Answering", count(it.in_use)], ["Waiting", count(it.waiting)], ["Tokens per second", rate(it.tokens_per_second)], ["Busiest", busiest?.tokens_per_second ? busiest.id : "–"]];
  return html`<dl class="device-figures section">${figures.map(([name, value]) => html`<div class="figure" key=${name}><dt>${name}</dt><dd class="break">${value}</dd></div>`)}</dl>`;
}

function Table({ list, isNow, onShow }) {
  return html`<div class="table-scroll" tabindex="0" role="region" aria-label=${isNow ? "Requests now" : "Requests lately"}><table class="table">
    <thead><tr><th>State</th><th>Model</th><th class="wide-only">${me.value.keys ? "Key" : "API"}</th><th class="number wide-only">Prompt</th><th class="number">Answer</th><th class="number wide-only">To first</th><th class="number">tok/s</th><th class="number">${isNow ? "Since" : "Took"}</th><th class="number">${isNow ? html`<span class="unseen">Cancel</span>` : "At"}</th></tr></thead>
    <tbody>${list.map((one) => html`<${Row} key=${one.number} request=${one} isNow=${isNow} onShow=${onShow} />`)}</tbody></table></div>`;
}

function Row({ request, isNow, onShow }) {
  const cancel = () => trying(() => call("POST", `/v1/admin/requests/${request.number}/cancel`));
  return html`<tr>
    <td><button class="button quiet small request-state" onClick=${() => onShow(request.number)} aria-label=${`Request ${request.number}: ${words(request)[0]}`}><${State} request=${request} /></button></td>
    <td class="break">${request.model}</td><td class="soft wide-only">${me.value.keys ? html`${request.key} <span class="faint small">${request.api}</span>` : request.api}</td>
    <td class="number soft wide-only">${count(request.prompt_tokens)}</td><td class="number">${request.completion_tokens ? count(request.completion_tokens) : "–"}</td>
    <td class="number soft wide-only">${seconds(request.ttft)}</td><td class="number">${rate(request.tokens_per_second)}</td><td class="number soft">${seconds(request.seconds)}</td>
    <td class="number">${isNow ? html`<button class="button quiet small icon" aria-label=${`Cancel request ${request.number}`} title="Cancel" onClick=${cancel}><${Icon} name="close" size="14" /></button>` : html`<span class="faint">${clock(request.began_at)}</span>`}</td></tr>`;
}

/** What a request waits for or does. */
function words({ state, place, percent, outcome }) {
  if (state === "queued") return [place ? `waiting, ${ordinal(place)} in line` : "waiting", "waiting"];
  if (state === "loading") return [percent === null ? "model loads" : `model loads, ${percent} %`, "loading"];
  if (state === "prompt") return ["reads the prompt", "live"];
  if (state === "answering") return ["answers", "live"];
  const [text, kind] = OUTCOMES[outcome] ?? [String(outcome).replaceAll("_", " "), "bad"];
  return [text, { good: "", warn: "draining", bad: "failed" }[kind] ?? ""];
}

const ordinal = (number) => `${number}${["th", "st", "nd", "rd"][number % 100 > 10 && number % 100 < 14 ? 0 : number % 10] ?? "th"}`;

function State({ request }) {
  const [text, dot] = words(request);
  return html`<span class="request-bar"><${Dot} state=${dot} /><span>${text}</span></span>`;
}

function Details({ request, onClose }) {
  const facts = [
    ["State", words(request)[0]], ["Model", request.model], ["API", request.api], ["Key", request.key], ["Request", request.request], ["Begun", clock(request.began_at)],
    ["In line", seconds(request.queued_seconds)], ["Loading", seconds(request.load_seconds)], ["First token after", seconds(request.ttft)], ["Together", seconds(request.seconds)],
    ["Prompt", `${count(request.prompt_tokens)} tokens, ${count(request.cached_tokens)} of them from the cache`],
    ["Answer", `${count(request.completion_tokens)} tokens, ${count(request.reasoning_tokens)} of them reasoning`],
    ["Drafted", request.drafted_tokens ? `${count(request.drafted_tokens)} tokens, ${count(request.accepted_tokens)} of them accepted` : null], ["Speed", request.tokens_per_second && `${rate(request.tokens_per_second)} tokens per second`],
  ];
  return html`<${Dialog} title=${`Request ${request.number}`} onClose=${onClose}>
    <dl class="facts-list">${facts.filter(([, value]) => value).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${request.prompt ? html`<div><h3>Prompt</h3><div class="code"><pre class="prompt-text" tabindex="0">${request.prompt}</pre></div></div>`
      : html`<p class="hint">Prompts are shown only with <code>log.prompts</code> in the configuration.</p>`}
  </${Dialog}>`;
}

