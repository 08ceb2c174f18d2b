// Conversations: the list, one of them as it goes on, and the next thing to say in it.
import { Ago, ask, brief, costOf, counted, Danger, Empty, html, may, Notice, number, save, State, to, useEffect, useField, useMemo, useRef, useState, visible, wordOf } from "./core.js";
import { usePoll } from "./live.js";
import { Conversation } from "./conversation.js";
import { Named } from "./finding.js";
import { ENDED, useStory } from "./run.js";
import { Filter } from "./runs.js";

export function Sessions({ query }) {
  const isPutAway = query.get("archived") === "true";
  const { data, error } = usePoll(() => ask("GET", "api/sessions", { params: { limit: 100, archived: isPutAway || undefined } }), 4000, [isPutAway], { lists: ["sessions", "runs"], leastMs: 1000 });
  const words = query.get("q")?.trim();
  return html`<header><h1>Sessions</h1></header><${Notice} error=${error} />${may("runs:write") && html`<${Say} />`}
    <section class="panel"><div class="filters" role="search" aria-label="What was said"><${Filter} name="q" label="Words that were said" query=${query} />
      <${Filter} name="archived" label="Which" query=${query} list=${[["true", "put away"]]} /></div>
      <${Named} words=${words} />${words && html`<${Found} words=${words} />`}</section>
    <section class="panel">${data && !data.data.length && html`<${Empty} next="Write above what an agent shall do, or say something in a chat that the gateway listens to.">There is no session.</${Empty}>`}
    ${data?.data.length > 0 && html`<div class="scroll"><table aria-label="Sessions"><thead><tr><th>Session</th><th>From</th><th>Model</th><th class="num">Messages</th><th class="num">Calls</th><th class="num">Cost</th><th class="num">Last</th></tr></thead>
      <tbody>${data.data.map((each) => html`<tr key=${each.id}><td class="what"><a href=${to("sessions", each.id)}><span class="one">${titleOf(each)}</span></a>${each.is_at_work && html` <${State} of="at work" />`}</td>
        <td class="word">${brief(each.source ?? "–")}</td><td class="mono word">${brief(each.model ?? "–")}</td><td class="num">${number(each.message_count)}</td><td class="num">${number(each.tool_call_count)}</td>
        <td class="num">${costOf(each.estimated_cost_usd, each.has_unknown_cost)}</td><td class="num"><${Ago} at=${each.last_active ?? each.started_at} /></td></tr>`)}</tbody></table></div>`}</section>`;
}

/** Messages in which the words are, of all sessions. */
function Found({ words }) {
  const { data, error } = usePoll(() => ask("GET", "api/sessions/search", { params: { q: words, limit: 50 } }), 10000, [words], { lists: ["runs"], leastMs: 10000 });
  if (!data) return html`<${Notice} error=${error} />`;
  return html`<${Notice} error=${error} />${!data.data.length && html`<div class="empty">Nobody said that.</div>`}
    <ol class="talk" aria-label="Messages that fit">${data.data.map((each) => html`<li key=${`${each.session_id} ${each.message_id}`}><span class="when">${each.role}<br /><${Ago} at=${each.timestamp} /></span>
      <div><a href=${`${to("sessions", each.session_id)}?at=${each.message_id}`}>${brief(each.title || each.session_id)}</a><div class="text">${marked(each.snippet)}</div></div></li>`)}</ol>
    ${!data.is_complete && html`<div class="pad soft">There may be more: not every match of a very common word is listed, nor what was said a moment ago.</div>`}`;
}

/** A text whose hits stand between `>>>` and `<<<`. What was said may hold those signs as well: then more is marked. */
function marked(snippet) {
  return snippet.split(/(>>>[^]*?<<<)/).map((part) => /^>>>[^]*<<<$/.test(part) ? html`<mark>${visible(part.slice(3, -3))}</mark>` : visible(part));
}

const FILE_BYTES_MAX = 3_000_000;
/** What was said here, by the run that it became: until the run begins, it stands nowhere else. */
const sent = new Map();

