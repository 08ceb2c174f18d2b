// What all views share: HTML by htm, the API, the address, and words for times and numbers.
// Every text from outside becomes a text node. Nothing here makes HTML from a string, and Trusted Types forbid it.
import { h, render } from "preact";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import htm from "htm";

export const html = htm.bind(h);
export { render, useCallback, useEffect, useMemo, useRef, useState };

const BASE = new URL(".", document.baseURI);
export const basePath = BASE.pathname;
const watchers = new Set();
let me = null;

/** Who uses the page, or null before the login. */
export const user = () => me;
export const may = (scope) => me !== null && me.scopes.includes(scope);

/** Whose things an inbox holds: everybody's, for whoever may see them. */
export const everybodys = () => (me?.is_operator && may("admin") ? { all_tenants: true } : {});

export function setUser(next) {
  me = next;
  watchers.forEach((tell) => tell());
}

export function useUser() {
  const [, again] = useState(0);
  useEffect(() => {
    const tell = () => again((n) => n + 1);
    watchers.add(tell);
    return () => watchers.delete(tell);
  }, []);
  return me;
}

/** The API said no, or nobody answered (status 0). */
export class Refusal extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export function address(path, params = {}) {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(params))
    for (const one of [value].flat())
      if (one !== undefined && one !== null && one !== "") url.searchParams.append(name, one);
  return url;
}

/** Ask the API. Throws Refusal. A login that is over brings the login back. */
export async function ask(method, path, { params, body, key } = {}) {
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (key) headers.Authorization = `Bearer ${key}`;
  let answer;
  try {
    answer = await fetch(address(path, params), {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body), credentials: "same-origin", cache: "no-store",
    });
  } catch {
    throw new Refusal(0, "The server does not answer. The page tries again.", "unreachable");
  }
  if (answer.status === 204) return null;
  const document = await answer.json().catch(() => null);
  if (answer.ok) return document;
  const error = document?.error;
  if (answer.status === 401 && !key) setUser(null);
  // A browser that has dropped its cookie sends none, and what a page sends without one is refused as a stranger's.
  if (error?.code === "origin_not_allowed" && method !== "GET" && !key) await ask("GET", "v1/page/login").catch(() => null);
  throw new Refusal(answer.status, (typeof error === "string" ? error : error?.message) ?? `The server answered ${answer.status}.`, error?.code);
}

const SPARE_PX = 500;
const PAPER = matchMedia("print");
const AT_END_PX = 40;

/** A long list in a box that scrolls: which of its `count` rows are drawn, and how much room the others take. On paper all are.
 * A drawn row has `data-n`, its number. Rows may differ in height: one that was never drawn counts as the others do on the average. With
 * `follows` the box stays at its end for as long as nobody scrolls up. Rows of another `epoch` are other rows. */
