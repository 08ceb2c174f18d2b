// One run: its transcript as it is written, its tree, its calls, what it may use, and what can be done with it.
import { age, ask, clock, Confirm, dollars, Gap, html, may, Notice, number, short, span, State, Text, to, useCalm, useEffect, useField, useRef, useState, useWindow, visible, when } from "./core.js";
import { usePoll } from "./live.js";
import { Waiting } from "./inbox.js";
import { follow } from "./streams.js";
import { useFork } from "./sessions.js";
import { Calls, OpeningCall, Prompt, Tree } from "./tree.js";

const ENDED = ["completed", "failed", "cancelled", "expired"];
const KEPT_MAX = 20000;
const LANES_MAX = 60;
const nothing = () => ({ rows: [], draft: "", dropped: 0, settled: 0, began: new Map(), lanes: [] });

/** Takes what an event says besides itself: which call it is of, and how long that took. */
function join(all, event) {
  if (event.iteration !== undefined) all.iteration = event.iteration;
  if (event.event !== "tool.started" && event.event !== "tool.completed") return;
  const position = event.position ?? 0;
  if (all.iteration !== undefined) event.call = `${all.iteration}.${position}`;
  if (event.event === "tool.started") return void all.began.set(position, event.timestamp);
  all.settled += 1;
  if (!all.began.has(position)) return;
  all.lanes.push({ from: all.began.get(position), to: event.timestamp, tool: event.tool, isBad: Boolean(event.error) });
  all.began.delete(position);
  if (all.lanes.length > LANES_MAX) all.lanes.shift();
}

/** The events of a run, each once, and the text that is being written. Of very many the newest are kept. */
function useEvents(id) {
  const kept = useRef(nothing());
  const [, draw] = useState(0);
  const [isLive, setLive] = useState(false);
  useEffect(() => {
    let frame = 0;
    const show = () => { frame ||= requestAnimationFrame(() => { frame = 0; draw((n) => n + 1); }); };
    const take = (data) => {
      const event = JSON.parse(data), all = kept.current;
      if (event.event === "message.delta") all.draft += event.delta;
      else if (!["reasoning.available", "tool.generating", "tool.progress"].includes(event.event)) {
        if (event.event === "message.completed" || event.event === "reply.discarded") all.draft = "";
        join(all, event);
        all.rows.push(event);
        if (all.rows.length > KEPT_MAX) all.dropped += all.rows.splice(0, KEPT_MAX / 2).length;
      }
      show();
    };
    const forget = () => { kept.current = nothing(); show(); };
    const stop = follow(id, { take, forget, live: setLive });
    return () => { stop(); cancelAnimationFrame(frame); };
  }, [id]);
  return { ...kept.current, isLive };
}

function told(event) {
  const who = event.by ? ` by ${event.by}` : "";
  switch (event.event) {
    case "tool.started": return `${event.tool} began`;
    case "tool.completed": return `${event.tool} ${event.outcome ?? (event.error ? "failed" : "succeeded")} after ${span(event.duration)}${event.refused_by ? `, refused: ${event.reason ?? event.refused_by}` : ""}`;
    case "approval.request": return `asks whether it may run: ${event.command}`;
    case "approval.responded": return `${event.by} chose ${event.choice}${event.changed_arguments ? `, with other arguments: ${event.changed_arguments}` : ""}`;
    case "input.request": return `asks: ${event.question}`;
    case "input.responded": return `${event.by} answered`;
    case "run.waiting": return `waits: ${event.status.replaceAll("_", " ")}${event.reason ? ` (${event.reason})` : ""}${who}`;
    case "run.resumed": return `goes on${who}`;
    case "run.stopping": return `was asked to stop${who}`;
    case "run.steered": return `was told${who}: ${event.text}`;
    case "run.failed": return `${event.status}: ${event.error}`;
    case "run.cancelled": return `was stopped${who}`;
    case "run.completed": return "completed";
    case "budget.exhausted": return `used up its ${event.dimension}`;
    case "step.retried": return `lost its worker; ${event.step} is tried again (attempt ${event.attempt})`;
    case "session.compress": return `${event.rows} older messages were replaced by a summary`;
    case "reply.discarded": return "the reply was discarded; another follows";
    case "hook.failed": return `the hook ${event.hook} failed: ${event.reason}`;
    default: return event.event;
  }
}

function Event({ event, id, opened, n }) {
  const at = html`<span class="when">${clock(event.timestamp)}</span>`;
  if (event.event === "message.completed") return html`<li data-n=${n}>${at}<div><${Text} of=${event.text || "(calls tools)"} /></div></li>`;
  if (event.event === "tool.completed" && event.call)
    return html`<li data-n=${n}>${at}<div><${OpeningCall} id=${id} call=${event.call} opened=${opened} class=${event.error ? "state bad" : "note"}>${visible(told(event))}</${OpeningCall}>
      ${event.sandbox && html`<span class="soft">Sandbox ${visible(event.sandbox)}, network ${visible(event.network ?? "–")}</span>`}</div></li>`;
  return html`<li data-n=${n}>${at}<span class="note">${visible(told(event))}
    ${event.event === "tool.started" && html`<span class="mono"> ${visible(event.preview)}</span>`}</span></li>`;
}

