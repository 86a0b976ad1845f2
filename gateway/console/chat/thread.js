// A conversation as it is read: its turns, their answers, and what can be looked up about one.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { address, byId, isAdmin, key } from "../core/server.js";
import { Code, Copy, Dialog, Icon, Notice, Segments, Versions, bytes, count, later, percent, rate, seconds } from "../ui/parts.js";
import { asCurl, asPython, chosen, said } from "./conversation.js";
import { Markdown } from "./markdown.js";
import { ModelPicker } from "./picker.js";
import { askAgain, editAnswer, fork, goOn, isBusy, open, regenerate, streams, toAnswer, toSaid } from "./room.js";
import { Waiting } from "./waiting.js";

const FileDialog = later(() => import("./files.js"));
const Calls = later(() => import("./tools.js"));
const LooksLikeCall = later(() => import("./tools.js").then(({ LooksLikeCall: View }) => ({ default: View })));
const Permission = later(() => import("./tools.js").then(({ Permission: View }) => ({ default: View })));

// ------------------------------------------------------------------------------------------------------------
// An answer token by token: how likely each was, and what else could have come.

const SURE = 0.9, LIKELY = 0.5, POSSIBLE = 0.15;

/** @param {{list: {token: string, logprob: number, top_logprobs: {token: string, logprob: number}[]}[]}} props */
function Probabilities({ list }) {
  const area = useRef(null), text = useRef(null), drawn = useRef([]);
  const [at, setAt] = useState(null);
  useLayoutEffect(() => {
    // Spans are added for new tokens alone: there may be thousands.
    if (list.length < drawn.current.length || list[0] !== drawn.current[0]) text.current.replaceChildren();
    for (let index = text.current.childElementCount; index < list.length; index += 1) text.current.append(span(list[index], index));
    drawn.current = list;
  }, [list]);
  const show = (element) => {
    if (element?.dataset?.index === undefined) return setAt(null);
    const box = element.getBoundingClientRect(), frame = area.current.getBoundingClientRect();
    return setAt({ index: Number(element.dataset.index), left: Math.min(box.left - frame.left, Math.max(0, frame.width - 250)), top: box.bottom - frame.top + 4 });
  };
  const onKeyDown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show(text.current.children[Math.max(0, Math.min(list.length - 1, (at?.index ?? -1) + step))]);
  };
  return html`<div class="tokens-area" ref=${area}>
    <p class="tokens" ref=${text} tabindex="0" role="group" aria-label="Answer by tokens; arrow keys go from one to the next"
      onPointerOver=${(event) => show(event.target)} onPointerLeave=${() => setAt(null)} onKeyDown=${onKeyDown} onBlur=${() => setAt(null)} />
    ${at && list[at.index] && html`<${Alternatives} token=${list[at.index]} at=${at} />`}
  </div>`;
}

function span(token, index) {
  const element = document.createElement("span");
  const probability = Math.exp(token.logprob);
  element.dataset.index = index;
  element.className = probability >= SURE ? "" : probability >= LIKELY ? "likely" : probability >= POSSIBLE ? "possible" : "unlikely";
  element.textContent = token.token;
  return element;
}

function Alternatives({ token, at }) {
  const others = token.top_logprobs.some((one) => one.token === token.token) ? token.top_logprobs : [token, ...token.top_logprobs];
  return html`<div class="alternatives" role="status" style=${{ left: `${at.left}px`, top: `${at.top}px` }}>${others.map((one) => {
    const probability = Math.exp(one.logprob);
    return html`<div class=${`alternative ${one.token === token.token ? "taken" : ""}`} key=${one.token}>
      <code class="cut">${visible(one.token)}</code><span class="bar" aria-hidden="true"><i style=${{ width: `${probability * 100}%` }} /></span><span class="num">${percent(probability)}</span></div>`;
  })}</div>`;
}

/** White space as signs: else two tokens would look alike. */
const visible = (text) => text.replace(/ /g, "·").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "∅";

// ------------------------------------------------------------------------------------------------------------
// "What was sent": the request behind an answer, as one would send it oneself.

const FORMS = {
  curl: (body) => asCurl(body, address, key.value !== null),
  python: (body) => asPython(body, address, key.value !== null),
  json: (body) => JSON.stringify(body, null, 2),
};

