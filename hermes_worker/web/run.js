// One run: its conversation as it is written, what took its time, its tree, its calls, and what can be done with it.
import { age, Ago, ask, brief, bytes, clock, costOf, counted, Danger, Gap, html, isLost, may, money, Notice, number, save, short, span, State, Text, to, useCalm, useEffect, useField, useMemo, useRef, useState, useWindow, visible, when } from "./core.js";
import { useActions, usePoll } from "./live.js";
import { Choosing, Forking } from "./compare.js";
import { Conversation, Story } from "./conversation.js";
import { differing } from "./markdown.js";
import { Waiting } from "./inbox.js";
import { follow } from "./streams.js";
import { titleOf, useFork, useOrigin } from "./sessions.js";
import { Timeline } from "./timeline.js";
import { Calls, Prompt, Tree, useTree } from "./tree.js";

export const ENDED = ["completed", "failed", "cancelled", "expired"];

/** What happened in a run, each event once, and the text that is being written; nothing without a run. `heard` is told of each. */
export function useStory(id, heard) {
  const kept = useRef(new Story());
  const [, draw] = useState(0);
  const [isLive, setLive] = useState(false);
  useEffect(() => {
    kept.current = new Story();
    if (!id) return undefined;
    let frame = 0;
    const show = () => { frame ||= requestAnimationFrame(() => { frame = 0; draw((n) => n + 1); }); };
    const take = (data) => {
      const event = JSON.parse(data);
      kept.current.take(event);
      heard?.(event);
      show();
    };
    const forget = () => { kept.current = new Story(); show(); };
    const stop = follow(id, { take, forget, live: setLive });
    return () => { stop(); cancelAnimationFrame(frame); };
  }, [id]);
  return Object.assign(kept.current, { isLive });
}

/** The events as they came, for somebody who wants to know exactly. */
function Events({ rows, gone }) {
  const [isOpen, setOpen] = useState(false);
  return html`<section class="panel"><details onToggle=${(event) => setOpen(event.target.open)}><summary class="pad"><h2>Events</h2> <span class="soft">${number(rows.length + gone)}</span></summary>${isOpen && html`<${Rows} rows=${rows} gone=${gone} />`}</details></section>`;
}

function Rows({ rows, gone }) {
  const { from, to: till, above, below, box, onScroll } = useWindow(rows.length, 44, { follows: true, epoch: gone });
  return html`<div class="scroll tall" ref=${box} onScroll=${onScroll} tabindex="0"><ol class="talk" aria-label="Events of this run"><${Gap} px=${above} />${rows.slice(from, till).map(({ event, timestamp, run_id: _, ...rest }, n) => html`<li key=${gone + from + n} data-n=${from + n}>
    <span class="when">${clock(timestamp)}</span><div><span class="mono">${visible(event)}</span> <span class="soft">${brief(JSON.stringify(rest))}</span></div></li>`)}<${Gap} px=${below} /></ol></div>`;
}

/** Files that the run left. A picture is shown when somebody opens it. */
function Files({ id, isOver }) {
  const { data } = usePoll(() => ask("GET", `v1/runs/${id}/artifacts`).catch(() => ({ data: [] })), isOver ? 60000 : 15000, [id, isOver], { lists: ["runs"], leastMs: 10000 });
  if (!data?.data.length) return null;
  // Signed for a quarter of an hour; each poll brings another. Of the address that came only the signature is taken.
  const place = (file) => `v1/artifacts/${encodeURIComponent(file.id)}/content?${new URLSearchParams(file.url.split("?")[1])}`;
  return html`<section class="panel"><header><h2>Files</h2><span class="soft">${number(data.data.length)}</span></header><ul class="plainly pad">${data.data.map((file) => html`<li key=${file.id}><a href=${place(file)} download=${file.path.split("/").pop()}>${brief(file.path)}</a> <span class="soft">${bytes(file.size)}</span>
    ${/^image\/(png|jpeg|gif|webp)$/.test(file.media_type) && html`<${Picture} place=${place(file)} name=${brief(file.path)} />`}</li>`)}</ul></section>`;
}

