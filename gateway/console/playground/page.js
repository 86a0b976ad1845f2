// Where one tries what a model does without a conversation, and how fast it is. Each view is fetched when it is first shown.
import { html } from "../vendor/preact.js";
import { go, route } from "../core/browser.js";
import { Segments, later } from "../ui/parts.js";
import { sheet } from "../ui/sheet.js";

await sheet("playground.css", import.meta.url);

const VIEWS = {
  completion: ["Completion", later(() => import("./completion.js"))],
  prompt: ["Prompt", later(() => import("./prompt.js"))],
  infill: ["Infill", later(() => import("./infill.js"))],
  embeddings: ["Embeddings", later(() => import("./embeddings.js"))],
  rerank: ["Rerank", later(() => import("./rerank.js"))],
  grammar: ["Grammar", later(() => import("./grammar.js"))],
  measure: ["Measure", later(() => import("./measure.js"))],
};
const OPTIONS = Object.entries(VIEWS).map(([name, [title]]) => [name, title]);

export default function PlaygroundPage() {
  const [, asked] = route.value;
  const name = asked in VIEWS ? asked : "completion";
  const [, View] = VIEWS[name];
  return html`<div class="page playground">
    <header class="page-head"><h1>Playground</h1><${Segments} label="View" options=${OPTIONS} value=${name} onChange=${(value) => go("playground", value)} /></header>
    <${View} key=${name} />
  </div>`;
}
