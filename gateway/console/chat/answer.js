// One lane of an answer: its text, its reasoning, its calls, what it cost, and what can be done with it.
import { html, useState } from "../core/html.js";
import { byId, isAdmin } from "../core/live.js";
import { bytes, count, rate, seconds } from "../core/format.js";
import { Icon } from "../ui/icons.js";
import { Copy, Dot, Notice, Versions } from "../ui/parts.js";
import { streams } from "./answering.js";
import { chosen } from "./conversation.js";
import { Markdown } from "./markdown.js";
import { ModelPicker } from "./picker.js";
import { Probabilities } from "./probabilities.js";
import { editAnswer, fork, goOn, isBusy, regenerate, toAnswer } from "./room.js";
import { SentDialog } from "./sent.js";

const SHORTEST_THOUGHT = 0.002; // seconds; below it reasoning and answer came together

const ENDINGS = {
  length: "Cut at the token limit.",
  stopped: "Stopped.",
  content_filter: "Ended by a filter.",
};

/** @param {{turn: object, lane: number, showName: boolean, isLast: boolean, showProbabilities: boolean}} props */
export function Answer({ turn, lane, showName, isLast, showProbabilities }) {
  const it = turn.lanes[lane];
  const stream = streams.value.get(chosen(it).id);
  const version = stream ? stream.version.value : chosen(it);
  const [isEditing, setEditing] = useState(false);
  const isWriting = Boolean(stream);
  const model = version.model ?? it.model;
  const isMixed = it.versions.some((one) => (one.model ?? it.model) !== model);
  return html`<article class="answer" aria-label=${`Answer of ${model}`} aria-busy=${isWriting}>
    ${(showName || isMixed) && html`<div class="answer-model cut">${model}</div>`}
    ${(version.reasoning || version.reasoningSeconds !== null) && html`<${Reasoning} version=${version} isWriting=${isWriting} />`}
    ${isEditing ? html`<${Editor} text=${version.content} onClose=${() => setEditing(false)}
        onSave=${(text) => { editAnswer(turn.id, lane, text); setEditing(false); }}
        onGoOn=${(text) => { editAnswer(turn.id, lane, text); setEditing(false); goOn(turn.id, lane); }} />`
      : html`<${Text} version=${version} isWriting=${isWriting} showProbabilities=${showProbabilities} model=${model} />`}
    ${version.toolCalls.filter(Boolean).map((call, index) => html`<${Call} key=${index} call=${call} isWriting=${isWriting} />`)}
    ${version.error && html`<${Notice} kind="bad" icon="alert">${version.error}</${Notice}>`}
    ${!isWriting && ENDINGS[version.finish] && html`<p class="ending">${ENDINGS[version.finish]}</p>`}
    ${version.notes.map((note) => html`<p class="ending" key=${note}>${note}</p>`)}
    ${isWriting ? html`<div class="answer-foot"><${Speed} version=${version} /></div>`
      : html`<${Foot} turn=${turn} lane=${lane} version=${version} model=${model} isLast=${isLast} onEdit=${() => setEditing(true)} />`}
  </article>`;
}

function Text({ version, isWriting, showProbabilities, model }) {
  if (showProbabilities && version.probabilities.length) return html`<${Probabilities} list=${version.probabilities} />`;
  if (version.content) return html`<${Markdown} text=${version.content} isWhole=${!isWriting} />`;
  if (!isWriting || version.reasoning || version.toolCalls.length) return null;
  return html`<${Waiting} model=${model} version=${version} />`;
}

/** Before the first word: what the server is doing, by the model's state and what it tells of this request. */
function Waiting({ model, version: { place, progress } }) {
  const it = byId.value.get(model);
  const loading = it?.state === "loading";
  const share = loading && it.progress?.total ? ` ${Math.floor((100 * it.progress.done) / it.progress.total)} %` : "";
  const left = loading && it.progress?.seconds_left ? `, about ${seconds(it.progress.seconds_left)} left` : "";
  const read = progress?.total ? ` ${Math.floor((100 * progress.processed) / progress.total)} % of ${count(progress.total)} tokens` : "";
  const line = place ? `Waiting in line, place ${place}` : "Waiting in line";
  const words = loading ? `Loading ${model}${share}${left}` : read || !it?.waiting ? `Reading the prompt${read}` : line;
  return html`<p class="thinking-now"><${Dot} state="waiting" /><span>${words}…</span></p>`;
}

