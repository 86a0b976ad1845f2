// One request as it went through: its times, what the model read, what it wrote beside what became of it, what was sent.
import { html, useEffect, useState } from "../vendor/preact.js";
import { to } from "../core/browser.js";
import { ApiError, address, call, me, requests } from "../core/server.js";
import { Bones, Code, Copy, Dot, Empty, Icon, Notice, Segments, clock, copyText, count, rate, seconds, trying } from "../ui/parts.js";
import { sheet } from "../ui/sheet.js";
import { TokenText } from "../ui/tokens.js";
import { asCurl, canTalk, pretty, talkAbout } from "./handover.js";
import { Split } from "./split.js";
import { words } from "./words.js";

await sheet("inspection.css", import.meta.url);

const STAGES = {
  queue: "In line", load: "Model loads", prepare: "Prepared", slot: "Waits for a slot", prompt: "Reads the prompt", answer: "Answers",
};

export default function Inspection({ number }) {
  const [state, setState] = useState({ number: null, seen: null, error: null });
  const standing = requests.value.find((one) => String(one.number) === number || one.request === number);
  const moved = standing && `${standing.state} ${standing.completion_tokens}`;
  useEffect(() => {
    let isWanted = true;
    call("GET", `/v1/admin/requests/${encodeURIComponent(number)}`).then(
      (seen) => { if (isWanted) setState({ number, seen, error: null }); },
      (error) => { if (isWanted) setState({ number, seen: null, error }); },
    );
    return () => { isWanted = false; };
  }, [number, moved]);
  if (state.number !== number) return html`<${Bones} rows="8" />`;
  if (state.error) return html`<${Missing} error=${state.error} standing=${standing} />`;
  return html`<${Whole} seen=${state.seen} />`;
}

function Missing({ error, standing }) {
  const isGone = error instanceof ApiError && error.status === 404;
  const why = me.value.inspector ? "Of each key the last requests are kept, as long as there is memory for them." : "The inspector is off: inspector.enabled in the configuration.";
  return html`<div class="card"><${Empty} icon="search" title=${isGone ? "This request is not kept" : "It can’t be shown"}>
    <p>${isGone ? why : error.message}</p></${Empty}>
    ${standing && html`<div class="card-body stack"><${Facts} request=${standing} />
      ${standing.prompt && html`<h3>How the prompt ends</h3><div class="code"><pre class="prompt-text" tabindex="0">${standing.prompt}</pre></div>`}</div>`}</div>`;
}

function Whole({ seen }) {
  const { request } = seen;
  const [text, dot] = words(request);
  return html`<header class="page-head inspected-head"><div class="grow"><a class="back" href=${to("activity")}><${Icon} name="left" size="14" />Activity</a>
      <h2>Request ${request.number}<span class="sub break">${request.model}</span></h2></div>
      <div class="row wrap"><${Dot} state=${dot} />${text}
        <${Copied} label="Copy as curl" text=${() => asCurl(seen, address, me.value.keys)} />
        ${canTalk(seen) && html`<button class="button" onClick=${() => trying(() => talkAbout(seen))}><${Icon} name="chat" size="14" />Open in chat</button>`}</div></header>
    ${seen.error && html`<${Notice} kind="bad" icon="alert"><b>${seen.error.code}</b> ${seen.error.message}</${Notice}>`}
    <div class="inspected">
      <${Waterfall} seen=${seen} />
      ${seen.answers.map((answer, index) => html`<${Split} key=${index} answer=${answer} split=${seen.split} control=${seen.control}
        title=${seen.answers.length > 1 ? `Answer ${index + 1}` : "The split"} />`)}
      ${seen.prompts.map((prompt, index) => html`<${Prompt} key=${index} prompt=${prompt} control=${seen.control}
        title=${seen.prompts.length > 1 ? `Prompt ${index + 1}` : "Prompt"} />`)}
      <${Unapplied} seen=${seen} />
      <${Body} seen=${seen} />
    </div>`;
}

function Copied({ label, text }) {
  const [isDone, setDone] = useState(false);
  const copy = async () => { setDone(await trying(() => copyText(text()))); };
  return html`<button class="button" onClick=${copy}><${Icon} name=${isDone ? "check" : "copy"} size="14" />${isDone ? "Copied" : label}</button>`;
}

// ---------------------------------------------------------------------------------------------- where the time went

