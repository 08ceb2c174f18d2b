// The same task twice: forking a run behind one of its steps, and two runs side by side.
import { ask, brief, Dialog, html, may, money, Notice, number, span, State, to, useEffect, useField, useRef, useState, visible } from "./core.js";
import { usePoll } from "./live.js";
import { find } from "./finding.js";
import { Conversation, Given, Gotten } from "./conversation.js";
import { Markdown } from "./markdown.js";
import { useStory } from "./run.js";
import { textOf, titleOf, useOrigin } from "./sessions.js";

const WAYS = [["recorded", "answer calls as they were answered (an evaluation)"], ["live", "run the tools again (production)"], ["deny", "refuse calls with effects (an evaluation)"], ["offline", "refuse all that is not recorded (an evaluation)"]];

/** Asks how a run is to go on from a step, and begins it. */
export function Forking({ run, at, close }) {
  const model = useField(run.model), cost = useField(), prompt = useField();
  const [tools, setTools] = useState("recorded"), [error, setError] = useState(null);
  const send = async (event) => {
    event.preventDefault();
    const body = { at, tools };
    if (model.value.trim() && model.value.trim() !== run.model) body.model = model.value.trim();
    if (prompt.value.trim()) body.prompt = prompt.value;
    if (Number(cost.value) > 0) body.max_cost_usd = Number(cost.value);
    try {
      const made = await ask("POST", `v1/runs/${run.run_id}/fork`, { body });
      location.hash = to("compare", run.run_id, made.run_id);
    } catch (refusal) { setError(refusal); }
  };
  return html`<${Dialog} title=${at ? `Fork behind step ${at}` : "Fork from the beginning"} close=${close}>${(dismiss) => html`<form onSubmit=${send}><${Notice} error=${error} />
    <p>A new run begins with what stands up to there, in a conversation of its own. This one does not change.</p>
    <label for="fork-model">Model</label><input id="fork-model" class="whole" required ...${model.bind} />
    <label for="fork-tools">Calls of tools</label><select id="fork-tools" class="whole" value=${tools} onChange=${(event) => setTools(event.target.value)}>${WAYS.map(([word, text]) => html`<option value=${word}>${text}</option>`)}</select>
    <label for="fork-cost">At most ($)</label><input id="fork-cost" class="whole" type="number" min="0" step="any" ...${cost.bind} />
    <details><summary class="soft">Another system prompt</summary><textarea aria-label="The whole system prompt" ...${prompt.bind}></textarea></details>
    <div class="row"><button class="main">Fork</button><button type="button" onClick=${dismiss}>Leave it</button></div></form>`}</${Dialog}>`;
}

function Side({ id, mark, story }) {
  const opened = useRef(new Map());
  const { data: run, error } = usePoll(() => ask("GET", `v1/runs/${encodeURIComponent(id)}`), 2000, [id], { lists: ["runs"], leastMs: 1000 });
  const origin = useOrigin(run?.session_id);
  const name = run?.title ?? (origin ? `Fork of ${titleOf(origin)}` : id);
  useEffect(() => { if (run) mark({ ...run, title: name }); }, [run, name]);
  return html`<section class="panel"><header><h2><a href=${to("runs", id)}>${brief(name)}</a></h2>${run && html`<${State} of=${run.status} />`}${origin && run.title && html`<span class="soft">from <a href=${to("sessions", origin.id)}>${titleOf(origin)}</a></span>`}</header><${Notice} error=${error} />
    <${Conversation} id=${id} items=${story.items} dropped=${story.dropped} draft=${story.draft} opened=${opened.current} label=${`What happened in ${id}`} /></section>`;
}

// --- what differs ---

const inOrder = (value) => (value && typeof value === "object" && !Array.isArray(value) ? Object.fromEntries(Object.keys(value).sort().map((key) => [key, value[key]])) : value);

/** Arguments without what does not count: the order of their keys, and white space. */
function meant(given) {
  try { return JSON.stringify(JSON.parse(given), (_, value) => inOrder(value)); } catch { return given; }
}

/** What was said and called in a transcript, reply by reply, each call with its outcome. */
export function stepsOf(messages) {
  const steps = [], open = new Map();
  for (const message of messages) {
    if (message.role === "assistant") {
      const calls = (message.tool_calls ?? []).map((call) => ({ id: call.id, tool: call.function?.name ?? "", given: call.function?.arguments ?? "", result: null }));
      for (const call of calls) open.set(call.id, call);
      steps.push({ text: textOf(message.content), calls });
    } else if (message.role === "tool" && open.has(message.tool_call_id)) open.get(message.tool_call_id).result = textOf(message.content);
  }
  return steps;
}

/** In what two steps differ: their words, and of each call its tool, arguments and output. */
export function difference(one, other) {
  const count = Math.max(one?.calls.length ?? 0, other?.calls.length ?? 0);
  const calls = Array.from({ length: count }, (_, n) => {
    const [a, b] = [one?.calls[n], other?.calls[n]];
    return { given: a?.tool !== b?.tool || meant(a?.given) !== meant(b?.given), result: (a?.result ?? null) !== (b?.result ?? null) };
  });
  const words = one?.text !== other?.text;
  return { words, calls, isAny: words || !one !== !other || calls.some((call) => call.given || call.result) };
}

/** The transcripts of two runs as steps: as many of the last replies as the server counts for each, in a fork with those of its
 * original up to its point. */
