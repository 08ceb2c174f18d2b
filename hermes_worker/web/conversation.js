// A conversation as people read one: who said what, and between it the calls of tools as cards, the questions where they were
// asked, and notes of what happened. Runs build theirs from events, sessions from messages; both are drawn here.
import { ask, brief, Gap, hour, html, may, Notice, number, span, State, Text, to, useEffect, useState, useWindow, visible, when } from "./core.js";
import { Code, differing, Markdown, Typed } from "./markdown.js";
import { Waiting } from "./inbox.js";

const KEPT_MAX = 20000;
const PASSING = ["tool.generating"];
const DENIES = ["person", "timeout"];

/** What happened in a run, made from its events in their order. Of very many the newest are kept. */
export class Story {
  constructor() {
    Object.assign(this, { items: [], rows: [], spans: [], running: new Map(), called: new Set(), places: new Map(), waits: new Map(), draft: "", thought: "", dropped: 0, gone: 0, settled: 0, free: null, firstAt: null, parked: null, iteration: undefined });
  }

  put(item) {
    this.items.push(item);
    return item;
  }

  note(event, text, kind = "note") {
    return this.put({ kind, at: event.timestamp, text, event: event.event });
  }

  spent(kind, from, to, label, more) {
    if (from !== null && from !== undefined && to >= from) this.spans.push({ kind, from, to, label, ...more });
  }

  take(event) {
    const at = event.timestamp;
    if (event.event === "message.delta") { this.firstAt ??= at ?? Date.now() / 1000; this.draft += event.delta; return; }
    if (event.event === "reasoning.available") { this.firstAt ??= at ?? Date.now() / 1000; this.thought += event.text; return; }
    if (event.event === "tool.progress") { const call = this.running.get(event.position ?? 0); if (call) call.progress = event.text; return; }
    if (PASSING.includes(event.event)) return;
    if (event.iteration !== undefined) this.iteration = event.iteration;
    this.rows.push(event);
    if (this.parked && !["run.waiting", "approval.request", "input.request"].includes(event.event)) {
      const { status, from } = this.parked;
      if (!ASKING.includes(status)) this.spent(status === "waiting_for_children" ? "children" : "parked", from, at, status.replaceAll("_", " "));
      this.parked = null;
    }
    const who = event.by ? ` by ${event.by}` : "";
    switch (event.event) {
      case "message.completed": {
        const item = this.put({ kind: "agent", at, step: event.iteration, text: event.text, thought: this.thought });
        // Where the first one began, the events do not say: its run does.
        this.spans.push({ kind: "model", from: this.free, to: at, label: `step ${event.iteration ?? ""}`, first: this.firstAt, item });
        Object.assign(this, { draft: "", thought: "", firstAt: null, free: at });
        break;
      }
      case "reply.discarded":
        this.draft = "";
        this.note(event, "The reply was discarded; another one follows.");
        break;
      case "tool.started": this.call(event, { state: "running", from: at, about: event.about }); break;
      case "tool.completed": {
        const isDenied = DENIES.includes(event.refused_by), isBad = event.error && !isDenied;
        const call = this.call(event, { to: at, took: event.duration, state: isDenied ? "denied" : event.refused_by ? "refused" : event.outcome ?? (event.error ? "failed" : "succeeded"), isBad, refused: event.refused_by, reason: event.reason, sandbox: event.sandbox, network: event.network });
        call.from ??= at - (event.duration ?? 0);
        this.spent("tool", call.from, at, event.tool, { item: call, isBad });
        this.running.delete(event.position ?? 0);
        this.called.add(this.iteration);
        this.settled += 1;
        this.free = at;
        break;
      }
      case "approval.request": case "input.request":
        this.waits.set(event.wait_id, this.put({ kind: "question", at, wait: event, isApproval: event.event === "approval.request" }));
        break;
      case "approval.responded": case "input.responded": {
        const item = this.waits.get(event.wait_id);
        if (item) {
          item.answer = event;
          this.spent("asked", item.at, at, `${event.by} ${event.choice ?? "answered"}`, { item });
        } else this.note(event, `${event.by} ${event.choice ? `chose ${event.choice}` : "answered"}.`);
        this.free = at;
        break;
      }
      case "run.waiting":
        this.parked = { status: event.status, from: at };
        if (!ASKING.includes(event.status)) this.note(event, `Waits: ${event.status.replace("waiting_for_", "for ").replaceAll("_", " ")}${event.reason ? ` (${event.reason})` : ""}${who}.`);
        break;
      case "run.resumed": this.free = at; this.note(event, `Goes on${who}.`); break;
      case "run.steered": this.put({ kind: "person", at, by: event.by, text: event.text, isSteer: true }); break;
      case "session.compress": this.note(event, `${number(event.rows)} older messages were replaced by a summary.`, "cut"); break;
      case "step.retried":
        this.spans.push({ kind: "retry", from: at, to: at, label: `attempt ${event.attempt} of ${event.step}` });
        this.free = at;
        this.note(event, `Lost its worker; ${event.step} is tried again (attempt ${event.attempt}).`);
        break;
      case "run.stopping": this.note(event, `Was asked to stop${who}.`); break;
      case "budget.exhausted": this.note(event, `Used up its ${event.dimension}: the next reply is the last.`); break;
      case "hook.failed": this.note(event, `The hook ${event.hook} failed: ${event.reason}`); break;
      case "run.completed": this.note(event, "completed", "end"); break;
      case "run.failed": this.note(event, `${event.status}: ${event.error}`, "end"); break;
      case "run.cancelled": this.note(event, `was stopped${who}`, "end"); break;
      default: this.note(event, event.event);
    }
    if (this.rows.length > KEPT_MAX) this.gone += this.rows.splice(0, KEPT_MAX / 2).length;
    if (this.items.length > KEPT_MAX) this.dropped += this.items.splice(0, KEPT_MAX / 2).length;
    if (this.spans.length > KEPT_MAX) this.spans.splice(0, KEPT_MAX / 2);
  }

