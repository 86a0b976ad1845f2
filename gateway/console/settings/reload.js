// A reload: first what it would do, then, if that is wanted, the reload itself; with a text, that is saved into the file before.
import { html, useEffect, useState } from "../vendor/preact.js";
import { call } from "../core/server.js";
import { Bones, Dialog, Notice, say } from "../ui/parts.js";

const ROWS = [
  ["Applied", (plan) => plan.changed], ["Needs a restart", (plan) => plan.restart], ["Models added", (plan) => plan.models.added], ["Models removed", (plan) => plan.models.removed],
  ["Models loaded again", (plan) => plan.models.reloaded], ["Models changed in place", (plan) => plan.models.updated],
];

export function ReloadDialog({ hasDraft = false, text = null, seen = null, onSaved, onClose }) {
  const [plan, setPlan] = useState(null);
  const [fault, setFault] = useState(null);
  useEffect(() => {
    const planned = text === null ? call("POST", "/v1/admin/reload?plan=true") : call("POST", "/v1/admin/settings/check", { text }).then((it) => { if (!it.ok) throw new Error(it.error); return it.plan; });
    planned.then(setPlan, (error) => setFault(error.message));
  }, []);
  const isNothing = plan && ROWS.every(([, names]) => !names(plan)?.length);
  const apply = async () => {
    try {
      if (text !== null) {
        const saved = await call("POST", "/v1/admin/settings/save", { text, seen });
        if (!saved.ok) throw new Error(saved.line ? `Line ${saved.line}: ${saved.error}` : saved.error);
        onSaved();
      }
      await call("POST", "/v1/admin/reload");
      say("The configuration is applied.");
      onClose();
    } catch (error) { setFault(error.message); }
  };
  return html`<${Dialog} title=${text === null ? "Reload the configuration" : "Save and reload"} onClose=${onClose} foot=${html`<button class="button" onClick=${onClose}>Cancel</button>
      <button class="button primary" disabled=${!plan || (isNothing && text === null) || fault} onClick=${apply}>${text === null ? "Apply" : "Save and apply"}</button>`}>
    ${hasDraft && html`<${Notice} kind="warn" icon="alert">Your draft is not in the file, so it has no part in this: save it into the file first.</${Notice}>`}
    ${fault && html`<${Notice} kind="bad" icon="alert">${fault}</${Notice}>`}
    ${!plan && !fault && html`<${Bones} rows="3" />`}
    ${isNothing && html`<p class="soft">${text === null ? "The current configuration already matches the file." : "Nothing of what is in force changes by it."}</p>`}
    ${plan && !isNothing && html`<p class="soft">Running answers end on what they began with.</p><dl class="plan-list">${ROWS.filter(([, names]) => names(plan)?.length).map(([title, names]) => html`<dt key=${title}>${title}</dt>
      <dd>${names(plan).map((name) => html`<code class="tag" key=${name}>${name}</code>`)}</dd>`)}</dl>`}
  </${Dialog}>`;
}
