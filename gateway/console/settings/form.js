// Ten common settings as fields over the file's text. A change rewrites the one line that a setting stands on, so comments stay.
import { html } from "../vendor/preact.js";
import { Field } from "../ui/parts.js";

const COMMON = [
  ["server.host", "Address to listen on"], ["server.port", "Port"], ["model_dirs", "Folders with models"], ["hub.folder", "Folder for downloads"], ["default_model", "Model where a request names none"],
  ["swap.ttl", "Unload a model after idle"], ["engines.llamacpp.context_length", "Context of GGUF models"], ["engines.llamacpp.max_concurrent", "Answers at a time"],
  ["store.path", "File for usage and responses"], ["log.level", "Log level"],
];

export function CommonSettings({ options, text, onChange, onLine }) {
  return html`<section class="options-grid" aria-label="Common settings">${COMMON.map(([name, label]) => {
    const option = options.find((one) => one.option === name);
    return option && html`<${Setting} key=${name} option=${option} label=${label} text=${text} onChange=${onChange} onLine=${onLine} />`;
  })}</section>`;
}

function Setting({ option, label, text, onChange, onLine }) {
  const found = spot(text, option.option), value = found && read(found.value);
  const hint = html`<code title=${option.description}>${option.option}</code>${option.source === "variable" ? `: ${option.where} counts instead` : option.effect === "restart" ? ": after a restart" : ""}`;
  if (value === null) return html`<div class="field"><span class="label">${label}</span><div><button class="button small" onClick=${() => onLine(found?.line ?? 1)}>Edit as text</button></div><span class="hint">${hint}</span></div>`;
  const initial = shown(option.default);
  const set = (event) => onChange(put(text, option.option, written(event.target.value.trim() || initial, option)));
  return html`<${Field} label=${label} hint=${hint}>${option.choices ? html`<select class="input" value=${value || initial} onChange=${set}>${option.choices.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select>`
    : html`<input class="input" spellcheck="false" value=${value} placeholder=${initial || "not set"} onChange=${set} />`}</${Field}>`;
}

// ------------------------------------------------------------------------------------------------------------
// YAML by lines. Pure. What isn't `key: value` on a line of its own is left to who reads the text.

const indentOf = (line) => /^ */.exec(line)[0].length;
const holds = (line) => !/^\s*(#|---|%|$)/.test(line);
const VALUE = /^( *)("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|\[[^[\]{}]*\]|[^\s"'[\]{}|>&*!#%@`][^#]*?|)(\s*|\s+#.*)$/;

/** Where a setting stands, or where it would (`missing` of its keys aren't there); null: not by lines. Lines count from 1. */
function spot(text, option) {
  const lines = text.split("\n"), keys = option.split(".");
  let from = 0, until = lines.length, indent = indentOf(lines.find(holds) ?? "");
  for (const [depth, key] of keys.entries()) {
    const start = new RegExp(`^ {${indent}}(["']?)${key}\\1 *:(?=\\s|$)`);
    const at = lines.findIndex((line, place) => place >= from && place < until && start.test(line));
    const content = lines.slice(from, until).find(holds);
    if (at < 0) return content && !/^ *["']?\w+["']? *:(\s|$)/.test(content) ? null : { line: depth ? from : lines.length, indent, missing: keys.slice(depth), value: "" };
    const head = start.exec(lines[at])[0], rest = VALUE.exec(lines[at].slice(head.length));
    const after = lines.slice(at + 1).find(holds), isFollowed = after !== undefined && (indentOf(after) > indent || /^ *- /.test(after));
    if (!rest || (depth < keys.length - 1 && rest[2])) return { line: at + 1, value: null };
    if (depth === keys.length - 1) return { line: at + 1, head, rest, missing: [], value: isFollowed ? null : rest[2] };
    from = at + 1;
    const end = lines.findIndex((line, place) => place >= from && holds(line) && indentOf(line) <= indent);
    until = end < 0 ? lines.length : end;
    indent = isFollowed ? indentOf(after) : indent + 2;
  }
}

/** The text with another value, which is YAML. */
function put(text, option, value) {
  const { line, head, rest, indent, missing } = spot(text, option), lines = text.split("\n");
  if (head) lines[line - 1] = `${head}${rest[1] || " "}${value}${rest[3]}`;
  else {
    const added = missing.map((key, depth) => `${" ".repeat(indent + 2 * depth)}${key}:${depth === missing.length - 1 ? ` ${value}` : ""}`);
    lines.splice(lines.at(-1) === "" ? Math.min(line, lines.length - 1) : line, 0, ...added);
  }
  return lines.join("\n");
}

/** What a field shows of a value; null: a field can't. */
function read(value) {
  if (value === null) return null;
  if (!value.startsWith("[")) return plain(value);
  const parts = value.slice(1, -1).split(",").map((part) => part.trim()).filter(Boolean);
  return parts.some((part) => /["']/.test(plain(part))) ? null : parts.map(plain).join(", ");
}

function plain(value) {
  if (/^'.*'$/.test(value)) return value.slice(1, -1).replaceAll("''", "'");
  if (/^".*"$/.test(value)) try { return JSON.parse(value); } catch { return value; }
  return value === "null" || value === "~" ? "" : value;
}

const shown = (value) => (value === null ? "" : Array.isArray(value) ? value.join(", ") : String(value));

function written(value, { type, default: initial }) {
  if (type === "array") return JSON.stringify(value.split(",").map((one) => one.trim()).filter(Boolean)).replaceAll('","', '", "');
  if (!value) return initial === null ? "null" : '""';
  const isOther = !Number.isNaN(Number(value)) || /^([-+]?[\d_:]+|\d{4}-\d\d-\d\d.*|true|false|yes|no|on|off|null|~)$/i.test(value); // to YAML
  return !(isOther && type === "string") && /^[\w./~-][\w./~+: -]*$/.test(value) && !/:( |$)/.test(value) ? value : JSON.stringify(value);
}
