// Conversations that are kept when their model is unloaded or others need its slots: what, for whom, how old; pin and drop.
import { html, signal, useEffect } from "../vendor/preact.js";
import { call, gauges } from "../core/server.js";
import { bytes, count, say, seconds, trying } from "../ui/parts.js";

const kept = signal(null);

async function fetchKept() {
  try { kept.value = await call("GET", "/v1/kept"); } catch { kept.value = null; }
}

const NOT_PINNED = "Not pinned: it is gone, or its key has pinned as much as it may.";

const pin = (one) => trying(async () => {
  const { changed } = await call("POST", "/v1/kept/pin", { id: one.id, pinned: !one.pinned });
  if (!changed) say(NOT_PINNED, { kind: "bad" });
  await fetchKept();
});
const drop = (one) => trying(async () => { await call("DELETE", `/v1/kept?id=${one.id}`); await fetchKept(); });

export function Kept() {
  const size = gauges.value?.devices.reduce((sum, one) => sum + one.kept, 0); // it changes with what is kept
  useEffect(() => { fetchKept(); }, [size]);
  const { data = [], counts, engines } = kept.value ?? {};
  if (!data.length && !engines?.length) return null;
  return html`<section class="card device" aria-label="Kept conversations">
    <div class="card-head"><h2>Kept conversations</h2>${counts && html`<span class="soft num">${bytes(counts.memory)} in memory of ${bytes(counts.memory_limit)}${counts.disk ? `, ${bytes(counts.disk)} on disk` : ""}; ${seconds(counts.seconds)} saved</span>`}</div>
    <div class="card-body">${(engines ?? []).map((one) => html`<p class="soft" key=${one.model}>${one.model} (${one.backend}) keeps conversations itself, in up to ${bytes(one.memory_limit)} of memory${one.disk_limit ? ` and ${bytes(one.disk_limit)} on disk` : ""}.</p>`)}
      ${data.length > 0 && html`<div class="table-scroll frame" tabindex="0" role="region" aria-label="What is kept of conversations"><table class="table">
      <thead><tr><th>Model</th><th>Key</th><th>Conversation</th><th class="number">Tokens</th><th class="number">Size</th><th>Where</th><th class="number">Used</th><th class="number">Age</th><th /></tr></thead>
      <tbody>${data.map((one) => html`<tr key=${one.id}><td>${one.model}</td><td class="soft">${one.key ?? "–"}</td><td class="soft break">${one.conversation ?? "–"}</td>
        <td class="number">${count(one.tokens)}</td><td class="number">${bytes(one.size)}</td><td class="soft">${one.tiers.join(", ")}</td>
        <td class="number soft">${count(one.uses)}</td><td class="number soft">${seconds(one.age)}</td>
        <td><span class="row"><button class="button small" aria-pressed=${one.pinned} onClick=${() => pin(one)}>${one.pinned ? "Unpin" : "Pin"}</button><button class="button small" onClick=${() => drop(one)}>Drop</button></span></td></tr>`)}</tbody>
    </table></div>`}</div></section>`;
}