/** A file as a part of what is said: a picture as it is, and anything else as its text. */
function part(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onerror = () => failed(new Error(`${file.name} cannot be read.`));
    if (file.size > FILE_BYTES_MAX) failed(new Error(`${file.name} is larger than 3 MB. Put it into the workspace instead.`));
    else if (/^image\//.test(file.type)) {
      reader.onload = () => done({ type: "image_url", image_url: { url: reader.result } });
      reader.readAsDataURL(file);
    } else {
      reader.onload = () => done({ type: "text", text: `${file.name}:\n\`\`\`\n${reader.result}\n\`\`\`` });
      reader.readAsText(file);
    }
  });
}

/** What is said becomes a run. Which directory it works in, a person at the machine says: a browser may not. */
export function Say({ session, said }) {
  const text = useField(), model = useField(), cost = useField();
  const [skills, setSkills] = useState([]), [offered, setOffered] = useState(null), [files, setFiles] = useState([]);
  const [error, setError] = useState(null), [isBusy, setBusy] = useState(false);
  const opened = (event) => { if (event.target.open && !offered) ask("GET", "v1/skills").then((found) => setOffered(found.data), () => setOffered([])); };
  const send = async (event) => {
    event.preventDefault();
    if (isBusy || !text.value.trim()) return;
    setBusy(true);
    try {
      const parts = await Promise.all(files.map(part));
      const body = { input: parts.length ? [{ role: "user", content: [{ type: "text", text: text.value }, ...parts] }] : text.value };
      if (session) body.session_id = session;
      if (model.value.trim()) body.model = model.value.trim();
      if (Number(cost.value) > 0) body.max_cost_usd = Number(cost.value);
      if (skills.length) body.skills = skills;
      const made = await ask("POST", "v1/runs", { body });
      text.set("");
      setFiles([]);
      setError(null);
      sent.set(made.run_id, body.input[0].content ?? body.input);
      if (said) said();
      else location.hash = to("sessions", made.run_id);
    } catch (refusal) { setError(refusal); }
    setBusy(false);
  };
  const pressed = (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send(event); };
  return html`<section class="panel say"><form class="pad" onSubmit=${send}><${Notice} error=${error} />
    <label for="say">${session ? "Go on with this conversation" : "Ask an agent something"}</label>
    <textarea id="say" required onKeyDown=${pressed} ...${text.bind}></textarea>
    <div class="row"><button class="main" disabled=${isBusy}>Send</button><span class="soft desktop"><kbd>Ctrl</kbd> <kbd>Enter</kbd></span>
      <label class="button">Files<input class="hidden" type="file" multiple onChange=${(event) => { setFiles([...event.target.files]); event.target.value = ""; }} /></label>
      ${files.map((file) => html`<span class="tag">${visible(file.name)}</span>`)}${files.length > 0 && html`<button type="button" class="plain" onClick=${() => setFiles([])}>Without them</button>`}</div>
    <details onToggle=${opened}><summary class="soft">With what</summary><div class="filters">
      <div><label for="say-model">Model</label><input id="say-model" placeholder="the usual one" ...${model.bind} /></div>
      <div><label for="say-cost">At most ($)</label><input id="say-cost" type="number" min="0" step="any" ...${cost.bind} /></div>
      ${offered?.length > 0 && html`<div><label for="say-skills">Skills</label><select id="say-skills" multiple size="3" onChange=${(event) => setSkills([...event.target.selectedOptions].map((each) => each.value))}>${offered.map((each) => html`<option key=${each.name} value=${each.name}>${brief(each.name)}</option>`)}</select></div>`}</div></details></form></section>`;
}

/** Opens a session that begins as this one did, up to a message or to the end of what is over. */
export function useFork(id) {
  const [error, setError] = useState(null);
  const fork = async (last) => {
    try {
      const made = await ask("POST", `api/sessions/${encodeURIComponent(id)}/fork`, { body: last === undefined ? {} : { message_id: last } });
      location.hash = to("sessions", made.session.id);
    } catch (refusal) { setError(refusal); }
  };
  return [fork, error];
}

