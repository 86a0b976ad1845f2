// A reload: first what it would do, then, if that is wanted, the reload itself.
import { html, useEffect, useState } from "../vendor/preact.js";
import { call } from "../core/server.js";
import { Bones, Dialog, Notice, say } from "../ui/parts.js";
import { draft } from "./text.js";

const ROWS = [
  ["Applied", (plan) => plan.changed], ["Needs a restart", (plan) => plan.restart], ["Models added", (plan) => plan.models.added], ["Models removed", (plan) => plan.models.removed],
  ["Models loaded again", (plan) => plan.models.reloaded], ["Models changed in place", (plan) => plan.models.updated],
];

export function ReloadDialog({ onClose }) {
  const [plan, setPlan] = useState(null);
  const [fault, setFault] = useState(null);
  const [inFile, setInFile] = useState(null); // its text as it is now
  useEffect(() => { call("POST", "/v1/admin/reload?plan=true").then(setPlan, (error) => setFault(error.message)); }, []);
  useEffect(() => { if (draft.value !== null) call("GET", "/v1/admin/settings").then(({ text }) => setInFile(text), () => {}); }, []);
  const isNothing = plan && ROWS.every(([, names]) => !names(plan)?.length);
  const apply = async () => {
    try {
      await call("POST", "/v1/admin/reload");
      say("The configuration is applied.");
      onClose();
    } catch (error) { setFault(error.message); }
  };
  return html`<${Dialog} title="Reload the configuration" onClose=${onClose} foot=${html`<button class="button" onClick=${onClose}>Cancel</button>
      <button class="button primary" disabled=${!plan || isNothing || fault} onClick=${apply}>Apply</button>`}>
    ${inFile !== null && draft.value !== inFile && html`<${Notice} kind="warn" icon="alert">Your draft is not in the file, so it has no part in this: save it into the file first.</${Notice}>`}
    ${fault && html`<${Notice} kind="bad" icon="alert">${fault}</${Notice}>`}
    ${!plan && !fault && html`<${Bones} rows="3" />`}
    ${isNothing && html`<p class="soft">The current configuration already matches the file.</p>`}
    ${plan && !isNothing && html`<p class="soft">Running answers end on what they began with.</p><dl class="plan-list">${ROWS.filter(([, names]) => names(plan)?.length).map(([title, names]) => html`<dt key=${title}>${title}</dt>
      <dd>${names(plan).map((name) => html`<code class="tag" key=${name}>${name}</code>`)}</dd>`)}</dl>`}
  </${Dialog}>`;
}
