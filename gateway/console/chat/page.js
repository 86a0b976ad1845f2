// The page of the chat: where one writes, the conversation that is open, the list of conversations.
import { computed, effect, html, signal, useEffect, useRef, useState } from "../vendor/preact.js";
import { stored, to } from "../core/browser.js";
import { byId, isAdmin, link, me, saveAs } from "../core/server.js";
import { Dialog, Icon, Mark, Menu, Search, ago, count, later, say, seconds, tokens, trying } from "../ui/parts.js";
import { chosen, drafts, exported, groups, holding, imported, newId } from "./conversation.js";
import { ModelPicker } from "./picker.js";
import {
  add, answering, ask, begin, conversations, forget, isBusy, open, pin, presets, readConversations, rename, setModels, setSettings, show, sorted, stop, streams,
  sync, talking, titled, toggleServer, usable, who,
} from "./room.js";

// ------------------------------------------------------------------------------------------------------------
// Where one writes: text, pictures and files by drop, paste or choice; Enter sends, Shift+Enter is a new line.

const TALLEST = 240; // pixels
const LARGEST_SIDE = 2048; // pixels of a picture: what is larger is scaled down before it is sent
const LARGEST_BYTES = 20 * 2 ** 20;
const MOST_FILES = 20; // of one message
const LONG_PASTE = 8000; // characters; a longer one becomes a file
const PASTED = "Pasted text.txt";
const BYTES_OF_A_TOKEN = 4; // about, where nobody has counted

const NEW = "new"; // the home of what is written before a conversation has a message

/** What is being written, by conversation. */
const texts = stored("chat.drafts", {});
const albums = signal({});
const folders = signal({}); // files, by conversation
const home = computed(() => (open.value.turns.length ? open.value.id : NEW));
const draft = computed(() => texts.value[home.value] ?? "");
const pictures = computed(() => albums.value[home.value] ?? []);
/** @type {{value: {id: string, name: string, isReading: boolean, source: File, text: string, pictures: string[], facts: string, tokens: number | null}[]}} */
const files = computed(() => folders.value[home.value] ?? []);

const setDraft = (text, place = home.value) => { texts.value = placed(texts.value, place, text); };
const setPictures = (list, place = home.value) => { albums.value = placed(albums.value, place, list); keepDraft(place); };
const setFiles = (list, place = home.value) => { folders.value = placed(folders.value, place, list); keepDraft(place); };

/** Nobody is told where that fails: they live on in the page. */
function keepDraft(id) {
  const it = { id, pictures: albums.value[id] ?? [], files: folders.value[id] ?? [] };
  (it.pictures.length || it.files.length ? drafts.keep(it) : drafts.remove(id)).catch(() => {});
}

/** What was about to be sent when the page was left, beside what was added while this was read. */
Promise.all([drafts.readAll(), readConversations()]).then(([{ found: kept }, lost]) => {
  const known = new Set([NEW, ...conversations.value.map((one) => one.id)]);
  for (const { id } of kept) if (!known.has(id) && !lost) drafts.remove(id); // its conversation was deleted
  for (const { id, pictures: before, files: listed } of kept.filter((one) => known.has(one.id))) {
    albums.value = placed(albums.value, id, [...before, ...(albums.value[id] ?? [])]);
    folders.value = placed(folders.value, id, [...listed, ...(folders.value[id] ?? [])]);
    readFiles(listed.filter((one) => one.isReading), id);
  }
}).catch(() => {});

/** `all` with `value` at `place`; nothing is kept for what is empty. */
function placed(all, place, value) {
  const { [place]: _, ...others } = all;
  return value.length ? { ...others, [place]: value } : others;
}

export const sees = () => talking.value.every((name) => byId.value.get(name)?.modalities.includes("image"));

const isPicture = ({ type }) => type.startsWith("image/") && !type.includes("svg"); // which is text

