// The keyboard: going to views, moving through lists, answering questions, and a palette that finds things.
import { ask, brief, Dialog, html, State, to, useCalm, useEffect, useRef, useState } from "./core.js";

const LISTED = "tbody tr:not(.gap), .ask, .talk > li";
const TARGETS = "a[href], summary, button, input";

/** The rows of the view that a person can be at: questions, and whatever leads somewhere. */
const rows = () => [...document.querySelectorAll("main .panel")].flatMap((panel) => [...panel.querySelectorAll(LISTED)])
  .filter((row) => row.offsetParent && (row.matches(".ask") || (row.querySelector("a[href], summary") && !row.querySelector(".ask") && !row.parentElement.closest(LISTED))));

const at = () => document.activeElement?.closest(".ask") ?? document.activeElement?.closest(LISTED);

function enter(row) {
  const target = row?.matches(".ask") ? row : row?.querySelector("a[href], summary") ?? row?.querySelector(TARGETS);
  target?.focus();
  row?.scrollIntoView({ block: "nearest" });
}

function move(by) {
  const all = rows(), here = all.indexOf(at());
  enter(here < 0 ? (by > 0 ? all[0] : all.at(-1)) : all[Math.max(0, Math.min(all.length - 1, here + by))]);
}

/** Presses a button of the question that has the focus, or of the only one. */
function answer(label) {
  const all = rows().filter((row) => row.matches(".ask")), row = at()?.matches(".ask") ? at() : all.length === 1 ? all[0] : null;
  const button = row && [...row.querySelectorAll("button")].find((each) => each.textContent === label && !each.disabled);
  if (!button) return;
  const next = all[all.indexOf(row) + 1] ?? all[all.indexOf(row) - 1];
  button.click();
  enter(next);
}

const DEEDS = {
  __proto__: null, j: () => move(1), k: () => move(-1), a: () => answer("Allow once"), d: () => answer("Deny"),
  x: () => at()?.querySelector("input[type=checkbox]")?.click(),
  "/": () => { const fold = document.querySelector("main .folded"); if (fold) fold.open = true; document.querySelector("main .filters input, main .filters select")?.focus(); },
};

/** `g` and a letter lead to a view; the other keys act where the focus is. */
export function useKeys(offered, show) {
  useEffect(() => {
    let isGoing = false;
    const pressed = (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        return show("palette");
      }
      if (event.target.closest("input:not([type=checkbox]), textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
      const view = isGoing && offered().find((each) => each.keys === event.key);
      const wasGoing = isGoing;
      isGoing = event.key === "g" && !isGoing;
      if (view) location.hash = `#/${view.path}`;
      else if (event.key === "?") show("help");
      else if (event.key === "p" && !wasGoing) { event.preventDefault(); show("palette"); }
      else if (!wasGoing && DEEDS[event.key]) { event.preventDefault(); DEEDS[event.key](); }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

export function Help({ offered, close }) {
  return html`<${Dialog} title="Keys" close=${close}>${(dismiss) => html`<dl class="keys"><dt><kbd>p</kbd> or <kbd>Ctrl</kbd> <kbd>k</kbd></dt><dd>find a view, a run or a conversation</dd><dt><kbd>j</kbd> <kbd>k</kbd></dt><dd>the next and the last one of a list</dd><dt><kbd>Enter</kbd></dt><dd>open it</dd><dt><kbd>x</kbd></dt><dd>choose it</dd>
      <dt><kbd>a</kbd> <kbd>d</kbd></dt><dd>allow once, deny: the question that has the focus</dd><dt><kbd>/</kbd></dt><dd>the first filter of the view</dd><dt><kbd>?</kbd></dt><dd>this list</dd>
      ${offered().map((view) => html`<dt><kbd>g</kbd> <kbd>${view.keys}</kbd></dt><dd>${view.title}</dd>`)}</dl>
    <p><button onClick=${dismiss}>Close</button></p>`}</${Dialog}>`;
}

const FOUND_MAX = 8;

/** Finds what is typed among views, deeds, conversations and runs. */
export function Palette({ offered, close }) {
  const [text, setText] = useState(""), [found, setFound] = useState([]), [chosen, choose] = useState(0);
  const words = useCalm(text.trim(), 200), box = useRef(null);
  useEffect(() => {
    let isOver = false;
    if (words.length < 2) return void setFound([]);
    const none = () => ({ data: [] });
    Promise.all([ask("GET", "v1/runs", { params: { text: words, limit: FOUND_MAX, output_chars: 0 } }).catch(none), ask("GET", "api/sessions", { params: { limit: 100 } }).catch(none), /^run_\w+/.test(words) ? ask("GET", `v1/runs/${encodeURIComponent(words)}`).catch(() => null) : null]).then(([runs, sessions, run]) => isOver || setFound([
      ...(run ? [run] : []).concat(runs.data).map((each) => ({ text: each.title ?? each.run_id, kind: "run", state: each.status, href: to("runs", each.run_id) })),
      ...sessions.data.filter((each) => `${each.title ?? ""} ${each.preview ?? ""}`.toLowerCase().includes(words.toLowerCase())).slice(0, FOUND_MAX).map((each) => ({ text: each.title || each.preview || each.id, kind: "conversation", href: to("sessions", each.id) }))]));
    return () => { isOver = true; };
  }, [words]);
  const fits = (each) => each.text.toLowerCase().includes(text.trim().toLowerCase());
  const all = [...offered().map((view) => ({ text: view.title, kind: "view", href: `#/${view.path}` })), { text: "Ask an agent something", kind: "do", href: "#/sessions", focus: "#say" }, ...(offered().some((view) => view.path === "schedule") ? [{ text: "New job", kind: "do", href: "#/schedule?edit=new" }] : [])].filter(fits).concat(found);
  const here = Math.min(chosen, all.length - 1);
  const go = (one) => {
    if (!one) return;
    box.current.closest("dialog").close();
    location.hash = one.href;
    if (one.focus) setTimeout(() => document.querySelector(one.focus)?.focus(), 100);
  };
  const pressed = (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); choose((here + (event.key === "ArrowDown" ? 1 : all.length - 1)) % Math.max(1, all.length)); }
    if (event.key === "Enter") { event.preventDefault(); go(all[here]); }
  };
  return html`<${Dialog} title="Find" close=${close}>${() => html`<div ref=${box} class="palette"><input role="combobox" aria-expanded="true" aria-controls="palette-found" aria-activedescendant=${all.length ? `palette-${here}` : undefined} aria-label="What to find" autofocus autocomplete="off" spellcheck="false" value=${text} onInput=${(event) => { setText(event.target.value); choose(0); }} onKeyDown=${pressed} />
    <ul id="palette-found" role="listbox" aria-label="Found">${all.slice(0, 30).map((one, n) => html`<li id=${`palette-${n}`} key=${`${one.kind} ${one.href} ${one.text}`} role="option" aria-selected=${n === here} onClick=${() => go(one)}>${brief(one.text)} <span class="soft">${one.kind}</span>${one.state && html` <${State} of=${one.state} />`}</li>`)}</ul></div>`}</${Dialog}>`;
}