  call(event, more) {
    const position = event.position ?? 0;
    let call = this.running.get(position);
    if (!call) {
      call = this.put({ kind: "call", at: event.timestamp, tool: event.tool, call: this.iteration === undefined ? null : `${this.iteration}.${position}` });
      this.running.set(position, call);
    }
    return Object.assign(call, more);
  }
}

const ASKING = ["waiting_for_approval", "waiting_for_input"];

// --- calls ---

function parsed(given) {
  if (typeof given !== "string") return given ?? {};
  try { const made = JSON.parse(given); return made && typeof made === "object" ? made : {}; } catch { return null; }
}

function diffOf(tool, of) {
  if (tool !== "patch" || !of) return null;
  if (typeof of.patch === "string") return of.patch;
  if (typeof of.old_string !== "string") return null;
  const lines = (sign, value) => String(value ?? "").split("\n").map((line) => sign + line).join("\n");
  return `*** Update File: ${of.path}\n${lines("-", of.old_string)}\n${lines("+", of.new_string)}`;
}

const LANGUAGES = { __proto__: null, js: "js", mjs: "js", ts: "ts", py: "py", sh: "sh", json: "json", css: "css", go: "go", rs: "rust", sql: "sql", yaml: "yaml", yml: "yaml", toml: "toml", java: "java", c: "c", h: "c", cpp: "cpp", rb: "rb" };

/** What a call was given: the difference, the program or the command itself where there is one. */
export function Given({ tool, given }) {
  const of = parsed(given), diff = of && diffOf(tool, of);
  if (diff) return html`<pre tabindex="0" class="diff">${differing(visible(diff))}</pre>`;
  if (of && tool === "write_file" && typeof of.content === "string") return html`<p class="soft mono">${visible(of.path)}</p><${Code} text=${visible(of.content.slice(0, 20000))} language=${LANGUAGES[String(of.path).split(".").pop()] ?? ""} />`;
  if (of && tool === "execute_code" && typeof of.code === "string") return html`<${Code} text=${visible(of.code)} language="py" />`;
  if (of && typeof of.command === "string" && Object.keys(of).length === 1) return html`<${Text} of=${of.command} mono whole />`;
  return html`<${Text} of=${given} mono />`;
}