/** Take files from a drop, a paste or a chooser: pictures, and what can be read as text. */
function addFiles(given) {
  const all = [...given];
  const room = MOST_FILES - files.value.length;
  const others = all.filter((file) => !isPicture(file));
  if (others.length > room) say(`A message takes ${MOST_FILES} files; the others are left out.`, { kind: "bad" });
  addPictures(all.filter(isPicture));
  const added = others.slice(0, room).map((source) => ({ id: newId(), source, name: source.name, isReading: true }));
  if (added.length) setFiles([...files.value, ...added]);
  readFiles(added, home.value);
}

/** One after another: each PDF takes a worker. */
async function readFiles(list, place) {
  for (const { id, source } of list) await readFile(id, source, { place });
}

/** Read a file into its place, wherever its conversation is then; one that was removed meanwhile is not brought back. */
async function readFile(id, source, { place, asPictures = false }) {
  const change = (make) => {
    const list = folders.value[place] ?? [];
    if (list.some((one) => one.id === id)) setFiles(list.flatMap((one) => (one.id === id ? make(one) : [one])), place);
  };
  change((one) => [{ ...one, isReading: true }]);
  try {
    const { counted, read } = await import("./files.js");
    const found = await read(source, { sees: sees(), asPictures });
    change((one) => [{ ...one, ...found, isReading: false, tokens: null }]);
    const tokens = found.text ? await counted(found.text, talking.value[0]) : null;
    if (tokens !== null) change((one) => [{ ...one, tokens }]);
  } catch (error) {
    change((one) => (one.facts ? [{ ...one, isReading: false }] : []));
    say(error.message, { kind: "bad" });
  }
}

/** A file that was pasted, as a part of the message after all. */
function putIntoMessage(file) {
  setFiles(files.value.filter((one) => one.id !== file.id));
  setDraft(`${draft.value}${file.text}`);
}

/** Take pictures from a drop, a paste or a chooser. */
async function addPictures(images) {
  if (!images.length) return;
  if (!sees()) { say("This model doesn’t take pictures.", { kind: "bad" }); return; }
  const place = home.value;
  for (const file of images) {
    try {
      const url = await asDataUrl(file);
      setPictures([...(albums.value[place] ?? []), url], place);
    } catch { say(`${file.name || "The picture"} can’t be read.`, { kind: "bad" }); }
  }
}

/** A picture as it is sent; scaled down where it is larger than any model looks at. */
async function asDataUrl(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, LARGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  if (scale === 1 && file.size <= LARGEST_BYTES && /^image\/(png|jpeg|webp|gif)$/.test(file.type)) return dataUrl(file);
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(bitmap.width * scale);
  canvas.height = Math.round(bitmap.height * scale);
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.9);
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

