// The frame: who we are decides which pages there are; the address decides which one is shown.
import { computed, html, render, useEffect, useState } from "./vendor/preact.js";
import { route, theme, to } from "./core/browser.js";
import { connect, forgetKey, isAdmin, key, link, me, models, refused, running, useKey } from "./core/server.js";
import { Dot, Icon, Mark, Segments, Toasts } from "./ui/parts.js";

/** Pages are fetched when they are first shown. `users`: a user's key sees it, too. On phones the first four are in the bar. */
const PAGES = [
  { name: "chat", title: "Chat", users: true, fetch: () => import("./chat/page.js") },
  { name: "models", title: "Models", users: true, fetch: () => import("./models/page.js") },
  { name: "playground", title: "Playground", users: true, fetch: () => import("./playground/page.js") },
  { name: "activity", title: "Activity", users: true, fetch: () => import("./activity/page.js") },
  { name: "memory", title: "Memory", users: false, fetch: () => import("./memory/page.js") },
  { name: "usage", title: "Usage", users: true, fetch: () => import("./usage/page.js") },
  { name: "connect", title: "Connect", users: true, fetch: () => import("./connect/page.js") },
  { name: "settings", title: "Settings", users: false, fetch: () => import("./settings/page.js") },
];
const pages = computed(() => PAGES.filter((page) => page.users || isAdmin.value));
const current = computed(() => pages.value.find((page) => page.name === route.value[0]) ?? pages.value[0]);

function App() {
  if (link.value === "locked") return html`<${Door} />`;
  if (me.value === null) return html`<main class="door"><${Waiting} /></main>`;
  return html`<div class=${`shell ${link.value === "lost" ? "lost" : ""}`}>
    <a class="skip" href="#page" onClick=${toPage}>Skip to the page</a>
    <${Navigation} />
    <div class="lost-frame">${link.value === "lost" && html`<div class="lost-notice" role="status"><${Dot} state="waiting" />The server can’t be reached, trying again…</div>`}</div>
    <main id="page" tabindex="-1"><${Page} page=${current.value} /></main>
    <${Toasts} />
  </div>`;
}

function toPage(event) {
  event.preventDefault();
  document.getElementById("page").focus();
}

const COUNTS = {
  models: () => models.value?.filter((one) => one.state === "loaded").length || "",
  activity: () => running.value.length || "",
};

function Navigation() {
  const [isMore, setMore] = useState(false);
  return html`<nav class=${`nav ${isMore ? "more" : ""}`} aria-label="Pages">
    <a class="brand" href=${to("chat")}><${Mark} />Roundhouse</a>
    <ul onClick=${() => setMore(false)}>${pages.value.map(({ name, title }) => html`<li key=${name}><a href=${to(name)} aria-current=${current.value.name === name ? "page" : null}>
      <${Icon} name=${name} />${title}<span class="count" aria-hidden="true">${COUNTS[name]?.()}</span></a></li>`)}</ul>
    <button class="nav-more" aria-expanded=${isMore} onClick=${() => setMore(!isMore)}><${Icon} name="more" />More</button>
    <div class="nav-foot">
      <div class="nav-state"><${Dot} state=${link.value} /><span class="cut grow" title=${me.value.server}>${host()}</span></div>
      <div class="row">
        <${ThemeSwitch} />
        ${key.value && html`<button class="button quiet small icon" title="Forget the key" aria-label="Forget the key" onClick=${forgetKey}><${Icon} name="key" size="14" /></button>`}
      </div>
    </div>
  </nav>`;
}

const host = () => `${location.host} · ${me.value.version}`;

export function ThemeSwitch() {
  const options = [
    ["auto", html`<${Icon} name="auto" size="14" />`, "As the system"],
    ["light", html`<${Icon} name="sun" size="14" />`, "Light"],
    ["dark", html`<${Icon} name="moon" size="14" />`, "Dark"],
  ];
  return html`<${Segments} label="Theme" options=${options} value=${theme.value} onChange=${(value) => { theme.value = value; }} />`;
}

function Page({ page }) {
  const [shown, setShown] = useState(null);
  useEffect(() => {
    let isWanted = true;
    document.title = `${page.title} · Roundhouse`;
    page.fetch().then((module) => { if (isWanted) setShown({ name: page.name, View: module.default }); });
    return () => { isWanted = false; };
  }, [page.name]);
  if (models.value === null) return html`<${Waiting} />`; // it would say that there are none, and what is typed would find nobody
  return shown?.name === page.name ? html`<${shown.View} />` : null;
}

function Waiting() {
  const [isSlow, setSlow] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setSlow(true), 1500);
    return () => clearTimeout(timer);
  }, []);
  return isSlow && html`<div class="row soft" role="status"><${Dot} state="waiting" />Waiting for the server…</div>`;
}

function Door() {
  const [value, setValue] = useState("");
  const [isRemembered, setRemembered] = useState(false);
  const submit = (event) => { event.preventDefault(); useKey(value.trim(), isRemembered); };
  return html`<main class="door"><form onSubmit=${submit}>
    <h1 class="brand"><${Mark} size="30" />Roundhouse</h1>
    <label class="field"><span class="label">API key of this server</span>
      <input class="input" type="password" autocomplete="off" autofocus value=${value} aria-invalid=${refused.value ? "true" : null}
        aria-describedby="door-hint" onInput=${(event) => setValue(event.target.value)} /></label>
    ${refused.value && html`<p class="bad" role="alert">${refused.value}</p>`}
    <label class="check"><input type="checkbox" checked=${isRemembered} onChange=${(event) => setRemembered(event.target.checked)} />Remember on this device</label>
    <button class="button primary" disabled=${!value.trim()}>Open</button>
    <p id="door-hint" class="hint">${isRemembered ? "It is stored in this browser until you choose “Forget the key”." : "It is kept until the last tab of this page is closed."}</p>
  </form></main>`;
}

render(html`<${App} />`, document.getElementById("app"));
connect();
