// Where the memory goes: one bar per device, who holds how much of it, and the last hour.
import { html } from "../vendor/preact.js";
import { series } from "../core/series.js";
import { gauges } from "../core/server.js";
import { Chart } from "../ui/chart.js";
import { Bones, Empty, bytes, colour, count } from "../ui/parts.js";
import { Kept } from "./kept.js";
import { Machines } from "./machines.js";
import { Turns } from "./turns.js";

/** How strongly each use is drawn in its model's colour. */
const PARTS = [["weights", "Weights", 1], ["cache", "Cache", 0.66], ["projector", "Projector", 0.5], ["engine", "Engine", 0.38]];

export default function MemoryPage() {
  const devices = gauges.value?.devices;
  return html`<div class="page">
    <header class="page-head"><h1>Memory</h1></header>
    ${devices ? devices.map((device) => html`<${Device} key=${device.device} device=${device} />`) : html`<div class="card"><${Bones} rows="5" /></div>`}
    ${devices?.length === 0 && html`<${Empty} icon="memory" title="No device"><p>No memory of this machine could be measured.</p></${Empty}>`}
    <${Machines} />
    <${Kept} />
    <${Turns} />
  </div>`;
}

function Device({ device }) {
  const past = series.value?.devices[device.device];
  return html`<section class="card device" aria-label=${device.device}>
    <div class="card-head"><h2>${device.device}</h2><span class="soft num">${bytes(device.total)}</span></div>
    <div class="card-body">
      <${Bar} device=${device} />
      <${Figures} device=${device} />
      ${(device.models.length > 0 || device.claims.length > 0) && html`<${Holders} device=${device} />`}
      ${past && series.value.times.length > 1 && html`<${Hour} device=${device} past=${past} />`}
    </div></section>`;
}

/** What the whole bar stands for: the device, or the budget where the device's size is unknown. */
const whole = (device) => Math.max(device.total ?? 0, device.budget ?? 0, device.promised ?? 0) || 1;

function Bar({ device }) {
  const size = whole(device);
  const width = (value) => ({ width: `${Math.min(100, (100 * Math.max(0, value)) / size)}%` });
  const words = device.models.map((model) => `${model.id} ${bytes(model.bytes)}`).concat(device.claims.map((claim) => `waited for: ${claim.id} ${bytes(claim.bytes)}`));
  return html`<div><div class="memory-bar" role="img" aria-label=${`${device.device}: ${words.join(", ") || "no model"}; free for models ${bytes(device.free)}, others ${bytes(device.others)}`}>
      ${device.models.map((model) => html`<div class="holder" key=${model.id} style=${width(model.bytes)} title=${`${model.id}: ${bytes(model.bytes)}`}>
        ${PARTS.map(([part, title, strength]) => model.parts[part] > 0 && html`<div class="part" key=${part} title=${`${model.id}, ${title.toLowerCase()}: ${bytes(model.parts[part])}`}
          style=${{ width: `${(100 * model.parts[part]) / model.bytes}%`, background: colour(model.id), opacity: strength }} />`)}
        <span class="name">${model.id}</span></div>`)}
      ${device.claims.map((claim) => html`<div class="holder claim" key=${claim.id} style=${{ ...width(claim.bytes), "--claim": colour(claim.id) }} title=${`Reserved for ${claim.id}: ${bytes(claim.bytes)}`} />`)}
      ${device.others > 0 && html`<div class="others" style=${width(device.others)} title=${`Other programs: ${bytes(device.others)}`} />`}
      ${device.budget !== null && device.total > device.budget && html`<div class="limit" style=${{ left: width(device.budget).width }} title=${`Budget: ${bytes(device.budget)}`} />`}
    </div>
    <div class="bar-scale" aria-hidden="true"><span>0</span><span>${bytes(size)}</span></div></div>`;
}

function Figures({ device }) {
  const figures = [
    ["Reserved", device.promised, device.budget !== null && `of ${bytes(device.budget)} budget`],
    ["Free for models", device.free, device.free < 0 ? "the budget was cut" : null],
    ...(device.kept ? [["Kept conversations", device.kept, "freed when models need it"]] : []),
    ["Other programs", device.others, null],
    ["This process", device.process, null],
    ["Free on this machine", device.available, null],
  ];
  return html`<dl class="device-figures">${figures.map(([name, value, more]) => html`<div class="figure" key=${name}><dt>${name}</dt><dd class=${value < 0 ? "bad" : ""}>${bytes(value)}${more ? html` <small>${more}</small>` : null}</dd></div>`)}</dl>`;
}

function Holders({ device }) {
  return html`<div class="table-scroll frame" tabindex="0" role="region" aria-label=${`Who holds how much of ${device.device}`}><table class="table"><thead><tr><th>Model</th>${PARTS.map(([part, title]) => html`<th class="number" key=${part}>${title}</th>`)}
    <th class="number">Kept conversations</th><th class="number">Total</th></tr></thead><tbody>
    ${device.models.map((model) => html`<tr key=${model.id}><td><span class="row"><i class="part-key" style=${{ background: colour(model.id) }} /><span>${model.id}</span>${model.state !== "loaded" && html`<span class="tag warn">${model.state}</span>`}</span></td>
      ${PARTS.map(([part]) => html`<td class="number soft" key=${part}>${model.parts[part] ? bytes(model.parts[part]) : "–"}</td>`)}
      <td class="number soft">${model.kept_tokens === null ? "–" : `${count(model.kept_tokens)} tokens`}</td><td class="number">${bytes(model.bytes)}</td></tr>`)}
    ${device.claims.map((claim) => html`<tr key=${`claim-${claim.id}`}><td><span class="row"><i class="part-key" style=${{ background: colour(claim.id), opacity: 0.4 }} /><span>${claim.id}</span><span class="tag">waited for</span></span></td>
      <td colspan="5" class="soft">reserved as soon as there is room</td><td class="number">${bytes(claim.bytes)}</td></tr>`)}
  </tbody></table></div>`;
}

function Hour({ device, past }) {
  const lines = Object.entries(past.models).map(([id, values]) => ({ label: id, values, colour: colour(id) }));
  const others = { label: "other programs", values: past.others, colour: "var(--part-others)" };
  return html`<${Chart} title="The last hour" times=${series.value.times} lines=${[...lines, others]} format=${bytes} isStacked height=${130} most=${whole(device)} />`;
}
