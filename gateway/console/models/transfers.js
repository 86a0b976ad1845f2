// Downloads from the hub and files from this computer, on their way here.
import { html, signal } from "../vendor/preact.js";
import { address, call, downloads, headers, models, refusalOf } from "../core/server.js";
import { Icon, Notice, Progress, bytes, say, seconds, trying } from "../ui/parts.js";
import { beginWith } from "../chat/room.js";

/** Files on their way from this page. */
export const uploads = signal([]);
let last = 0;

const patch = (id, change) => { uploads.value = uploads.value.map((one) => (one.id === id ? { ...one, ...change } : one)); };
const drop = (id) => { uploads.value = uploads.value.filter((one) => one.id !== id); };

/** Send a file. XMLHttpRequest, because fetch doesn't report how much of a body was sent. @param {File} file */
export function upload(file) {
  if (!file.name.toLowerCase().endsWith(".gguf")) {
    say(`${file.name} is no GGUF file. Models of other formats are folders: put them into a folder of model_dirs.`, { kind: "bad" });
    return;
  }
  const id = ++last;
  const request = new XMLHttpRequest();
  uploads.value = [...uploads.value, { id, name: file.name, done: 0, total: file.size, began: performance.now(), fault: null, stop: () => { request.abort(); drop(id); } }];
  request.open("PUT", `${address}/v1/admin/uploads/${encodeURIComponent(file.name)}`);
  for (const [name, value] of Object.entries(headers({ "content-type": "application/octet-stream" }))) request.setRequestHeader(name, value);
  request.upload.onprogress = ({ loaded }) => patch(id, { done: loaded });
  request.onerror = () => patch(id, { fault: "The connection broke." });
  request.onload = () => {
    if (request.status >= 400) return patch(id, { fault: refusalOf(request.status, request.responseText).message });
    drop(id);
    const [model] = JSON.parse(request.responseText).models;
    return say(`${file.name} is there.`, model ? { action: { text: "Chat with it", act: () => beginWith(model) } } : {});
  };
  request.send(file);
}

export function Transfers() {
  return html`<section class="section" aria-label="Downloads and uploads"><h2>Downloads and uploads</h2><div class="card">
    ${uploads.value.map((one) => html`<${Upload} key=${`upload-${one.id}`} upload=${one} />`)}
    ${downloads.value.map((one) => html`<${Download} key=${one.id} download=${one} />`)}</div></section>`;
}

function Upload({ upload: { id, name, done, total, began, fault, stop } }) {
  const rate = done / ((performance.now() - began) / 1000);
  return html`<div class="transfer"><div class="grow"><div class="break">${name}</div>
      <div class="small soft num">${fault ? html`<span class="bad">${fault}</span>` : done === total ? "Checking" : `${bytes(done)} of ${bytes(total)}, about ${seconds((total - done) / rate)} left`}</div></div>
    <button class="button quiet small icon" aria-label=${`Stop ${name}`} onClick=${fault ? () => drop(id) : stop}><${Icon} name="close" size="14" /></button>
    ${!fault && html`<${Progress} done=${done} total=${total} label=${`Upload of ${name}`} />`}</div>`;
}

function Download({ download }) {
  const { id, model, state, done, total } = download;
  const act = (name) => () => trying(() => call("POST", `/v1/admin/downloads/${id}/${name}`));
  const there = state === "finished" && models.value?.find((one) => one.aliases.includes(model) || (one.file && download.path?.endsWith(one.file)));
  const remove = () => trying(() => call("DELETE", `/v1/admin/downloads/${id}`));
  return html`<div class="transfer"><div class="grow"><div class="break">${model}</div><div class="small soft num">${words(download)}</div></div>
    <div class="row">
      ${there && html`<button class="button primary small" onClick=${() => beginWith(there.id)}><${Icon} name="chat" size="14" />Chat with it</button>`}
      ${state === "running" && html`<button class="button small" aria-label=${`Stop ${model}`} onClick=${act("stop")}><${Icon} name="pause" size="14" />Stop</button>`}
      ${(state === "stopped" || state === "failed") && html`<button class="button small" aria-label=${`Resume ${model}`} onClick=${act("resume")}><${Icon} name="play" size="14" />Resume</button>`}
      <button class="button quiet small icon" aria-label=${`Remove ${model} from the list`} title="Remove from the list; what has come stays on the disk" onClick=${remove}><${Icon} name="close" size="14" /></button></div>
    ${state === "failed" ? html`<${Notice} kind="bad" icon="alert">${download.why_failed}</${Notice}>` : state !== "finished" && (total > 0 || state !== "stopped") && html`<${Progress} done=${done} total=${total || done} label=${`Download of ${model}`} />`}</div>`;
}

function words({ state, file, done, total, bytes_per_second: rate, seconds_left: left, path }) {
  if (state === "finished") return `Saved as ${path}`;
  const much = total ? `${bytes(done)} of ${bytes(total)}` : done ? bytes(done) : "";
  if (state === "stopped") return much ? `Stopped at ${much}` : "Stopped";
  if (state === "failed") return much ? `Failed at ${much}` : "Failed";
  return [file, much || "asking the hub", rate && `${bytes(rate)}/s`, left !== null && `${seconds(left)} left`].filter(Boolean).join(" · ");
}
