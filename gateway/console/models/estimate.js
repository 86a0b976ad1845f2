// What a load would take of each device, asked of the server while options move; the last answer stays until the next is there.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { call } from "../core/server.js";
import { Notice, bytes, colour, percent, seconds, tokens } from "../ui/parts.js";
import { sheet } from "../ui/sheet.js";
import { fitWords } from "./sorting.js";

await sheet("estimate.css", import.meta.url);

const PAUSE = 150; // milliseconds: a slider that moves asks once it rests
const PARTS = [["weights", "Weights"], ["cache", "Cache"], ["projector", "Projector"], ["engine", "Engine"]];

/** The estimate for `options`, and what is wrong with them. @returns {{found: object | null, fault: string | null, isOld: boolean}} */
export function useEstimate(model, options) {
  const [state, setState] = useState({ found: null, fault: null, isOld: true });
  const text = JSON.stringify(options);
  const isFirst = useRef(true);
  useEffect(() => {
    const stop = new AbortController();
    setState((it) => ({ ...it, isOld: true }));
    const ask = async () => {
      try {
        const found = await call("POST", "/v1/admin/models/estimate", { model, options: JSON.parse(text) }, { signal: stop.signal });
        setState({ found, fault: null, isOld: false });
      } catch (error) {
        if (error.name !== "AbortError") setState((it) => ({ ...it, fault: error.message, isOld: false }));
      }
    };
    const timer = setTimeout(ask, isFirst.current ? 0 : PAUSE);
    isFirst.current = false;
    return () => { clearTimeout(timer); stop.abort(); };
  }, [model, text]);
  return state;
}

export function Estimate({ model, state }) {
  const { found, fault, isOld } = state;
  if (!found) return html`<div class="estimate" aria-busy="true">${fault ? html`<${Notice} kind="bad" icon="alert">${fault}</${Notice}>` : html`<p class="soft">Estimating…</p>`}</div>`;
  const [fit, kind] = fitWords(found.fit);
  const devices = found.devices.filter((device) => device.needs || device.own || found.devices.length < 4);
  return html`<section class="estimate" aria-label="Estimate" aria-busy=${isOld}>
    <p class="estimate-verdict" aria-live="polite"><b class=${kind || null}>${fit}</b><span class="soft">${[
      found.context_length && `${tokens(found.context_length)} tokens of context`, found.measured ? "measured by an earlier load" : "estimated", `about ${seconds(found.load_seconds)} to load`,
    ].filter(Boolean).join(" · ")}</span></p>
    ${devices.map((device) => html`<${Device} key=${device.device} model=${model} device=${device} parts=${found.parts} />`)}
    <ul class="estimate-parts">${PARTS.filter(([part]) => found.parts[part]).map(([part, name]) => html`<li key=${part}><span class="soft">${name}</span> ${bytes(found.parts[part])}</li>`)}</ul>
    ${found.note && html`<${Notice} kind="warn">${found.note}${found.speed < 1 && ` About ${percent(found.speed)} of full speed.`}</${Notice}>`}
    ${found.fit.why && html`<${Notice} kind="bad" icon="alert">${found.fit.why}</${Notice}>`}
    ${fault && html`<${Notice} kind="bad" icon="alert">${fault}</${Notice}>`}
  </section>`;
}

function Device({ model, device }) {
  const whole = Math.max(device.budget, device.others + device.needs, 1);
  const width = (value) => ({ width: `${(100 * Math.max(0, value)) / whole}%` });
  const over = device.others + device.needs - device.budget;
  const words = `${bytes(device.needs)} of ${bytes(device.budget)}${device.others ? `, others ${bytes(device.others)}` : ""}`;
  return html`<div class="estimate-device"><div class="row small"><b>${device.device}</b><span class="soft num grow">${words}</span>${over > 0 && html`<span class="warn num">${bytes(over)} too much now</span>`}</div>
    <div class="estimate-bar" role="img" aria-label=${`${device.device}: ${words}`}>
      <div class="others" style=${width(device.others)} />
      <div class=${over > 0 ? "needs over" : "needs"} style=${{ ...width(device.needs), background: over > 0 ? null : colour(model) }} />
      ${device.budget < whole && html`<div class="limit" style=${{ left: width(device.budget).width }} />`}</div></div>`;
}
