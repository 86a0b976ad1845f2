// Files for a message, read in this browser: text and code as they are, PDFs as text or as pictures. A file is bounded
// before it is read, and whatever it holds is only ever text or a picture. Also the dialog that shows one.
import { html } from "../vendor/preact.js";
import { byId, call, me } from "../core/server.js";
import { Code, Dialog, bytes } from "../ui/parts.js";

const LARGEST_TEXT = 2 * 2 ** 20, LARGEST_PDF = 64 * 2 ** 20; // bytes
const LEAST_OF_A_PAGE = 8; // characters; with fewer, pages are pictures of text
const LONGEST_SHOWN = 200_000; // characters

/** @typedef {{name: string, text: string, pictures: string[], facts: string}} Attachment
 * What of a file is sent: its text, or pictures of its pages. `facts`: how much that is, in words. */

/** @param {File} file @param {{sees: boolean, asPictures?: boolean}} options `sees`: whether the model takes pictures
 * @returns {Promise<Attachment>} Raises Error that names the file. */
export async function read(file, options) {
  const isPdf = file.type === "application/pdf" || /\.pdf$/i.test(file.name);
  try {
    if (/^(audio|video)\//.test(file.type)) throw new Error("has sound or film, which no model here takes");
    bounded(file, isPdf ? LARGEST_PDF : LARGEST_TEXT);
    return { name: file.name, ...(isPdf ? await ofPdf(await bytesOf(file), options) : ofText(await bytesOf(file))) };
  } catch (error) { throw new Error(`${file.name || "The file"} ${error.message}.`); }
}

function bounded({ size }, most) {
  if (size === 0) throw new Error("is empty");
  if (size > most) throw new Error(`has ${bytes(size)}; at most ${bytes(most)} are taken`);
}

async function bytesOf(file) {
  try { return await file.arrayBuffer(); } catch { throw new Error("can’t be read: it is a folder, or it was changed"); }
}

function ofText(data) {
  const text = decoded(data).replace(/\r\n?/g, "\n");
  if (/[\0-\x08\x0e-\x1a\x1c-\x1f]/.test(text)) throw new Error("is neither text, nor a PDF, nor a picture");
  const lines = text.replace(/\n$/, "").split("\n").length;
  return { text, pictures: [], facts: `${lines} line${lines === 1 ? "" : "s"}` };
}

/** UTF-8; UTF-16 where it begins with its mark; else what Windows wrote before. */
function decoded(data) {
  const [first, second] = new Uint8Array(data, 0, Math.min(2, data.byteLength));
  if (first === 0xff && second === 0xfe) return new TextDecoder("utf-16le").decode(data);
  if (first === 0xfe && second === 0xff) return new TextDecoder("utf-16be").decode(data);
  try { return new TextDecoder("utf-8", { fatal: true }).decode(data); } catch { return new TextDecoder("windows-1252").decode(data); }
}

/** Of a scan, which has no text, pictures where the model takes them. */
async function ofPdf(data, { sees, asPictures = false }) {
  const { readPdf } = await import("./pdf.js");
  const open = (wish) => readPdf(data.slice(0), { asPictures: wish }); // its worker takes the bytes away
  let found = await open(asPictures);
  if (!asPictures && found.text.length < LEAST_OF_A_PAGE * found.taken) {
    if (!sees) throw new Error("has no text (it may be scanned), and this model takes no pictures");
    found = await open(true);
  }
  const all = `${found.pages} page${found.pages === 1 ? "" : "s"}`;
  const part = found.taken < found.pages ? `the first ${found.taken} of ${all}` : all;
  return { text: found.text, pictures: found.pictures, facts: found.pictures.length ? `${part}, as pictures` : part };
}

/** How many tokens a text is: counted by the model where it is loaded, else null. */
export async function counted(text, model) {
  const it = byId.value.get(model);
  if (it?.state !== "loaded" || !me.value?.apis.includes("llamaserver")) return null;
  const body = { model, messages: [{ role: "user", content: text }] };
  return call("POST", "/v1/chat/completions/input_tokens", body).then((answer) => answer.input_tokens, () => null);
}

/** What of a file is sent. @param {{file: Attachment, onClose: () => void}} props */
export default function FileDialog({ file, onClose }) {
  const isCut = file.text.length > LONGEST_SHOWN;
  return html`<${Dialog} title=${file.name} wide onClose=${onClose}>
    <p class="faint small">${file.facts}${isCut ? "; its beginning is shown" : ""}</p>
    ${file.text && html`<${Code} text=${file.text.slice(0, LONGEST_SHOWN)} label="text of the file" />`}
    ${file.pictures.length > 0 && html`<ul class="pages">${file.pictures.map((url, index) => html`<li key=${index}><img src=${url} alt=${`Page ${index + 1}`} /></li>`)}</ul>`}
  </${Dialog}>`;
}
