// Requests under way with what each waits for, and the last ones that are over.
import { html } from "../vendor/preact.js";
import { to } from "../core/browser.js";
import { call, gauges, me, requests } from "../core/server.js";
import { Dot, Empty, Icon, clock, count, rate, seconds, trying } from "../ui/parts.js";
import { words } from "./words.js";

export function Requests() {
  const now = requests.value.filter((one) => one.state !== "done");
  const done = requests.value.filter((one) => one.state === "done");
  return html`<${Totals} />
    <section class="section" aria-label="Now"><h2>Now<span class="count">${now.length}</span></h2>
      <div class="card">${now.length ? html`<${Table} list=${now} isNow />` : html`<${Empty} icon="activity" title="No requests"><p>Requests appear here while they wait, load and are answered.</p></${Empty}>`}</div></section>
    ${done.length > 0 && html`<section class="section" aria-label="Recent"><h2>Recent<span class="count">${done.length}</span></h2>
      <div class="card"><${Table} list=${done} isNow=${false} /></div></section>`}`;
}

function Totals() {
  const it = gauges.value;
  if (!it) return null;
  const busiest = [...it.models].sort((a, b) => b.tokens_per_second - a.tokens_per_second)[0];
  const figures = [["Answering", count(it.in_use)], ["Waiting", count(it.waiting)], ["Tokens per second", rate(it.tokens_per_second)], ["Busiest", busiest?.tokens_per_second ? busiest.id : "–"]];
  return html`<dl class="device-figures section">${figures.map(([name, value]) => html`<div class="figure" key=${name}><dt>${name}</dt><dd class="break">${value}</dd></div>`)}</dl>`;
}

function Table({ list, isNow }) {
  return html`<div class="table-scroll" tabindex="0" role="region" aria-label=${isNow ? "Requests now" : "Recent requests"}><table class="table">
    <thead><tr><th>State</th><th>Model</th><th class="wide-only">${me.value.keys ? "Key" : "API"}</th><th class="number wide-only">Prompt</th><th class="number">Answer</th><th class="number wide-only">To first</th><th class="number">tok/s</th><th class="number">${isNow ? "Since" : "Took"}</th><th class="number">${isNow ? html`<span class="unseen">Cancel</span>` : "At"}</th></tr></thead>
    <tbody>${list.map((one) => html`<${Row} key=${one.number} request=${one} isNow=${isNow} />`)}</tbody></table></div>`;
}

function Row({ request, isNow }) {
  const cancel = () => trying(() => call("POST", `/v1/admin/requests/${request.number}/cancel`));
  return html`<tr>
    <td><a class="button quiet small request-state" href=${to("activity", "requests", String(request.number))} aria-label=${`Request ${request.number}: ${words(request)[0]}`}><${State} request=${request} /></a></td>
    <td class="break">${request.model}</td><td class="soft wide-only">${me.value.keys ? html`${request.key} <span class="faint small">${request.api}</span>` : request.api}</td>
    <td class="number soft wide-only">${count(request.prompt_tokens)}</td><td class="number">${request.completion_tokens ? count(request.completion_tokens) : "–"}</td>
    <td class="number soft wide-only">${seconds(request.ttft)}</td><td class="number">${rate(request.tokens_per_second)}</td><td class="number soft">${seconds(request.seconds)}</td>
    <td class="number">${isNow ? html`<button class="button quiet small icon" aria-label=${`Cancel request ${request.number}`} title="Cancel" onClick=${cancel}><${Icon} name="close" size="14" /></button>` : html`<span class="faint">${clock(request.began_at)}</span>`}</td></tr>`;
}

function State({ request }) {
  const [text, dot] = words(request);
  return html`<span class="request-bar"><${Dot} state=${dot} /><span>${text}</span></span>`;
}
