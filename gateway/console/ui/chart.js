// A chart of columns over time, with uPlot, which is fetched with the first one. Beside it stand the same numbers as text.
import { html, useEffect, useRef } from "../vendor/preact.js";
import { theme } from "../core/browser.js";
import { bytes, resolved } from "./parts.js";

const HOUR = 3600, LEAST = 600; // seconds that are shown at most and at least

/** Steps of an axis of bytes, whose labels are GiB and MiB. */
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);

let library = null;
const uPlot = () => (library ??= import("../vendor/uplot.js").then((module) => {
  const style = document.createElement("link");
  Object.assign(style, { rel: "stylesheet", href: new URL("../vendor/uplot.css", import.meta.url).href });
  document.head.prepend(style); // before our own, which changes it
  return module.default;
}));

/** @typedef {{label: string, values: (number | null)[], colour: string}} Line */

/** @param {{title: string, times: number[], lines: Line[], format: (value: number) => string, isStacked?: boolean, height?: number, most?: number | null, aside?: any}} props */
export function Chart({ title, times, lines, format, isStacked = false, height = 150, most = null, aside = null }) {
  const frame = useRef(null);
  const drawn = lines.filter((line) => line.values.some((value) => value !== null));
  useEffect(() => {
    let plot = null, isOver = false;
    const observer = new ResizeObserver(([entry]) => plot?.setSize({ width: Math.floor(entry.contentRect.width), height }));
    uPlot().then((Plot) => {
      if (isOver || !frame.current) return;
      plot = new Plot(options({ frame: frame.current, lines: drawn, format, isStacked, height, most }), data(times, drawn, isStacked), frame.current);
      frame.current.plot = plot;
      observer.observe(frame.current);
    });
    return () => { isOver = true; observer.disconnect(); plot?.destroy(); };
  }, [drawn.map((line) => line.label).join("\n"), theme.value, most, matchMedia("(prefers-color-scheme: dark)").matches]);
  useEffect(() => { frame.current.plot?.setData(data(times, drawn, isStacked)); }, [times]);
  return html`<figure class="chart">
    <figcaption class="chart-head"><h3>${title}</h3>${aside}</figcaption>
    <div class="chart-frame" ref=${frame} style=${{ height: `${height}px` }} role="img" aria-label=${`${title}. ${described(drawn, format)}`} />
    ${drawn.length ? html`<${Legend} lines=${drawn} format=${format} isStacked=${isStacked} />` : html`<p class="chart-none">Nothing to show of the last hour.</p>`}
  </figure>`;
}

/** What is there now; of what comes only now and then, the last. */
function Legend({ lines, format, isStacked }) {
  return html`<ul class="legend">${lines.map((line) => html`<li key=${line.label}><i style=${{ background: line.colour }} aria-hidden="true" />
    <span class="cut">${line.label}</span><span class="num soft">${format(isStacked ? line.values.at(-1) : latest(line.values))}</span></li>`)}</ul>`;
}

const latest = (values) => values.findLast((value) => value !== null) ?? null;

function described(lines, format) {
  return lines.map((line) => `${line.label}: ${format(latest(line.values))} now, at most ${format(Math.max(...line.values.filter((value) => value !== null)))}`).join("; ") || "Nothing yet.";
}

/** Stacked lines are sums from below; the topmost is drawn first. */
function data(times, lines, isStacked) {
  if (!isStacked) return [times, ...lines.map((line) => line.values)];
  let sum = times.map(() => 0);
  const sums = lines.map((line) => (sum = sum.map((value, index) => value + (line.values[index] ?? 0))));
  return [times, ...sums.reverse()];
}

function options({ frame, lines, format, isStacked, height, most }) {
  const line = resolved("var(--line)"), text = resolved("var(--text-faint)");
  const font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const axis = { stroke: text, font, grid: { stroke: line, width: 1 }, ticks: { show: false } };
  const ordered = isStacked ? [...lines].reverse() : lines;
  return {
    width: Math.max(100, Math.floor(frame.clientWidth)),
    height,
    padding: [8, 6, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
    scales: { x: { range: (_plot, least, highest) => [highest - Math.min(HOUR, Math.max(LEAST, highest - least)), highest] }, y: { range: (_plot, _least, highest) => [0, most ?? Math.max((highest ?? 0) * 1.12, 1e-9)] } },
    axes: [
      { ...axis, size: 26, grid: { show: false }, space: 80, values: (_plot, ticks) => ticks.map((tick) => new Date(tick * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false })) },
      { ...axis, size: 62, space: 34, ...(format === bytes ? { incrs: POWERS } : {}), values: (_plot, ticks) => once(ticks.map((tick) => (tick === 0 ? "0" : format(tick).replace(/\.0+(?=\D|$)/, "")))) },
    ],
    series: [{}, ...ordered.map(({ colour }) => {
      const stroke = resolved(colour);
      return { stroke, width: 1.5, points: { show: false }, spanGaps: false, fill: isStacked ? resolved(`color-mix(in srgb, ${colour} 55%, var(--surface))`) : undefined };
    })],
    plugins: [tooltip(ordered, format, isStacked)],
  };
}

/** Labels without those that say what the one below says: of very small numbers all are "0". */
const once = (labels) => labels.map((label, index) => (labels.indexOf(label) === index ? label : ""));

/** What the columns say under the pointer. */
function tooltip(lines, format, isStacked) {
  const box = document.createElement("div");
  box.className = "chart-tip";
  box.hidden = true;
  const draw = (plot) => {
    const { idx, left } = plot.cursor;
    box.hidden = idx === null || idx === undefined || left < 0;
    if (box.hidden) return;
    const time = document.createElement("time");
    time.textContent = new Date(plot.data[0][idx] * 1000).toLocaleTimeString([], { hour12: false });
    const rows = lines.map((line, index) => {
      const below = isStacked && index + 2 < plot.data.length ? plot.data[index + 2][idx] : 0;
      const value = plot.data[index + 1][idx];
      return row(line, value === null ? null : value - below, format);
    });
    box.replaceChildren(time, ...rows);
    const isRight = left > plot.over.clientWidth / 2;
    box.style.left = isRight ? "" : `${left + 12}px`;
    box.style.right = isRight ? `${plot.over.clientWidth - left + 12}px` : "";
  };
  return { hooks: { init: (plot) => { plot.over.append(box); plot.over.addEventListener("mouseleave", () => { box.hidden = true; }); }, setCursor: draw } };
}

function row(line, value, format) {
  const element = document.createElement("div");
  const mark = document.createElement("i"), name = document.createElement("span"), number = document.createElement("b");
  mark.style.background = line.colour;
  name.textContent = line.label;
  number.textContent = format(value);
  element.append(mark, name, number);
  return element;
}
