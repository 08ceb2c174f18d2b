// The same task twice: forking a run behind one of its steps, and two runs side by side.
import { ask, brief, Dialog, html, may, money, Notice, number, span, State, to, useEffect, useField, useRef, useState, visible } from "./core.js";
import { usePoll } from "./live.js";
import { Conversation } from "./conversation.js";
import { useStory } from "./run.js";

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
  useEffect(() => { if (run) mark(run); }, [run]);
  return html`<section class="panel"><header><h2><a href=${to("runs", id)}>${brief(run?.title ?? id)}</a></h2>${run && html`<${State} of=${run.status} />`}</header><${Notice} error=${error} />
    <${Conversation} id=${id} items=${story.items} dropped=${story.dropped} draft=${story.draft} opened=${opened.current} label=${`What happened in ${id}`} /></section>`;
}

const steps = (story) => story.items.filter((item) => item.kind === "agent" || item.kind === "call");

/** The first thing that both did otherwise; null where one did all that the other did. */
export function divide(left, right) {
  const words = (item) => (item === undefined ? "nothing more" : item.kind === "agent" ? `says ${JSON.stringify(brief(item.text || "(calls tools)"))}` : `calls ${item.tool} ${item.about ?? ""}`);
  const mine = steps(left), others = steps(right);
  for (let n = 0; n < Math.max(mine.length, others.length); n++) if (words(mine[n]) !== words(others[n])) return [words(mine[n]), words(others[n])];
  return null;
}

export function Compare({ first, second }) {
  const [runs, setRuns] = useState({});
  const left = useStory(first), right = useStory(second), other = divide(left, right);
  const mark = (id) => (run) => setRuns((last) => ({ ...last, [id]: run }));
  const a = runs[first], b = runs[second];
  const line = (name, of) => html`<tr><th scope="row">${name}</th><td>${a ? of(a) : "–"}</td><td>${b ? of(b) : "–"}</td></tr>`;
  return html`<header><h1>Compare</h1></header>
    <section class="panel"><div class="scroll" tabindex="0"><table aria-label="Two runs compared"><thead><tr><th></th><th>${brief(a?.title ?? first)}</th><th>${brief(b?.title ?? second)}</th></tr></thead><tbody>
      ${line("Status", (run) => html`<${State} of=${run.status} />`)}${line("Model", (run) => html`<span class="mono">${brief(run.model)}</span>`)}${line("Steps", (run) => number(run.iteration))}
      ${line("Took", (run) => span(run.started_at ? (run.finished_at ?? Date.now() / 1000) - run.started_at : null))}${line("Tokens", (run) => number(run.usage?.total_tokens))}${line("Cost", money)}
      <tr><th scope="row">First difference</th>${other ? other.map((text) => html`<td>${visible(text)}</td>`) : html`<td colspan="2">${a && b && steps(left).length ? "Both did the same so far." : "Nothing is read yet."}</td>`}</tr></tbody></table></div></section>
    <div class="halves"><${Side} id=${first} story=${left} mark=${mark(first)} /><${Side} id=${second} story=${right} mark=${mark(second)} /></div>`;
}

/** A run whose address is asked for beside another one. */
export function Choosing({ id }) {
  const other = useField();
  if (!may("runs:read")) return null;
  return html`<form class="row" onSubmit=${(event) => { event.preventDefault(); location.hash = to("compare", id, other.value.trim()); }}>
    <input aria-label="Compare with the run" placeholder="run_… to compare with" required ...${other.bind} /><button>Compare</button></form>`;
}