/** The conversation from which another one was forked, or that delegated it; null for one that began by itself. */
export function useOrigin(id) {
  const [origin, setOrigin] = useState(null);
  useEffect(() => {
    let isOver = false;
    const read = async (one) => (await ask("GET", `api/sessions/${encodeURIComponent(one)}`)).session;
    setOrigin(null);
    if (id) read(id).then((session) => session.parent_session_id && read(session.parent_session_id)).then((found) => isOver || setOrigin(found), () => null);
    return () => { isOver = true; };
  }, [id]);
  return origin;
}

export const titleOf = (session) => brief(session.title || session.preview || session.id);

export const textOf = (content) => (typeof content === "string" ? content : [content].flat().map((each) => (typeof each === "string" ? each : each?.text ?? (each ? `[${each.type ?? "part"}]` : ""))).filter(Boolean).join("\n\n"));

/** Which ledger row each call of a transcript is. A run's calls stand between its beginning and its end, in their order. */
function ledgers(messages, runs, calls) {
  const found = new Map();
  for (const run of runs) {
    const rows = [...(calls.get(run.run_id) ?? [])].sort((a, b) => a.iteration - b.iteration || a.position - b.position);
    let n = 0;
    for (const message of messages) {
      if (!message.tool_calls?.length || message.timestamp < (run.started_at ?? Infinity) - 0.01 || message.timestamp > (run.finished_at ?? Infinity) + 0.01) continue;
      message.tool_calls.forEach((call, position) => {
        if (rows[n]?.tool === call.function?.name) found.set(`${message.id} ${position}`, { ...rows[n++], run_id: run.run_id });
      });
    }
  }
  return found;
}

/** A transcript as a conversation: each call with its result, and the questions that were asked because of it. */
export function itemsOf(messages, runs, calls, decisions) {
  const rows = ledgers(messages, runs, calls), items = [], open = new Map();
  for (const message of messages) {
    const at = message.timestamp, text = textOf(message.content);
    if (message.role === "tool") {
      const item = open.get(message.tool_call_id);
      open.delete(message.tool_call_id);
      if (item) Object.assign(item, { result: text, state: item.row ? item.state : "" });
      else items.push({ kind: "call", key: `m${message.id}`, at, tool: message.tool_name ?? "result", given: "", result: text });
      continue;
    }
    if (message.role === "system") items.push({ kind: "cut", at, text: "Older messages were replaced by a summary.", more: text });
    else if (message.role === "user") items.push({ kind: "person", at, text: message.content, message });
    else if (text || message.reasoning_content || message.reasoning || !message.tool_calls?.length) items.push({ kind: "agent", at, text, thought: message.reasoning_content ?? message.reasoning ?? "", message });
    for (const [position, call] of (message.tool_calls ?? []).entries()) {
      const row = rows.get(`${message.id} ${position}`), tool = call.function?.name;
      const item = { kind: "call", key: `m${message.id}.${position}`, at, tool, given: call.function?.arguments ?? "", about: row?.about ?? message.calls_about[position], row, run: row?.run_id, call: row?.call, state: row ? wordOf(row) : "",
        took: row?.claimed_at && row?.settled_at ? row.settled_at - row.claimed_at : 0 };
      items.push(item);
      open.set(call.id, item);
      for (const one of decisions) if (row && one.run_id === row.run_id && one.call === row.call) items.push({ kind: "question", at: one.created_at, isApproval: one.kind === "approval",
        wait: { wait_id: one.id, command: one.command, question: one.question, description: one.description }, answer: { by: one.by ?? "nobody", choice: one.outcome === "answered" ? null : one.outcome, timestamp: one.closed_at, changed_arguments: one.changed_arguments } });
    }
  }
  return items;
}

/** What is written down, and behind it what its run does and asks now. A call that runs, or waits for its children or an answer,
 * stands in both: as it runs it is shown, once. `known` are the questions that are over. */