function Reasoning({ version, isWriting }) {
  const isThinking = isWriting && version.reasoningSeconds === null;
  const isTimed = version.reasoningSeconds >= SHORTEST_THOUGHT;
  const words = isThinking ? "Thinking…" : isTimed ? `Thought for ${seconds(version.reasoningSeconds)}` : "Thought";
  const [isOpen, setOpen] = useState(false);
  return html`<details class="reasoning" onToggle=${(event) => setOpen(event.target.open)}><summary><${Icon} name="thought" size="14" /><span class=${isThinking ? "shimmer" : ""}>${words}</span><${Icon} name="right" size="12" /></summary>
    <div class="reasoning-text">${isOpen && html`<${Markdown} text=${version.reasoning} isWhole=${!isThinking} />`}</div></details>`;
}

function Call({ call, isWriting }) {
  return html`<div class="call"><div class="call-head"><${Icon} name="tool" size="14" /><code class="break">${call.name || "…"}</code>
    <span class="faint small">${isWriting ? "called" : "tool call"}</span></div><pre tabindex="0" aria-label="Arguments">${pretty(call.arguments)}</pre></div>`;
}

function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

export function Editor({ text, onSave, onGoOn = null, onClose, saveLabel = "Save" }) {
  const [value, setValue] = useState(text);
  const onKeyDown = (event) => {
    if (event.key === "Escape") onClose();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) onSave(value);
  };
  return html`<div class="editor"><textarea class="input" aria-label="Edit the text" autofocus rows=${Math.min(18, value.split("\n").length + 2)} value=${value}
      onInput=${(event) => setValue(event.target.value)} onKeyDown=${onKeyDown} ref=${focusOnce} />
    <div class="row wrap"><button class="button primary" onClick=${() => onSave(value)}>${saveLabel}</button>
      ${onGoOn && html`<button class="button" onClick=${() => onGoOn(value)}>Save and continue</button>`}
      <button class="button quiet" onClick=${onClose}>Cancel</button></div></div>`;
}

function focusOnce(element) {
  if (element && !element.dataset.met) { element.dataset.met = "1"; element.focus(); }
}

function Foot({ turn, lane, version, model, isLast, onEdit }) {
  const [isSent, setSent] = useState(false);
  const { versions, chosen: index } = turn.lanes[lane];
  const isOff = isBusy.value;
  return html`<div class="answer-foot">
    <div class="answer-tools">
      <${Versions} count=${versions.length} index=${index} label="Versions of the answer" disabled=${isOff} onChoose=${(place) => toAnswer(turn.id, lane, place)} />
      <${Tool} icon="retry" text="Regenerate" act=${() => regenerate(turn.id, lane)} disabled=${isOff} />
      <${ModelPicker} icon="models" label="Answer by another model" value=${model} disabled=${isOff} onPick=${(other) => regenerate(turn.id, lane, other)} />
      ${isLast && version.content && html`<${Tool} icon="play" text="Continue" act=${() => goOn(turn.id, lane)} disabled=${isOff} />`}
      <${Tool} icon="edit" text="Edit" act=${onEdit} disabled=${isOff} />
      <${Copy} text=${version.content} />
      <${Tool} icon="fork" text="Fork from here" act=${() => fork(turn.id)} disabled=${isOff} />
      ${version.sent && html`<${Tool} icon="code" text="What was sent" act=${() => setSent(true)} />`}
    </div>
    <${Speed} version=${version} model=${model} />
    ${isSent && html`<${SentDialog} body=${version.sent} onClose=${() => setSent(false)} />`}
  </div>`;
}

function Tool({ icon, text, act, disabled = false }) {
  return html`<button class="button quiet small icon" title=${text} aria-label=${text} disabled=${disabled} onClick=${act}><${Icon} name=${icon} size="14" /></button>`;
}

/** What the answer took: speed, time, tokens, and what its model holds in memory. */
function Speed({ version, model = null }) {
  const { usage, timings, ttft } = version;
  const cost = model && isAdmin.value ? byId.value.get(model)?.cost : null;
  const held = cost ? Object.values(cost).reduce((sum, part) => sum + part, 0) : null;
  const parts = [
    version.rate > 0 && [`${rate(version.rate)} tok/s`, "Tokens per second until now"],
    timings?.predicted_per_second && [`${rate(timings.predicted_per_second)} tok/s`, "Tokens per second while it was written"],
    ttft !== null && [`${seconds(ttft)} to first`, "Time to the first token, as seen from this page"],
    usage && [`${count(usage.prompt_tokens)} → ${count(usage.completion_tokens)} tokens`, tokensText(usage)],
    usage && version.seconds !== null && [seconds(version.seconds), "The whole request"],
    held && [bytes(held), "Memory that the model takes"],
  ].filter(Boolean);
  return html`<div class="speed num">${parts.map(([text, title]) => html`<span key=${title} title=${title}>${text}</span>`)}</div>`;
}

function tokensText(usage) {
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const reasoning = usage.completion_tokens_details?.reasoning_tokens ?? 0;
  return `Prompt ${usage.prompt_tokens}, of which ${cached} from the cache; answer ${usage.completion_tokens}, of which ${reasoning} reasoning`;
}
