// The page: who is let in, the navigation, and which view the address asks for.
import { ask, basePath, brief, Empty, everybodys, html, may, Notice, render, setUser, useEffect, useField, useRef, useRoute, user, useState, useUser, visible } from "./core.js";
import { usePoll } from "./live.js";
import { Compare } from "./compare.js";
import { Inbox } from "./inbox.js";
import { Schedule } from "./jobs.js";
import { Help, Palette, useKeys, useSteadyPointer } from "./keys.js";
import { Now, Runs } from "./runs.js";
import { Run } from "./run.js";
import { Session, Sessions } from "./sessions.js";

/** A view of a file that is read when somebody opens it first: what everybody sees at once need not wait for it. */
function later(file, name) {
  return (props) => {
    const [view, setView] = useState(null);
    useEffect(() => { import(file).then((found) => setView({ of: found[name] }), () => setView({})); }, []);
    if (!view) return null;
    return view.of ? html`<${view.of} ...${props} />` : html`<${Notice} error=${new Error("The server does not answer. Load the page again.")} />`;
  };
}

const VIEWS = [
  { path: "", title: "Now", keys: "n", of: Now },
  { path: "inbox", title: "Inbox", keys: "i", of: Inbox },
  { path: "sessions", title: "Sessions", keys: "s", of: Sessions },
  { path: "runs", title: "Runs", keys: "r", of: Runs },
  { path: "schedule", title: "Schedule", keys: "j", of: Schedule, scope: "jobs" },
  { path: "batches", title: "Batches", keys: "b", of: later("./knowledge.js", "Batches"), scope: "runs:write" },
  { path: "replays", title: "Replays", keys: "y", of: later("./knowledge.js", "Replays") },
  { path: "memory", title: "Memory", keys: "o", of: later("./knowledge.js", "Memory"), scope: "memory", group: "Knows" },
  { path: "skills", title: "Skills", keys: "l", of: later("./knowledge.js", "Skills") },
  { path: "mcp", title: "MCP servers", keys: "c", of: later("./knowledge.js", "McpServers"), scope: "admin" },
  { path: "deliveries", title: "Deliveries", keys: "d", of: later("./operations.js", "Deliveries"), group: "Outside" },
  { path: "webhooks", title: "Webhooks", keys: "h", of: later("./knowledge.js", "Webhooks"), scope: "admin" },
  { path: "gateway", title: "Gateway", keys: "w", of: later("./gateway.js", "Gateway"), scope: "admin", operator: true },
  { path: "money", title: "Money", keys: "m", of: later("./money.js", "Money"), group: "Operate" },
  { path: "fleet", title: "Fleet", keys: "f", of: later("./operations.js", "Fleet"), scope: "ops:read", operator: true },
  { path: "tenants", title: "Tenants", keys: "t", of: later("./access.js", "Tenants"), scope: "admin", operator: true },
  { path: "access", title: "Access", keys: "k", of: later("./access.js", "Access"), scope: "admin" },
  { path: "settings", title: "Settings", keys: "e", of: later("./settings.js", "Settings"), scope: "admin", operator: true },
  { path: "audit", title: "Audit", keys: "a", of: later("./operations.js", "Audit"), scope: "admin" },
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
    if (fresh.length) {
      const words = `${fresh.length === 1 ? "A run asks" : `${fresh.length} runs ask`} for an answer: ${brief(fresh[0].tool)}.`;
      setSaid(words);
      // The tabs of a browser share the tag: it notifies once.
      if (globalThis.Notification?.permission === "granted" && document.hidden) new Notification("Hermes worker", { body: words, tag: "hermes-inbox" }).onclick = () => { focus(); location.hash = "#/inbox"; };
    }
    newest.current = Math.max(last, newest.current ?? 0);
  }, [data]);
  return { ...asked, count: data?.data.length ?? 0, said };
}

/** On a phone a table is cards: each cell is told by the heading of its column. */
function useLabels() {
  useEffect(() => {
    const narrow = matchMedia("(max-width: 46rem)");
    let frame = 0;
    const label = () => {
      frame = 0;
      for (const cell of document.querySelectorAll("main td")) {
        const head = cell.closest("table").tHead?.rows[0]?.cells[cell.cellIndex], text = head?.querySelector(".hidden") ? "" : head?.textContent ?? "";
        if (cell.dataset.label !== text) cell.dataset.label = text;
      }
    };
    const soon = () => { if (narrow.matches) frame ||= requestAnimationFrame(label); };
    const watcher = new MutationObserver(soon);
    watcher.observe(document.querySelector("main"), { childList: true, characterData: true, subtree: true });
    narrow.addEventListener("change", soon);
    soon();
    return () => { watcher.disconnect(); narrow.removeEventListener("change", soon); cancelAnimationFrame(frame); };
  }, []);
}

