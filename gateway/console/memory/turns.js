// Recent conversations: how much of their prompts was found in the cache, and where these parted.
import { html, signal, useEffect } from "../vendor/preact.js";
import { call, requests } from "../core/server.js";
import { clock, count } from "../ui/parts.js";

const talks = signal([]);

async function fetchTalks() {
  try { talks.value = (await call("GET", "/v1/admin/conversations")).data; } catch { talks.value = []; }
}

export function Turns() {
  const over = requests.value.filter((one) => one.state === "done").length ? requests.value.find((one) => one.state === "done").number : 0;
  useEffect(() => { fetchTalks(); }, [over]);
  const several = talks.value.filter((one) => one.turns > 1);
  if (!several.length) return null;
  return html`<section class="card device" aria-label="Recent conversations">
    <div class="card-head"><h2>Recent conversations</h2><span class="soft">What of their turns was found in the cache, and where a prompt last parted from the one before</span></div>
    <div class="card-body"><div class="table-scroll frame" tabindex="0" role="region" aria-label="Hit rates of conversations"><table class="table">
      <thead><tr><th>Model</th><th>Key</th><th>Conversation</th><th class="number">Turns</th><th class="number">Cached</th><th>Parted</th><th class="number">Last</th></tr></thead>
      <tbody>${several.map((one) => html`<tr key=${`${one.model} ${one.began}`}><td>${one.model}</td><td class="soft">${one.key ?? "–"}</td><td class="soft break">${one.conversation ?? "–"}</td>
        <td class="number">${count(one.turns)}</td><td class="number">${one.hit_rate === null ? "–" : `${Math.round(100 * one.hit_rate)} %`}</td>
        <td class="soft break">${one.parting?.sentence ?? "–"}</td><td class="number soft">${clock(one.last)}</td></tr>`)}</tbody>
    </table></div></div></section>`;
}
