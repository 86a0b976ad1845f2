// Where one writes: text, pictures by drop, paste or choice; Enter sends, Shift+Enter is a new line.
import { computed, html, signal, useEffect, useRef } from "../core/html.js";
import { byId } from "../core/live.js";
import { count } from "../core/format.js";
import { stored } from "../core/stored.js";
import { Icon } from "../ui/icons.js";
import { say } from "../ui/toast.js";
import { streams } from "./answering.js";
import { chosen } from "./conversation.js";
import { ask, isBusy, open, stop, talking } from "./room.js";

const TALLEST = 240; // pixels
const LARGEST_SIDE = 2048; // pixels of a picture: what is larger is scaled down before it is sent
const LARGEST_BYTES = 20 * 2 ** 20;

const NEW = "new"; // the home of what is written before a conversation has a message

/** What is being written, by conversation. */
const texts = stored("chat.drafts", {});
const albums = signal({});
const home = computed(() => (open.value.turns.length ? open.value.id : NEW));
const draft = computed(() => texts.value[home.value] ?? "");
const pictures = computed(() => albums.value[home.value] ?? []);

const setDraft = (text, place = home.value) => { texts.value = placed(texts.value, place, text); };
const setPictures = (list, place = home.value) => { albums.value = placed(albums.value, place, list); };

/** `all` with `value` at `place`; nothing is kept for what is empty. */
function placed(all, place, value) {
  const { [place]: _, ...others } = all;
  return value.length ? { ...others, [place]: value } : others;
}

export const sees = () => talking.value.every((name) => byId.value.get(name)?.modalities.includes("image"));

/** Take pictures from a drop, a paste or a chooser. */
export async function addPictures(files) {
  const images = [...files].filter((file) => file.type.startsWith("image/"));
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
  if (scale === 1 && file.size <= LARGEST_BYTES && /^image\/(png|jpeg|webp|gif)$/.test(file.type)) return read(file);
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(bitmap.width * scale);
  canvas.height = Math.round(bitmap.height * scale);
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.9);
}

function read(file) {
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
  const canSend = (draft.value.trim() || pictures.value.length) && talking.value.length && !isBusy.value;
  const submit = async (event) => {
    event?.preventDefault();
    if (!canSend) return;
    const place = home.value;
    if (await ask(draft.value, pictures.value)) { setDraft("", place); setPictures([], place); }
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
    if (event.key === "Escape" && isBusy.value) stop();
  };
  const onPaste = (event) => { if (event.clipboardData.files.length) { event.preventDefault(); addPictures(event.clipboardData.files); } };
  return html`<form class="composer" onSubmit=${submit}>
    ${pictures.value.length > 0 && html`<ul class="pictures" aria-label="Pictures">${pictures.value.map((url, index) => html`<li key=${index}><img src=${url} alt=${`Picture ${index + 1}`} />
      <button type="button" class="button small icon" aria-label=${`Remove picture ${index + 1}`} onClick=${() => setPictures(pictures.value.filter((_, place) => place !== index))}><${Icon} name="close" size="12" /></button></li>`)}</ul>`}
    <textarea ref=${area} rows="1" aria-label="Message" placeholder=${placeholder()} value=${draft.value}
      onInput=${(event) => setDraft(event.target.value)} onKeyDown=${onKeyDown} onPaste=${onPaste} />
    <div class="composer-foot">
      <input ref=${chooser} type="file" accept="image/*" multiple hidden aria-label="Picture files" onChange=${(event) => { addPictures(event.target.files); event.target.value = ""; }} />
      <button type="button" class="button quiet small icon" aria-label="Add pictures" title=${sees() ? "Add pictures" : "This model doesn’t take pictures"} disabled=${!sees()} onClick=${() => chooser.current.click()}><${Icon} name="image" /></button>
      <${ContextMeter} />
      <span class="hint grow cut">${isBusy.value ? "Esc stops" : "Enter sends, Shift+Enter breaks the line"}</span>
      ${isBusy.value ? html`<button type="button" class="button icon round" aria-label="Stop" title="Stop (Esc)" onClick=${stop}><${Icon} name="stop" /></button>`
        : html`<button class="button primary icon round" aria-label="Send" title="Send (Enter)" disabled=${!canSend}><${Icon} name="send" /></button>`}
    </div>
  </form>`;
}

/** How much of the model's context the conversation takes, by the last answer. */
function ContextMeter() {
  const last = open.value.turns.findLast((turn) => turn.role === "assistant")?.lanes[0];
  const room = byId.value.get(talking.value[0])?.context_length;
  if (!last || !room) return null;
  const now = chosen(last);
  const taken = (streams.value.get(now.id)?.version.value ?? now).usage?.total_tokens;
  if (!taken) return null;
  const words = `${count(taken)} of ${count(room)} tokens of context`;
  return html`<span class="meter num" role="meter" aria-label="Context" aria-valuemin="0" aria-valuemax=${room} aria-valuenow=${taken} aria-valuetext=${words} title=${words}>
    <i style=${{ width: `${Math.min(100, (100 * taken) / room)}%` }} class=${taken > room * 0.9 ? "full" : ""} /></span>`;
}

const placeholder = () => (talking.value.length ? `Message ${talking.value.join(" and ")}` : "No model to talk to yet");

function fit(area) {
  if (!area) return;
  area.style.height = "auto";
  area.style.height = `${Math.min(area.scrollHeight, TALLEST)}px`;
}
