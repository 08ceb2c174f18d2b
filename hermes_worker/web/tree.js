// The tree that a run is in, against time, and the calls of one run with their attempts.
import { ask, brief, clock, counted, html, LongTable, money, Notice, number, short, span, State, Text, to, useEffect, useRef, useState, visible, wordOf } from "./core.js";
import { CallTexts } from "./conversation.js";
import { Graph } from "./graph.js";
import { usePoll } from "./live.js";

/** Every run below the one that caused it, the first ones first. */
function inOrder(nodes) {
  const known = new Set(nodes.map((node) => node.run.run_id)), below = new Map();
  for (const node of nodes) {
    const parent = known.has(node.parent_run_id) ? node.parent_run_id : null;
    if (!below.has(parent)) below.set(parent, []);
    below.get(parent).push(node);
  }
  const ordered = [], open = [...(below.get(null) ?? [])].reverse().map((node) => [node, 0]);
  while (open.length) {
    const [node, level] = open.pop();
    ordered.push({ ...node, level });
    for (const child of (below.get(node.run.run_id) ?? []).reverse()) open.push([child, level + 1]);
  }
  return ordered;
}

function Bar({ run, first, width, now }) {
  const from = run.started_at ?? run.created_at, till = run.finished_at ?? now;
  const part = (seconds) => `${Math.min(100, Math.max(0, (100 * seconds) / width))}%`;
  return html`<div class="lane" title=${`${clock(from)}, ${span(till - from)}`}><i class=${run.status === "failed" ? "bad" : run.started_at ? "" : "wait"} style=${{ left: part(from - first), width: part(till - from) }}></i></div>`;
}

export const useTree = (id, isOver) => usePoll(() => ask("GET", `v1/runs/${id}/tree`), isOver ? 30000 : 3000, [id, isOver], { lists: ["runs"], leastMs: 3000 });

export function Tree({ id, data, error }) {
  if (error && !data) return html`<${Notice} error=${error} />`;
  if (!data || data.total < 2) return null;
  const nodes = inOrder(data.data), now = Date.now() / 1000;
  const first = nodes.reduce((least, node) => Math.min(least, node.run.created_at), Infinity);
  const width = nodes.reduce((most, node) => Math.max(most, (node.run.finished_at ?? now) - first), 0.001);
  return html`<section class="panel"><header><h2>Tree</h2><span class="soft">${counted(data.total, "run")} in ${span(width)}${data.total > nodes.length ? `, the first ${number(nodes.length)} are listed` : ""}</span></header>
    <${Graph} nodes=${nodes} id=${id} />
    <${LongTable} rows=${nodes} columns="5" label="The tree of this run" head=${html`<tr><th>Run</th><th>Status</th><th>When</th><th class="num">Tokens</th><th class="num">Cost</th></tr>`}
      row=${({ run, level, background, parent_call: call }, n) => html`<tr key=${run.run_id} data-n=${n} aria-rowindex=${n + 2}>
        <td><span style=${{ paddingLeft: `${Math.min(level, 12) * 1.1}rem` }}>${level > 0 && html`<span aria-hidden="true">└ </span><span class="hidden">level ${level} </span>`}${run.run_id === id ? html`<strong>${brief(run.title ?? "This run")}</strong>` : html`<a href=${to("runs", run.run_id)}>${brief(run.title ?? "A run without words")}</a>`}</span>
          <span class="soft"> <span class="mono">${short(run.run_id)}</span>${call ? ` call ${call}` : ""}${background ? " background" : ""}</span></td>
        <td><${State} of=${run.status} /></td><td class="wide"><${Bar} run=${run} first=${first} width=${width} now=${now} /></td>
        <td class="num">${number(run.usage?.total_tokens)}</td><td class="num">${money(run)}</td></tr>`} /></section>`;
}

/** A line that opens to the texts of a call. */
function OpeningCall({ id, call, tool, opened, children, ...more }) {
  const [isOpen, setOpen] = useState(opened.has(call));
  const toggled = (event) => { setOpen(event.target.open); if (!event.target.open) opened.delete(call); };
  return html`<details open=${isOpen} onToggle=${toggled}><summary ...${more}>${children}</summary>${isOpen && html`<${CallTexts} id=${id} call=${call} tool=${tool} opened=${opened} />`}</details>`;
}