/** What came of a call. What a command printed is shown as it printed it, and all else that the result says below. */
export function Gotten({ result }) {
  const of = typeof result === "string" && result[0] === "{" ? parsed(result) : null;
  if (!of || typeof of.output !== "string") return html`<${Text} of=${of ?? result} mono />`;
  const { output, exit_code: code, ...rest } = of, left = Object.entries(rest).filter(([, value]) => value !== null && value !== "" && value !== false);
  return html`${code !== undefined && html`<p class=${code ? "bad" : "soft"}>exit code ${visible(code)}</p>`}<${Text} of=${output || "(printed nothing)"} mono />
    ${left.length > 0 && html`<${Text} of=${Object.fromEntries(left)} mono />`}`;
}

/** The texts of one call, read when somebody opens it. They are kept in `opened`, for a row may leave the window and come back. */
export function CallTexts({ id, call, tool, opened }) {
  const [full, setFull] = useState(opened.get(call));
  const [error, setError] = useState(null);
  useEffect(() => {
    if (!full?.arguments) ask("GET", `v1/runs/${encodeURIComponent(id)}/calls/${call}`).then((found) => { opened.set(call, found); setFull(found); }, setError);
  }, []);
  return html`<${Notice} error=${error} />${full?.arguments !== undefined && html`<p class="soft">Arguments</p><${Given} tool=${tool} given=${full.arguments} />
    ${full.changed_arguments !== null && html`<p class="soft">It ran with these instead</p><${Given} tool=${tool} given=${full.changed_arguments} />`}
    ${full.result !== null && html`<p class="soft">Result</p><${Gotten} result=${full.result} />`}`}`;
}

const SIGNS = { __proto__: null, succeeded: "good", failed: "bad", unknown: "bad", refused: "bad", cancelled: "", running: "busy", waiting: "wait" };

/** A call as a card: its tool, its arguments in words, what became of it and how long that took. It opens to its texts. */
export function CallCard({ id, item, opened, goTo, children: below }) {
  const key = item.key ?? item.call, [isOpen, setOpen] = useState(opened.has(key));
  useEffect(() => { if (goTo?.item === item) setOpen(true); }, [goTo]);
  const toggled = (event) => { setOpen(event.target.open); if (!event.target.open) opened.delete(key); else if (item.result !== undefined) opened.set(key, {}); };
  const kids = below?.filter((node) => item.call && node.parent_call === item.call && node.parent_run_id === (item.run ?? id)) ?? [];
  return html`<details class=${`call ${SIGNS[item.state] ?? ""}`} open=${isOpen} onToggle=${toggled}>
    <summary><span class="mono tool">${brief(item.tool)}</span> ${item.state && html`<${State} of=${item.state} />`} <span class="words mono">${brief(item.about ?? "")}</span>
      ${item.took > 0 && html`<span class="soft took">${span(item.took)}</span>`}</summary>
    ${item.progress && item.state === "running" && html`<div class="soft mono one">${brief(item.progress)}</div>`}
    ${item.refused && html`<p class=${item.state === "denied" ? "soft" : "bad"}>${item.state === "denied" ? "Denied" : "Refused"}: ${visible(item.reason ?? item.refused)}</p>`}
    ${isOpen && html`<div class="inside">${item.given !== undefined ? html`<p class="soft">Arguments</p><${Given} tool=${item.tool} given=${item.given} />${item.result !== undefined && html`<p class="soft">Result</p><${Gotten} result=${item.result} />`}`
      : item.call && html`<${CallTexts} id=${id} call=${item.call} tool=${item.tool} opened=${opened} />`}
      ${item.sandbox && html`<p class="soft">Sandbox ${visible(item.sandbox)}, network ${visible(item.network ?? "–")}</p>`}</div>`}
    </details>${kids.length > 0 && html`<ul class="kids">${kids.map(({ run }) => html`<li key=${run.run_id}><${State} of=${run.status} /> <a href=${to("runs", run.run_id)}>${brief(run.title ?? run.run_id)}</a></li>`)}</ul>`}`;
}

function Question({ item, waits, again }) {
  const { wait, answer } = item, open = !answer && waits?.find((each) => each.id === wait.wait_id);
  if (open) return html`<${Waiting} wait=${open} again=${again} isHere />`;
  return html`<div class="asked"><div class="row"><strong>${item.isApproval ? "Asked whether it may run this" : "Asked"}</strong>${answer && html`<span>${visible(answer.by)} ${answer.choice ? html`chose <${State} of=${answer.choice} />` : "answered"}</span>`}
      ${answer && html`<span class="soft">after ${span(answer.timestamp - item.at)}</span>`}</div>
    ${wait.description && html`<p class="soft">${visible(wait.description)}</p>`}<${Text} of=${wait.command ?? wait.question} mono=${item.isApproval} />
    ${answer?.changed_arguments && html`<p class="soft">It ran with these instead</p><${Text} of=${answer.changed_arguments} mono />`}</div>`;
}

