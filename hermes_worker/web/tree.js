// The tree that a run is in, against time, and the calls of one run with their attempts.
import { ask, brief, clock, dollars, html, Notice, number, short, span, State, Text, to, usePoll, useState, visible } from "./core.js";

const SHOWN = 150;

/** Every run below the one that caused it, the first ones first. */
function inOrder(nodes) {
  const known = new Set(nodes.map((node) => node.run.run_id)), below = new Map();
  for (const node of nodes) {
    const parent = known.has(node.parent_run_id) ? node.parent_run_id : null;
    below.set(parent, [...(below.get(parent) ?? []), node]);
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

export function Tree({ id, isOver }) {
  const { data, error } = usePoll(() => ask("GET", `v1/runs/${id}/tree`), isOver ? 30000 : 3000, [id, isOver]);
  const [shown, setShown] = useState(SHOWN);
  if (error && !data) return html`<${Notice} error=${error} />`;
  if (!data || data.total < 2) return null;
  const nodes = inOrder(data.data), now = Date.now() / 1000;
  const first = Math.min(...nodes.map((node) => node.run.created_at));
  const width = Math.max(0.001, Math.max(...nodes.map((node) => node.run.finished_at ?? now)) - first);
  return html`<section class="panel"><header><h2>Tree</h2><span class="soft">${number(data.total)} runs in ${span(width)}${data.total > nodes.length ? `, the first ${number(nodes.length)} are listed` : ""}</span></header>
    <div class="scroll"><table aria-label="The tree of this run"><thead><tr><th>Run</th><th>Status</th><th>When</th><th class="num">Tokens</th><th class="num">Cost</th></tr></thead><tbody>
      ${nodes.slice(0, shown).map(({ run, level, background, parent_call: call }) => html`<tr key=${run.run_id}>
        <td class="mono nowrap"><span style=${{ paddingLeft: `${Math.min(level, 12) * 1.1}rem` }}>${level > 0 && html`<span aria-hidden="true">└ </span><span class="hidden">level ${level} </span>`}${run.run_id === id ? html`<strong>${short(run.run_id)}</strong>` : html`<a href=${to("runs", run.run_id)}>${short(run.run_id)}</a>`}</span>
          <span class="soft"> ${call ? `call ${call}` : ""}${background ? " background" : ""}</span></td>
        <td><${State} of=${run.status} /></td><td class="wide"><${Bar} run=${run} first=${first} width=${width} now=${now} /></td>
        <td class="num">${number(run.usage?.total_tokens)}</td><td class="num">${dollars(run.estimated_cost_usd)}</td></tr>`)}</tbody></table></div>
    ${nodes.length > shown && html`<div class="pad"><button onClick=${() => setShown(shown + SHOWN)}>Show ${Math.min(SHOWN, nodes.length - shown)} more of ${number(nodes.length)}</button></div>`}</section>`;
}

/** One call's texts, read when somebody opens it. */
function Call({ id, call }) {
  const [full, setFull] = useState(null);
  const [error, setError] = useState(null);
  const opened = (event) => { if (event.target.open && !full) ask("GET", `v1/runs/${id}/calls/${call.call}`).then(setFull, setError); };
  return html`<details onToggle=${opened}><summary class="mono">${brief(call.tool)}</summary><${Notice} error=${error} />
    ${full && html`<p class="soft">Arguments</p><${Text} of=${full.arguments} mono />
      ${full.changed_arguments !== null && html`<p class="soft">It ran with these instead</p><${Text} of=${full.changed_arguments} mono />`}
      ${full.result !== null && html`<p class="soft">Result</p><${Text} of=${full.result} mono />`}`}</details>`;
}

export function Calls({ id, settled, isOver }) {
  const { data, error } = usePoll(async () => {
    const found = [];
    for (let page, after; found.length < 2000; after = found.at(-1).call) {
      page = await ask("GET", `v1/runs/${id}/calls`, { params: { after, limit: 500 } });
      found.push(...page.data);
      if (!page.has_more) break;
    }
    return found;
  }, isOver ? 30000 : 10000, [id, settled, isOver]);
  const [shown, setShown] = useState(SHOWN);
  if (!data?.length) return html`<${Notice} error=${error} />`;
  const rows = [...data].reverse();
  return html`<section class="panel"><header><h2>Calls</h2><span class="soft">${number(data.length)}, the newest first</span></header><div class="scroll"><table>
    <thead><tr><th class="num">Place</th><th>Tool</th><th>Status</th><th>Effect</th><th class="num">Attempts</th><th class="num">Takeovers</th><th class="num">Took</th><th>Worker</th></tr></thead>
    <tbody>${rows.slice(0, shown).map((call) => html`<tr key=${call.call}><td class="num">${call.call}</td><td><${Call} id=${id} call=${call} /></td><td><${State} of=${call.status} />${call.waits_for && html` <span class="soft">for ${visible(call.waits_for)}</span>`}</td>
      <td>${call.effect}</td><td class="num">${call.attempts}</td><td class="num">${call.takeovers}${call.deaths ? html` <span class="soft">(${call.deaths} died)</span>` : ""}</td>
      <td class="num">${call.claimed_at && call.settled_at ? span(call.settled_at - call.claimed_at) : "–"}</td><td class="mono">${brief(call.worker ?? "–")}</td></tr>`)}</tbody></table></div>
    ${rows.length > shown && html`<div class="pad"><button onClick=${() => setShown(shown + SHOWN)}>Show ${Math.min(SHOWN, rows.length - shown)} older calls</button></div>`}</section>`;
}