export function Composer() {
  const area = useRef(null), chooser = useRef(null);
  useEffect(() => { area.current?.focus({ preventScroll: true }); }, [open.value.id]);
  useEffect(() => { fit(area.current); }, [draft.value]);
  const isEmptyNow = () => !draft.value.trim() && !pictures.value.length && !files.value.length;
  const isEmpty = isEmptyNow(), obstacle = obstacleNow();
  const submit = async (event) => { // perhaps before what was written is drawn
    event?.preventDefault();
    if (isEmptyNow()) return;
    const against = obstacleNow();
    if (against) { say(against, { kind: "bad" }); return; }
    const place = home.value;
    const sent = files.value.map(({ name, text, pictures: pages, facts }) => ({ name, text, pictures: pages, facts }));
    if (await ask(draft.value, pictures.value, sent)) { setDraft("", place); setPictures([], place); setFiles([], place); }
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
    if (event.key === "Escape" && isBusy.value) stop();
  };
  const onPaste = (event) => {
    const { files: pasted } = event.clipboardData;
    const text = event.clipboardData.getData("text/plain");
    if (!pasted.length && text.length <= LONG_PASTE) return;
    event.preventDefault();
    addFiles(pasted.length ? pasted : [new File([text], PASTED, { type: "text/plain" })]);
  };
  return html`<form class="composer" onSubmit=${submit}>
    ${pictures.value.length > 0 && html`<ul class="pictures" aria-label="Pictures">${pictures.value.map((url, index) => html`<li key=${index}><img src=${url} alt=${`Picture ${index + 1}`} />
      <button type="button" class="button small icon" aria-label=${`Remove picture ${index + 1}`} onClick=${() => setPictures(pictures.value.filter((_, place) => place !== index))}><${Icon} name="close" size="12" /></button></li>`)}</ul>`}
    ${files.value.length > 0 && html`<ul class="files" aria-label="Files">${files.value.map((file) => html`<${DraftFile} key=${file.id} file=${file} />`)}</ul>`}
    <textarea ref=${area} rows="1" aria-label="Message" placeholder=${placeholder()} value=${draft.value}
      onInput=${(event) => setDraft(event.target.value)} onKeyDown=${onKeyDown} onPaste=${onPaste} />
    <div class="composer-foot">
      <input ref=${chooser} type="file" multiple hidden aria-label="Files to send" onChange=${(event) => { addFiles(event.target.files); event.target.value = ""; }} />
      <button type="button" class="button quiet small icon" aria-label="Add files" title=${`Add files: text, code, PDF${sees() ? ", pictures" : "; this model takes no pictures"}`} disabled=${!talking.value.length} onClick=${() => chooser.current.click()}><${Icon} name="clip" /></button>
      ${me.value?.mcp?.length > 0 && html`<${ToolServers} />`}
      <${ContextMeter} />
      <span class="hint grow cut">${isBusy.value ? "Esc stops" : "Enter sends, Shift+Enter breaks the line"}</span>
      ${isBusy.value ? html`<button type="button" class="button icon round" aria-label="Stop" title="Stop (Esc)" onClick=${stop}><${Icon} name="stop" /></button>`
        : html`<button class="button primary icon round" aria-label="Send" title=${obstacle ?? "Send (Enter)"} disabled=${isEmpty || obstacle}><${Icon} name="send" /></button>`}
    </div>
  </form>`;
}

/** Why nothing can be sent now. */
function obstacleNow() {
  if (link.value === "lost") return "The server can’t be reached. Your message stays here.";
  if (!talking.value.length) return placeholder();
  if (isBusy.value) return "The answer before is still being written: Esc stops it.";
  return files.value.some((one) => one.isReading) ? "A file is still being read." : null;
}

/** Which of the server's tools the conversation has; the panel has them one by one. */
function ToolServers() {
  const { servers = [] } = open.value.settings;
  const on = me.value.mcp.filter((name) => servers.includes(name));
  const items = me.value.mcp.map((name) => ({ icon: on.includes(name) ? "check" : "plus", text: name, act: () => toggleServer(name) }));
  return html`<${Menu} label=${on.length ? `Tools: ${on.join(", ")}` : "Tools"} icon="tool" end=${false} items=${items} text=${on.length ? html`<span class="cut">${on.length === 1 ? on[0] : on.length}</span>` : null} />`;
}

/** A file that will be sent. */
function DraftFile({ file }) {
  const [isShown, setShown] = useState(false);
  const others = () => files.value.filter((one) => one.id !== file.id);
  const isPdf = !file.isReading && /\.pdf$/i.test(file.name);
  const facts = file.isReading ? "reading…" : [file.facts, file.text && `${isCounted(file) ? "" : "about "}${tokens(tokensOf(file))} tokens`].filter(Boolean).join(" · ");
  return html`<li class="file"><${Icon} name="file" size="14" />
    <button type="button" class="file-name cut" title=${file.name} disabled=${file.isReading} onClick=${() => setShown(true)}>${file.name}</button>
    <span class="faint small num">${facts}</span>
    ${isPdf && sees() && html`<button type="button" class="button quiet small" onClick=${() => readFile(file.id, file.source, { place: home.value, asPictures: !file.pictures.length })}>${file.pictures.length ? "As text" : "As pictures"}</button>`}
    ${file.name === PASTED && !file.isReading && html`<button type="button" class="button quiet small" onClick=${() => putIntoMessage(file)}>Put into the message</button>`}
    <button type="button" class="button quiet small icon" aria-label=${`Remove ${file.name}`} onClick=${() => setFiles(others())}><${Icon} name="close" size="12" /></button>
    ${isShown && html`<${FileDialog} file=${file} onClose=${() => setShown(false)} />`}</li>`;
}