const FILE = /\n([^\n]{1,200}):\n```\n([^]*?)\n```(?=\n|$)/; // as the page sends one

/** What a person said, as they typed it: a text, the texts of files, and pictures. */
function Said({ of }) {
  return [of].flat().map((part) => {
    const text = typeof part === "string" ? part : part?.text;
    if (text === undefined) return html`<span class="tag">${/image/.test(part?.type) ? "picture" : brief(part?.type ?? "part")}</span>`;
    // The text before each file, the name of the file, what it holds, and so on.
    return text.split(FILE).map((piece, n, all) => (n % 3 === 0 ? piece && html`<${Typed} of=${piece} />` : n % 3 === 1 && html`<details><summary>${brief(piece)}</summary><${Code} text=${visible(all[n + 1].slice(0, 20000))} /></details>`));
  });
}

/** One thing of a conversation. `tools` are what the view adds to a reply, such as forking behind it. */
function Item({ item, n, id, opened, waits, again, kids, tools, goTo }) {
  const at = html`<span class="when"><time title=${when(item.at)}>${hour(item.at)}</time></span>`;
  switch (item.kind) {
    case "person": return html`<li data-n=${n} class="person">${at}<div class="said">${(item.by || item.isSteer) && html`<div class="soft">${item.isSteer ? "said while it worked" : ""}${item.by ? ` by ${visible(item.by)}` : ""}</div>`}<${Said} of=${item.text} />${item.note && html`<div class="soft">${item.note}</div>`}</div></li>`;
    case "agent": return html`<li data-n=${n} class="agent">${at}<div>
      ${item.thought && html`<details class="thought"><summary class="soft">Thought</summary><${Text} of=${item.thought} /></details>`}
      ${item.text ? html`<${Markdown} of=${item.text} />` : item.step !== undefined && html`<span class="soft">(calls tools)</span>`}${tools?.(item)}</div></li>`;
    case "call": return html`<li data-n=${n} class="called">${at}<div><${CallCard} id=${item.run ?? id} item=${item} opened=${opened} goTo=${goTo}>${kids}</${CallCard}></div></li>`;
    case "question": return html`<li data-n=${n} class="question">${at}<div><${Question} item=${item} waits=${waits} again=${again} /></div></li>`;
    case "cut": return html`<li data-n=${n} class="cut">${at}<div class="soft">${visible(item.text)}${item.more && html`<details><summary>The summary</summary><${Markdown} of=${item.more} /></details>`}</div></li>`;
    default: return html`<li data-n=${n} class=${item.kind === "end" ? "end" : ""}>${at}<span class="note">${visible(item.text)}</span></li>`;
  }
}

/** All of a conversation, of which the part in sight is drawn. It stays at its end while nobody scrolls up. */
export function Conversation({ id, items, dropped = 0, first, draft, thought, opened, waits, again, kids, tools, goTo, label = "What happened" }) {
  const { from, to: till, above, below, box, onScroll, show } = useWindow(items.length, 44, { follows: true, epoch: dropped });
  useEffect(() => { if (goTo) show(items.indexOf(goTo.item)); }, [goTo]);
  return html`<div class="scroll tall" ref=${box} onScroll=${onScroll} tabindex="0"><ol class="talk story" aria-label=${label} data-count=${items.length}>
      ${dropped === 0 && first && html`<li class="person"><span class="when">asked</span><div class="said"><${Said} of=${first} /></div></li>`}
      <${Gap} px=${above} />${items.slice(from, till).map((item, n) => html`<${Item} key=${dropped + from + n} item=${item} n=${from + n} id=${id} opened=${opened} waits=${waits} again=${again} kids=${kids} tools=${tools} goTo=${goTo} />`)}<${Gap} px=${below} />
      ${(draft || thought) && html`<li class="agent"><span class="when">writes</span><div>${thought && html`<div class="soft thought">${visible(thought.slice(-400))}</div>`}${draft && html`<${Markdown} of=${draft} />`}</div></li>`}</ol></div>`;
}