export function useWindow(count, guessPx, { follows = false, epoch = 0 } = {}) {
  const box = useRef(null), kept = useRef(null), [, draw] = useState(0);
  useEffect(() => {
    const drawn = () => draw((n) => n + 1);
    PAPER.addEventListener("change", drawn);
    return () => PAPER.removeEventListener("change", drawn);
  }, []);
  if (kept.current?.epoch !== epoch) kept.current = { epoch, heights: [], sum: 0, known: 0, lead: 0, from: 0, to: 0, isAtEnd: kept.current?.isAtEnd ?? true };
  const all = kept.current;

  const seen = (spare) => {
    if (PAPER.matches) return { from: 0, to: count, above: 0, below: 0 };
    const top = (box.current?.scrollTop ?? 0) - all.lead, bottom = top + (box.current?.clientHeight || 800), usual = all.known ? all.sum / all.known : guessPx;
    let from = 0, to = 0, above = 0, y = 0;
    for (; to < count && y < bottom + spare; to++) {
      const px = all.heights[to] ?? usual;
      // The last one is always drawn: where rows begin is known from one that is.
      if (y + px < top - spare && to < count - 1) { from = to + 1; above = y + px; }
      y += px;
    }
    const drawn = y;
    for (let n = to; n < count; n++) y += all.heights[n] ?? usual;
    return { from: Math.min(from, count), to, above, below: y - drawn };
  };
  const range = seen(SPARE_PX);
  Object.assign(all, { from: range.from, to: range.to });

  useLayoutEffect(() => {
    const drawn = box.current?.querySelectorAll("[data-n]") ?? [];
    // What stands above the rows: a heading, or what was asked.
    if (drawn[0]) all.lead = drawn[0].getBoundingClientRect().top - box.current.getBoundingClientRect().top + box.current.scrollTop - range.above;
    for (const row of drawn) {
      const n = Number(row.dataset.n), px = row.getBoundingClientRect().height;
      if (all.heights[n] === undefined) all.known += 1;
      all.sum += px - (all.heights[n] ?? 0);
      all.heights[n] = px;
    }
    if (follows && all.isAtEnd && box.current) box.current.scrollTop = box.current.scrollHeight;
    const now = seen(0);
    if (now.from < all.from || now.to > all.to) draw((n) => n + 1);
  });
  const onScroll = () => {
    // A browser tells of scrolling once more when the box has gone already.
    if (!box.current) return;
    const { scrollTop, clientHeight, scrollHeight } = box.current, now = seen(0);
    all.isAtEnd = scrollTop + clientHeight >= scrollHeight - AT_END_PX;
    if (now.from < all.from || now.to > all.to) draw((n) => n + 1);
  };
  /** Bring a row into sight. Where it stands is a guess until it is drawn, so it is looked at again then. */
  const show = (n) => {
    if (n < 0 || !box.current) return;
    all.isAtEnd = false;
    const usual = all.known ? all.sum / all.known : guessPx;
    let y = all.lead;
    for (let each = 0; each < n; each++) y += all.heights[each] ?? usual;
    box.current.scrollTop = y - 40;
    requestAnimationFrame(() => requestAnimationFrame(() => {
      const row = box.current?.querySelector(`[data-n="${n}"]`);
      row?.scrollIntoView({ block: "nearest" });
      (row?.querySelector("summary") ?? row)?.focus();
    }));
  };
  return { ...range, box, onScroll, show };
}

/** The room of rows that are not drawn. */
export function Gap({ px, columns }) {
  if (px < 1) return null;
  return columns ? html`<tr class="gap" aria-hidden="true"><td colspan=${columns} style=${{ height: `${px}px` }}></td></tr>`
    : html`<li class="gap" aria-hidden="true" style=${{ height: `${px}px` }}></li>`;
}

/** A table of which only the rows in sight are drawn. `head` is its row of headings, `row` draws one; `onSeen` hears which are
 * drawn, `onEnd` that the last one is. */
export function LongTable({ rows, columns, label, head, row, onEnd, onSeen }) {
  const { from, to, above, below, box, onScroll } = useWindow(rows.length, 42);
  useEffect(() => {
    onSeen?.(from, to);
    if (to >= rows.length) onEnd?.();
  }, [from, to, rows.length]);
  return html`<div class="scroll tall" ref=${box} onScroll=${onScroll} tabindex="0"><table aria-rowcount=${rows.length + 1} aria-label=${label}><thead>${head}</thead><tbody><${Gap} px=${above} columns=${columns} />
      ${rows.slice(from, to).map((each, n) => row(each, from + n))}<${Gap} px=${below} columns=${columns} /></tbody></table></div>`;
}

/** `value`, followed at most once in `everyMs`: for what is asked again whenever it changes. */
export function useCalm(value, everyMs) {
  const latest = useRef(value), timer = useRef(0);
  const [calm, setCalm] = useState(value);
  latest.current = value;
  useEffect(() => {
    if (value !== calm) timer.current ||= setTimeout(() => { timer.current = 0; setCalm(latest.current); }, everyMs);
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  return calm;
}

// --- the address: #/runs?status=failed ---

export function readRoute() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(unescaped), query: new URLSearchParams(query) };
}