function Waterfall({ seen }) {
  const { request, stages } = seen;
  const whole = request.seconds || 1;
  return html`<section class="card" aria-label="Where the time went"><div class="card-head"><h2>Where the time went</h2>
      <span class="soft">${seconds(request.seconds)}, begun ${clock(request.began_at)}</span></div>
    <div class="card-body">
      <ol class="waterfall">${stages.map((one) => html`<li key=${one.name}><span class="soft">${STAGES[one.name] ?? one.name}</span>
        <span class="lane"><span class=${`bar ${one.name}`} style=${{ left: `${(one.from / whole) * 100}%`, width: `max(2px, ${((one.to - one.from) / whole) * 100}%)` }} /></span>
        <span class="number">${seconds(one.to - one.from)}</span></li>`)}</ol>
      <${Facts} request=${request} backend=${seen.backend} />
    </div></section>`;
}

function Facts({ request, backend = null }) {
  const reasoning = request.reasoning_tokens ? `, ${count(request.reasoning_tokens)} of them reasoning` : "";
  const facts = [
    ["Prompt", `${count(request.prompt_tokens)} tokens, ${count(request.cached_tokens)} from the cache`],
    ["Parted from the turn before", request.parted],
    ["Answer", `${count(request.completion_tokens)} tokens${reasoning}`],
    ["First token after", request.ttft === null ? null : seconds(request.ttft)],
    ["Speed", request.tokens_per_second && `${rate(request.tokens_per_second)} tokens per second`],
    ["Drafted", request.drafted_tokens ? `${count(request.drafted_tokens)} tokens, ${count(request.accepted_tokens)} accepted` : null],
    ["Engine", backend], ["API", request.api], ["Key", request.key], ["Its id", request.request],
  ];
  return html`<dl class="facts-list inspected-facts">${facts.filter(([, value]) => value).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

// ---------------------------------------------------------------------------------------------- what the model read

function Prompt({ prompt, control, title }) {
  const [view, setView] = useState(prompt.pieces ? "tokens" : "text");
  const hasText = prompt.text || prompt.pieces;
  const views = [["text", "Text"], ...(prompt.pieces ? [["tokens", "Tokens"], ["ids", "Ids"]] : [])];
  const images = prompt.images ? `, ${prompt.images} ${prompt.images === 1 ? "picture" : "pictures"}` : "";
  return html`<section class="card" aria-label=${title}><div class="card-head"><h2>${title}</h2><span class="soft">${count(prompt.tokens.length)} tokens${images}</span>
      ${hasText && html`<${Segments} label=${`How ${title.toLowerCase()} is shown`} options=${views} value=${view} onChange=${setView} /><${Copy} label="Copy the prompt" text=${() => textOf(prompt)} />`}</div>
    ${view === "text" || !prompt.pieces ? html`<pre class="tokens" tabindex="0" aria-label=${title}>${textOf(prompt) || prompt.tokens.slice(0, 2000).join(" ")}</pre>`
      : html`<${TokenText} label=${title} control=${control} hasIds=${view === "ids"} tokens=${prompt.pieces.map((text, index) => ({ text, ids: [prompt.tokens[index]] }))} />`}
    ${!prompt.pieces && html`<p class="hint inspected-hint">Its tokens are shown by text while the model is loaded.</p>`}</section>`;
}

const textOf = (prompt) => prompt.text || (prompt.pieces ?? []).join("");

// ---------------------------------------------------------------------------------------------- what was asked for

function Unapplied({ seen }) {
  const sampling = Object.entries(seen.sampling);
  if (!seen.unapplied.length && !sampling.length && seen.max_tokens === null) return null;
  return html`<section class="card" aria-label="Parameters"><div class="card-head"><h2>Parameters</h2></div><div class="card-body stack">
    ${seen.unapplied.length > 0 && html`<div><h3>Not applied</h3><dl class="facts-list reasons">${seen.unapplied.map((one) => html`<div key=${one.name}><dt><code class="warn">${one.name}</code>${one.partly && html` <span class="tag warn">in part</span>`}</dt><dd>${one.reason}</dd></div>`)}</dl></div>`}
    <div><h3>Applied</h3><p class="row wrap">${seen.max_tokens !== null && html`<span class="tag mono">max_tokens ${seen.max_tokens}</span>`}
      ${sampling.map(([name, value]) => html`<span class="tag mono" key=${name}>${name} ${JSON.stringify(value)}</span>`)}
      ${!sampling.length && html`<span class="soft">Nothing but the model’s own probabilities.</span>`}</p></div></div></section>`;
}

function Body({ seen }) {
  return html`<section class="card" aria-label="Request body"><div class="card-head"><h2>Request</h2><code class="soft break">${seen.method} ${seen.path}</code></div>
    <div class="card-body stack">${seen.body ? html`<${Code} label="the body" text=${pretty(seen.body)} />` : html`<p class="soft">It came without a body.</p>`}
    ${seen.body_cut && html`<p class="hint">Only the beginning is kept: the body has ${count(seen.body_bytes)} bytes.</p>`}</div></section>`;
}
