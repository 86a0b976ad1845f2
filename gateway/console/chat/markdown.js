// Markdown of a model, as it is written: finished blocks are made once and stay, only the last one is made anew. So
// nothing that was read moves, and a long answer costs no more per frame than a short one.
//
// What a model writes is hostile until it is proven inert: its HTML is shown as text, pictures become links, and the
// result goes through DOMPurify, which lets only the elements through that Markdown has. What would take too long to read
// is shown as it stands: see `portions`.
import { Marked } from "../vendor/marked.js";
import { html, useLayoutEffect, useRef } from "../vendor/preact.js";
import DOMPurify from "../vendor/purify.js";
import { stored } from "../core/browser.js";
import { saveAs } from "../core/server.js";
import { copyText } from "../ui/parts.js";

const SLICE = 6000; // characters that are drawn at a time: a long answer's page answers its user meanwhile
const SHARE = 6; // at most a sixth of the time goes into drawing one answer
const LONGEST_COLOURED = 30000; // characters of a block of code
const LONGEST_LIVE = 12000; // the same, of one that is being written: it is coloured anew each time it is drawn
const MOST_SIGNS = 600; // of one paragraph that may open something: each is looked for an end of
const LONGEST_PIECE = 4000; // characters that are laid out together where they are shown as they stand
const DEEPEST = 30; // quotes and lists within each other

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