const FileDialog = later(() => import("./files.js"));

const isCounted = (file) => Number.isInteger(file.tokens);
const estimated = (text) => Math.ceil(new Blob([text]).size / BYTES_OF_A_TOKEN);
const tokensOf = (file) => (isCounted(file) ? file.tokens : estimated(file.text ?? ""));

/** How much of the model's context the conversation takes: by the last answer, and what is about to be sent. */
function ContextMeter() {
  const room = byId.value.get(talking.value[0])?.context_length;
  const last = open.value.turns.findLast((turn) => turn.role === "assistant")?.lanes[0];
  const now = last && chosen(last);
  const before = now && (streams.value.get(now.id)?.version.value ?? now).usage?.total_tokens;
  const added = files.value.reduce((sum, file) => sum + tokensOf(file), 0);
  if (!room || !(before || added)) return null;
  const taken = (before ?? 0) + added + estimated(draft.value);
  const isExact = !draft.value && files.value.every(isCounted);
  const words = `${isExact ? "" : "About "}${count(taken)} of ${count(room)} tokens of context`;
  const attached = added + open.value.turns.flatMap((turn) => turn.files ?? []).reduce((sum, file) => sum + tokensOf(file), 0);
  const tooling = estimated(open.value.settings.tools);
  const filling = [["files", attached], ["tools", tooling], ["history", Math.max(0, taken - attached - tooling - estimated(draft.value))], ["this message", estimated(draft.value)]];
  const title = `${words}. About: ${filling.filter(([, size]) => size).map(([name, size]) => `${name} ${tokens(size)}`).join(", ")}`;
  return html`<span class="meter num" role="meter" aria-label="Context" aria-valuemin="0" aria-valuemax=${room} aria-valuenow=${taken} aria-valuetext=${words} title=${title}>
      <i style=${{ width: `${Math.min(100, (100 * taken) / room)}%` }} class=${taken > room * 0.9 ? "full" : ""} /></span>
    <span class="meter-number faint small num" aria-hidden="true" title=${title}>${tokens(taken)} / ${tokens(room)}</span>
    ${taken > room && html`<span class="small bad" role="alert">${words}: too long for this model</span>`}`;
}

const placeholder = () => (talking.value.length ? `Message ${talking.value.join(" and ")}` : "No model to talk to yet");

function fit(area) {
  if (!area) return;
  area.style.height = "auto";
  area.style.height = `${Math.min(area.scrollHeight, TALLEST)}px`;
}

// ------------------------------------------------------------------------------------------------------------
// The chat: conversations at the left, the one that is open, and its settings at the right.

const WIDE = matchMedia("(min-width: 1100px)");
const hasPanel = stored("chat.panel", false);
const hasList = stored("chat.list", true);
const drawer = signal(null); // "list" or "panel", on narrow screens
const Thread = later(() => import("./thread.js"));
const panel = () => import("./panel.js");
const Panel = later(panel);

const Shortcuts = later(() => import("./shortcuts.js"));
const areKeysShown = signal(false);

effect(() => { if (presets.value.length || open.value.settings.preset) panel().catch(() => {}); }); // a model's conversations may begin with one
effect(() => { if (titled.value) import("./titles.js").catch(() => {}); }); // offline: with the next load
effect(() => { if (me.value?.sync && sync.value !== null) import("./sync.js").catch(() => {}); });