export function Calls({ id, settled, isOver }) {
  const opened = useRef(new Map());
  const { data, error } = usePoll(async () => {
    const found = [];
    for (let page, after; found.length < 2000; after = found.at(-1).call) {
      page = await ask("GET", `v1/runs/${id}/calls`, { params: { after, limit: 500 } });
      found.push(...page.data);
      if (!page.has_more) break;
    }
    return found.reverse();
  }, isOver ? 30000 : 10000, [id, settled, isOver]);
  if (!data?.length) return html`<${Notice} error=${error} />`;
  return html`<section class="panel"><header><h2>Calls</h2><span class="soft">${number(data.length)}, the newest first</span></header>
    <${LongTable} rows=${data} columns="8" label="The calls of this run"
      head=${html`<tr><th class="num">Place</th><th>Tool</th><th>Status</th><th>Effect</th><th class="num">Attempts</th><th class="num">Takeovers</th><th class="num">Took</th><th>Worker</th></tr>`}
      row=${(call, n) => html`<tr key=${call.call} data-n=${n} aria-rowindex=${n + 2}><td class="num">${call.call}</td><td class="what"><${OpeningCall} id=${id} call=${call.call} tool=${call.tool} opened=${opened.current} class="mono">${brief(call.tool)} <span class="soft">${brief(call.about)}</span></${OpeningCall}></td><td><${State} of=${wordOf(call)} />${call.waits_for && html` <span class="soft">for ${visible(call.waits_for)}</span>`}</td>
        <td>${call.effect}</td><td class="num">${call.attempts}</td><td class="num">${call.takeovers}${call.deaths ? html` <span class="soft">(${call.deaths} died)</span>` : ""}</td>
        <td class="num">${call.claimed_at && call.settled_at ? span(call.settled_at - call.claimed_at) : "–"}</td><td class="mono">${brief(call.worker ?? "–")}</td></tr>`} /></section>`;
}

/** What a message of a prompt says: its text, and the calls that it asks for. */
function said(message) {
  const parts = [message.content].flat().map((part) => (typeof part === "string" ? part : part?.text ?? (part ? `[${part.type ?? "part"}]` : "")));
  const calls = (message.tool_calls ?? []).map((call) => `${call.function?.name}(${call.function?.arguments})`);
  return [...parts, ...calls].filter(Boolean).join("\n");
}

function PromptTexts({ id, count }) {
  const [reply, setReply] = useState(null);
  const [state, setState] = useState({});
  useEffect(() => {
    let isOver = false;
    ask("GET", `v1/runs/${id}/prompt`, { params: { reply } }).then((prompt) => isOver || setState({ prompt }), (error) => isOver || setState({ error }));
    return () => { isOver = true; };
  }, [id, reply, reply === null && count]);
  const { prompt, error } = state;
  if (!prompt) return html`<div class="pad"><${Notice} error=${error} /></div>`;
  const set = (event) => setReply(Math.min(prompt.replies + 1, Math.max(1, Number(event.target.value))) || null);
  return html`<div class="filters"><div><label for="prompt-reply">Before reply</label><input id="prompt-reply" type="number" min="1" max=${prompt.replies + 1} value=${prompt.reply} onChange=${set} /></div>
      <span class="soft">of ${number(prompt.replies)}${prompt.reply > prompt.replies ? ": the one that is due" : ""}, to ${brief(prompt.model)}</span></div><${Notice} error=${error} />
    <div class="pad"><details><summary>System prompt <span class="soft">${number(prompt.system.length)} characters</span></summary><${Text} of=${prompt.system} mono /></details>
      <details><summary>Tools <span class="soft">${number(prompt.tools.length)}</span></summary><${Text} of=${prompt.tools} mono /></details></div>
    <${LongTable} key=${prompt.reply} rows=${prompt.messages} columns="2" label="Messages of the prompt" head=${html`<tr><th>Role</th><th>What it says</th></tr>`}
      row=${(message, n) => html`<tr key=${n} data-n=${n} aria-rowindex=${n + 2}><td>${brief(message.role)}</td><td><${Text} of=${said(message)} /></td></tr>`} />`;
}

/** The prompt as the model saw it, read when somebody opens it. */
export function Prompt({ id, count }) {
  const [isOpen, setOpen] = useState(false);
  return html`<section class="panel"><details onToggle=${(event) => setOpen(event.target.open)}><summary class="pad"><h2>Prompt as the model saw it</h2></summary>
    ${isOpen && html`<${PromptTexts} id=${id} count=${count} />`}</details></section>`;
}