function Transcript({ id, rows, draft, dropped, input }) {
  const opened = useRef(new Map());
  const { from, to, above, below, box, onScroll } = useWindow(rows.length, 44, { follows: true, epoch: dropped });
  return html`<div class="scroll tall" ref=${box} onScroll=${onScroll} tabindex="0"><ol class="talk" aria-label="What happened">
      ${dropped === 0 && input && html`<li><span class="when">asked</span><strong><${Text} of=${input} /></strong></li>`}
      <${Gap} px=${above} />${rows.slice(from, to).map((event, n) => html`<${Event} key=${dropped + from + n} event=${event} id=${id} opened=${opened.current} n=${from + n} />`)}<${Gap} px=${below} />
      ${draft && html`<li><span class="when">writes</span><div><${Text} of=${draft} /></div></li>`}</ol></div>`;
}

function Timeline({ lanes }) {
  if (!lanes.length) return null;
  const first = lanes.reduce((least, lane) => Math.min(least, lane.from), Infinity), width = Math.max(lanes.at(-1).to - first, 0.001);
  return html`<section class="panel"><header><h2>Timeline of calls</h2><span class="soft">${lanes.length === LANES_MAX ? `the last ${LANES_MAX}, ` : ""}${span(width)}</span></header><div class="pad scroll"><table><tbody>
    ${lanes.map((lane) => html`<tr><td class="mono nowrap">${visible(lane.tool)}</td><td class="num">${span(lane.to - lane.from)}</td>
      <td><div class="lane"><i class=${lane.isBad ? "bad" : ""} style=${{ left: `${(100 * (lane.from - first)) / width}%`, width: `${(100 * (lane.to - lane.from)) / width}%` }}></i></div></td></tr>`)}
  </tbody></table></div></section>`;
}

/** What each child, with all below it, took of the budget, and the run itself. */
function Delegated({ of }) {
  const whole = of.dimensions.cost?.limit || of.dimensions.cost?.spent || 0;
  const line = (name, status, spent) => html`<tr><td>${name}</td><td>${status && html`<${State} of=${status} />`}</td><td class="num">${number(spent.tokens?.spent)}</td><td class="num">${dollars(spent.cost?.spent)}</td>
    <td class="num">${whole > 0 ? `${Math.round((100 * (spent.cost?.spent ?? 0)) / whole)} %` : "–"}</td></tr>`;
  return html`<section class="panel"><header><h2>Budget by child</h2><span class="soft">${number(of.children_total)}${of.has_unknown_cost ? ", and calls without a known price" : ""}</span></header>
    <div class="scroll" tabindex="0"><table aria-label="Budget by child"><thead><tr><th>Run</th><th>Status</th><th class="num">Tokens</th><th class="num">Cost</th><th class="num">${of.dimensions.cost?.limit ? "Of the limit" : "Of all"}</th></tr></thead><tbody>
      ${line("itself", null, of.own)}${of.children.map((child) => line(html`<a class="mono" href=${to("runs", child.run_id)}>${short(child.run_id)}</a>`, child.status, child.dimensions))}</tbody></table></div></section>`;
}

function Budget({ of }) {
  if (!of) return null;
  const rows = Object.entries(of.dimensions).filter(([, each]) => each.limit || each.spent);
  return html`<section class="panel"><header><h2>Budget</h2></header><div class="pad"><dl>${rows.map(([name, each]) => html`<dt>${name.replaceAll("_", " ")}</dt>
      <dd>${number(Math.round(each.spent * 10000) / 10000)}${each.limit ? ` of ${number(each.limit)}` : ""}${each.limit ? html`<div class="bar"><i style=${{ width: `${Math.min(100, (100 * each.spent) / each.limit)}%` }}></i></div>` : ""}</dd>`)}</dl></div></section>
    ${of.children_total > 0 && html`<${Delegated} of=${of} />`}`;
}

function Actions({ run, again }) {
  const text = useField();
  const [said, setSaid] = useState(null);
  const [stopping, setStopping] = useState(false);
  const [fork, refusal] = useFork(run.session_id);
  const isOpen = !ENDED.includes(run.status);
  const act = async (verb, body, then) => {
    try {
      const answer = await ask("POST", `v1/runs/${run.run_id}/${verb}`, { body });
      setSaid(null);
      then?.(answer);
    } catch (refusal) { setSaid(refusal); }
    again();
  };
  if (!may("runs:write")) return null;
  return html`<${Notice} error=${said ?? refusal} /><div class="row">
    ${isOpen && html`<button class="danger" onClick=${() => setStopping(true)}>Stop</button>
      ${run.status === "paused" ? html`<button onClick=${() => act("resume")}>Go on</button>` : html`<button onClick=${() => act("pause")}>Pause</button>`}
      <form class="row grow" onSubmit=${(e) => { e.preventDefault(); act("steer", { text: text.value }, () => text.set("")); }}>
        <input class="grow" aria-label="Say something to the run" placeholder="Say something to the run" required ...${text.bind} /><button>Steer</button></form>`}
    ${!isOpen && html`<button onClick=${() => act("retry", undefined, (made) => { location.hash = to("runs", made.run_id); })}>Run it again</button>
      <button onClick=${() => fork()}>Fork its session</button>`}
    ${stopping && html`<${Confirm} title="Stop this run?" yes=${() => { setStopping(false); act("stop"); }} no=${() => setStopping(false)}>
      <p>The run, and all that it caused, is asked to stop.</p></${Confirm}>`}</div>`;
}