async function readSteps(first, second) {
  const place = (id) => `v1/runs/${encodeURIComponent(id)}`;
  const [told, ...both] = await Promise.all([ask("GET", `${place(first)}/comparison`, { params: { with: second } }), ...[first, second].map((id) => ask("GET", `${place(id)}/result`))]);
  return both.map(({ messages }, n) => { const count = n ? told.other_steps : told.steps; return count ? stepsOf(messages).slice(-count) : []; });
}

function Half({ step, by, side }) {
  if (!step) return html`<div class="soft">Does nothing more.</div>`;
  return html`<div>${by.words ? (step.text ? html`<${Markdown} of=${step.text} />` : html`<p class="soft">Says nothing.</p>`) : step.text && html`<p class="soft">Says the same.</p>`}
    ${step.calls.map((call, n) => html`<details class="call" open=${by.calls[n].given || by.calls[n].result}><summary><span class="mono tool">${brief(call.tool)}</span>${by.calls[n].given && html`<span class="tag bad">other arguments</span>`}${by.calls[n].result && html`<span class="tag bad">other output</span>`}${!by.calls[n].given && !by.calls[n].result && html`<span class="soft">alike</span>`}</summary>
      <div class="inside" aria-label=${side}><p class="soft">Arguments</p><${Given} tool=${call.tool} given=${call.given} />${call.result !== null && html`<p class="soft">Output</p><${Gotten} result=${call.result} />`}</div></details>`)}</div>`;
}

const SHOWN_MAX = 20; // steps that differ

function Differences({ first, second, names }) {
  const { data, error } = usePoll(() => readSteps(first, second), 8000, [first, second], { lists: ["runs"], leastMs: 4000 });
  const [most, setMost] = useState(SHOWN_MAX);
  if (!data) return html`<${Notice} error=${error} />`;
  const steps = Array.from({ length: Math.max(...data.map((side) => side.length)) }, (_, n) => ({ n, by: difference(data[0][n], data[1][n]) }));
  const differing = steps.filter(({ by }) => by.isAny);
  return html`<section class="panel" aria-label="What differs"><header><h2>What differs</h2><span class="soft">${number(steps.length - differing.length)} of ${number(steps.length)} steps are alike</span></header><${Notice} error=${error} />
    ${differing.slice(0, most).map(({ n, by }) => html`<div key=${n} class="pad step"><h3>Step ${n + 1}</h3><div class="halves">${data.map((side, at) => html`<${Half} step=${side[n]} by=${by} side=${names[at]} />`)}</div></div>`)}
    ${differing.length > most && html`<div class="pad"><button onClick=${() => setMost(most + SHOWN_MAX)}>Show more steps</button></div>`}</section>`;
}

export function Compare({ first, second }) {
  const [runs, setRuns] = useState({});
  const left = useStory(first), right = useStory(second);
  const { data: parts, error } = usePoll(() => ask("GET", `v1/runs/${encodeURIComponent(first)}/comparison`, { params: { with: second } }), 4000, [first, second], { lists: ["runs"], leastMs: 2000 });
  const mark = (id) => (run) => setRuns((last) => ({ ...last, [id]: run }));
  const a = runs[first], b = runs[second];
  const line = (name, of) => html`<tr><th scope="row">${name}</th><td>${a ? of(a) : "–"}</td><td>${b ? of(b) : "–"}</td></tr>`;
  return html`<header><h1>Compare</h1></header><${Notice} error=${error} />
    <section class="panel"><div class="scroll" tabindex="0"><table class="pair" aria-label="Two runs compared"><thead><tr><th><span class="hidden">What</span></th><th>${brief(a?.title ?? first)}</th><th>${brief(b?.title ?? second)}</th></tr></thead><tbody>
      ${line("Status", (run) => html`<${State} of=${run.status} />`)}${line("Model", (run) => html`<span class="mono">${brief(run.model)}</span>`)}${line("Steps", (run) => number(run === a ? parts?.steps : parts?.other_steps))}
      ${line("Took", (run) => span(run.started_at ? (run.finished_at ?? Date.now() / 1000) - run.started_at : null))}${line("Tokens", (run) => number(run.usage?.total_tokens))}${line("Cost", money)}
      <tr><th scope="row">First difference</th>${parts?.differs_at ? [parts.does, parts.other_does].map((text) => html`<td>${visible(text ?? "does nothing more")}</td>`) : html`<td colspan="2">${parts ? "No step differs." : "Loading …"}</td>`}</tr></tbody></table></div></section>
    <${Differences} first=${first} second=${second} names=${[a?.title ?? first, b?.title ?? second]} />
    <div class="halves"><${Side} id=${first} story=${left} mark=${mark(first)} /><${Side} id=${second} story=${right} mark=${mark(second)} /></div>`;
}

/** A run that is named, by its id or the words that it is called by, beside another one. */
export function Choosing({ id }) {
  const other = useField(), [error, setError] = useState(null);
  if (!may("runs:read")) return null;
  const send = async (event) => {
    event.preventDefault();
    const found = (await find(other.value)).find((one) => one.kind === "run" && one.id !== id);
    if (found) location.hash = to("compare", id, found.id);
    else setError(new Error("No other run fits."));
  };
  return html`<form class="row" onSubmit=${send}><input class="grow" aria-label="Compare with the run" placeholder="id or words of a run" required ...${other.bind} /><button>Compare</button></form><${Notice} error=${error} />`;
}
