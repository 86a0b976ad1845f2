// A measurement to be shown to others: as text, and as a picture.
import { rate, resolved, seconds } from "../ui/parts.js";

const HEADS = ["Prompt", "Streams", "To first", "tok/s", "Each", "Prompt tok/s"];

/** A row's cells as words. */
export const cells = (row) => [String(row.size), String(row.streams), ...(row.error ? [row.error] : [seconds(row.first), rate(row.rate), rate(row.each), rate(row.reading)])];

/** Of one model: what it is. */
export const title = (column) => [column.model, ...column.facts].join(" · ");

export function asText(measured) {
  const tables = measured.columns.map((column) => [`**${title(column)}**`, "", `| ${HEADS.join(" | ")} |`, `|${"--:|".repeat(HEADS.length)}`,
    ...column.rows.map((row) => `| ${Array.from(HEADS, (_, place) => cells(row)[place] ?? "").map(plain).join(" | ")} |`)].join("\n"));
  return `${tables.join("\n\n")}\n\n${footnote(measured)}\n`;
}

const plain = (text) => text.replaceAll("|", "\\|");

export const footnote = ({ answer, server, day, machine }) => [`${answer} answer tokens a stream`, `Roundhouse ${server}`, machine, day].filter(Boolean).join(" · ");

const SCALE = 2, WIDTH = 760, MARGIN = 28, ROW = 26;
const COLUMNS = [70, 140, 240, 330, 600, WIDTH - 2 * MARGIN]; // right edges; between 340 and 510 is a bar

/** Draws it, in the colours of the page. @returns {HTMLCanvasElement} */
export function asPicture(measured) {
  const rows = measured.columns.reduce((sum, column) => sum + column.rows.length + 3, 0);
  const canvas = document.createElement("canvas");
  canvas.width = WIDTH * SCALE;
  canvas.height = (2 * MARGIN + rows * ROW + 8) * SCALE;
  const pen = canvas.getContext("2d");
  pen.scale(SCALE, SCALE);
  pen.fillStyle = resolved("var(--raised)");
  pen.fillRect(0, 0, WIDTH, canvas.height / SCALE);
  pen.translate(MARGIN, MARGIN);
  const most = Math.max(...measured.columns.flatMap((column) => column.rows.map((row) => row.rate ?? 0)), 1);
  let at = 14;
  measured.columns.forEach((column, place) => { at = drawColumn(pen, column, at, most, resolved(`var(--model-${place})`)); });
  write(pen, footnote(measured), 0, at + 8, { colour: "var(--text-faint)", size: 12 });
  return canvas;
}

function drawColumn(pen, column, from, most, colour) {
  let at = from;
  write(pen, title(column), 0, at, { weight: 600, size: 15 });
  at += ROW;
  HEADS.forEach((head, place) => write(pen, head, COLUMNS[place], at, { colour: "var(--text-faint)", size: 12, isRight: true }));
  for (const row of column.rows) {
    at += ROW;
    pen.fillStyle = colour;
    if (row.rate) pen.fillRect(342, at - 10, Math.max(2, (170 * row.rate) / most), 12);
    cells(row).forEach((text, place) => write(pen, text, row.error && place === 2 ? 170 : COLUMNS[place], at, { isRight: !(row.error && place === 2) }));
  }
  return at + 2 * ROW;
}

function write(pen, text, x, y, { colour = "var(--text)", size = 13, weight = 400, isRight = false } = {}) {
  pen.font = `${weight} ${size}px Inter, system-ui, sans-serif`;
  pen.fillStyle = resolved(colour);
  pen.textAlign = isRight ? "right" : "left";
  pen.fillText(text, x, y, WIDTH - 2 * MARGIN);
}
