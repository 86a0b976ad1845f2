// The chat: conversations at the left, the one that is open, and its settings at the right.
import { html, signal, useEffect, useRef, useState } from "../core/html.js";
import { ago, seconds, tokens } from "../core/format.js";
import { saveAs } from "../core/api.js";
import { stored } from "../core/stored.js";
import { byId, isAdmin, models } from "../core/live.js";
import { to } from "../core/route.js";
import { Dialog, Menu } from "../ui/dialog.js";
import { Icon, Mark } from "../ui/icons.js";
import { Search } from "../ui/parts.js";
import { say, trying } from "../ui/toast.js";
import { addPictures, Composer } from "./composer.js";
import { exported, groups, holding, imported } from "./conversation.js";
import { Panel } from "./panel.js";
import { ModelPicker } from "./picker.js";
import { add, answering, begin, conversations, forget, isBusy, open, pin, readConversations, rename, setModels, show, sorted, talking, usable } from "./room.js";
import { Thread } from "./thread.js";

const WIDE = matchMedia("(min-width: 1100px)");
const hasPanel = stored("chat.panel", WIDE.matches);
const hasList = stored("chat.list", true);
const drawer = signal(null); // "list" or "panel", on narrow screens

export default function ChatPage() {
  const isNarrow = useNarrow();
  const [isOver, setOver] = useState(false);
  useEffect(() => { readConversations(); }, []);
  const toggle = (name, kept) => () => { if (isNarrow) drawer.value = drawer.value === name ? null : name; else kept.value = !kept.value; };
  const isShown = (name, kept) => (isNarrow ? drawer.value === name : kept.value);
  return html`<div class=${`chat ${isOver ? "over" : ""}`} onDragOver=${(event) => { if (event.dataTransfer.types.includes("Files")) { event.preventDefault(); setOver(true); } }}
      onDragLeave=${(event) => { if (!event.currentTarget.contains(event.relatedTarget)) setOver(false); }}
      onDrop=${(event) => { event.preventDefault(); setOver(false); addPictures(event.dataTransfer.files); }}>
    <h1 class="unseen">Chat</h1>
    <div class="unseen" role="status">${progressText()}</div>
    ${isShown("list", hasList) && html`<${Aside} name="list" title="Conversations" isDrawer=${isNarrow}><${List} /></${Aside}>`}
    <section class="chat-main" aria-label="Conversation">
      <${Bar} onList=${toggle("list", hasList)} onPanel=${toggle("panel", hasPanel)} isPanel=${isShown("panel", hasPanel)} isList=${isShown("list", hasList)} />
      ${open.value.turns.length ? html`<${Thread} key=${open.value.id} />` : html`<${Welcome} />`}
      <div class="composer-frame"><${Composer} /></div>
    </section>
    ${isShown("panel", hasPanel) && html`<${Aside} name="panel" title="Settings" isDrawer=${isNarrow}><${Panel} /></${Aside}>`}
  </div>`;
}

/** For screen readers: the text itself, which changes many times a second, is not announced. */
function progressText() {
  if (isBusy.value) return "The answer is being written.";
  return open.value.turns.length ? "The answer is complete." : "";
}

function useNarrow() {
  const [isNarrow, setNarrow] = useState(!WIDE.matches);
  useEffect(() => {
    const listen = () => setNarrow(!WIDE.matches);
    WIDE.addEventListener("change", listen);
    return () => WIDE.removeEventListener("change", listen);
  }, []);
  return isNarrow;
}

/** A column; on a narrow screen it lies over the conversation. */
function Aside({ name, title, isDrawer, children }) {
  const close = () => { drawer.value = null; };
  const box = useRef(null);
  useEffect(() => { if (isDrawer) box.current.querySelector("button, input, textarea")?.focus(); }, [isDrawer]);
  return html`${isDrawer && html`<div class="drawer-ground" onClick=${close} />`}
    <aside ref=${box} class=${`chat-aside at-${name} ${isDrawer ? "drawer" : ""}`} aria-label=${title} onKeyDown=${(event) => { if (isDrawer && event.key === "Escape") close(); }}>
      ${isDrawer && html`<div class="drawer-head"><h2>${title}</h2><button class="button quiet small icon" aria-label="Close" onClick=${close}><${Icon} name="close" /></button></div>`}
      ${children}</aside>`;
}

function Bar({ onList, onPanel, isPanel, isList }) {
  const [first, second] = talking.value;
  const isPair = second !== undefined;
  const other = usable.value.find((model) => model.id !== first)?.id ?? first;
  return html`<header class="chat-bar">
    <button class="button quiet icon" aria-label="Conversations" title="Conversations" aria-pressed=${isList} onClick=${onList}><${Icon} name="list" /></button>
    <${ModelPicker} label="Model" value=${first} onPick=${(id) => setModels(isPair ? [id, second] : [id])} />
    ${isPair && html`<span class="faint" aria-hidden="true">/</span><${ModelPicker} label="Second model" value=${second} onPick=${(id) => setModels([first, id])} />`}
    <button class="button quiet icon" aria-pressed=${isPair} disabled=${!first || isBusy.value} title=${isPair ? "One model" : "Two models side by side"} aria-label="Two models side by side"
      onClick=${() => setModels(isPair ? [first] : [first, other])}><${Icon} name="columns" /></button>
    <span class="grow" />
    <button class="button quiet icon" aria-label="New conversation" title="New conversation" onClick=${begin}><${Icon} name="plus" /></button>
    <button class="button quiet icon" aria-label="Settings of the conversation" title="Settings of the conversation" aria-pressed=${isPanel} onClick=${onPanel}><${Icon} name="panel" /></button>
  </header>`;
}

