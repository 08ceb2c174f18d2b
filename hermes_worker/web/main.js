// The page: who is let in, the navigation, and which view the address asks for.
import { ask, basePath, brief, Dialog, everybodys, html, may, Notice, render, setUser, useEffect, useField, useRef, useRoute, user, useState, useUser, visible } from "./core.js";
import { usePoll } from "./live.js";
import { Deliveries, Fleet, Schedule, Audit } from "./operations.js";
import { Access } from "./access.js";
import { Gateway } from "./gateway.js";
import { Inbox } from "./inbox.js";
import { Money } from "./money.js";
import { Now, Runs } from "./runs.js";
import { Run } from "./run.js";
import { Session, Sessions } from "./sessions.js";
import { Settings } from "./settings.js";

const VIEWS = [
  { path: "", title: "Now", keys: "n", of: Now },
  { path: "runs", title: "Runs", keys: "r", of: Runs },
  { path: "inbox", title: "Inbox", keys: "i", of: Inbox },
  { path: "sessions", title: "Sessions", keys: "s", of: Sessions },
  { path: "schedule", title: "Schedule", keys: "j", of: Schedule, scope: "jobs" },
  { path: "deliveries", title: "Deliveries", keys: "d", of: Deliveries },
  { path: "money", title: "Money", keys: "m", of: Money },
  { path: "fleet", title: "Fleet", keys: "f", of: Fleet, scope: "ops:read", operator: true },
  { path: "gateway", title: "Gateway", keys: "w", of: Gateway, scope: "admin", operator: true },
  { path: "settings", title: "Settings", keys: "e", of: Settings, scope: "admin", operator: true },
  { path: "access", title: "Access", keys: "k", of: Access, scope: "admin" },
  { path: "audit", title: "Audit", keys: "a", of: Audit, scope: "admin" },
];
const offered = () => VIEWS.filter((view) => (!view.scope || may(view.scope)) && (!view.operator || user().is_operator));

function Login() {
  const key = useField();
  const [error, setError] = useState(null);
  const send = async (event) => {
    event.preventDefault();
    try {
      setUser(await ask("PUT", "v1/page/login", { key: key.value.trim(), body: { path: basePath } }));
    } catch (refusal) {
      setError(refusal);
    }
  };
  return html`<main class="login"><section class="panel"><form onSubmit=${send}>
    <h1>Hermes worker</h1>
    <p class="soft">Log in with an API key. The browser keeps a cookie for twelve hours, and never the key.</p>
    <${Notice} error=${error} />
    <label for="key">API key</label>
    <input id="key" type="password" autocomplete="off" spellcheck="false" required autofocus ...${key.bind} />
    <button class="main" type="submit">Log in</button>
    <p class="soft">The key of the installation is in <span class="mono">api.key</span> of the server's home directory;
      <span class="mono"> hermes-worker tenants keys create</span> makes others.</p>
  </form></section></main>`;
}

function Help({ close }) {
  return html`<${Dialog} title="Keys" close=${close}>${(dismiss) => html`<dl>${offered().map((view) => html`<dt><kbd>g</kbd> <kbd>${view.keys}</kbd></dt><dd>${view.title}</dd>`)}
      <dt><kbd>/</kbd></dt><dd>the first filter of the view</dd><dt><kbd>?</kbd></dt><dd>this list</dd></dl>
    <p><button onClick=${dismiss}>Close</button></p>`}</${Dialog}>`;
}

function useKeys(setHelp) {
  useEffect(() => {
    let isGoing = false;
    const pressed = (event) => {
      if (event.target.closest("input, textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
      const view = isGoing && offered().find((each) => each.keys === event.key);
      isGoing = event.key === "g" && !isGoing;
      if (view) location.hash = `#/${view.path}`;
      else if (event.key === "?") setHelp(true);
      else if (event.key === "/") {
        event.preventDefault();
        document.querySelector(".filters input, .filters select")?.focus();
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

/** The questions that wait. A new one is said to whoever listens. */
function useWaiting() {
  const asked = usePoll(() => ask("GET", "v1/approvals", { params: { limit: 100, ...everybodys() } }), 600, [], { lists: ["approvals"], sharedAs: "questions" });
  const { data } = asked;
  const [said, setSaid] = useState("");
  const newest = useRef(null);
  useEffect(() => {
    if (!data) return;
    const last = Math.max(0, ...data.data.map((wait) => wait.id));
    const fresh = data.data.filter((wait) => newest.current !== null && wait.id > newest.current);
    if (fresh.length) setSaid(`${fresh.length === 1 ? "A run asks" : `${fresh.length} runs ask`} for an answer: ${brief(fresh[0].tool)}.`);
    newest.current = Math.max(last, newest.current ?? 0);
  }, [data]);
  return { ...asked, count: data?.data.length ?? 0, said };
}

function Shell() {
  const route = useRoute();
  const [help, setHelp] = useState(false);
  const waiting = useWaiting();
  useKeys(setHelp);
  const view = VIEWS.find((each) => each.path === (route.parts[0] ?? "")) ?? VIEWS[0];
  const id = route.parts[1];
  const logOut = async () => {
    await ask("DELETE", "v1/page/login", { params: { path: basePath } }).catch(() => null);
    setUser(null);
  };
  // A bookmark keeps the filters of the address, and is called by them.
  const filters = [...route.query].map(([name, text]) => `${brief(name)} ${brief(text)}`).join(", ");
  useEffect(() => { document.title = `${waiting.count ? `(${waiting.count}) ` : ""}${view.title}${filters && `: ${filters}`} · Hermes worker`; });
  const shown = id && view.path === "runs" ? html`<${Run} key=${id} id=${id} />`
    : id && view.path === "sessions" ? html`<${Session} key=${id} id=${id} />`
    : html`<${view.of} query=${route.query} waiting=${waiting} />`;
  return html`<div class="shell">
    <a class="skip" href=${location.hash || "#/"} onClick=${(e) => { e.preventDefault(); document.querySelector("main").focus(); }}>To the content</a>
    <nav class="side" aria-label="Views">
      <a class="brand" href="#/"><img src="web/icon.svg" alt="" /><span>Hermes worker</span></a>
      ${offered().map((each) => html`<a class="item" href=${`#/${each.path}`} aria-current=${each === view ? "page" : undefined}>
        ${each.title}${each.path === "inbox" && waiting.count > 0 && html`<span class="count">${waiting.count}</span>`}</a>`)}
      <div class="who">${visible(user().tenant)} · ${visible(user().name)}<br />
        <button class="plain" onClick=${() => setHelp(true)}>Keys <kbd>?</kbd></button><button class="plain" onClick=${logOut}>Log out</button></div>
    </nav>
    <main tabindex="-1">${shown}</main>
    <div class="hidden" role="status" aria-live="polite">${waiting.said}</div>
    ${help && html`<${Help} close=${() => setHelp(false)} />`}
  </div>`;
}

function App() {
  const [isAsked, setAsked] = useState(false);
  const known = useUser();
  useEffect(() => {
    ask("GET", "v1/page/login").then(setUser, () => null).finally(() => setAsked(true));
  }, []);
  if (!isAsked) return null;
  return known ? html`<${Shell} />` : html`<${Login} />`;
}

render(html`<${App} />`, document.body);
