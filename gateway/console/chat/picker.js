// Which model is meant: a list to search in, made for hundreds of them.
import { html, useEffect, useId, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { byId } from "../core/server.js";
import { Dot, Icon, bytes, lacksRoom, tokens, useDismiss } from "../ui/parts.js";
import { usable } from "./room.js";

const SHOWN = 200; // of all that match

/** @param {{value: string, label: string, onPick: (id: string) => void, list?: object[], isAtEnd?: boolean, icon?: string | null, disabled?: boolean}} props
 * `list`: models to choose from, those that talk without one; `icon`: instead of the name */
export function ModelPicker({ value, label, onPick, list = usable.value, isAtEnd = false, icon = null, disabled = false }) {
  const [isOpen, setOpen] = useState(false);
  const anchor = useRef(null);
  useDismiss(anchor, isOpen, () => setOpen(false));
  const model = byId.value.get(value);
  const pick = (id) => {
    setOpen(false);
    anchor.current.querySelector("button").focus();
    onPick(id);
  };
  return html`<div class="menu-anchor" ref=${anchor}>
    ${icon ? html`<button type="button" class="button quiet small icon" aria-haspopup="listbox" aria-expanded=${isOpen} aria-label=${label} title=${label} disabled=${disabled} onClick=${() => setOpen(!isOpen)}><${Icon} name=${icon} size="14" /></button>`
    : html`<button class="button quiet model-button" type="button" aria-haspopup="listbox" aria-expanded=${isOpen} aria-label=${`${label}: ${value ?? "none"}`} onClick=${() => setOpen(!isOpen)}>
      ${model && html`<${Dot} state=${model.state} />`}<span class="cut">${value ?? "No model"}</span><${Icon} name="down" size="12" /></button>`}
    ${isOpen && html`<${Choice} value=${value} label=${label} list=${list} onPick=${pick} isAtEnd=${isAtEnd} />`}
  </div>`;
}

function Choice({ value, label, list: all, onPick, isAtEnd }) {
  const [text, setText] = useState("");
  const [index, setIndex] = useState(0);
  const [isAbove, setAbove] = useState(false);
  const id = useId(), frame = useRef(null), input = useRef(null), list = useRef(null);
  useLayoutEffect(() => { setAbove(lacksRoom(frame.current.parentElement, frame.current)); }, []);
  const found = matching(all, text).slice(0, SHOWN);
  const at = Math.min(index, found.length - 1);
  useEffect(() => {
    input.current.focus();
    setIndex(Math.max(0, found.findIndex((model) => model.id === value)));
  }, []);
  useEffect(() => { list.current?.children[at]?.scrollIntoView({ block: "nearest" }); }, [at]);
  const onKeyDown = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) { event.preventDefault(); setIndex((at + step + found.length) % found.length); }
    if (event.key === "Enter") { event.preventDefault(); if (found[at]) onPick(found[at].id); }
  };
  return html`<div ref=${frame} class=${`menu picker ${isAtEnd ? "end" : ""} ${isAbove ? "above" : ""}`}>
    <div class="search"><${Icon} name="search" size="14" /><input ref=${input} class="input" role="combobox" aria-label="Search models" aria-expanded="true"
      aria-controls=${id} aria-activedescendant=${found[at] ? `${id}-${at}` : null} placeholder="Search models" value=${text}
      onInput=${(event) => { setText(event.target.value); setIndex(0); }} onKeyDown=${onKeyDown} /></div>
    ${found.length ? html`<ul id=${id} ref=${list} role="listbox" aria-label=${label}>${found.map((model, place) => html`<li key=${model.id} id=${`${id}-${place}`} role="option"
      aria-selected=${place === at} onClick=${() => onPick(model.id)} onPointerMove=${() => setIndex(place)}>
      <${Dot} state=${model.state} /><span class="cut">${model.id}</span>${model.id === value ? html`<${Icon} name="check" size="14" />` : html`<span />`}
      <span class="facts cut">${facts(model)}</span></li>`)}</ul>`
    : html`<p class="nothing">${all.length ? "No model matches." : "No models yet."}</p>`}
  </div>`;
}

function facts(model) {
  const where = model.remote ? "another server" : model.backend;
  const parts = [where, model.context_length && `${tokens(model.context_length)} context`, model.size_bytes && bytes(model.size_bytes), model.why_failed && "failed"];
  return parts.filter(Boolean).join(" · ");
}

/** Every word of the search is in the name, an alias or the engine. */
export function matching(models, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return models.filter((model) => {
    const all = [model.id, ...model.aliases, model.backend, model.format].join(" ").toLowerCase();
    return words.every((word) => all.includes(word));
  });
}
