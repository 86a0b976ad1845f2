// How fast a model is, seen from this page: alone and under several streams, with short and long prompts, beside another one.
import { html, signal } from "../vendor/preact.js";
import { stored } from "../core/browser.js";
import { byId, gauges, me, saveAs } from "../core/server.js";
import { Icon, Progress, bytes, copyText, rate, say, seconds, tokens, trying } from "../ui/parts.js";
import { ModelPicker } from "../chat/picker.js";
import { asPicture, asText, footnote, title } from "./card.js";
import { LONGEST_RUN, measure } from "./measuring.js";
import { Failure, ModelOf, NoModel, RunButton, chosenModel, ofKind, useRequest } from "./trying.js";

const STREAMS = [1, 4, 16], SIZES = [128, 1024, 4096], ANSWERS = [32, 128, 512]; // tokens
const plan = stored("measure.plan", { streams: [1, 4, 16], sizes: [128], answer: 128, other: null });

/** What was measured last; it stays when the page is left. @type {{value: {columns: {model: string, facts: string[], rows: object[]}[],
 *   answer: number, server: string, machine: string, day: string} | null}} */
const measured = stored("measure.last", null);
const doing = signal(null); // which model is measured now, and how many of all runs are done

const change = (more) => { plan.value = { ...plan.value, ...more }; };

export default function Measure() {
  const request = useRequest();
  const first = chosenModel("text");
  if (!first) return html`<${NoModel} kind="text" />`;
  const other = plan.value.other && plan.value.other !== first.id ? byId.value.get(plan.value.other) : null;
  const models = [first, other].filter(Boolean);
  const start = (event) => { event.preventDefault(); request.run((abort) => run(models, abort)); };
  return html`<form class="card" aria-label="What is measured" onSubmit=${start}>
      <div class="card-head"><${ModelOf} kind="text" /><span class="faint" aria-hidden="true">/</span><${Other} other=${other} first=${first} /><span class="grow" />
        <${RunButton} request=${request} text="Measure" disabled=${!plan.value.streams.length || !plan.value.sizes.length} /></div>
      <div class="card-body measure-plan">
        <${Several} label="Streams at a time" all=${STREAMS} name="streams" />
        <${Several} label="Tokens of a prompt" all=${SIZES} name="sizes" />
        <fieldset><legend class="label">Tokens of an answer</legend><div class="row wrap">${ANSWERS.map((number) => html`<label class="check" key=${number}><input type="radio" name="answer"
          checked=${plan.value.answer === number} onChange=${() => change({ answer: number })} />${number}</label>`)}</div></fieldset>
        <p class="hint">${plan.value.streams.length * plan.value.sizes.length * models.length} runs, one after another, each at most ${LONGEST_RUN / 60} minutes. Other requests to the server slow them down.
          For other options of a model, duplicate it on the page Models.</p>
      </div></form>
    ${request.isRunning && doing.value && html`<div class="stack" role="status"><p class="soft">${doing.value.words}</p><${Progress} done=${doing.value.done} total=${doing.value.total} label="Runs" /></div>`}
    <${Failure} request=${request} />
    ${measured.value && html`<${Card} measured=${measured.value} />`}`;
}

function Other({ other, first }) {
  return html`<${ModelPicker} label="Compare with" value=${other?.id ?? "Compare with…"} list=${ofKind("text").filter((model) => model.id !== first.id)} onPick=${(id) => change({ other: id })} />
    ${other && html`<button type="button" class="button quiet small icon" aria-label="Compare with no other" onClick=${() => change({ other: null })}><${Icon} name="close" size="14" /></button>`}`;
}

/** Some of few numbers. */
function Several({ label, all, name }) {
  const chosen = plan.value[name];
  const flip = (number) => change({ [name]: all.filter((one) => (one === number) !== chosen.includes(one)) });
  return html`<fieldset><legend class="label">${label}</legend><div class="row wrap">${all.map((number) => html`<label class="check" key=${number}><input type="checkbox"
    checked=${chosen.includes(number)} onChange=${() => flip(number)} />${number}</label>`)}</div></fieldset>`;
}