// Formulas as models write them: $…$ and \(…\) in a line, $$…$$ and \[…\] for themselves. A price is none: "$5 or $10".
const IN_A_LINE = /^\$(?![\s$])[^$`\n]{1,2000}?(?<!\s)\$(?!\d)|^\\\([^\n]{1,2000}?\\\)/;
const ENDS = /^(?:\$\$?|\\[([])|(?:\$\$?|\\[)\]])$/g;
const ALONE = /^(?:\$\$[^$]{1,2000}?\$\$|\\\[[^]{1,2000}?\\\])/;

function formula(name, level, rule, kind) {
  return {
    name,
    level,
    start: level === "inline" ? (text) => /\$|\\[([]/.exec(text)?.index : undefined,
    tokenizer(text) {
      const found = rule.exec(text);
      return found ? { type: name, raw: found[0] } : undefined;
    },
    renderer: ({ raw }) => `<span class="${kind}">${escaped(raw)}</span>`,
  };
}

marked.use({
  extensions: [
    formula("formula", "inline", IN_A_LINE, "formula"),
    formula("displayed", "inline", ALONE, "formula-alone"),
    formula("block", "block", ALONE, "formula-alone"),
  ],
});

const ALLOWED = {
  ALLOWED_TAGS: ["p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code", "em", "strong", "del", "a",
    "table", "thead", "tbody", "tr", "th", "td", "input", "div", "span"],
  ALLOWED_ATTR: ["href", "class", "align", "start", "type", "checked", "disabled", "tabindex"],
  ALLOW_DATA_ATTR: false,
};
// Of classes only those that this module writes, of inputs only boxes that can't be ticked.
DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  const allowed = /^(snippet|snippet-head|table-frame|formula|formula-alone|language-[\w+#-]{1,20}|hljs-[\w -]{1,60}|(?:tml-[\w-]{1,20}|math(?:cal|scr))(?: tml-[\w-]{1,20}){0,3})$/;
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

/** A text as it stands. */
function asItStands(text) {
  const block = document.createElement("div");
  block.className = "as-it-stands";
  block.textContent = text.replace(/\n+$/, "");
  return block;
}

const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const BEGINS_ANEW = /^\s*(?:[-*+] |\d{1,9}[.)] |\||#{1,6} |$)/; // an item, a row, a heading, an empty line
const NESTED = /^(?:\s*(?:>|[-*+] |\d{1,9}[.)] ))*\s*/;

/** A text in portions to be read as Markdown, and others to be shown as they stand: paragraphs with so many signs, or
 * nested so deep, that a reader that looks for their ends takes quadratic time, or all of its stack.
 * @returns {{text: string, isPlain: boolean}[]} */
function portions(text) {
  const found = [];
  const add = (part, isPlain) => {
    if (part && found.at(-1)?.isPlain === isPlain) found.at(-1).text += part;
    else if (part) found.push({ text: part, isPlain });
  };
  let paragraph = "", signs = 0, isDeep = false, fence = null;
  const flush = () => {
    add(paragraph, isDeep || signs > MOST_SIGNS);
    [paragraph, signs, isDeep] = ["", 0, false];
  };
  for (const line of text.match(/[^\n]*\n|[^\n]+$/g) ?? []) {
    const mark = FENCE.exec(line)?.[1];
    if (fence === null && (mark || BEGINS_ANEW.test(line))) flush();
    paragraph += line;
    if (mark && fence === null) fence = mark;
    else if (fence !== null && mark?.startsWith(fence)) fence = null;
    else if (fence === null) {
      const prefix = NESTED.exec(line)[0];
      isDeep ||= prefix.length > 8 * DEEPEST || (prefix.match(/[>*+.)-]/g)?.length ?? 0) > DEEPEST;
      signs += line.match(/[[\]()_*~`<!]/g)?.length ?? 0;
    }
  }
  flush();
  return found;
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
    const all = portions(text.slice(this.done.length));
    this.tail.replaceChildren();
    all.forEach((one, index) => this.portion(one, isWhole || index < all.length - 1));
  }

  portion({ text, isPlain }, isWhole) {
    if (isPlain) this.plain(text, isWhole);
    else {
      try { this.markdown(text, isWhole); } catch { this.plain(text, isWhole); }
    }
  }

  plain(text, isWhole) {
    let rest = text;
    for (; rest.length > LONGEST_PIECE; rest = rest.slice(LONGEST_PIECE)) this.settle(rest.slice(0, LONGEST_PIECE), [asItStands(rest.slice(0, LONGEST_PIECE))]);
    if (isWhole) this.settle(rest, [asItStands(rest)]);
    else this.tail.append(asItStands(rest));
  }

  markdown(text, isWhole) {
    const tokens = marked.lexer(text);
    const last = isWhole ? tokens.length : tokens.findLastIndex((token) => token.type !== "space");
    for (const token of tokens.slice(0, Math.max(0, last))) this.settle(token.raw, token.type === "space" ? [] : [elements(withLinks([token], tokens.links))]);
    this.tail.append(elements(withLinks(tokens.slice(Math.max(0, last)), tokens.links)));
    for (const code of this.tail.querySelectorAll(".snippet code")) colourLive(code);
  }

  /** A block that stays. */
  settle(raw, content) {
    this.done += raw;
    if (!content.length) return;
    const block = document.createElement("div");
    block.append(...content);
    this.element.insertBefore(block, this.tail);
    for (const snippet of block.querySelectorAll(".snippet")) finish(snippet);
    for (const formula of block.querySelectorAll(".formula, .formula-alone")) seen.observe(formula);
  }
}

function withLinks(tokens, links) {
  tokens.links = links ?? {};
  return tokens;
}

const wraps = stored("chat.wrap", false); // long lines of code; as it was chosen last

