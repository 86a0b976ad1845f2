// The icons: strokes on a grid of 16, drawn for this page. They are decoration: a control says its name in words.
import { html } from "../core/html.js";

const PATHS = {
  chat: "M2.5 3.5h11v7.500h-6l-3 2.500v-2.500h-2z",
  models: "M8 1.800 14 5 8 8.200 2 5zM2 8l6 3.200L14 8M2 11l6 3.200L14 11",
  memory: "M4 3.500h8v9H4zM6.500 6h3v4h-3zM6 1.500v2M10 1.500v2M6 12.500v2M10 12.500v2M1.500 6H4M1.500 10H4M12 6h2.500M12 10h2.500",
  activity: "M1.500 8.500h3l2-5.500 3 10 2-4.500h3",
  usage: "M2 13.500h12M4 11V8M8 11V3M12 11V6",
  connect: "M6.500 9.500 9.500 6.500M5 7 3.300 8.700a2.830 2.830 0 0 0 4 4L9 11M7 5l1.700-1.700a2.830 2.830 0 0 1 4 4L11 9",
  settings: "M2 4.500h6.500M11.500 4.500H14M2 11.500h2.500M7.500 11.500H14M10 3v3M6 10v3",
  plus: "M8 3v10M3 8h10", close: "M4 4l8 8M12 4l-8 8", check: "M3 8.500 6.500 12 13 4.500",
  down: "M4 6l4 4 4-4", right: "M6 4l4 4-4 4", left: "M10 4 6 8l4 4", up: "M8 13V3M4 7l4-4 4 4",
  search: "M7 2.500a4.500 4.500 0 1 0 0 9 4.500 4.500 0 0 0 0-9zM10.500 10.500 14 14",
  more: "M3 8h.01M8 8h.01M13 8h.01", copy: "M5.500 5.500h8v8h-8zM3.500 10.500h-1v-8h8v1",
  send: "M8 13V3.500M4 7l4-4 4 4", stop: "M4.500 4.500h7v7h-7z", pause: "M5.500 3.500v9M10.500 3.500v9", play: "M5 3.500 12 8l-7 4.500z",
  retry: "M13 8a5 5 0 1 1-1.500-3.600M13 2v3h-3", edit: "M3 13l.6-2.600L10.800 3.200l2 2L5.600 12.400z",
  trash: "M3 4.500h10M6.500 4.500V3h3v1.500M4.500 4.500l.5 8.500h6l.5-8.500", image: "M2.500 3.500h11v9h-11zM2.500 11l3-3 2.500 2.500 2-2 3.500 3M10.500 6h.01",
  panel: "M2.500 3h11v10h-11zM10 3v10", list: "M2.500 3h11v10h-11zM6 3v10", columns: "M2.500 3h11v10h-11zM8 3v10",
  pin: "M6 2.500h4l-.5 4.500 2 2h-7l2-2zM8 9v4.500", eject: "M8 3 13 9H3zM3 12h10", load: "M8 2.500v7M5 7l3 3 3-3M3 13h10",
  alert: "M8 2 14.500 13.500h-13zM8 6.500v3M8 11.500h.01", info: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM8 7.500v3.500M8 5h.01",
  key: "M10 3a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 8l-5.500 5.500M4 12l1.500 1.500", code: "M5.500 4.500 2 8l3.500 3.500M10.500 4.500 14 8l-3.500 3.500",
  sun: "M8 5.200a2.800 2.800 0 1 0 0 5.600 2.800 2.800 0 0 0 0-5.600zM8 1.500v1.500M8 13v1.500M1.500 8H3M13 8h1.500M3.400 3.400l1 1M11.600 11.600l1 1M3.400 12.600l1-1M11.600 4.400l1-1",
  moon: "M13 9.500A5.500 5.500 0 0 1 6.500 3 5.500 5.500 0 1 0 13 9.500z", auto: "M8 2.500a5.500 5.500 0 1 0 0 11zM8 2.500a5.500 5.500 0 0 1 0 11z",
  download: "M8 2.500v8M4.500 7 8 10.500 11.500 7M3 13.500h10", tool: "M9.500 6.500 3.500 12.500M9 2.500a3.500 3.500 0 1 0 4.500 4.500l-2.200.7-1.800-1.800z",
  fork: "M5 3v10M5 9.500c4 0 6-1.500 6-5M9 6.500l2-2.500 2 2.500M3.500 3h3M3.500 13h3",
  thought: "M8 2.500a4.500 4.500 0 0 0-2.500 8.200V13h5v-2.300A4.500 4.500 0 0 0 8 2.500zM6.500 14.500h3",
};

/** @param {{name: keyof PATHS, size?: number}} props */
export function Icon({ name, size = 16 }) {
  return html`<svg width=${size} height=${size} viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width=${name === "more" ? 2 : 1.4}
    stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;
}

/** The server's mark. */
export function Mark({ size = 20 }) {
  return html`<svg width=${size} height=${size} viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="8" fill="#0f766e" />
    <g fill="none" stroke="#fff" stroke-width="2.600" stroke-linecap="round"><circle cx="16" cy="16" r="4.200" />
    <path d="M16 5.500v4M16 22.500v4M5.500 16h4M22.500 16h4M8.600 8.600l2.800 2.800M20.600 20.600l2.800 2.800M8.600 23.400l2.800-2.800M20.600 11.400l2.800-2.800" /></g></svg>`;
}