function Picture({ place, name }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details onToggle=${(event) => setOpen(event.target.open)}><summary class="soft">show</summary>${isOpen && html`<img class="picture" src=${place} alt=${name} />`}</details>`;
}

/** How the files of the workspace differ from what they were before the run. */
function Changes({ id }) {
  const [state, setState] = useState(null);
  const opened = (event) => { if (event.target.open) ask("GET", `v1/runs/${id}/diff`).then((diff) => setState({ diff }), (error) => setState({ error })); };
  return html`<section class="panel"><details onToggle=${opened}><summary class="pad"><h2>Changes to files</h2></summary><div class="pad">${state?.error && html`<p class="soft">${visible(state.error.message)}</p>`}
    ${state?.diff && html`<ul class="plainly">${state.diff.files.map((file) => html`<li><span class="tag">${visible(file.change)}</span><span class="mono">${brief(file.path)}</span></li>`)}</ul>
      ${state.diff.text ? html`<pre tabindex="0" class="diff">${differing(visible(state.diff.text))}</pre>` : html`<p class="soft">No file differs.</p>`}${state.diff.is_cut && html`<p class="soft">The rest is not shown.</p>`}`}</div></details></section>`;
}

/** What each child, with all below it, took of the budget, and the run itself. */
function Delegated({ of }) {
  const whole = of.dimensions.cost?.limit || of.dimensions.cost?.spent || 0;
  const line = (name, status, took) => html`<tr><td class="nowrap">${name} ${status && html`<div><${State} of=${status} /></div>`}</td><td class="num">${number(took.tokens?.spent)}</td><td class="num">${costOf(took.cost?.spent, of.has_unknown_cost && took.tokens?.spent > 0)}</td>
    <td class="num">${whole > 0 ? `${Math.round((100 * (took.cost?.spent ?? 0)) / whole)} %` : "–"}</td></tr>`;
  return html`<section class="panel"><header><h2>Budget by child</h2><span class="soft">${number(of.children_total)}${of.has_unknown_cost ? ", and calls without a known price" : ""}</span></header>
    <div class="scroll" tabindex="0"><table aria-label="Budget by child"><thead><tr><th>Run</th><th class="num">Tokens</th><th class="num">Cost</th><th class="num">${of.dimensions.cost?.limit ? "Of the limit" : "Of all"}</th></tr></thead><tbody>
      ${line("itself", null, of.own)}${of.children.map((child) => line(html`<a class="mono" href=${to("runs", child.run_id)}>${short(child.run_id)}</a>`, child.status, child.dimensions))}</tbody></table></div></section>`;
}

function Budget({ of }) {
  if (!of) return null;
  const rows = Object.entries(of.dimensions).filter(([, each]) => each.limit || each.spent);
  return html`<section class="panel"><header><h2>Budget</h2></header><div class="pad"><dl>${rows.map(([name, each]) => html`<dt>${name.replaceAll("_", " ")}</dt>
      <dd>${name === "wall_clock" ? span(each.spent) : number(Math.round(each.spent * 10000) / 10000)}${each.limit ? ` of ${name === "wall_clock" ? span(each.limit) : number(each.limit)}` : ""}${each.limit ? html`<div class="bar"><i style=${{ width: `${Math.min(100, (100 * each.spent) / each.limit)}%` }}></i></div>` : ""}</dd>`)}</dl></div></section>
    ${of.children_total > 0 && html`<${Delegated} of=${of} />`}`;
}

/** What the run said and did not arrive, with what the other side answered. */
function Undelivered({ of, again }) {
  const [act, refusal] = useActions(again);
  return html`<section class="panel"><header><h2>${of.some(isLost) ? "Not delivered" : "Not yet delivered"}</h2><span class="grow"></span><a href="#/deliveries">All deliveries</a></header><${Notice} error=${refusal} />
    <ul class="plainly pad">${of.map((each) => html`<li key=${each.delivery_id}><${State} of=${each.state} /> ${brief(each.target)} <span class="soft">${counted(each.attempts, "attempt")}${each.not_before ? html`, again ${age(each.not_before)}` : ""}</span><div class="bad">${brief(each.error ?? "no answer")}</div>
      ${may("runs:write") && isLost(each) && html`<button onClick=${() => act("POST", `v1/deliveries/${each.delivery_id}/retry`)}>Send again</button>`}</li>`)}</ul></section>`;
}

function Actions({ run, again }) {
  const text = useField();
  const [said, setSaid] = useState(null);
  const [forking, setForking] = useState(false);
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
    ${isOpen && html`<${Danger} label="Stop" title="Stop this run?" act=${() => act("stop")}><p>The run, and all that it caused, is asked to stop.</p></${Danger}>
      ${run.status === "paused" ? html`<button onClick=${() => act("resume")}>Go on</button>` : html`<button onClick=${() => act("pause")}>Pause</button>`}
      <form class="row grow" onSubmit=${(e) => { e.preventDefault(); act("steer", { text: text.value }, () => text.set("")); }}>
        <input class="grow" aria-label="Say something to the run" placeholder="Say something to the run" required ...${text.bind} /><button>Steer</button></form>`}
    ${!isOpen && html`<button onClick=${() => act("retry", undefined, (made) => { location.hash = to("runs", made.run_id); })}>Run it again</button>
      <button onClick=${() => fork()}>Fork its session</button>`}
    ${run.iteration === 0 || isOpen ? null : html`<button onClick=${() => setForking(true)}>Fork from the beginning</button>`}
    ${forking && html`<${Forking} run=${run} at=${0} close=${() => setForking(false)} />`}</div>`;
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
  const story = useStory(id), { items, rows, draft, thought, gone, dropped, settled: count, isLive } = story;
  const settled = useCalm(count, 1000);
  const [input, setInput] = useState(null);
  const [failure, setFailure] = useState(null);
  const [goTo, setGoTo] = useState(null), [forking, setForking] = useState(null);
  const opened = useRef(new Map());
  const isOver = data && ENDED.includes(data.run.status), hasBegun = Boolean(data?.run.started_at);
  const tree = useTree(id, isOver), origin = useOrigin(data?.run.session_id);
  useEffect(() => {
    if (!input) ask("GET", `v1/runs/${id}/result`).then((result) => setInput(result.messages.filter((message) => message.role === "user").at(-1)?.content), () => null);
  }, [id, hasBegun, isOver]);
  const download = async () => {
    try {
      save(`${id}.json`, JSON.stringify(await ask("GET", `v1/runs/${id}/result`), null, 2));
      setFailure(null);
    } catch (refusal) { setFailure(refusal); }
  };
  // A click on the timeline opens what took the time, where it stands in the conversation.
  const open = ({ item }) => {
    if (item.call && !opened.current.has(item.call)) opened.current.set(item.call, {});
    setGoTo({ item });
  };
  // Of a long run it is much to draw: not for every word that comes.
  const timeline = useMemo(() => data && html`<${Timeline} run=${data.run} story=${story} open=${open} />`, [data, settled, items.length === 0]);
  if (!data) return html`<header><h1>Run</h1></header><${Notice} error=${error} />`;
  const run = data.run, kids = tree.data?.data.filter((node) => node.parent_run_id === id);
  const elsewhere = data.waits.filter((wait) => !items.includes(story.waits.get(wait.id)));
  // A fork goes on behind the calls of a step, once all of them are over. What follows the last reply is said in the session.
  const tools = may("runs:write") ? ({ step }) => step !== undefined && (isOver || story.iteration > step) && (story.called.has(step) ? html`<button class="plain onhover" onClick=${() => setForking(step)}>Fork from here</button>`
    : step === story.iteration && html`<a class="onhover" href=${to("sessions", run.session_id)}>Go on from here</a>`) : null;
  return html`<header><h1>${visible(run.title ?? (origin ? `Fork of ${titleOf(origin)}` : "Run"))} <small class="soft mono">${visible(id)}</small></h1><${State} of=${run.status} />
      ${!isOver && html`<span class="soft">${isLive ? "live" : "reconnects …"}</span>`}<span class="grow"></span>
      <button onClick=${download}>Export</button></header>
    <${Notice} error=${error ?? failure} />
    ${forking !== null && html`<${Forking} run=${run} at=${forking} close=${() => setForking(null)} />`}
    <div class="split"><div>
      ${run.undelivered?.length > 0 && html`<${Undelivered} of=${run.undelivered} again=${again} />`}
      ${elsewhere.length > 0 && html`<section class="panel"><header><h2>Needs a person</h2></header>${elsewhere.map((wait) => html`<${Waiting} key=${wait.id} wait=${wait} again=${again} />`)}</section>`}
      <section class="panel"><header><h2>Conversation</h2>${gone > 0 && html`<span class="soft">${number(gone)} older events are not kept here</span>`}</header>
        <${Conversation} id=${id} items=${items} dropped=${dropped} first=${input} draft=${draft} thought=${thought} opened=${opened.current} waits=${data.waits} again=${again} kids=${kids} tools=${tools} goTo=${goTo} /></section>
      ${timeline}<${Tree} id=${id} data=${tree.data} error=${tree.error} /><${Calls} id=${id} settled=${settled} isOver=${isOver} /><${Changes} id=${id} /><${Prompt} id=${id} count=${run.iteration} /><${Events} rows=${rows} gone=${gone} /></div>
    <aside>
      <section class="panel"><div class="pad"><${Actions} run=${run} again=${again} /></div></section>
      ${data.explained && html`<section class="panel"><header><h2>Why it is where it is</h2></header><div class="pad">${visible(data.explained.text)}</div></section>`}
      <section class="panel"><header><h2>Facts</h2></header><div class="pad"><dl>
        <dt>Model</dt><dd class="mono">${visible(run.model)}</dd><dt>Session</dt><dd><a href=${to("sessions", run.session_id)}>${visible(run.session_title ?? run.session_id)}</a></dd>
        ${origin && !run.forked_from && html`<dt>${run.kind === "child" ? "Delegated in" : "Fork of"}</dt><dd><a href=${to("sessions", origin.id)}>${titleOf(origin)}</a></dd>`}
        <dt>Step</dt><dd>${run.iteration} of ${run.iterations_max}</dd><dt>Accepted</dt><dd>${when(run.created_at)} (<${Ago} at=${run.created_at} />)</dd>
        ${run.finished_at && html`<dt>Ended</dt><dd>${when(run.finished_at)}${run.exit_reason && run.status !== "completed" ? `, ${visible(run.exit_reason)}` : ""}</dd>`}
        <dt>Tokens</dt><dd>${number(run.usage?.total_tokens)}</dd><dt>Cost</dt><dd>${money(run)} ${run.cost_status ?? ""}</dd>
        ${run.retry_of && html`<dt>Repeats</dt><dd class="mono"><a href=${to("runs", run.retry_of)}>${short(run.retry_of)}</a> (<a href=${to("compare", run.retry_of, id)}>compare</a>)</dd>`}
        ${run.forked_from && html`<dt>Fork of</dt><dd><a href=${to("runs", run.forked_from)}>${origin ? titleOf(origin) : short(run.forked_from)}</a>, behind step ${number(run.fork_step)} (<a href=${to("compare", run.forked_from, id)}>compare</a>)</dd>`}
        ${run.error && html`<dt>Error</dt><dd>${visible(run.error)}</dd>`}</dl><${Choosing} id=${id} /></div></section>
      <${Files} id=${id} isOver=${isOver} />
      ${run.tool_calls?.attention.length > 0 && html`<section class="panel"><header><h2>Calls to look at</h2></header><div class="scroll"><table><tbody>
        ${run.tool_calls.attention.map((call) => html`<tr><td class="mono">${call.iteration}.${call.position}</td><td class="mono">${visible(call.tool)}</td><td><${State} of=${call.status} /></td><td class="soft">${call.replay}, ${counted(call.attempts, "attempt")}</td></tr>`)}</tbody></table></div></section>`}
      <${Budget} of=${run.budget} /></aside></div>`;
}
