// The keyboard: going to views, moving through lists, answering questions, and a palette that finds things.
import { brief, Dialog, html, State, useCalm, useEffect, useRef, useState } from "./core.js";
import { find } from "./finding.js";

const LISTED = "tbody tr:not(.gap), .ask, .talk:not([role=status]) > li:not(.gap)";
const FIELDS = "main input:not([type=checkbox]), main select, main textarea";

/** The rows of the view that a person can be at: whatever is listed, and not what stands in a row or in a text. */
const rows = () => [...document.querySelectorAll("main .panel")].flatMap((panel) => [...panel.querySelectorAll(LISTED)])
  .filter((row) => row.offsetParent && !row.closest(".md") && (row.matches(".ask") || (!row.querySelector(".ask") && !row.parentElement.closest(LISTED))));

const at = () => document.activeElement?.closest(".ask") ?? document.activeElement?.closest(LISTED);

/** A row that leads somewhere has the focus where it leads; others have it themselves, and Tab goes on to their buttons. */
function enter(row) {
  if (!row) return document.querySelector("main").focus();
  const target = row.matches(".ask") ? row : row.querySelector("a[href]:not([target]), summary") ?? row;
  if (target === row) row.tabIndex = -1;
  target.focus();
  row.scrollIntoView({ block: "nearest" });
}

function move(by) {
  const all = rows(), here = all.indexOf(at());
  enter(here < 0 ? (by > 0 ? all[0] : all.at(-1)) : all[Math.max(0, Math.min(all.length - 1, here + by))]);
}

/** Presses the button that says yes, or no, to the question that has the focus. */
function answer(key) {
  const all = rows().filter((row) => row.matches(".ask")), row = at()?.matches(".ask") ? at() : null;
  const button = row?.querySelector(`button[data-key="${key}"]:not(:disabled)`);
  if (!button) return;
  const next = all[all.indexOf(row) + 1] ?? all[all.indexOf(row) - 1];
  button.click();
  enter(next);
}

const DEEDS = {
  __proto__: null, j: () => move(1), k: () => move(-1), a: () => answer("a"), d: () => answer("d"),
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
      if (event.key === "Escape" && event.target.matches(FIELDS) && !event.target.closest("dialog")) { event.preventDefault(); return enter(rows()[0]); }
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

const UNMOVED_PX = 4;

/** A list that changes may bring another button under a pointer that just clicked. Where that button would destroy something
 * or answer a question, its first press counts for nothing: nobody aimed at it. */
export function useSteadyPointer() {
  useEffect(() => {
    let last = null;
    const clicked = (event) => {
      const button = event.target.closest?.("button"), isPointer = event.detail > 0;
      const isUnmoved = last && isPointer && Math.hypot(event.clientX - last.x, event.clientY - last.y) < UNMOVED_PX;
      if (isUnmoved && button && button !== last.button && button.matches(".danger, .ask button")) { event.preventDefault(); event.stopPropagation(); }
      last = isPointer ? { button, x: event.clientX, y: event.clientY } : null;
    };
    addEventListener("click", clicked, true);
    return () => removeEventListener("click", clicked, true);
  }, []);
}

export function Help({ offered, close }) {
  return html`<${Dialog} title="Keys" close=${close}>${(dismiss) => html`<dl class="keys"><dt><kbd>p</kbd> or <kbd>Ctrl</kbd> <kbd>k</kbd></dt><dd>find a view, a run, a conversation or a job</dd><dt><kbd>j</kbd> <kbd>k</kbd></dt><dd>the next and the previous one of a list</dd><dt><kbd>Enter</kbd></dt><dd>open it</dd><dt><kbd>x</kbd></dt><dd>choose it</dd>
      <dt><kbd>a</kbd> <kbd>d</kbd></dt><dd>allow once, deny: the question that has the focus</dd><dt><kbd>/</kbd></dt><dd>the first filter of the view</dd><dt><kbd>Esc</kbd></dt><dd>from a field to the list</dd><dt><kbd>?</kbd></dt><dd>this list</dd>
      ${offered().map((view) => html`<dt><kbd>g</kbd> <kbd>${view.keys}</kbd></dt><dd>${view.title}</dd>`)}</dl>
    <p><button onClick=${dismiss}>Close</button></p>`}</${Dialog}>`;
}

/** Finds what is typed among views, deeds, conversations, runs and jobs. */
export function Palette({ offered, close }) {
  const [text, setText] = useState(""), [found, setFound] = useState([]), [chosen, choose] = useState(0);
  const words = useCalm(text.trim(), 200), box = useRef(null);
  useEffect(() => {
    let isOver = false;
    if (words.length < 2) return void setFound([]);
    find(words).then((all) => isOver || setFound(all));
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
    <ul id="palette-found" role="listbox" aria-label="Found">${all.slice(0, 30).map((one, n) => html`<li id=${`palette-${n}`} key=${`${one.kind} ${one.href} ${one.text}`} role="option" aria-selected=${n === here} onClick=${() => go(one)}>${brief(one.text)} <span class="soft">${one.kind}</span>${one.state && html` <${State} of=${one.state} />`}</li>`)}</ul>
    ${words.length > 1 && !all.length && html`<p class="soft" role="status">Nothing found.</p>`}</div>`}</${Dialog}>`;
}
