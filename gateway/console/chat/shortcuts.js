// The keys of the chat, in a dialog.
import { html } from "../vendor/preact.js";
import { Dialog } from "../ui/parts.js";

const KEYS = [
  ["Writing", [["Enter", "Send"], ["Shift+Enter", "New line"], ["Esc", "Stop the answer"], ["/", "To the message"]]],
  ["Conversations", [["Ctrl+K", "Search in all of them"], ["Ctrl+Shift+O", "Begin a new one"]]],
  ["Texts", [["Ctrl+Enter", "Save an edited text"], ["← →", "Go from token to token, where probabilities are shown"]]],
  ["Lists and menus", [["↑ ↓", "Move"], ["Esc", "Close"], ["?", "These keys"]]],
];

/** @param {{onClose: () => void}} props */
export default function Shortcuts({ onClose }) {
  return html`<${Dialog} title="Keys" onClose=${onClose}>${KEYS.map(([title, keys]) => html`<section key=${title}><h3>${title}</h3>
    <dl class="keys">${keys.map(([key, what]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl></section>`)}</${Dialog}>`;
}
