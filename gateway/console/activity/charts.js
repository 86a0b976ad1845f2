// The last hour, per model: speed, time to the first token, who waits, and memory.
import { html } from "../vendor/preact.js";
import { series } from "../core/series.js";
import { Chart } from "../ui/chart.js";
import { Bones, Empty, bytes, colour, count, rate, seconds } from "../ui/parts.js";

export function Charts() {
  const past = series.value;
  if (past === null) return html`<div class="card"><${Bones} rows="6" /></div>`;
  if (past.times.length < 2) return html`<div class="card"><${Empty} icon="activity" title="Nothing yet"><p>The first figures come within half a minute.</p></${Empty}></div>`;
  const all = [
    ["Tokens per second", ofModels(past, "tokens_per_second"), rate],
    ["Time to the first token", ofModels(past, "ttft"), seconds],
    ["Waiting", ofModels(past, "waiting"), count],
    ["Memory of models", ofMemory(past), bytes],
  ];
  return html`<h2 class="unseen">The last hour</h2><div class="charts">${all.map(([title, lines, format]) => html`<section class="card" key=${title} aria-label=${title}>
    <${Chart} title=${title} times=${past.times} lines=${lines} format=${format} isStacked=${format === bytes} height=${170} /></section>`)}</div>`;
}

function ofModels(past, column) {
  return Object.entries(past.models).map(([id, columns]) => ({ label: id, values: columns[column], colour: colour(id) }));
}

/** Each model's bytes on all devices together. */
function ofMemory(past) {
  const sums = new Map();
  for (const { models } of Object.values(past.devices)) {
    for (const [id, values] of Object.entries(models)) {
      const before = sums.get(id) ?? past.times.map(() => null);
      sums.set(id, before.map((value, index) => (values[index] === null || values[index] === undefined ? value : (value ?? 0) + values[index])));
    }
  }
  return [...sums].map(([id, values]) => ({ label: id, values, colour: colour(id) }));
}