/** Keys that work wherever one is on the page; a sign only where one isn't writing. */
function useKeys() {
  useEffect(() => {
    const listen = (event) => {
      const isWriting = event.target.closest?.("input, textarea, select, dialog");
      const isCommand = event.ctrlKey || event.metaKey;
      if (isCommand && event.shiftKey && event.key.toLowerCase() === "o") begin();
      else if (event.key === "?" && !isWriting) areKeysShown.value = true;
      else if (event.key === "/" && !isWriting && !isCommand) document.querySelector(".composer textarea")?.focus();
      else return;
      event.preventDefault();
    };
    document.addEventListener("keydown", listen);
    return () => document.removeEventListener("keydown", listen);
  }, []);
}

export default function ChatPage() {
  const isNarrow = useNarrow();
  useKeys();
  const [isOver, setOver] = useState(false);
  useEffect(() => { readConversations(); }, []);
  const toggle = (name, kept) => () => { if (isNarrow) drawer.value = drawer.value === name ? null : name; else kept.value = !kept.value; };
  const isShown = (name, kept) => (isNarrow ? drawer.value === name : kept.value);
  return html`<div class=${`chat ${isOver ? "over" : ""}`} onDragOver=${(event) => { if (event.dataTransfer.types.includes("Files")) { event.preventDefault(); setOver(true); } }}
      onDragLeave=${(event) => { if (!event.currentTarget.contains(event.relatedTarget)) setOver(false); }}
      onDrop=${(event) => { event.preventDefault(); setOver(false); addFiles(event.dataTransfer.files); }}>
    <h1 class="unseen">Chat</h1>
    <div class="unseen" role="status">${progressText()}</div>
    ${isShown("list", hasList) && html`<${Aside} name="list" title="Conversations" isDrawer=${isNarrow}><${List} /></${Aside}>`}
    <section class="chat-main" aria-label="Conversation">
      <${Bar} onList=${toggle("list", hasList)} onPanel=${toggle("panel", hasPanel)} isPanel=${isShown("panel", hasPanel)} isList=${isShown("list", hasList)} />
      ${open.value.turns.length ? html`<${Thread} key=${open.value.id} />` : html`<${Welcome} />`}
      <div class="composer-frame"><${Composer} /></div>
    </section>
    ${isShown("panel", hasPanel) && html`<${Aside} name="panel" title="Settings" isDrawer=${isNarrow}><${Panel} /></${Aside}>`}
    ${areKeysShown.value && html`<${Shortcuts} onClose=${() => { areKeysShown.value = false; }} />`}
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
  if (!usable.value.length) {
    return html`<div class="welcome"><${Mark} size="36" /><h2>No model yet</h2>
      <p class="soft">${isAdmin.value ? html`Add one on the page <a href=${to("models")}>Models</a>: drag a GGUF file in, or enter the name of a repository on the hub.` : "No available model can be used with this key."}</p></div>`;
  }
  if (talking.value[0] === DEMO) return html`<${Demo} />`;
  return html`<div class="welcome">${talking.value.map((name) => html`<${Introduction} key=${name} model=${byId.value.get(name)} />`)}
    <${Samples} model=${byId.value.get(talking.value[0])} /></div>`;
}

const DEMO = "roundhouse-tiny"; // the bundled model
const First = later(() => import("../models/first.js"));

function Demo() {
  return html`<div class="welcome"><h2>Demo model</h2>
    <p class="soft">A toy of 1.6 MB that shows the page: it greets, adds, counts, repeats and calls tools. For real answers add a model.</p>
    <${Samples} model=${byId.value.get(DEMO)} />${isAdmin.value && html`<${First} />`}</div>`;
}

const WEATHER = '[{"name": "weather", "description": "The weather in a city", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]';
const LEAST_FOR_FILES = 8000; // tokens of context

/** What one could say, by what a model can. `sees`, `capability` or `context`: who is asked that; `files`: it needs some. */
const SAMPLES = [
  { sees: true, files: true, icon: "image", text: "What is in this picture?" },
  { capability: "tools", icon: "tool", text: "What is the weather in Bern?", tools: WEATHER, title: "With a sample tool, whose result you give" },
  { capability: "reasoning", icon: "thought", text: "A bat and a ball cost 1.10 together. The bat costs 1 more than the ball. What does the ball cost?" },
  { context: LEAST_FOR_FILES, files: true, icon: "file", text: "Sum up this file in five points." },
  { icon: "code", text: "Write a Python function that finds the longest word of a text, with a test." },
  { icon: "edit", text: "Write a short e-mail that moves a meeting to Friday." },
  { icon: "chat", text: "Explain in five sentences how a heat pump works." },
];
const OFFERED = 4;
const DEMO_SAMPLES = [
  { icon: "chat", text: "Hello! Who are you?" },
  { icon: "chat", text: "What is 3 + 4?" },
  { icon: "chat", text: "Count from 3 to 9." },
  { icon: "tool", text: "What is the weather in Bern?", tools: WEATHER, title: "With a sample tool, whose result you give" },
];

const fits = (model) => ({ sees: mustSee, capability, context = 0 }) => (!mustSee || model.modalities.includes("image"))
  && (!capability || model.capabilities?.includes(capability)) && (model.context_length ?? 0) >= context;

/** Sentences to begin with. They are put where one writes, and not sent. */
function Samples({ model }) {
  const chooser = useRef(null);
  if (!model || model.state === "failed") return null;
  const take = (sample) => {
    setDraft(sample.text);
    if (sample.tools && !open.value.settings.tools.trim()) setSettings({ tools: sample.tools });
    if (sample.files) chooser.current.click();
    document.querySelector(".composer textarea")?.focus();
  };
  return html`<input ref=${chooser} type="file" multiple hidden aria-label="Files for the sample" onChange=${(event) => { addFiles(event.target.files); event.target.value = ""; }} />
    <ul class="samples" aria-label="To begin with">${(model.id === DEMO ? DEMO_SAMPLES : SAMPLES.filter(fits(model))).slice(0, OFFERED).map((sample) => html`<li key=${sample.text}>
      <button class="sample" title=${sample.title ?? ""} onClick=${() => take(sample)}><${Icon} name=${sample.icon} size="14" /><span>${sample.text}</span></button></li>`)}</ul>`;
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
  if (model.state === "failed") return `It failed: ${model.why_failed}`;
  if (model.state === "loaded" || model.remote) return "Ready.";
  if (model.state === "loading") return "Loading now.";
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
  const isSynced = sync.value === who.value;
  const all = [
    { icon: "up", text: "Export all", act: () => saveAs("conversations.json", exported(sorted.value)), disabled: !sorted.value.length },
    { icon: "download", text: "Import…", act: () => chooser.current.click() },
    null,
    { icon: titled.value ? "check" : "edit", text: "Titles by the model", why: "A short request when the model is idle, after the first answer", act: () => { titled.value = !titled.value; } },
    ...(me.value?.sync ? [{ icon: isSynced ? "check" : "up", text: "Keep conversations on this server", why: "For your other devices with the same key", act: () => { sync.value = isSynced ? null : who.value; } }] : []),
    { icon: "info", text: "Keys…", act: () => { areKeysShown.value = true; } },
  ];
  return html`<div class="list-head" ref=${frame}><${Search} label="Search conversations" placeholder="Search" title="Titles and texts (Ctrl+K)" value=${text} onInput=${setText} /><${Menu} label="All conversations" items=${all} /></div>
    <input ref=${chooser} type="file" accept=".json,application/json" hidden aria-label="File of conversations" onChange=${(event) => { if (event.target.files[0]) bring(event.target.files[0]); event.target.value = ""; }} />
    <div class="lists">${groups(found).map(([name, list]) => html`<h2 key=${`${name} heading`} class="list-day">${name}</h2><ul key=${name} class="list" aria-label=${name}>${list.map((one) => html`<li key=${one.id} class=${one.id === open.value.id ? "current" : ""}>
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
