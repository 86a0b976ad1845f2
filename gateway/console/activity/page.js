// What happens: requests now and recent ones, the last hour in charts, and the log.
import { html } from "../vendor/preact.js";
import { go, route } from "../core/browser.js";
import { isAdmin } from "../core/server.js";
import { Segments, later } from "../ui/parts.js";
import { Charts } from "./charts.js";
import { Log } from "./log.js";
import { Requests } from "./requests.js";

const Inspection = later(() => import("./inspection.js"));
const VIEWS = { requests: ["Requests", Requests], charts: ["Charts", Charts], log: ["Log", Log] };

export default function ActivityPage() {
  const [, asked, number] = route.value;
  const name = isAdmin.value && asked in VIEWS ? asked : "requests"; // the others are for administrators
  const [, View] = VIEWS[name];
  const options = Object.entries(VIEWS).map(([key, [title]]) => [key, title]);
  return html`<div class="page">
    <header class="page-head"><h1>Activity</h1>${isAdmin.value && html`<${Segments} label="View" options=${options} value=${name} onChange=${(value) => go("activity", value)} />`}</header>
    ${asked === "requests" && number !== undefined ? html`<${Inspection} number=${number} />` : html`<${View} />`}
  </div>`;
}