/** A block of code that is complete: its colours, and buttons to wrap, download and copy it. */
function finish(snippet) {
  const code = snippet.querySelector("code"), pre = snippet.querySelector("pre");
  const wrap = button("Wrap", () => {
    wraps.value = pre.classList.toggle("wraps");
    wrap.setAttribute("aria-pressed", wraps.value);
  });
  wrap.setAttribute("aria-pressed", pre.classList.toggle("wraps", wraps.value));
  const download = button("Download", () => saveAs(`code.${ending(code)}`, `${code.textContent}\n`, "text/plain"));
  const copy = button("Copy", async () => {
    try {
      await copyText(code.textContent);
      copy.textContent = "Copied";
    } catch { copy.textContent = "Not copied"; }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  snippet.querySelector(".snippet-head").append(wrap, download, copy);
  if (LANGUAGE.test(code.className) && code.textContent.length <= LONGEST_COLOURED) seen.observe(snippet);
}

function button(text, act) {
  const it = document.createElement("button");
  it.className = "button quiet small";
  it.textContent = text;
  it.addEventListener("click", act);
  return it;
}

const LANGUAGE = /language-([\w+#-]+)/;
const ENDINGS = { python: "py", javascript: "js", typescript: "ts", bash: "sh", shell: "sh", rust: "rs", markdown: "md", csharp: "cs", kotlin: "kt", ruby: "rb", perl: "pl", "c++": "cpp", haskell: "hs", text: "txt", plaintext: "txt" };

/** Of a file's name, for a block's language. */
function ending(code) {
  const name = LANGUAGE.exec(code.className)?.[1].toLowerCase() ?? "txt";
  return ENDINGS[name] ?? (/^[a-z\d]{1,6}$/.test(name) ? name : "txt");
}

let highlighting = null, highlighter = null;

/** Code is coloured, and a formula set, when it is about to be looked at: an answer may have thousands of them. */
const seen = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    seen.unobserve(target);
    if (target.matches(".snippet")) colour(target.querySelector("code"));
    else typeset(target);
  }
}, { rootMargin: "600px" });

/** The highlighter is fetched when the first code is there; where that fails, again with the next. */
async function highlight() {
  highlighting ??= import("../vendor/highlight.js").then((module) => { highlighter = module.default; });
  await highlighting.catch(() => { highlighting = null; });
}

/** Colours come later and change no letter. */
async function colour(code) {
  await highlight();
  paint(code);
}

/** Of code that is still written, as soon as the highlighter is there. What that takes is a part of drawing. */
function colourLive(code) {
  if (!LANGUAGE.test(code.className) || code.textContent.length > LONGEST_LIVE) return;
  if (highlighter) paint(code);
  else highlight();
}

function paint(code) {
  const [, name] = LANGUAGE.exec(code.className);
  if (!highlighter?.getLanguage(name)) return;
  const marks = highlighter.highlight(code.textContent, { language: name, ignoreIllegals: true }).value;
  const clean = DOMPurify.sanitize(marks, { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true });
  code.replaceChildren(clean);
}

const MATHML = { USE_PROFILES: { mathMl: true }, FORBID_ATTR: ["href", "style"], RETURN_DOM_FRAGMENT: true };
let typesetting = null;

async function typesetter() {
  const module = await import("../vendor/temml.js");
  const style = document.createElement("link");
  Object.assign(style, { rel: "stylesheet", href: new URL("../vendor/temml.css", import.meta.url).href });
  document.head.prepend(style);
  return module.default;
}

/** A formula from TeX to MathML; what is no TeX stays as it is written. */
async function typeset(element) {
  typesetting ??= typesetter();
  const temml = await typesetting.catch(() => { typesetting = null; }); // it is asked for again with the next formula
  const displayMode = element.matches(".formula-alone");
  try {
    const marks = temml.renderToString(element.textContent.replace(ENDS, ""), { displayMode, throwOnError: true, trust: false, maxSize: [20, 20], maxExpand: 200 });
    // The page's policy forbids inline styles, and reports each that is only read.
    element.replaceChildren(DOMPurify.sanitize(marks.replace(/ style="[^"]*"/g, ""), MATHML));
  } catch { /* its text is shown */ }
}

/** A text of a model. @param {{text: string, isWhole: boolean}} props */
export function Markdown({ text, isWhole }) {
  const element = useRef(null), state = useRef(null);
  useLayoutEffect(() => {
    const it = state.current ??= { writer: new MarkdownWriter(element.current), drawn: 0, next: 0, timer: 0 };
    clearTimeout(it.timer);
    const draw = () => {
      const began = performance.now();
      it.drawn = Math.min(text.length, (text.startsWith(it.writer.done) ? it.drawn : 0) + SLICE);
      it.writer.write(text.slice(0, it.drawn), isWhole && it.drawn === text.length);
      it.next = performance.now() + (performance.now() - began) * SHARE;
      if (it.drawn < text.length) it.timer = setTimeout(draw);
    };
    const wait = it.next - performance.now();
    if (isWhole || wait <= 0) draw();
    else it.timer = setTimeout(draw, wait);
    return () => clearTimeout(it.timer);
  }, [text, isWhole]);
  return html`<div class="markdown" ref=${element} />`;
}