/** @param {{body: object, onClose: () => void}} props */
function SentDialog({ body, onClose }) {
  const [form, setForm] = useState("curl");
  const options = [["curl", "curl"], ["python", "Python"], ["json", "JSON"]];
  return html`<${Dialog} title="What was sent" wide onClose=${onClose}>
    <div class="row wrap"><${Segments} label="Form" options=${options} value=${form} onChange=${setForm} />
      <span class="faint small">${key.value ? "The key is in the variable KEY." : "This server needs no key."} Pictures, and the rest of long files, are left out.</span></div>
    <${Code} text=${FORMS[form](body)} label="request" />
  </${Dialog}>`;
}

// ------------------------------------------------------------------------------------------------------------
// One lane of an answer: its text, its reasoning, its calls, what it cost, and what can be done with it.

const SHORTEST_THOUGHT = 0.002; // seconds; below it reasoning and answer came together

const ENDINGS = {
  length: "Cut at the token limit.",
  stopped: "Stopped.",
  content_filter: "Ended by a filter.",
};

/** @param {{turn: object, lane: number, showName: boolean, isLast: boolean, showProbabilities: boolean, results: object[]}} props
 * `results`: of its calls, once they are there */
function Answer({ turn, lane, showName, isLast, showProbabilities, results }) {
  const it = turn.lanes[lane];
  const stream = streams.value.get(chosen(it).id);
  const version = stream ? stream.version.value : chosen(it);
  const [isEditing, setEditing] = useState(false);
  const [isRaw, setRaw] = useState(false);
  const isWriting = Boolean(stream);
  const model = version.model ?? it.model;
  const isMixed = it.versions.some((one) => (one.model ?? it.model) !== model);
  return html`<article class=${`answer ${isLast ? "last" : ""}`} aria-label=${`Answer of ${model}`} aria-busy=${isWriting}>
    ${(showName || isMixed) && html`<div class="answer-model cut">${model}</div>`}
    ${(version.reasoning || version.reasoningSeconds !== null) && html`<${Reasoning} version=${version} isWriting=${isWriting} />`}
    ${version.ran?.map((one, index) => html`<${Ran} key=${index} ran=${one} />`)}
    ${isEditing ? html`<${Editor} text=${version.content} onClose=${() => setEditing(false)}
        onSave=${(text) => { editAnswer(turn.id, lane, text); setEditing(false); }}
        onGoOn=${(text) => { editAnswer(turn.id, lane, text); setEditing(false); goOn(turn.id, lane); }} />`
      : html`<${Text} turn=${turn} lane=${lane} version=${version} isWriting=${isWriting} showProbabilities=${showProbabilities} isRaw=${isRaw} model=${model} />`}
    ${version.toolCalls.filter(Boolean).map((call, index) => html`<${Call} key=${index} call=${call} id=${`${version.id}-${index}`} isWriting=${isWriting}
      result=${results.find((one) => one.id === call.id)} isWaiting=${isLast && !isBusy.value} />`)}
    ${isLast && !isWriting && !version.toolCalls.length && version.content.includes("{") && hasTools(open.value.settings) && html`<${LooksLikeCall} turn=${turn} lane=${lane} version=${version} />`}
    ${version.error && html`<${Notice} kind="bad" icon="alert"><div class="row wrap"><span class="grow">${version.error}</span>
      ${isLast && !isWriting && version.content && html`<button class="button small" disabled=${isBusy.value} onClick=${() => goOn(turn.id, lane)}>Continue</button>`}</div></${Notice}>`}
    ${!isWriting && ENDINGS[version.finish] && html`<p class="ending">${ENDINGS[version.finish]}</p>`}
    ${version.notes.map((note) => html`<p class="ending" key=${note}>${note}</p>`)}
    ${isWriting ? html`<div class="answer-foot"><${Speed} version=${version} /></div>`
      : html`<${Foot} turn=${turn} lane=${lane} version=${version} model=${model} isLast=${isLast} onEdit=${() => setEditing(true)} isRaw=${isRaw} onRaw=${() => setRaw(!isRaw)} />`}
  </article>`;
}

const hasTools = ({ tools, servers }) => tools.trim() !== "" || servers?.length > 0;

