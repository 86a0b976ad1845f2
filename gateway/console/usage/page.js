// Who used which model how much: requests and tokens by day, by key and by model. A user's key sees its own.
import { computed, html, signal, useEffect } from "../vendor/preact.js";
import { call, isAdmin, me, saveAs, send } from "../core/server.js";
import { Bones, Empty, Icon, Notice, Segments, count, percent, trying } from "../ui/parts.js";

const PERIODS = [["7", "7 days"], ["30", "30 days"], ["90", "90 days"], ["365", "A year"]];
const days = signal("30");
const rows = signal(null); // by key, model and day
const failure = signal(null);

/** A day in UTC, as the server counts them. */
const day = (before = 0) => new Date(Date.now() - before * 86400000).toISOString().slice(0, 10);
const address = (form = "") => `/v1/usage?from=${day(Number(days.value) - 1)}&to=${day()}${form}`;

export default function UsagePage() {
  useEffect(() => { fetchRows(); }, [days.value]);
  return html`<div class="page">
    <header class="page-head"><h1>Usage</h1><${Segments} label="Period" options=${PERIODS} value=${days.value} onChange=${(value) => { days.value = value; }} />
      <button class="button small" onClick=${() => trying(saveCsv)}><${Icon} name="download" size="14" />CSV</button></header>
    ${failure.value && html`<${Notice} kind="bad" icon="alert">${failure.value}</${Notice}>`}
    ${rows.value === null ? html`<div class="card"><${Bones} rows="5" /></div>` : rows.value.length ? html`<${Report} />`
      : html`<${Empty} icon="usage" title="Nothing was used"><p>Requests and their tokens are counted here, by key, model and day.</p></${Empty}>`}
  </div>`;
}

async function fetchRows() {
  try {
    rows.value = (await call("GET", address())).data;
    failure.value = null;
  } catch (error) {
    failure.value = error.message;
    rows.value ??= [];
  }
}

async function saveCsv() {
  const response = await send("GET", address("&format=csv"), { accept: "text/csv" });
  saveAs(`usage-${day()}.csv`, await response.text(), "text/csv");
}

const NUMBERS = ["requests", "failed", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"];

/** Sums of all rows that `name` gives the same name, the largest first. */
function sums(list, name) {
  const found = new Map();
  for (const row of list) {
    const title = name(row);
    const sum = found.get(title) ?? Object.fromEntries([["title", title], ...NUMBERS.map((number) => [number, 0])]);
    for (const number of NUMBERS) sum[number] += row[number];
    found.set(title, sum);
  }
  return [...found.values()].sort((a, b) => tokens(b) - tokens(a));
}

const tokens = (row) => row.prompt_tokens + row.completion_tokens;
const total = computed(() => sums(rows.value ?? [], () => "")[0]);
const key = (row) => row.key ?? "without a key";
const model = (row) => row.model || "no such model";

function Report() {
  const it = total.value;
  const figures = [["Requests", count(it.requests)], ["Failed", count(it.failed)], ["Prompt tokens", count(it.prompt_tokens)], ["From the cache", percent(it.prompt_tokens ? it.cached_tokens / it.prompt_tokens : null)], ["Answer tokens", count(it.completion_tokens)]];
  const perDay = sums(rows.value, (row) => row.day).sort((a, b) => (a.title < b.title ? 1 : -1));
  return html`<dl class="device-figures section">${figures.map(([name, value]) => html`<div class="figure" key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${me.value.keys && isAdmin.value && html`<${Table} title="By key" head="Key" list=${sums(rows.value, key)} />`}
    <${Table} title="By model" head="Model" list=${sums(rows.value, model)} />
    <${Table} title="By day (UTC)" head="Day" list=${perDay} />`;
}

function Table({ title, head, list }) {
  const most = Math.max(1, ...list.map(tokens));
  return html`<section class="section" aria-label=${title}><h2>${title}<span class="count">${list.length}</span></h2>
    <div class="card"><div class="table-scroll" tabindex="0" role="region" aria-label=${`Usage: ${title}`}><table class="table">
      <thead><tr><th>${head}</th><th class="wide-only"><span class="unseen">Share</span></th><th class="number">Requests</th><th class="number wide-only">Failed</th><th class="number">Prompt</th><th class="number">Answer</th></tr></thead>
      <tbody>${list.map((row) => html`<tr key=${row.title}><td class="break">${row.title}</td>
        <td class="wide-only usage-share"><div class="progress" aria-hidden="true"><div style=${{ width: `${(100 * tokens(row)) / most}%` }} /></div></td>
        <td class="number">${count(row.requests)}</td><td class="number soft wide-only">${row.failed ? count(row.failed) : "–"}</td>
        <td class="number">${count(row.prompt_tokens)}</td><td class="number">${count(row.completion_tokens)}</td></tr>`)}</tbody></table></div></div></section>`;
}
