// The turns of a conversation, and the scroller that follows what is written only while its reader is at the end.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../core/html.js";
import { Icon } from "../ui/icons.js";
import { Copy, Versions } from "../ui/parts.js";
import { Answer, Editor } from "./answer.js";
import { chosen, said } from "./conversation.js";
import { askAgain, giveResults, isBusy, open, toSaid } from "./room.js";

const NEAR = 60; // pixels from the end that still are the end

export function Thread() {
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
  return html`<div class="thread" ref=${frame} onScroll=${onScroll} tabindex="0" role="region" aria-label="Conversation">
    <div class="turns" ref=${inner} role="log" aria-live="off">
      ${turns.map((turn, index) => html`<${Turn} key=${turn.id} turn=${turn} isLast=${index === turns.length - 1} settings=${settings} />`)}
    </div>
    ${isAway && html`<button class="button icon to-end" aria-label="To the end" onClick=${toEnd}><${Icon} name="down" /></button>`}
  </div>`;
}

function Turn({ turn, isLast, settings }) {
  if (turn.role === "user") return html`<${Said} turn=${turn} />`;
  if (turn.role === "tool") return html`<${Results} turn=${turn} />`;
  const isPair = turn.lanes.length > 1;
  return html`<div class=${`lanes ${isPair ? "pair" : ""}`}>${turn.lanes.map((_, lane) => html`<${Answer} key=${lane} turn=${turn} lane=${lane}
    showName=${isPair} isLast=${isLast} showProbabilities=${settings.probabilities} />`)}</div>
    ${isLast && !isBusy.value && turn.lanes.some((lane) => chosen(lane).toolCalls.length) && html`<${ResultsForm} turn=${turn} />`}`;
}

function Said({ turn }) {
  const [isEditing, setEditing] = useState(false);
  if (isEditing) {
    const save = (text) => { setEditing(false); askAgain(turn.id, text); };
    return html`<div class="said editing"><${Editor} text=${turn.content} onSave=${save} onClose=${() => setEditing(false)} saveLabel="Send again" /></div>`;
  }
  return html`<article class="said" aria-label="You">
    ${turn.images.length > 0 && html`<ul class="pictures">${turn.images.map((url, index) => html`<li key=${index}><img src=${url} alt=${`Picture ${index + 1}`} /></li>`)}</ul>`}
    ${turn.content && html`<p class="said-text">${turn.content}</p>`}
    <div class=${`said-tools ${turn.versions ? "kept" : ""}`}><${Versions} count=${said(turn).length} index=${turn.chosen ?? 0} label="Versions of the message" disabled=${isBusy.value} onChoose=${(index) => toSaid(turn.id, index)} />
      <${Copy} text=${turn.content} /><button class="button quiet small icon" title="Edit and send again" aria-label="Edit and send again"
      disabled=${isBusy.value} onClick=${() => setEditing(true)}><${Icon} name="edit" size="14" /></button></div>
  </article>`;
}

function Results({ turn }) {
  return html`<div class=${`lanes ${turn.results.length > 1 ? "pair" : ""}`}>${turn.results.map((results, lane) => html`<div key=${lane} class="stack">${results.map((one) => html`<div class="call result" key=${one.id}>
    <div class="call-head"><${Icon} name="right" size="14" /><code class="break">${one.name}</code><span class="faint small">result</span></div><pre tabindex="0" aria-label="Result">${one.content}</pre></div>`)}</div>`)}</div>`;
}

/** The tools run nowhere: who talks gives what they would have said. */
function ResultsForm({ turn }) {
  const calls = turn.lanes.map((lane) => chosen(lane).toolCalls);
  const [texts, setTexts] = useState({});
  const submit = (event) => {
    event.preventDefault();
    giveResults(calls.map((lane, index) => lane.map(({ id, name }, place) => ({ id, name, content: texts[`${index}-${place}`] ?? "" }))));
  };
  return html`<form class="results-form" onSubmit=${submit}>
    ${calls.flatMap((lane, index) => lane.map((call, place) => html`<label class="field" key=${`${index}-${place}`}><span class="label">Result of <code>${call.name}</code></span>
      <textarea class="input mono" rows="2" value=${texts[`${index}-${place}`] ?? ""} onInput=${(event) => setTexts({ ...texts, [`${index}-${place}`]: event.target.value })} /></label>`))}
    <div><button class="button primary">Send results</button></div>
  </form>`;
}