async function run(models, abort) {
  const { streams, sizes, answer } = plan.value;
  const total = streams.length * sizes.length * models.length;
  let done = 0;
  const columns = models.map((model) => ({ model: model.id, facts: factsOf(model), rows: [] }));
  const show = () => { measured.value = { columns: columns.filter((one) => one.rows.length), answer, server: me.value.version, machine: machine(), day: new Date().toISOString().slice(0, 10) }; };
  for (const [place, model] of models.entries()) {
    doing.value = { words: `${model.id}: ${model.state === "loaded" || model.remote ? "getting ready" : "loading"}…`, done, total };
    await measure(model, { streams, sizes, answer }, abort, (row) => {
      done += 1;
      columns[place] = { ...columns[place], rows: [...columns[place].rows, row] };
      doing.value = { words: `${model.id}: run ${done} of ${total}`, done, total };
      show();
    });
  }
}

function factsOf(model) {
  return [model.remote ? "another server" : model.backend, model.architecture, model.size_bytes && bytes(model.size_bytes), model.context_length && `${tokens(model.context_length)} context`].filter(Boolean);
}

/** The devices that models lie on; users aren't told. */
const machine = () => (gauges.value?.devices ?? []).filter((one) => one.models.length).map((one) => `${one.device} ${bytes(one.total)}`).join(", ");

// ------------------------------------------------------------------------------------------------------------
// The result, to be read and to be shown to others.

function Card({ measured: it }) {
  const most = Math.max(1, ...it.columns.flatMap((column) => column.rows.map((row) => row.rate ?? 0)));
  const copyPicture = () => trying(async () => {
    await navigator.clipboard.write([new ClipboardItem({ "image/png": blobOf(it) })]);
    say("The picture is copied.");
  });
  return html`<section class="card" aria-label="Measured">
    <div class="card-head"><h2>Measured</h2>
      <button class="button small" onClick=${() => trying(async () => { await copyText(asText(it)); say("The table is copied."); })}><${Icon} name="copy" size="14" />Copy as text</button>
      ${navigator.clipboard?.write && html`<button class="button small" onClick=${copyPicture}><${Icon} name="image" size="14" />Copy picture</button>`}
      <button class="button small" onClick=${() => trying(async () => saveAs(`measured-${it.day}.png`, await blobOf(it), "image/png"))}><${Icon} name="download" size="14" />PNG</button></div>
    <div class="measured">${it.columns.map((column, place) => html`<${Column} key=${column.model} column=${column} place=${place} most=${most} first=${place ? it.columns[0] : null} />`)}</div>
    <p class="card-body faint small">${footnote(it)} · tok/s: of all streams, after their first tokens</p></section>`;
}

const blobOf = (it) => new Promise((resolve, reject) => { asPicture(it).toBlob((blob) => (blob ? resolve(blob) : reject(new Error("The browser draws no picture."))), "image/png"); });

/** One model's rows; beside another's, by how much it differs. */
function Column({ column, place, most, first }) {
  return html`<div class="measured-model"><h3 class="break" title=${title(column)}>${column.model} <span class="faint">${column.facts.join(" · ")}</span></h3>
    <div class="table-scroll" tabindex="0" role="region" aria-label=${`Measured: ${column.model}`}><table class="table">
      <thead><tr><th class="number">Prompt</th><th class="number">Streams</th><th class="number">To first</th><th class="number">tok/s</th><th class="wide-only"><span class="unseen">Bar</span></th><th class="number">Each</th><th class="number">Prompt tok/s</th></tr></thead>
      <tbody>${column.rows.map((row) => html`<${Row} key=${`${row.size} ${row.streams}`} row=${row} place=${place} most=${most} before=${first?.rows.find((one) => one.size === row.size && one.streams === row.streams)} />`)}</tbody></table></div></div>`;
}

function Row({ row, place, most, before }) {
  if (row.error) return html`<tr><td class="number">${row.size}</td><td class="number">${row.streams}</td><td colspan="5" class="soft break">${row.error}</td></tr>`;
  const gain = before?.rate && row.rate ? Math.round((100 * row.rate) / before.rate - 100) : null;
  return html`<tr><td class="number" title=${`${Math.round(row.prompt)} as the model counts`}>${row.size}</td><td class="number">${row.streams}</td>
    <td class="number" title=${`The last of them after ${seconds(row.worst)}`}>${seconds(row.first)}</td>
    <td class="number"><b>${rate(row.rate)}</b>${gain !== null && html` <span class="faint small">${gain >= 0 ? "+" : "−"}${Math.abs(gain)} %</span>`}</td>
    <td class="wide-only measured-bar"><i aria-hidden="true" style=${{ width: `${(100 * (row.rate ?? 0)) / most}%`, background: `var(--model-${place})` }} /></td>
    <td class="number">${rate(row.each)}</td><td class="number">${rate(row.reading)}</td></tr>`;
}
