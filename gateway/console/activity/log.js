// The log: by level, and searched. Whatever stands in a line is text.
import { batch, html, useEffect, useState } from "../vendor/preact.js";
import { stored } from "../core/browser.js";
import { call, logLines, saveAs } from "../core/server.js";
import { Empty, Icon, Search, Segments, clock, trying } from "../ui/parts.js";

const LEVELS = ["debug", "info", "warning", "error"];
const AT_FIRST = 300, ALL = 2000; // lines
const level = stored("log.level", "info", sessionStorage);

export function Log() {
  const [text, setText] = useState("");
  const [most, setMost] = useState(AT_FIRST);
  useEffect(() => { trying(readAll); }, []);
  const found = matching(logLines.value, level.value, text);
  const options = LEVELS.map((name) => [name, name[0].toUpperCase() + name.slice(1)]);
  const save = () => saveAs("roundhouse.log", found.map(asText).join("\n"), "text/plain");
  return html`<div class="toolbar"><${Search} label="Search the log" value=${text} onInput=${setText} />
      <${Segments} label="Minimum level" options=${options} value=${level.value} onChange=${(value) => { level.value = value; }} />
      <button class="button quiet" disabled=${!found.length} onClick=${save}><${Icon} name="download" />Save</button></div>
    <div class="card log" role="log" aria-label="Log" aria-live="off">
      ${found.slice(-most).reverse().map((line) => html`<${Line} key=${line.number} line=${line} />`)}
      ${!found.length && html`<${Empty} icon="search" title=${logLines.value.length ? "No matching lines" : "Nothing logged yet"}><p>${logLines.value.length ? "No line of this level contains this text." : "Lines below log.level are not shown."}</p></${Empty}>`}
    </div>
    ${found.length > most && html`<div class="row"><button class="button quiet" onClick=${() => setMost(most + AT_FIRST)}>Older lines</button></div>`}`;
}

/** What was logged before the page was opened. */
async function readAll() {
  const { lines } = await call("GET", `/v1/admin/logs?limit=${ALL}`);
  batch(() => {
    const newest = lines.at(-1)?.number ?? 0;
    logLines.value = [...lines, ...logLines.value.filter((line) => line.number > newest)];
  });
}

/** Pure. */
export function matching(lines, least, text) {
  const rank = LEVELS.indexOf(least), words = text.toLowerCase();
  return lines.filter((line) => LEVELS.indexOf(line.level) >= rank && (!words || asText(line).toLowerCase().includes(words)));
}

const asText = ({ time, level: name, event, fields }) => [new Date(time * 1000).toISOString(), name, event, ...Object.entries(fields).map(([key, value]) => `${key}=${value}`)].join(" ");

function Line({ line }) {
  return html`<div class=${`log-line ${line.level}`}><time class="faint">${clock(line.time)}</time><span class="level soft">${line.level}</span><span class="event">${line.event}</span>
    <span class="log-fields mono">${Object.entries(line.fields).map(([name, value]) => html`<span key=${name}><b>${name}=</b>${value}</span>`)}</span></div>`;
}