function unescaped(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

export function to(...parts) {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

export function setQuery(query) {
  const path = location.hash.split("?")[0] || "#/";
  const text = query.toString();
  history.replaceState(null, "", text ? `${path}?${text}` : path);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute() {
  const [route, setRoute] = useState(readRoute);
  useEffect(() => {
    const changed = () => setRoute(readRoute());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

// --- words ---

export function age(at, now = Date.now() / 1000) {
  if (at === null || at === undefined) return "–";
  const s = Math.abs(now - at);
  const text = s < 60 ? `${Math.floor(s)}s` : s < 3600 ? `${Math.floor(s / 60)}m` : s < 172800 ? `${Math.floor(s / 3600)}h` : `${Math.floor(s / 86400)}d`;
  return at > now + 1 ? `in ${text}` : text;
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.floor(seconds), of = (big, small, more, less) => `${Math.floor(whole / big)}${more} ${Math.floor((whole % big) / small)}${less}`;
  return seconds < 10 ? `${seconds.toFixed(1)}s` : seconds < 60 ? `${Math.round(seconds)}s` : seconds < 3600 ? of(60, 1, "m", "s") : seconds < 86400 ? of(3600, 60, "h", "m") : of(86400, 3600, "d", "h");
}

/** How long ago something was, and on demand when exactly. */
export function Ago({ at }) {
  return html`<time title=${when(at)}>${age(at)}</time>`;
}

export const bytes = (n) => (n < 1000 ? `${n} B` : n < 1e6 ? `${(n / 1000).toFixed(1)} kB` : `${(n / 1e6).toFixed(1)} MB`);

export const when = (at) => (at ? new Date(at * 1000).toLocaleString() : "–");
export const clock = (at) => (at ? new Date(at * 1000).toLocaleTimeString() : "");
/** The time of day, as short as it can be. */
export const hour = (at) => (at ? new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" }) : "");
export const number = (n) => (n === null || n === undefined ? "–" : n.toLocaleString());
/** A number of things in words; `many` where the word does more than take an s. */
export const counted = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;
export const dollars = (n) => (n === null || n === undefined ? "–" : `$${n.toFixed(n !== 0 && Math.abs(n) < 1 ? 4 : 2)}`);
/** What was spent, where calls without a known price may have cost more. */
export const costOf = (usd, hasUnknown) => (hasUnknown ? (usd ? `at least ${dollars(usd)}` : "no price known") : dollars(usd));
/** What a run cost. Where its price is not known, nothing is made up. */
export const money = ({ estimated_cost_usd: usd, usage }) => costOf(usd, (usd === null || usd === undefined) && usage?.total_tokens > 0);
export const short = (id) => (id && id.length > 16 ? `${visible(id.slice(0, 12))}…` : visible(id));

/** Characters that would change how the text around them is read, or that nobody sees (core/unseen.py). */
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad-\u00ad\u034f-\u034f\u061c-\u061c\u115f-\u1160\u17b4-\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800-\u2800\u3164-\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff-\ufeff\uffa0-\uffa0\ufff0-\ufffb\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/u;
/** What joins emoji, chooses how one looks, or belongs to a flag. */
const OF_EMOJI = /(?<=\p{Extended_Pictographic}[\ufe0e\ufe0f]?)\u200d(?=\p{Extended_Pictographic})|(?<=\p{Extended_Pictographic})[\ufe0e\ufe0f]|[\ufe0e\ufe0f](?=\u20e3)|(?<=\u{1f3f4}[\u{e0000}-\u{e007f}]{0,6})[\u{e0000}-\u{e007f}]/u;
const MARKS = new RegExp(`${OF_EMOJI.source}|(${UNSEEN.source})`, "gu");

export function visible(text) {
  return String(text ?? "").replaceAll("\r\n", "\n").replace(MARKS, (c, unseen) => (unseen === undefined ? c : `<U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}>`));
}

/** JSON that means the same and hides nothing, for somebody who changes it. */
export const visibleJson = (value) => JSON.stringify(value, null, 2).replace(new RegExp(UNSEEN.source, "gu"), (c) => (c === "\n" ? c : [...Array(c.length).keys()].map((at) => `\\u${c.charCodeAt(at).toString(16).padStart(4, "0")}`).join("")));

const BRIEF_MAX = 300;

/** The beginning of a text of anybody, for one line of a table. */
export function brief(text) {
  const all = String(text ?? "");
  return all.length > BRIEF_MAX ? `${visible(all.slice(0, BRIEF_MAX))}…` : visible(all);
}

const KINDS = {
  __proto__: null,
  completed: "good", alive: "good", "at work": "busy", succeeded: "good", delivered: "good", running: "busy", stopping: "busy", attempting: "busy",
  failed: "bad", expired: "bad", unknown: "bad", abandoned: "bad", deny: "bad", refused: "bad",
  once: "good", session: "good", always: "good", answered: "good", ok: "good", error: "bad",
  waiting_for_approval: "wait", waiting_for_input: "wait", waiting: "wait", approved: "good", ready: "good", usable: "good", enabled: "good", new: "wait", waiting_for_capacity: "wait", paused: "wait",
};

/** Whether a delivery is not tried again until somebody asks for it. */
export const isLost = (delivery) => ["failed", "abandoned"].includes(delivery.state);

/** A call in a word: one that was denied is no failure. */
export const wordOf = (call) => (call.denied ? "denied" : call.status);

export const kindOf = (status) => KINDS[status] ?? "";

export function State({ of }) {
  return html`<span class=${`state ${kindOf(of)}`}>${brief(of).replaceAll("_", " ")}</span>`;
}

const TEXT_MAX = 20000;

/** A text of anybody. A very long one is shown in part until it is asked for, but never where somebody consents to it. */
export function Text({ of, mono, whole = false }) {
  const [isWhole, setWhole] = useState(whole);
  const text = typeof of === "string" ? of : of === null || of === undefined ? "" : JSON.stringify(of, null, 2);
  const part = isWhole ? text : text.slice(0, TEXT_MAX);
  const more = text.length > part.length && html`<button onClick=${() => setWhole(true)}>Show all ${number(text.length)} characters</button>`;
  return mono ? html`<pre tabindex="0">${visible(part)}</pre>${more}` : html`<div class="text">${visible(part)}</div>${more}`;
}

/** An empty list, and what would fill it. */
export function Empty({ children, next }) {
  return html`<div class="empty"><div>${children}</div>${next && html`<div class="next">${next}</div>`}</div>`;
}

export function Notice({ error, children }) {
  if (!error && !children) return null;
  return html`<div class=${`notice ${error ? "" : "calm"}`} role="status">${error ? visible(error.message) : children}</div>`;
}

/** Let the browser keep a text as a file. */
export function save(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** A window before all others, until it is closed. Its content is a function of what closes it. */
export function Dialog({ title, close, children }) {
  const box = useRef(null);
  useEffect(() => box.current.showModal(), []);
  return html`<dialog ref=${box} aria-label=${title} onClose=${close}><h2>${title}</h2>${children(() => box.current.close())}</dialog>`;
}

export function Confirm({ title, yes, no, children }) {
  return html`<${Dialog} title=${title} close=${no}>${(dismiss) => html`${children}
    <div class="row"><button class="main" onClick=${yes}>Do it</button><button onClick=${dismiss}>Leave it</button></div>`}</${Dialog}>`;
}

/** A button that takes something away. It asks before it does: `title` is the question, and the children say what follows. */
export function Danger({ label, title, act, children }) {
  const [isAsked, setAsked] = useState(false);
  return html`<button type="button" class="danger" onClick=${() => setAsked(true)}>${label}</button>
    ${isAsked && html`<${Confirm} title=${title} yes=${() => { setAsked(false); act(); }} no=${() => setAsked(false)}>${children}</${Confirm}>`}`;
}

export function Older({ more }) {
  return more && html`<div class="pad"><button onClick=${more}>Show older ones</button></div>`;
}

/** Text that is typed stays as it is typed: nothing that comes from the server changes it. */
export function useField(initial = "") {
  const [value, setValue] = useState(initial);
  return { value, set: setValue, bind: { value, onInput: (event) => setValue(event.target.value) } };
}
