// Modal dialogs and menus, on the browser's own: it keeps the focus inside, closes on Escape and gives the focus back.
import { html, useEffect, useId, useLayoutEffect, useRef, useState } from "../core/html.js";
import { Icon } from "./icons.js";

/** @param {{title: string, onClose: () => void, children: any, foot?: any, wide?: boolean}} props */
export function Dialog({ title, onClose, children, foot, wide = false }) {
  const element = useRef(null);
  const id = useId();
  useEffect(() => {
    const dialog = element.current;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  const onBackdrop = (event) => { if (event.target === element.current) onClose(); };
  return html`<dialog ref=${element} class=${wide ? "wide" : ""} aria-labelledby=${id}
      onCancel=${(event) => { event.preventDefault(); onClose(); }} onMouseDown=${onBackdrop}>
    <div class="dialog-head"><h2 id=${id}>${title}</h2>
      <button class="button quiet icon" onClick=${onClose} aria-label="Close"><${Icon} name="close" /></button></div>
    <div class="dialog-body">${children}</div>
    ${foot && html`<div class="dialog-foot">${foot}</div>`}
  </dialog>`;
}

/** A button that opens a list of actions. @param {{label: string, icon?: string, text?: any, items: any[], end?: boolean, small?: boolean}} props
 * An item is {icon, text, act, disabled?, danger?, why?}, or null for a line. */
export function Menu({ label, icon = "more", text = null, items, end = true, small = true }) {
  const [isOpen, setOpen] = useState(false);
  const [isAbove, setAbove] = useState(false);
  const anchor = useRef(null), list = useRef(null);
  useDismiss(anchor, isOpen, () => setOpen(false));
  useLayoutEffect(() => { if (isOpen) setAbove(lacksRoom(anchor.current, list.current)); }, [isOpen]);
  const onKeyDown = (event) => { if (isOpen) moveFocus(event, anchor.current); };
  const pick = (item) => () => { setOpen(false); anchor.current.querySelector("button").focus(); item.act(); };
  return html`<div class="menu-anchor" ref=${anchor} onKeyDown=${onKeyDown}>
    <button class=${`button quiet ${small ? "small" : ""} ${text ? "" : "icon"}`} aria-label=${label} title=${label}
      aria-haspopup="menu" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}><${Icon} name=${icon} />${text}</button>
    ${isOpen && html`<div ref=${list} class=${`menu ${end ? "end" : ""} ${isAbove ? "above" : ""}`} role="menu" aria-label=${label}>${items.map((item, index) => item === null
      ? html`<hr key=${index} />`
      : html`<button key=${item.text} role="menuitem" disabled=${item.disabled} title=${item.why ?? ""} class=${item.danger ? "bad" : ""}
          onClick=${pick(item)}><${Icon} name=${item.icon} />${item.text}</button>`)}</div>`}
  </div>`;
}

/** Whether a list below its button would be cut off, and above it there is more room. */
export function lacksRoom(anchor, list) {
  const box = anchor.getBoundingClientRect(), frame = anchor.closest("main, dialog")?.getBoundingClientRect() ?? document.body.getBoundingClientRect();
  const below = frame.bottom - box.bottom;
  return list.offsetHeight + 8 > below && box.top - frame.top > below;
}

/** Whatever is outside of `anchor`, and Escape, closes it. */
export function useDismiss(anchor, isOpen, close) {
  useEffect(() => {
    if (!isOpen) return undefined;
    const outside = (event) => { if (!anchor.current?.contains(event.target)) close(); };
    const escape = (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      close();
      anchor.current?.querySelector("button")?.focus();
    };
    document.addEventListener("pointerdown", outside);
    document.addEventListener("keydown", escape, true);
    return () => {
      document.removeEventListener("pointerdown", outside);
      document.removeEventListener("keydown", escape, true);
    };
  }, [isOpen]);
}

function moveFocus(event, anchor) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const items = [...anchor.querySelectorAll("[role=menuitem]:not(:disabled)")];
  const now = items.indexOf(document.activeElement);
  items.at((now + step + items.length) % items.length)?.focus();
}