function Welcome() {
  if (models.value !== null && !usable.value.length) {
    return html`<div class="welcome"><${Mark} size="36" /><h2>No model yet</h2>
      <p class="soft">${isAdmin.value ? html`Add one on the page <a href=${to("models")}>Models</a>: drag a GGUF file in, or enter the name of a repository on the hub.` : "No available model can be used with this key."}</p></div>`;
  }
  return html`<div class="welcome">${talking.value.map((name) => html`<${Introduction} key=${name} model=${byId.value.get(name)} />`)}</div>`;
}

/** Who will answer, and what that will take. */
function Introduction({ model }) {
  if (!model) return null;
  const facts = [
    model.remote ? "runs on another server" : model.backend,
    model.context_length && `${tokens(model.context_length)} tokens of context`,
    ...(model.capabilities ?? []),
  ].filter(Boolean);
  return html`<div class="introduction"><h2 class="break">${model.id}</h2><p class="soft">${facts.join(" · ")}</p><p class="faint">${readiness(model)}</p></div>`;
}

function readiness(model) {
  if (model.state === "loaded" || model.remote) return "Ready.";
  if (model.state === "loading") return "Loading now.";
  if (model.state === "failed") return `It failed: ${model.why_failed}`;
  return `It will be loaded at the first message${model.load_seconds ? `, in about ${seconds(model.load_seconds)}` : ""}.`;
}

function List() {
  const [text, setText] = useState("");
  const [renaming, setRenaming] = useState(null);
  const chooser = useRef(null), frame = useRef(null);
  const found = sorted.value.filter(holding(text));
  useEffect(() => {
    const listen = (event) => {
      if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      frame.current?.querySelector("input")?.focus();
    };
    document.addEventListener("keydown", listen);
    return () => document.removeEventListener("keydown", listen);
  }, []);
  const pick = (conversation) => { show(conversation); drawer.value = null; };
  const bring = (file) => trying(async () => {
    const list = imported(await file.text());
    add(list);
    say(`${list.length} conversation${list.length === 1 ? "" : "s"} imported.`);
  });
  const all = [
    { icon: "up", text: "Export all", act: () => saveAs("conversations.json", exported(sorted.value)), disabled: !sorted.value.length },
    { icon: "download", text: "Import…", act: () => chooser.current.click() },
  ];
  return html`<div class="list-head" ref=${frame}><${Search} label="Search conversations" title="Titles and texts (Ctrl+K)" value=${text} onInput=${setText} /><${Menu} label="All conversations" items=${all} /></div>
    <input ref=${chooser} type="file" accept=".json,application/json" hidden aria-label="File of conversations" onChange=${(event) => { if (event.target.files[0]) bring(event.target.files[0]); event.target.value = ""; }} />
    <div class="lists">${groups(found).map(([name, list]) => html`<h3 key=${`${name} heading`} class="list-day">${name}</h3><ul key=${name} class="list" aria-label=${name}>${list.map((one) => html`<li key=${one.id} class=${one.id === open.value.id ? "current" : ""}>
      <button class="list-item" aria-current=${one.id === open.value.id} onClick=${() => pick(one)}><span class="cut">${one.title || "Untitled"}</span><span class="faint small cut">${answering.value.has(one.id) ? "answering…" : ago(one.updated)}</span></button>
      <${Menu} label=${`Actions for ${one.title}`} items=${actions(one, setRenaming)} /></li>`)}</ul>`)}</div>
    ${conversations.value !== null && !found.length && html`<p class="list-none">${text ? "No conversation matches." : "No conversations yet."}</p>`}
    ${renaming && html`<${Rename} conversation=${renaming} onClose=${() => setRenaming(null)} />`}`;
}

function actions(conversation, setRenaming) {
  return [
    { icon: "pin", text: conversation.pinned ? "Unpin" : "Pin", act: () => pin(conversation) },
    { icon: "edit", text: "Rename…", act: () => setRenaming(conversation) },
    { icon: "up", text: "Export", act: () => saveAs("conversation.json", exported([conversation])) },
    null,
    { icon: "trash", text: "Delete", danger: true, act: () => forget(conversation) },
  ];
}

function Rename({ conversation, onClose }) {
  const [title, setTitle] = useState(conversation.title);
  const save = (event) => { event.preventDefault(); rename(conversation, title.trim() || conversation.title); onClose(); };
  return html`<${Dialog} title="Rename" onClose=${onClose}><form class="stack" onSubmit=${save}>
    <input class="input" aria-label="Title" value=${title} onInput=${(event) => setTitle(event.target.value)} />
    <div class="row"><button class="button primary">Save</button></div></form></${Dialog}>`;
}
