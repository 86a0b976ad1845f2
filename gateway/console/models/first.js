// The first models beside the demo model: three of the hub that this machine holds, with a button each; what is on its way,
// and, once it is there, the way to talk to it.
import { html, useEffect, useState } from "../vendor/preact.js";
import { to } from "../core/browser.js";
import { call, downloads, me } from "../core/server.js";
import { Icon, bytes, trying } from "../ui/parts.js";
import { fitWords, speedWords } from "./sorting.js";
import { Transfers, uploads } from "./transfers.js";

const OFFERED = 3;

export default function First() {
  const [found, setFound] = useState([]);
  useEffect(() => {
    if (me.value.downloads) call("GET", "/v1/admin/hub/search?words=&format=gguf").then(({ models }) => setFound(models), () => {}); // offline: nothing is offered
  }, []);
  const asked = new Set(downloads.value.map((one) => one.model.split(":")[0]));
  const fitting = found.filter((one) => !one.gated && one.fit?.verdict.startsWith("fits") && !asked.has(one.repository)).slice(0, OFFERED);
  const take = (model) => trying(() => call("POST", "/v1/admin/downloads", { model }));
  return html`<div class="first stack">
    ${fitting.length > 0 && html`<section class="card" aria-label="Models for this machine"><div class="card-head"><h3>Models for this machine</h3><a class="small" href=${to("models")}>All of the hub</a></div>
      <ul>${fitting.map(({ repository, size, fit }) => html`<li class="transfer" key=${repository}><div class="grow"><div class="break">${repository}</div>
        <div class="small soft num" title="The speed is that of memory, where a token reads all weights; models with experts are faster">${[`${bytes(size)} to download`, `needs ${bytes(fit.needs)}${fit.device ? ` of ${fit.device}` : ""}`, fitWords(fit)[0], speedWords(fit)].filter(Boolean).join(" · ")}</div></div>
        <button class="button small" aria-label=${`Download ${repository}`} onClick=${() => take(repository)}><${Icon} name="download" size="14" />Download</button></li>`)}</ul></section>`}
    ${(downloads.value.length > 0 || uploads.value.length > 0) && html`<${Transfers} />`}</div>`;
}