export function joined(past, story, run, known) {
  const running = [...story.running.values()];
  const runs = (item) => item.kind === "call" && (item.row ? item.run === run && running.some((one) => one.call === item.call) : item.result === undefined && running.some((one) => one.tool === item.tool));
  const asked = [...story.waits.values()].filter((item) => !item.answer && !known.has(item.wait.wait_id));
  return [...past.filter((item) => !runs(item)), ...running.map((item) => ({ ...item, run })), ...asked];
}

const RUNS_MAX = 20; // of a session, whose calls are looked up: the newest

/** What is known of a session: its transcript, its newest runs with their calls and children, and what was asked. */
function useSession(id) {
  const place = `api/sessions/${encodeURIComponent(id)}`, kept = useRef(new Map());
  return usePoll(async () => {
    const [one, page, runs, waits, closed] = await Promise.all([ask("GET", place), ask("GET", `${place}/messages`), ask("GET", "v1/runs", { params: { session_id: id, limit: RUNS_MAX, output_chars: 0 } }).catch(() => ({ data: [] })),
      ask("GET", "v1/approvals", { params: { limit: 100 } }).catch(() => ({ data: [] })), ask("GET", "v1/approvals/history", { params: { limit: 100 } }).catch(() => ({ data: [] }))]);
    const messages = page.data;
    for (let more = page; more.has_more && messages.length < 20000;) {
      more = await ask("GET", `${place}/messages`, { params: { after: messages.at(-1).id } });
      messages.push(...more.data);
    }
    const calls = new Map(), kids = [];
    await Promise.all(runs.data.filter((run) => run.iteration > 0).map(async (run) => {
      const seen = kept.current.get(run.run_id);
      const found = seen ?? { calls: (await ask("GET", `v1/runs/${encodeURIComponent(run.run_id)}/calls`, { params: { limit: 500 } }).catch(() => ({ data: [] }))).data,
        kids: run.delegated === 0 ? [] : (await ask("GET", `v1/runs/${encodeURIComponent(run.run_id)}/tree`).catch(() => ({ data: [] }))).data.filter((node) => node.parent_run_id === run.run_id) };
      if (ENDED.includes(run.status)) kept.current.set(run.run_id, found);
      calls.set(run.run_id, found.calls);
      kids.push(...found.kids);
    }));
    const ours = (each) => each.session_id === id || runs.data.some((run) => run.run_id === each.run_id);
    return { session: one.session, messages, runs: runs.data, waits: waits.data.filter(ours), decisions: closed.data.filter(ours), calls, kids };
  }, 4000, [id], { lists: ["sessions", "runs", "approvals"], leastMs: 1000 });
}

const TELLING = ["message.completed", "tool.completed", "run.completed", "run.failed", "run.cancelled"];

