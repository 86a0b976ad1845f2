// "What was sent": the request behind an answer, as one would send it oneself.
import { html, useState } from "../core/html.js";
import { address, key } from "../core/api.js";
import { Dialog } from "../ui/dialog.js";
import { Code, Segments } from "../ui/parts.js";
import { asCurl, asPython } from "./request.js";

const FORMS = {
  curl: (body) => asCurl(body, address, key.value !== null),
  python: (body) => asPython(body, address, key.value !== null),
  json: (body) => JSON.stringify(body, null, 2),
};

/** @param {{body: object, onClose: () => void}} props */
export function SentDialog({ body, onClose }) {
  const [form, setForm] = useState("curl");
  const options = [["curl", "curl"], ["python", "Python"], ["json", "JSON"]];
  return html`<${Dialog} title="What was sent" wide onClose=${onClose}>
    <div class="row wrap"><${Segments} label="Form" options=${options} value=${form} onChange=${setForm} />
      <span class="faint small">${key.value ? "The key is in the variable KEY." : "This server needs no key."} Pictures are left out.</span></div>
    <${Code} text=${FORMS[form](body)} label="request" />
  </${Dialog}>`;
}
