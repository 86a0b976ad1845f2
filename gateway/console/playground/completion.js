// A text goes on, without a conversation's template around it.
import { html, signal } from "../vendor/preact.js";
import { stored } from "../core/browser.js";
import { send } from "../core/server.js";
import { Copy, Field, Icon, count, rate, seconds } from "../ui/parts.js";
import { Failure, Form, ModelOf, NoModel, RunButton, Text, chosenModel, chunks, useRequest } from "./trying.js";

const SHOW = 50; // milliseconds between two drawings
const fields = stored("playground.completion", { prompt: "Once upon a time", most: 128, temperature: "", stop: "" });
const answer = signal(null); // {prompt, text, facts}

const set = (more) => { fields.value = { ...fields.value, ...more }; };

export default function Completion() {
  const request = useRequest();
  if (!chosenModel("text")) return html`<${NoModel} kind="text" />`;
  const { prompt, most, temperature, stop } = fields.value;
  const run = () => request.run(complete);
  const number = (event) => (event.target.value === "" ? "" : event.target.valueAsNumber);
  return html`<div class="beside"><${Form} label="Completion" onRun=${run}>
      <${Text} label="Text" mono rows="14" value=${prompt} onInput=${(text) => set({ prompt: text })} />
      <div class="numbers"><${Field} label="Max tokens"><input class="input" type="number" min="1" max="100000" value=${most} onInput=${(event) => set({ most: number(event) })} /></${Field}>
        <${Field} label="Temperature"><input class="input" type="number" min="0" step="0.05" placeholder="the model’s" value=${temperature} onInput=${(event) => set({ temperature: number(event) })} /></${Field}>
        <${Field} label="Stop string"><input class="input" placeholder="a text" value=${stop} onInput=${(event) => set({ stop: event.target.value })} /></${Field}></div>
      <div class="row wrap"><${ModelOf} kind="text" /><span class="grow" /><${RunButton} request=${request} text="Complete" disabled=${!prompt} /></div>
    </${Form}>
    <div class="result" aria-busy=${request.isRunning}><${Failure} request=${request} />${answer.value && html`<${Answer} it=${answer.value} />`}</div></div>`;
}

/** The text, and how it went on. */
function Answer({ it }) {
  const goOn = () => set({ prompt: it.prompt + it.text });
  return html`<div class="result-head"><span class="faint small num">${it.facts.join(" · ")}</span><span class="grow" />
      <button class="button quiet small" disabled=${!it.text} onClick=${goOn}><${Icon} name="right" size="14" />Go on from here</button><${Copy} text=${it.prompt + it.text} /></div>
    <pre class="written" tabindex="0" aria-label="The text as it goes on">${it.prompt}<mark>${it.text}</mark></pre>`;
}

async function complete(signal) {
  const { prompt, most, temperature, stop } = fields.value;
  const body = {
    model: chosenModel("text").id, prompt, stream: true, stream_options: { include_usage: true }, ...(most ? { max_tokens: most } : {}),
    ...(temperature === "" ? {} : { temperature }), ...(stop ? { stop: [stop] } : {}),
  };
  const began = performance.now();
  let text = "", first = null, usage = null, speed = null, finish = null, drawn = 0;
  const show = () => {
    answer.value = { prompt, text, facts: [first !== null && `${seconds(first)} to first`, usage && `${count(usage.prompt_tokens)} → ${count(usage.completion_tokens)} tokens`,
      speed && `${rate(speed)} tok/s`, finish === "length" && "cut at the limit"].filter(Boolean) };
  };
  show();
  const response = await send("POST", "/v1/completions", { body, signal, accept: "text/event-stream" });
  for await (const chunk of chunks(response)) {
    const [choice] = chunk.choices ?? [];
    if (choice?.text) { first ??= (performance.now() - began) / 1000; text += choice.text; }
    finish = choice?.finish_reason ?? finish;
    usage = chunk.usage ?? usage;
    speed = chunk.timings?.predicted_per_second ?? speed;
    if (performance.now() - drawn > SHOW) { drawn = performance.now(); show(); }
  }
  show();
}