/** How many letters differ at least between two words. */
function distance(one, other) {
  let row = [...Array(other.length + 1).keys()];
  for (const [n, letter] of [...one].entries()) row = other.split("").reduce((next, each, at) => [...next, Math.min(next[at] + 1, row[at + 1] + 1, row[at] + (letter === each ? 0 : 1))], [n + 1]);
  return row.at(-1);
}

/** The address names no view, or one that the key may not see. */
function NoSuchView({ path, view }) {
  if (view) return html`<header><h1>${view.title}</h1></header><section class="panel"><${Empty} next=${html`<a href="#/">Go to Now</a>`}>Your key does not allow this view.</${Empty}></section>`;
  const far = (each) => Math.min(distance(path.toLowerCase(), each.path), distance(path.toLowerCase(), each.title.toLowerCase()));
  const [nearest] = offered().slice(1).sort((one, other) => far(one) - far(other));
  return html`<header><h1>No such page</h1></header><section class="panel"><${Empty} next=${html`<a href=${`#/${nearest.path}`}>Did you mean ${nearest.title}?</a> <a href="#/">Go to Now</a>`}>There is no page “${brief(path)}”.</${Empty}></section>`;
}

function Shell() {
  const route = useRoute();
  const [over, show] = useState(null), [isMore, setMore] = useState(false);
  const waiting = useWaiting();
  useKeys(offered, show);
  useSteadyPointer();
  useLabels();
  const [path, id, other] = route.parts, isCompared = path === "compare" && id && other;
  const view = VIEWS.find((each) => each.path === (isCompared ? "runs" : path ?? "")), title = view?.title ?? "No such page";
  const logOut = async () => {
    await ask("DELETE", "v1/page/login", { params: { path: basePath } }).catch(() => null);
    setUser(null);
  };
  // A bookmark keeps the filters of the address, and is called by them.
  const filters = [...route.query].map(([name, text]) => `${brief(name)} ${brief(text)}`).join(", ");
  useEffect(() => { document.title = `${waiting.count ? `(${waiting.count}) ` : ""}${title}${filters && `: ${filters}`} · Hermes worker`; navigator.setAppBadge?.(waiting.count).catch(() => null); });
  useEffect(() => setMore(false), [path, id]);
  const shown = !view || !offered().includes(view) ? html`<${NoSuchView} path=${path} view=${view} />` : isCompared ? html`<${Compare} key=${`${id} ${other}`} first=${id} second=${other} />` : id && view.path === "runs" ? html`<${Run} key=${id} id=${id} />`
    : id && view.path === "sessions" ? html`<${Session} key=${id} id=${id} query=${route.query} />`
    : html`<${view.of} query=${route.query} waiting=${waiting} />`;
  return html`<div class="shell">
    <nav class=${`side ${isMore ? "more" : ""}`} aria-label="Views">
      <a class="skip" href=${location.hash || "#/"} onClick=${(e) => { e.preventDefault(); document.querySelector("main").focus(); }}>To the content</a>
      <a class="brand" href="#/" aria-label="Hermes worker"><img src="web/icon.svg" alt="" /><span>Hermes worker</span></a>
      ${offered().map((each) => html`${each.group && html`<span class="group">${each.group}</span>`}<a class="item" href=${`#/${each.path}`} aria-current=${each === view ? "page" : undefined}>
        ${each.title}${each.path === "inbox" && waiting.count > 0 && html`<span class="count">${waiting.count}</span>`}</a>`)}
      <div class="who">${visible(user().tenant)} · ${visible(user().name)}<br />
        <button class="plain" onClick=${() => show("palette")}>Find <kbd>p</kbd></button><button class="plain" onClick=${() => show("help")}>Keys <kbd>?</kbd></button><button class="plain" onClick=${logOut}>Log out</button></div>
      <button class="unfold" aria-expanded=${isMore} onClick=${() => setMore(!isMore)}>${isMore ? "Less ▴" : "More ▾"}</button>
    </nav>
    <main tabindex="-1">${shown}</main>
    <div class="hidden" role="status" aria-live="polite">${waiting.said}</div>
    ${over === "help" && html`<${Help} offered=${offered} close=${() => show(null)} />`}${over === "palette" && html`<${Palette} offered=${offered} close=${() => show(null)} />`}
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