function useRunFacts(id) {
  return usePoll(async () => {
    const run = await ask("GET", `v1/runs/${id}`);
    const explained = await ask("GET", `v1/runs/${id}/explain`).catch(() => null);
    const waits = run.status.startsWith("waiting_for_") ? (await ask("GET", "v1/approvals", { params: { limit: 500 } })).data.filter((wait) => wait.run_id === id) : [];
    return { run, explained, waits };
  }, 1500, [id], { lists: ["runs", "approvals"], leastMs: 1000, sharedAs: `run-${id}` });
}

export function Run({ id }) {
  const { data, error, again } = useRunFacts(id);
  const { rows, draft, dropped, settled: count, lanes, isLive } = useEvents(id);
  const settled = useCalm(count, 1000);
  const [input, setInput] = useState(null);
  const [failure, setFailure] = useState(null);
  const isOver = data && ENDED.includes(data.run.status), hasBegun = Boolean(data?.run.started_at);
  useEffect(() => {
    if (!input) ask("GET", `v1/runs/${id}/result`).then((result) => setInput(result.messages.filter((message) => message.role === "user").at(-1)?.content), () => null);
  }, [id, hasBegun, isOver]);
  if (!data) return html`<header><h1>Run</h1></header><${Notice} error=${error} />`;
  const run = data.run;
  const download = async () => {
    try {
      const result = await ask("GET", `v1/runs/${id}/result`);
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([JSON.stringify(result, null, 2)], { type: "application/json" }));
      link.download = `${id}.json`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
      setFailure(null);
    } catch (refusal) { setFailure(refusal); }
  };
  return html`<header><h1 class="mono">${visible(id)}</h1><${State} of=${run.status} />
      ${!isOver && html`<span class="soft">${isLive ? "live" : "reconnects …"}</span>`}<span class="grow"></span>
      <button onClick=${download}>Export</button></header>
    <${Notice} error=${error ?? failure} />
    <div class="split"><div>
      ${data.waits.length > 0 && html`<section class="panel"><header><h2>Needs a person</h2></header>${data.waits.map((wait) => html`<${Waiting} key=${wait.id} wait=${wait} again=${again} />`)}</section>`}
      <section class="panel"><header><h2>Transcript</h2>${dropped > 0 && html`<span class="soft">${number(dropped)} older events are not kept here</span>`}</header><${Transcript} id=${id} rows=${rows} draft=${draft} dropped=${dropped} input=${input} /></section>
      <${Timeline} lanes=${lanes} /><${Tree} id=${id} isOver=${isOver} /><${Calls} id=${id} settled=${settled} isOver=${isOver} /><${Prompt} id=${id} count=${run.iteration} /></div>
    <aside>
      <section class="panel"><div class="pad"><${Actions} run=${run} again=${again} /></div></section>
      ${data.explained && html`<section class="panel"><header><h2>Why it is where it is</h2></header><div class="pad">${visible(data.explained.text)}</div></section>`}
      <section class="panel"><header><h2>Facts</h2></header><div class="pad"><dl>
        <dt>Model</dt><dd class="mono">${visible(run.model)}</dd><dt>Session</dt><dd><a href=${to("sessions", run.session_id)}>${visible(run.title ?? run.session_id)}</a></dd>
        <dt>Step</dt><dd>${run.iteration} of ${run.iterations_max}</dd><dt>Accepted</dt><dd>${when(run.created_at)} (${age(run.created_at)})</dd>
        ${run.finished_at && html`<dt>Ended</dt><dd>${when(run.finished_at)}${run.exit_reason ? `, ${visible(run.exit_reason)}` : ""}</dd>`}
        <dt>Tokens</dt><dd>${number(run.usage?.total_tokens)}</dd><dt>Cost</dt><dd>${dollars(run.estimated_cost_usd)} ${run.cost_status ?? ""}</dd>
        ${run.retry_of && html`<dt>Repeats</dt><dd class="mono"><a href=${to("runs", run.retry_of)}>${short(run.retry_of)}</a></dd>`}
        ${run.error && html`<dt>Error</dt><dd>${visible(run.error)}</dd>`}</dl></div></section>
      ${run.tool_calls?.attention.length > 0 && html`<section class="panel"><header><h2>Calls to look at</h2></header><div class="scroll"><table><tbody>
        ${run.tool_calls.attention.map((call) => html`<tr><td class="mono">${call.iteration}.${call.position}</td><td class="mono">${visible(call.tool)}</td><td><${State} of=${call.status} /></td><td class="soft">${call.replay}, ${call.attempts} attempts</td></tr>`)}</tbody></table></div></section>`}
      <${Budget} of=${run.budget} /></aside></div>`;
}