function Text({ turn, lane, version, isWriting, showProbabilities, isRaw, model }) {
  if (showProbabilities && version.probabilities.length) return html`<${Probabilities} list=${version.probabilities} />`;
  if (version.content && isRaw) return html`<p class="as-written" tabindex="0" aria-label="The answer as it was written">${version.content}</p>`;
  if (version.content) return html`<${Markdown} text=${version.content} isWhole=${!isWriting} />`;
  if (!isWriting || version.reasoning || version.toolCalls.length) return null;
  return html`<${Waiting} turn=${turn} lane=${lane} model=${model} version=${version} />`;
}

function Reasoning({ version, isWriting }) {
  const isThinking = isWriting && version.reasoningSeconds === null;
  const isTimed = version.reasoningSeconds >= SHORTEST_THOUGHT;
  const words = isThinking ? "Thinking…" : isTimed ? `Thought for ${seconds(version.reasoningSeconds)}` : "Thought";
  const [isOpen, setOpen] = useState(false);
  return html`<details class="reasoning" onToggle=${(event) => setOpen(event.target.open)}><summary><${Icon} name="thought" size="14" /><span class=${isThinking ? "shimmer" : ""}>${words}</span><${Icon} name="right" size="12" /></summary>
    <div class="reasoning-text">${isOpen && html`<${Markdown} text=${version.reasoning} isWhole=${!isThinking} />`}</div></details>`;
}

/** A call with what became of it, in one card that is folded once it has its result. */
function Call({ call, id, isWriting, result, isWaiting }) {
  return html`<${CallCard} name=${call.name || "…"} words=${isWriting ? "calling…" : result ? "done" : ""} given=${call.arguments} isOpen=${!result}>
    ${isWaiting && html`<${Permission} call=${call} id=${id} />`}
    ${result && html`<pre tabindex="0" aria-label="Result">${result.content}</pre>`}</${CallCard}>`;
}

/** A tool that the server ran within the answer. */
function Ran({ ran }) {
  return html`<${CallCard} name=${ran.name} words=${`${ran.isError ? "failed" : "done"} · ${ran.server}`} isBad=${ran.isError} given=${ran.arguments}>
    <pre tabindex="0" aria-label="Result">${ran.output}</pre></${CallCard}>`;
}

function CallCard({ name, words, isBad = false, given, isOpen = false, children }) {
  return html`<details class="call" open=${isOpen}><summary class="call-head"><${Icon} name="tool" size="14" /><code class="break">${name}</code>
    <span class=${`small ${isBad ? "bad" : "faint"}`}>${words}</span><${Icon} name="right" size="12" /></summary>
    <pre tabindex="0" aria-label="Arguments">${pretty(given)}</pre>${children}</details>`;
}

function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

