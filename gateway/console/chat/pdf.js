// A PDF's pages as text or as pictures, by pdf.js. A PDF is hostile: it is read in a worker of its own, which ends when it
// takes too long; no script of it runs, nothing is fetched for it, and what is drawn of it is bounded in pixels.
import { AnnotationMode, GlobalWorkerOptions, PDFWorker, getDocument } from "../vendor/pdf.js";

GlobalWorkerOptions.workerSrc = new URL("../vendor/pdf.worker.js", import.meta.url).href;

const PARTS = new URL("../vendor/", import.meta.url).href; // the decoder of JPEG 2000; the page's policy forbids WebAssembly
const LONGEST = 60_000; // milliseconds for all of it
const MOST_CHARACTERS = 2_000_000;
const MOST_PICTURES = 16; // as many as the server takes with a request by default
const SIDE = 1600; // pixels of a page's longer side
const LARGEST_PICTURE = 2 ** 26; // pixels of a picture within a page; a larger one is left out

/** @param {ArrayBuffer} data @param {{asPictures?: boolean, limit?: number}} [options] `limit`: milliseconds
 * @returns {Promise<{pages: number, text: string, pictures: string[], taken: number}>} `taken`: how many of the pages are
 *   in it. Raises Error, its message to be read after the file's name. */
export async function readPdf(data, { asPictures = false, limit = LONGEST } = {}) {
  const worker = new PDFWorker();
  let timer = 0;
  const late = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error("takes too long to read")), limit); });
  try {
    return await Promise.race([reading(data, worker, asPictures), late]);
  } catch (error) {
    throw new Error(REASONS[error.name] ?? (error.name === "Error" ? error.message : "can’t be read as a PDF"));
  } finally {
    clearTimeout(timer);
    worker.destroy(); // also one that would never answer
  }
}

const REASONS = { PasswordException: "is locked by a password", InvalidPDFException: "is no PDF, or a broken one" };

async function reading(data, worker, asPictures) {
  const source = { data, worker, verbosity: 0, isEvalSupported: false, enableXfa: false, useWasm: false, wasmUrl: PARTS, maxImageSize: LARGEST_PICTURE, stopAtErrors: false };
  const pdf = await getDocument(source).promise;
  return asPictures ? pictures(pdf) : text(pdf);
}

/** The text of its pages, each behind its number. */
async function text(pdf) {
  const pages = [];
  let length = 0;
  for (let number = 1; number <= pdf.numPages && length < MOST_CHARACTERS; number += 1) {
    const page = await pdf.getPage(number);
    const { items } = await page.getTextContent();
    const words = items.map((item) => `${item.str ?? ""}${item.hasEOL ? "\n" : ""}`).join("").trim();
    page.cleanup();
    pages.push(words);
    length += words.length;
  }
  const all = pages.map((words, index) => words && `[Page ${index + 1}]\n${words}`).filter(Boolean).join("\n\n");
  return { pages: pdf.numPages, text: all.slice(0, MOST_CHARACTERS), pictures: [], taken: pages.length };
}

/** Its first pages, drawn. */
async function pictures(pdf) {
  const taken = Math.min(pdf.numPages, MOST_PICTURES);
  const urls = [];
  for (let number = 1; number <= taken; number += 1) urls.push(await drawn(await pdf.getPage(number)));
  return { pages: pdf.numPages, text: "", pictures: urls, taken };
}

async function drawn(page) {
  const { width, height } = page.getViewport({ scale: 1 });
  const viewport = page.getViewport({ scale: SIDE / Math.max(width, height) });
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(viewport.width));
  canvas.height = Math.max(1, Math.round(viewport.height));
  await page.render({ canvas, viewport, annotationMode: AnnotationMode.ENABLE, background: "#fff" }).promise;
  page.cleanup();
  return canvas.toDataURL("image/jpeg", 0.85);
}
