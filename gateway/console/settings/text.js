// The configuration's text and fields over it, to be tried: it is checked as the file would be read.
import { html, signal, useEffect, useRef, useState } from "../vendor/preact.js";
import { call, saveAs } from "../core/server.js";
import { Copy, Empty, Icon, Notice } from "../ui/parts.js";
import { CommonSettings } from "./form.js";
import { ReloadDialog } from "./reload.js";

const PAUSE = 500; // milliseconds after the last key before the text is checked

/** The file's text with one's changes; null: none were made. */
export const draft = signal(null);

export function ConfigText({ settings }) {
  const text = draft.value ?? settings.text ?? "";
  const setText = (value) => { draft.value = value === settings.text ? null : value; };
  const result = useCheck(text);
  const [isSaving, setSaving] = useState(false);
  const area = useRef(null);
  if (settings.text === null) return html`<div class="card"><${Empty} icon="settings" title="No configuration file"><p>Every option has its default, or comes from a variable or the command line. A file <code>roundhouse.yaml</code> in the folder you start in is read by itself.</p></${Empty}></div>`;
  const toLine = (line) => {
    const lines = text.split("\n"), from = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    area.current.focus();
    area.current.setSelectionRange(from, from + lines[line - 1].length);
  };
  return html`<p class="soft page-intro">A draft of <code class="break">${settings.file}</code>: try changes here, then ${settings.writable ? "save them: the file as it was is kept beside it." : html`put them into the file and reload. <code>console.edit_config: true</code> in it lets administrators save from here.`}</p>
    <div class="stack"><${CommonSettings} options=${settings.options} text=${text} onChange=${setText} onLine=${toLine} /><textarea ref=${area} class="input mono config-text" aria-label="Configuration" spellcheck="false" wrap="off" value=${text} onInput=${(event) => setText(event.target.value)} />
      <div role="status">${result === null ? html`<${Notice}>Checking…</${Notice}>` : result.ok ? html`<div class="notice"><span class="good"><${Icon} name="check" /></span>It can be used.</div>`
        : html`<div class="notice bad"><${Icon} name="alert" /><div class="grow break">${result.error}</div>${result.line && html`<button class="button small" onClick=${() => toLine(result.line)}>Line ${result.line}</button>`}</div>`}</div>
      <div class="row wrap">${settings.writable && html`<button class="button primary" disabled=${draft.value === null || !result?.ok} onClick=${() => setSaving(true)}>Save and reload…</button>`}<${Copy} text=${text} label="Copy the draft" /><button class="button" onClick=${() => saveAs("roundhouse.yaml", text, "application/yaml")}><${Icon} name="download" />Save as a file</button>
        <button class="button quiet" disabled=${text === settings.text} onClick=${() => setText(settings.text)}>Back to the file’s text</button></div>
      ${isSaving && html`<${ReloadDialog} text=${text} seen=${settings.text} onSaved=${() => { draft.value = null; }} onClose=${() => setSaving(false)} />`}</div>`;
}

/** What the server says of a text; null while it is asked. */
function useCheck(text) {
  const [result, setResult] = useState(null);
  useEffect(() => {
    setResult(null);
    let isWanted = true;
    const timer = setTimeout(async () => {
      const checked = await call("POST", "/v1/admin/settings/check", { text }).catch((error) => ({ ok: false, error: error.message, line: null }));
      if (isWanted) setResult(checked);
    }, PAUSE);
    return () => { isWanted = false; clearTimeout(timer); };
  }, [text]);
  return result;
}