export function Session({ id, query }) {
  const { data, error, again } = useSession(id);
  const [fork, refusal] = useFork(id);
  const [failure, setFailure] = useState(null), [naming, setNaming] = useState(null), [goTo, setGoTo] = useState(null);
  const opened = useRef(new Map()), at = Number(query?.get("at")) || null;
  const atWork = data?.runs.filter((run) => !ENDED.includes(run.status)).at(-1), origin = useOrigin(id);
  const story = useStory(atWork?.run_id, (event) => TELLING.includes(event.event) && again());
  const past = useMemo(() => (data ? itemsOf(data.messages, data.runs, data.calls, data.decisions) : []), [data]);
  const shown = joined(past, story, atWork?.run_id, new Set(data?.decisions.map((one) => one.id)));
  for (const run of [...(data?.runs ?? [])].reverse().filter((one) => !one.started_at && !ENDED.includes(one.status))) {
    // What waits behind another run is not written down yet.
    const written = shown.find((item) => item.kind === "person" && !item.note && Math.abs(item.at - run.created_at) < 1), note = "waits for a worker";
    if (written) shown[shown.indexOf(written)] = { ...written, note };
    else shown.push({ kind: "person", at: run.created_at, text: sent.get(run.run_id) ?? run.title, note });
  }
  const isMarked = data && at && past.find((item) => item.message?.id >= at);
  useEffect(() => { if (isMarked) setGoTo({ item: isMarked }); }, [Boolean(isMarked), at]);
  const change = async (body) => {
    try { await ask("PATCH", `api/sessions/${encodeURIComponent(id)}`, { body }); setFailure(null); } catch (wrong) { setFailure(wrong); }
    again();
  };
  const stop = async () => {
    try { await ask("POST", `v1/runs/${atWork.run_id}/stop`); setFailure(null); } catch (wrong) { setFailure(wrong); }
    again();
  };
  const last = data?.runs[0];
  const repeat = async () => {
    try { await ask("POST", `v1/runs/${last.run_id}/retry`); setFailure(null); } catch (wrong) { setFailure(wrong); }
    again();
  };
  // A copy may end where a turn does, and not between a call and its result.
  const tools = may("runs:write") ? ({ message }) => message && !message.tool_calls?.length && html`<button class="plain onhover" onClick=${() => fork(message.id)}>Fork here</button>` : null;
  const session = data?.session, waiting = data?.waits.filter((wait) => !shown.some((item) => !item.answer && item.wait?.wait_id === wait.id)).map((wait) => ({ kind: "question", at: wait.created_at, isApproval: wait.kind === "approval", wait: { ...wait, wait_id: wait.id } })) ?? [];
  if (!data && error?.status === 404) return html`<header><h1>No such conversation <small class="soft mono">${visible(id)}</small></h1></header><section class="panel"><${Empty} next=${html`<a href="#/sessions">To all sessions</a>`}>Nobody spoke there, or it was deleted.</${Empty}></section>`;
  return html`<header><h1>${visible(session?.title || (session ? "A conversation" : ""))} <small class="soft mono">${visible(id)}</small></h1>${atWork && html`<${State} of=${atWork.status} />`}
      ${origin && html`<span class="soft">from <a href=${to("sessions", origin.id)}>${titleOf(origin)}</a></span>`}
      <span class="grow"></span>${may("runs:write") && html`<button onClick=${() => setNaming(session?.title ?? "")}>Rename</button><button onClick=${() => fork()}>Fork</button>${last && ENDED.includes(last.status) && html`<button onClick=${repeat}>Retry the last turn</button>`}
      <button onClick=${() => change({ archived: !session?.archived_at })}>${session?.archived_at ? "Bring back" : "Put away"}</button>`}${data && html`<button onClick=${() => save(`${id}.jsonl`, `${JSON.stringify({ ...session, messages: data.messages })}\n`)}>Export</button>`}<a href=${`#/runs?session=${encodeURIComponent(id)}`}>Its runs</a></header>
    <${Notice} error=${error ?? refusal ?? failure} />
    ${naming !== null && html`<form class="row" onSubmit=${(event) => { event.preventDefault(); change({ title: naming }); setNaming(null); }}><input class="grow" aria-label="Title" maxlength="80" value=${naming} onInput=${(event) => setNaming(event.target.value)} /><button class="main">Save</button><button type="button" onClick=${() => setNaming(null)}>Leave it</button></form>`}
    <section class="panel"><h2 class="hidden">Conversation</h2>${session && html`<header><span class="soft">${counted(session.message_count, "message")}, ${counted(session.tool_call_count, "call")}, ${costOf(session.estimated_cost_usd, session.has_unknown_cost)}</span><span class="soft mono">${brief(session.model ?? "")}</span>
      ${atWork && html`<span class="grow"></span><a href=${to("runs", atWork.run_id)}>The run at work</a>${may("runs:write") && html`<${Danger} label="Stop" title="Stop this run?" act=${stop}><p>The run, and all that it caused, is asked to stop.</p></${Danger}>`}`}</header>`}
      <${Conversation} items=${[...shown, ...waiting]} draft=${atWork && story.draft} thought=${atWork && story.thought} opened=${opened.current} waits=${data?.waits} again=${again} kids=${data?.kids} tools=${tools} goTo=${goTo} label="The conversation" /></section>
    ${may("runs:write") && session && html`<${Say} session=${id} said=${again} />`}`;
}