function Editor({ text, onSave, onGoOn = null, onClose, saveLabel = "Save" }) {
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

function Foot({ turn, lane, version, model, isLast, onEdit, isRaw, onRaw }) {
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
      <${Tool} icon="written" text="Show as written" act=${onRaw} pressed=${isRaw} />
      <${Tool} icon="fork" text="Fork from here" act=${() => fork(turn.id)} disabled=${isOff} />
      ${version.sent && html`<${Tool} icon="code" text="What was sent" act=${() => setSent(true)} />`}
    </div>
    <${Speed} version=${version} model=${model} />
    ${isSent && html`<${SentDialog} body=${version.sent} onClose=${() => setSent(false)} />`}
  </div>`;
}

function Tool({ icon, text, act, disabled = false, pressed = null }) {
  return html`<button class="button quiet small icon" title=${text} aria-label=${text} aria-pressed=${pressed} disabled=${disabled} onClick=${act}><${Icon} name=${icon} size="14" /></button>`;
}

/** What the answer took: speed, time, tokens, and what its model holds in memory. */
function Speed({ version, model = null }) {
  const [isOpen, setOpen] = useState(false);
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
  if (!parts.length) return null;
  const [[chip, what], ...others] = parts;
  return html`<div class="speed num"><button class="chip" title=${what} aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>${chip}</button>
    <span hidden=${!isOpen}>${others.map(([text, title]) => html`<span key=${title} title=${title}>${text}</span>`)}</span></div>`;
}

function tokensText(usage) {
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const reasoning = usage.completion_tokens_details?.reasoning_tokens ?? 0;
  return `Prompt ${usage.prompt_tokens}, of which ${cached} from the cache; answer ${usage.completion_tokens}, of which ${reasoning} reasoning`;
}

// ------------------------------------------------------------------------------------------------------------
// The turns of a conversation, and the scroller that follows what is written only while its reader is at the end.

const NEAR = 60; // pixels from the end that still are the end

export default function Thread() {
  const { turns, settings, id } = open.value;
  const frame = useRef(null), inner = useRef(null), follows = useRef(true);
  const [isAway, setAway] = useState(false);
  const last = useRef(0); // where it was scrolled to
  const toEnd = () => {
    if (!frame.current) return;
    follows.current = true;
    frame.current.scrollTop = frame.current.scrollHeight;
    last.current = frame.current.scrollTop; // its event comes a frame later, maybe behind the reader's
  };
  useLayoutEffect(toEnd, [id, turns.length]);
  useEffect(() => {
    const observer = new ResizeObserver(() => { if (follows.current) toEnd(); });
    observer.observe(inner.current);
    return () => observer.disconnect();
  }, []);
  const onScroll = () => {
    const { scrollHeight, scrollTop, clientHeight } = frame.current;
    // Growing text moves the end away, too: only who scrolls up has left it.
    if (scrollHeight - scrollTop - clientHeight < NEAR) follows.current = true;
    else if (scrollTop < last.current) follows.current = false;
    last.current = scrollTop;
    setAway(!follows.current);
  };
  return html`<div class="thread" ref=${frame} onScroll=${onScroll} tabindex="0" role="region" aria-label="Messages">
    <div class="turns" ref=${inner} role="log" aria-live="off">
      ${turns.map((turn, index) => html`<${Turn} key=${turn.id} turn=${turn} next=${turns[index + 1]} settings=${settings} />`)}
    </div>
    ${isAway && html`<button class="button icon to-end" aria-label="To the end" onClick=${toEnd}><${Icon} name="down" /></button>`}
  </div>`;
}

function Turn({ turn, next, settings }) {
  if (turn.role === "user") return html`<${Said} turn=${turn} />`;
  if (turn.role === "tool") return null; // each result is in the card of its call
  const isLast = next === undefined;
  const isPair = turn.lanes.length > 1;
  return html`<div class=${`lanes ${isPair ? "pair" : ""}`}>${turn.lanes.map((_, lane) => html`<${Answer} key=${lane} turn=${turn} lane=${lane}
    showName=${isPair} isLast=${isLast} showProbabilities=${settings.probabilities} results=${next?.results?.[lane] ?? []} />`)}</div>
    ${isLast && !isBusy.value && turn.lanes.some((lane) => chosen(lane).toolCalls.length) && html`<${Calls} key=${turn.id} turn=${turn} />`}`;
}

function Said({ turn }) {
  const [isEditing, setEditing] = useState(false);
  if (isEditing) {
    const save = (text) => { setEditing(false); askAgain(turn.id, text); };
    return html`<div class="said editing"><${Editor} text=${turn.content} onSave=${save} onClose=${() => setEditing(false)} saveLabel="Send again" /></div>`;
  }
  return html`<article class="said" aria-label="You">
    ${turn.images.length > 0 && html`<ul class="pictures">${turn.images.map((url, index) => html`<li key=${index}><img src=${url} alt=${`Picture ${index + 1}`} /></li>`)}</ul>`}
    ${turn.files?.length > 0 && html`<ul class="files" aria-label="Files">${turn.files.map((file, index) => html`<${SaidFile} key=${index} file=${file} />`)}</ul>`}
    ${turn.content && html`<p class="said-text">${turn.content}</p>`}
    <div class=${`said-tools ${turn.versions ? "kept" : ""}`}><${Versions} count=${said(turn).length} index=${turn.chosen ?? 0} label="Versions of the message" disabled=${isBusy.value} onChoose=${(index) => toSaid(turn.id, index)} />
      <${Copy} text=${turn.content} /><button class="button quiet small icon" title="Edit and send again" aria-label="Edit and send again"
      disabled=${isBusy.value} onClick=${() => setEditing(true)}><${Icon} name="edit" size="14" /></button></div>
  </article>`;
}

function SaidFile({ file }) {
  const [isShown, setShown] = useState(false);
  return html`<li class="file"><${Icon} name="file" size="14" /><button class="file-name cut" title=${file.name} onClick=${() => setShown(true)}>${file.name}</button>
    <span class="faint small num">${file.facts}</span>${isShown && html`<${FileDialog} file=${file} onClose=${() => setShown(false)} />`}</li>`;
}
