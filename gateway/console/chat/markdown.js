// Markdown of a model, as it is written: finished blocks are made once and stay, only the last one is made anew. So
// nothing that was read moves, and a long answer costs no more per frame than a short one.
//
// What a model writes is hostile until it is proven inert: its HTML is shown as text, pictures become links, and the
// result goes through DOMPurify, which lets only the elements through that Markdown has.
import { html, useLayoutEffect, useRef } from "../core/html.js";
import DOMPurify from "../vendor/purify.js";
import { Marked } from "../vendor/marked.js";

const SHARE = 6; // at most a sixth of the time goes into drawing one answer
const LONGEST_COLOURED = 30000; // characters of a block of code

const escaped = (text) => text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
const isAddress = (href) => /^(https?:|mailto:)/i.test(href);

const marked = new Marked({ gfm: true, breaks: true });
marked.use({
  renderer: {
    html: ({ text }) => escaped(text),
    image: ({ href, text }) => (isAddress(href) ? `<a href="${escaped(href)}">${escaped(text || href)}</a>` : escaped(text)),
    link({ href, tokens }) {
      const inner = this.parser.parseInline(tokens);
      return isAddress(href) ? `<a href="${escaped(href)}">${inner}</a>` : inner;
    },
    code({ text, lang }) {
      const name = /^[\w+#-]{1,20}/.exec(lang ?? "")?.[0] ?? "";
      return `<div class="snippet"><div class="snippet-head"><span>${escaped(name)}</span></div><pre tabindex="0"><code class="${name ? `language-${escaped(name)}` : ""}">${escaped(text)}</code></pre></div>`;
    },
    table(token) {
      return `<div class="table-frame" tabindex="0">${Object.getPrototypeOf(this).table.call(this, token)}</div>`;
    },
  },
});

const ALLOWED = {
  ALLOWED_TAGS: ["p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code", "em", "strong", "del", "a",
    "table", "thead", "tbody", "tr", "th", "td", "input", "div", "span"],
  ALLOWED_ATTR: ["href", "class", "align", "start", "type", "checked", "disabled", "tabindex"],
  ALLOW_DATA_ATTR: false,
};
// Of classes only those that this module writes, of inputs only boxes that can't be ticked.
DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  const allowed = /^(snippet|snippet-head|table-frame|language-[\w+#-]{1,20}|hljs-[\w -]{1,60})$/;
  if (node.hasAttribute("class") && !allowed.test(node.getAttribute("class"))) node.removeAttribute("class");
  if (node.nodeName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
  }
  if (node.nodeName === "INPUT") {
    if (node.getAttribute("type") !== "checkbox") node.remove();
    else { node.setAttribute("disabled", ""); node.setAttribute("aria-label", node.hasAttribute("checked") ? "done" : "to do"); }
  }
});

/** Elements of some tokens, which can do nothing. @returns {DocumentFragment} */
function elements(tokens) {
  return DOMPurify.sanitize(marked.parser(tokens), { ...ALLOWED, RETURN_DOM_FRAGMENT: true });
}

/** Writes a text that grows into an element. */
export class MarkdownWriter {
  constructor(element) {
    this.element = element;
    this.begin();
  }

  begin() {
    this.done = ""; // the text whose blocks stay
    this.tail = document.createElement("div");
    this.element.replaceChildren(this.tail);
  }

  /** @param {string} text all of it so far @param {boolean} isWhole */
  write(text, isWhole) {
    if (!text.startsWith(this.done)) this.begin();
    const tokens = marked.lexer(text.slice(this.done.length));
    const last = isWhole ? tokens.length : tokens.findLastIndex((token) => token.type !== "space");
    for (const token of tokens.slice(0, Math.max(0, last))) this.settle(token, tokens.links);
    const rest = tokens.slice(Math.max(0, last));
    this.tail.replaceChildren(elements(withLinks(rest, tokens.links)));
  }

  settle(token, links) {
    this.done += token.raw;
    if (token.type === "space") return;
    const block = document.createElement("div");
    block.append(elements(withLinks([token], links)));
    this.element.insertBefore(block, this.tail);
    for (const snippet of block.querySelectorAll(".snippet")) finish(snippet);
  }
}

function withLinks(tokens, links) {
  tokens.links = links ?? {};
  return tokens;
}

/** A block of code that is complete: its colours, and a button to copy it. */
function finish(snippet) {
  const code = snippet.querySelector("code");
  const button = document.createElement("button");
  button.className = "button quiet small";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard?.writeText(code.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  snippet.querySelector(".snippet-head").append(button);
  colour(code);
}

let highlighting = null;

/** Colours come later and change no letter: the highlighter is fetched when the first code is there. */
async function colour(code) {
  const name = /language-([\w+#-]+)/.exec(code.className)?.[1];
  if (!name || code.textContent.length > LONGEST_COLOURED) return;
  highlighting ??= import("../vendor/highlight.js").then((module) => module.default);
  const hljs = await highlighting.catch(() => { highlighting = null; }); // it is asked for again with the next code
  if (!hljs?.getLanguage(name)) return;
  const marks = hljs.highlight(code.textContent, { language: name, ignoreIllegals: true }).value;
  const clean = DOMPurify.sanitize(marks, { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true });
  code.replaceChildren(clean);
}

/** A text of a model. @param {{text: string, isWhole: boolean}} props */
export function Markdown({ text, isWhole }) {
  const element = useRef(null), state = useRef(null);
  useLayoutEffect(() => {
    const it = state.current ??= { writer: new MarkdownWriter(element.current), next: 0, timer: 0 };
    clearTimeout(it.timer);
    const draw = () => {
      const began = performance.now();
      it.writer.write(text, isWhole);
      it.next = performance.now() + (performance.now() - began) * SHARE;
    };
    const wait = it.next - performance.now();
    if (isWhole || wait <= 0) draw();
    else it.timer = setTimeout(draw, wait);
  }, [text, isWhole]);
  return html`<div class="markdown" ref=${element} />`;
}
