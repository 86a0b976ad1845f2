// What happens: requests now and lately, the last hour in charts, and the log.
import { html } from "../vendor/preact.js";
import { go, route } from "../core/browser.js";
import { Segments } from "../ui/parts.js";
import { Charts } from "./charts.js";
import { Log } from "./log.js";
import { Requests } from "./requests.js";

const VIEWS = { requests: ["Requests", Requests], charts: ["Charts", Charts], log: ["Log", Log] };

export default function ActivityPage() {
  const name = route.value[1] in VIEWS ? route.value[1] : "requests";
  const [, View] = VIEWS[name];
  const options = Object.entries(VIEWS).map(([key, [title]]) => [key, title]);
  return html`<div class="page">
    <header class="page-head"><h1>Activity</h1><${Segments} label="View" options=${options} value=${name} onChange=${(value) => go("activity", value)} /></header>
    <${View} />
  </div>`;
}
