// What runs and waits now, and the list of runs with its filters in the address.
import { Ago, ask, brief, Confirm, counted, Danger, dollars, Empty, everybodys, html, isLost, LongTable, may, money, Notice, number, setQuery, short, span, State, to, useEffect, useField, useRef, useState, visible } from "./core.js";
import { Meant, Named, useMeant } from "./finding.js";
import { usePoll } from "./live.js";
import { Waiting } from "./inbox.js";

const OPEN = ["queued", "running", "waiting_for_approval", "waiting_for_input", "waiting_for_children", "waiting_for_capacity", "paused", "stopping"];
const STATUSES = [...OPEN, "completed", "failed", "cancelled", "expired"];
const SOURCES = [["api", "API"], ["cli", "command line"], ["cron", "job"], ["webhook", "webhook"], ["evaluation", "evaluation"]];
// What somebody asked for. What a run did for itself stands below it, and is listed when it is asked for.
const ASKED = ["request", "job", "follow_up"];
const KINDS = [["every", "everything"], ["job", "scheduled"], ["child", "children"], ["follow_up", "background answers"], ["review", "reviews"], ["evaluation", "evaluations"]];
const SHOWN_MAX = 400; // of an answer: a line of a list shows less
const ENDED_BADLY = ["failed", "cancelled", "expired"];

/** Why a run is where it is, asked when somebody wants to know. */
function Why({ id }) {
  const [text, setText] = useState(null);
  const opened = (event) => { if (event.target.open) ask("GET", `v1/runs/${id}/explain`).then((told) => setText(told.text), (refusal) => setText(refusal.message)); };
  return html`<details onToggle=${opened}><summary class="soft">why</summary>${text && html`<div class="text">${visible(text)}</div>`}</details>`;
}

const WAITS = ["queued", "waiting_for_approval", "waiting_for_input", "waiting_for_children", "waiting_for_capacity", "paused"];

const MARKED = { __proto__: null, review: "review", evaluation: "evaluation", child: "child", job: "scheduled", follow_up: "background" };

/** Runs by what was asked. What one delegated is opened below it. */
export function RunTable({ runs, picked, pick, onEnd, onSeen, empty }) {
  const [below, setBelow] = useState(new Map());
  if (!runs.length) return html`<${Empty} next=${empty ?? "Ask an agent something under Sessions, or schedule a job."}>No run fits.</${Empty}>`;
  const flip = async (id) => {
    if (below.has(id)) return setBelow((last) => { const next = new Map(last); next.delete(id); return next; });
    const found = await ask("GET", "v1/runs", { params: { parent_run_id: id, limit: 100, output_chars: SHOWN_MAX } }).catch(() => ({ data: [] }));
    setBelow((last) => new Map(last).set(id, found.data.reverse()));
  };
  const rows = [];
  const list = (run, level, root) => {
    rows.push({ run, level, root });
    for (const child of below.get(run.run_id) ?? []) list(child, level + 1, root);
  };
  runs.forEach((run, n) => list(run, 0, n));
  const row = ({ run, level }, n) => html`<tr key=${`${run.run_id} ${level}`} data-n=${n} aria-rowindex=${n + 2}>
      ${pick && html`<td class="choose"><input type="checkbox" aria-label=${`Choose ${run.run_id}`} checked=${picked.has(run.run_id)} onChange=${() => pick(run.run_id)} /></td>`}
      <td class="what" style=${level ? { paddingLeft: `${1 + level * 1.2}rem` } : undefined}><a class="one" href=${to("runs", run.run_id)} title=${run.run_id}>${level > 0 && "└ "}${brief(run.title ?? run.output ?? run.error ?? "A run without words")}</a>
        <span class="line">${run.delegated > 0 && html`<button class="plain" aria-expanded=${below.has(run.run_id)} onClick=${() => flip(run.run_id)}>${below.has(run.run_id) ? "▾" : "▸"} ${counted(run.delegated, "child", "children")}</button>`}
          ${MARKED[run.kind] && html`<span class="tag">${MARKED[run.kind]}</span>`}${(run.tags ?? []).map((tag) => html`<span class="tag">${brief(tag)}</span>`)}<span class="soft mono">${brief(run.model)}</span> <span class="id">${short(run.run_id)}</span>${run.session_title && run.session_title !== run.title && html` <span class="soft">in ${brief(run.session_title)}</span>`}</span>
        ${run.status === "failed" && run.error && html`<span class="line bad" title=${brief(run.error)}>${brief(run.error)}</span>`}
        ${run.undelivered?.map((each) => html`<span class="line bad" title=${brief(each.error)}>${isLost(each) ? "not" : "not yet"} delivered to ${brief(each.target)}</span>`)}</td>
      <td><${State} of=${run.status} />${WAITS.includes(run.status) && html`<${Why} id=${run.run_id} />`}</td>
      <td class="num">${run.iteration}<span class="of">/${run.iterations_max}</span></td>
      <td class="num"><${Ago} at=${run.created_at} /></td>
      <td class="num">${run.started_at ? span((run.finished_at ?? Date.now() / 1000) - run.started_at) : "–"}</td>
      <td class="num">${number(run.usage?.total_tokens)}</td>
      <td class="num">${money(run)}</td></tr>`;
  const seen = onSeen && ((from, till) => onSeen(rows[from]?.root ?? 0, (rows[till - 1]?.root ?? -1) + 1));
  return html`<${LongTable} rows=${rows} columns=${pick ? 8 : 7} label="Runs" row=${row} onEnd=${onEnd} onSeen=${seen} head=${html`<tr>${pick && html`<th><span class="hidden">Chosen</span></th>`}
    <th>What</th><th>Status</th><th class="num">Step</th><th class="num">Age</th><th class="num">Took</th><th class="num">Tokens</th><th class="num">Cost</th></tr>`} />`;
}

async function readNow() {
  const midnight = new Date().setHours(0, 0, 0, 0) / 1000;
  const [open, waits, failed, spend] = await Promise.all([
    ask("GET", "v1/runs", { params: { status: OPEN, kind: [...ASKED, "child"], limit: 100, output_chars: SHOWN_MAX } }),
    ask("GET", "v1/approvals", { params: { limit: 100, ...everybodys() } }),
    ask("GET", "v1/runs", { params: { created_after: midnight, status: "failed", kind: ASKED, limit: 100, output_chars: 0 } }),
    ask("GET", "v1/spend", { params: { by: "day", created_after: midnight, max_age_s: 10 } }),
  ]);
  return { open, waits: waits.data, failed, spent: spend.data.reduce((sum, day) => sum + (day.cost_usd ?? 0), 0) };
}

export function Now() {
  const { data, error, again } = usePoll(readNow, 1500, [], { lists: ["runs", "approvals"], leastMs: 1000 });
  if (!data) return html`<header><h1>Now</h1></header><${Notice} error=${error} />`;
  const of = (...statuses) => data.open.data.filter((run) => statuses.includes(run.status)).length;
  const more = (page) => (page.has_more ? "+" : ""), asked = data.open.data.filter((run) => run.kind !== "child"), below = data.open.data.length - asked.length;
  return html`<header><h1>Now</h1></header><${Notice} error=${error} />
    <div class="cards">
      <div class="card"><b>${of("running", "stopping")}${more(data.open)}</b><span>at work</span></div>
      <div class="card"><b>${of("queued", "waiting_for_capacity")}${more(data.open)}</b><span>wait for a worker</span></div>
      <a class="card" href="#/inbox"><b>${data.waits.length}</b><span>need a person</span></a>
      <a class="card" href="#/runs?status=failed&hours=24"><b>${data.failed.data.length}${more(data.failed)}</b><span>runs failed today</span></a>
      <div class="card"><b>${dollars(data.spent)}</b><span>spent by today's runs</span></div>
    </div>
    ${data.waits.length > 0 && html`<section class="panel"><header><h2>Needs a person</h2></header>
      ${data.waits.slice(0, 5).map((wait) => html`<${Waiting} key=${wait.id} wait=${wait} again=${again} />`)}</section>`}
    <section class="panel"><header><h2>At work and waiting</h2><span class="grow"></span>${below > 0 && html`<a href="#/runs?status=open&kind=child">${number(below)} delegated</a>`}<a href="#/runs">All runs</a></header>
      <${RunTable} runs=${asked} empty=${below > 0 && "What runs delegated is still at work."} /></section>`;
}

/** A filter whose text is the user's: the address follows it, and only another address changes it back. */
export function Filter({ name, label, query, type = "text", list, any = "any" }) {
  const [value, setValue] = useState(query.get(name) ?? "");
  const timer = useRef(0);
  const changed = (event) => {
    setValue(event.target.value);
    clearTimeout(timer.current);
    const next = event.target.value;
    timer.current = setTimeout(() => {
      timer.current = 0;
      const now = new URLSearchParams(location.hash.split("?")[1] ?? "");
      if (next) now.set(name, next); else now.delete(name);
      setQuery(now);
    }, list ? 0 : 120);
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  const wanted = query.get(name) ?? "";
  useEffect(() => { if (!timer.current) setValue(wanted); }, [wanted]);
  const id = `filter-${name}`;
  return html`<div><label for=${id}>${label}</label>${list
    ? html`<select id=${id} value=${value} onChange=${changed}><option value="">${any}</option>${list.map(([word, text]) => html`<option value=${word}>${text}</option>`)}</select>`
    : html`<input id=${id} type=${type} value=${value} onInput=${changed} spellcheck="false" autocomplete="off" size="14" />`}</div>`;
}

/** By default what somebody asked for; below a parent, or of one that is named, everything. */
function kindsOf(query) {
  const kind = query.get("kind");
  return kind ? (kind === "every" ? undefined : [kind]) : query.get("parent") || query.get("session") || query.get("source") || query.get("tag") ? undefined : ASKED;
}

function filtersOf(query) {
  const status = query.get("status");
  const hours = Number(query.get("hours"));
  return {
    status: status === "open" ? OPEN : status || undefined,
    tag: query.get("tag"), model: query.get("model"), session_id: query.get("session"), job_id: query.get("job"),
    kind: kindsOf(query), source: query.get("source"), parent_run_id: query.get("parent"), text: query.get("text"),
    min_cost_usd: Number(query.get("cost")) || undefined, max_cost_usd: Number(query.get("cost_to")) || undefined,
    created_after: hours > 0 ? Math.floor(Date.now() / 1000 - hours * 3600) : undefined,
  };
}

/** What the same filters say to whoever stops all that fit; null where they name nothing that can be stopped. What is accepted
 * from now on does not fit: nobody was told of it. */
export function stopOf({ status, tag, ...others }) {
  const open = status ? [status].flat().filter((word) => OPEN.includes(word)) : OPEN;
  const said = Object.fromEntries(Object.entries(others).filter(([, value]) => value));
  return open.length ? { ...said, status: open, tag: tag ? [tag] : [], created_before: Date.now() / 1000, limit: STOPPED_MAX } : null;
}

const STOPPED_MAX = 1000;

/** Stop all that fit, or only say which these are. The server looks at so many runs in one request, and no more. */
async function stopFitting(body) {
  const ids = [];
  let cursor;
  for (let n = 0; n < LOOKS_MAX && ids.length < body.limit; n++) {
    const told = await ask("POST", "v1/batch/stop", { body: { ...body, limit: body.limit - ids.length, ...(cursor && { cursor }) } });
    ids.push(...told.run_ids);
    cursor = told.next_cursor;
    if (!cursor) break;
  }
  return { ids, hasMore: Boolean(cursor) };
}

const PAGE = 100;
const LOOKS_MAX = 5;
const AGAIN_MS = 2000;
const SEARCHED_AGAIN_MS = 10000; // the server reads texts for it

/** At least `count` runs below one (or the newest), and the cursor of what follows; null at the end. A page of what is rare may be short. */
async function readBelow(filters, before, count) {
  const data = [];
  let cursor;
  for (let n = 0; n < LOOKS_MAX && data.length < count; n++) {
    const page = await ask("GET", "v1/runs", { params: { ...filters, limit: PAGE, output_chars: SHOWN_MAX, ...(cursor ? { cursor } : { before }) } });
    data.push(...page.data);
    cursor = page.has_more ? page.next_cursor : null;
    if (!cursor) break;
  }
  return { data, cursor };
}

/** A list of which the part from number `from` was read again: it holds what the server holds, each once. What stood below the
 * part stays if we know where it goes on, and is read again otherwise. */
export function joined(list, from, part) {
  const above = list.rows.slice(0, from);
  const last = part.cursor && part.data.at(-1)?.run_id;
  const at = last ? list.rows.findIndex((run, n) => n >= from && run.run_id === last) : -1;
  return at < 0 ? { rows: [...above, ...part.data], cursor: part.cursor } : { rows: [...above, ...part.data, ...list.rows.slice(at + 1)], cursor: list.cursor };
}

/** Runs that fit. The newest and those in sight are read again when a run changes; scrolling reads older ones. Nothing is read
 * while it is not known what the filters mean. */
function useRuns(query) {
  const asked = query?.toString(), filters = query ? filtersOf(query) : {};
  const kept = useRef({ asked: null, rows: [], cursor: null }), seen = useRef([0, 0]), isReading = useRef(false);
  const [, draw] = useState(0);
  const place = (from, part) => { kept.current = { asked, ...joined(kept.current, from, part) }; };
  const { error, again } = usePoll(async () => {
    if (!query) return;
    const newest = await readBelow(filters, undefined, 1);
    if (kept.current.asked !== asked) kept.current = { asked, rows: newest.data, cursor: newest.cursor };
    else place(0, newest);
    const [from, till] = seen.current, above = kept.current.rows[from - 1]?.run_id;
    if (till <= PAGE || !above) return;
    const part = await readBelow(filters, above, till - from);
    const at = kept.current.rows.findIndex((run) => run.run_id === above);
    if (kept.current.asked === asked && at >= 0) place(at + 1, part);
  }, filters.text ? SEARCHED_AGAIN_MS : AGAIN_MS, [asked], { lists: ["runs"], leastMs: filters.text ? SEARCHED_AGAIN_MS : 1000 });
  const more = async () => {
    const { rows, cursor } = kept.current;
    if (!cursor || isReading.current || kept.current.asked !== asked) return;
    isReading.current = true;
    try {
      const page = await ask("GET", "v1/runs", { params: { ...filters, limit: PAGE, output_chars: SHOWN_MAX, cursor } });
      if (kept.current.cursor === cursor) kept.current = { asked, rows: [...rows, ...page.data], cursor: page.has_more ? page.next_cursor : null };
      draw((n) => n + 1);
    } catch { /* the next look says what is wrong */ }
    isReading.current = false;
  };
  return { ...kept.current, error, again, more, isKnown: query && kept.current.asked !== null, onSeen: (from, till) => { seen.current = [from, till]; } };
}

/** Filters under names, kept by the server for whoever holds the key. */
function Saved({ query, choose }) {
  const { data, error, again } = usePoll(() => ask("GET", "v1/page/filters"), 30000, []);
  const [said, setSaid] = useState(null);
  const name = useField();
  const now = query.toString(), saved = data?.data ?? [], here = saved.find((each) => each.query === now);
  const act = async (method, more) => {
    try { await ask(method, "v1/page/filters", more); setSaid(null); name.set(""); } catch (refusal) { setSaid(refusal); }
    again();
  };
  const chosen = (event) => { const found = saved.find((each) => each.name === event.target.value); choose(new URLSearchParams(found?.query ?? "")); };
  return html`<${Notice} error=${said ?? error} /><div class="filters">
    <div><label for="saved-filters">Saved filters</label><select id="saved-filters" value=${here?.name ?? ""} onChange=${chosen}><option value="">${saved.length ? "none of them" : "none yet"}</option>
      ${saved.map((each) => html`<option key=${each.name} value=${each.name}>${brief(each.name)}</option>`)}</select></div>
    ${here ? html`<${Danger} label="Forget these" title="Forget these filters?" act=${() => act("DELETE", { params: { name: here.name } })}><p>${brief(here.name)} is not offered any more.</p></${Danger}>`
    : now && html`<form class="row" onSubmit=${(event) => { event.preventDefault(); act("PUT", { body: { name: name.value, query: now } }); }}>
        <input aria-label="Name for these filters" placeholder="Name for these filters" required maxlength="60" ...${name.bind} /><button>Save</button></form>`}</div>`;
}

/** On a phone filters are folded until somebody wants them. */
function Folded({ count, children }) {
  const [isOpen, setOpen] = useState(() => !matchMedia("(max-width: 46rem)").matches);
  return html`<details class="folded" open=${isOpen} onToggle=${(event) => setOpen(event.target.open)}><summary>Filters${count ? ` (${count})` : ""}</summary>${children}</details>`;
}

export function Runs({ query }) {
  const [picked, setPicked] = useState(new Set());
  const [given, setGiven] = useState(0); // how often filters came from elsewhere than their fields
  const choose = (next) => { setQuery(next); setGiven((n) => n + 1); };
  const asked = query.toString();
  useEffect(() => setPicked(new Set()), [asked]);
  const meant = useMeant(query);
  const { rows, cursor, isKnown, error, again, more, onSeen } = useRuns(meant.query);
  const pick = (id) => setPicked((last) => { const next = new Set(last); next.delete(id) || next.add(id); return next; });
  return html`<header><h1>Runs</h1><span class="soft">${isKnown && (cursor ? `the newest ${number(rows.length)}` : number(rows.length))}</span><span class="grow"></span><${Batch} runs=${rows} picked=${picked} query=${meant.query} done=${() => { setPicked(new Set()); again(); }} /></header>
    <${Notice} error=${error} />
    <section class="panel">
      <${Folded} count=${[...query].length}><div class="filters" key=${given} role="search" aria-label="Filters of the list">
        <${Filter} name="text" label="Text" query=${query} />
        <${Filter} name="status" label="Status" query=${query} list=${[["open", "not ended"], ...STATUSES.map((word) => [word, word.replaceAll("_", " ")])]} />
        <${Filter} name="kind" label="What" query=${query} list=${KINDS} any="asked for" />
        <${Filter} name="tag" label="Tag" query=${query} /><${Filter} name="model" label="Model" query=${query} />
        <${Filter} name="session" label="Session" query=${query} /><${Filter} name="job" label="Job" query=${query} />
        <${Filter} name="source" label="Source" query=${query} list=${SOURCES} /><${Filter} name="parent" label="Parent" query=${query} />
        <${Filter} name="cost" label="Cost from ($)" type="number" query=${query} /><${Filter} name="cost_to" label="to ($)" type="number" query=${query} />
        <${Filter} name="hours" label="Accepted" query=${query} list=${[["1", "in the last hour"], ["24", "in the last day"], ["168", "in the last week"]]} />
      </div><${Saved} query=${query} choose=${choose} /></${Folded}><${Meant} said=${meant.said} choose=${(name, id) => { const next = new URLSearchParams(query); next.set(name, id); choose(next); }} /><${Named} words=${query.get("text")} />
      ${isKnown && html`<${RunTable} key=${asked} runs=${rows} picked=${picked} pick=${may("runs:write") ? pick : undefined} onEnd=${more} onSeen=${onSeen} />`}
      ${cursor && html`<div class="pad"><button onClick=${more}>Show older runs</button></div>`}
    </section>`;
}

/** Stop or repeat many: those that are chosen, or stop all that fit the filters, where there are some. What will happen is said
 * first: that is the dry run. */
function Batch({ runs, picked, query, done }) {
  const [plan, setPlan] = useState(null);
  const [outcome, setOutcome] = useState(null);
  const chosen = runs.filter((run) => picked.has(run.run_id));
  const openOnes = chosen.filter((run) => OPEN.includes(run.status));
  const endedOnes = chosen.filter((run) => ENDED_BADLY.includes(run.status));
  const fitting = query && [...query].length > 0 ? stopOf(filtersOf(query)) : null;
  const told = (text) => { setOutcome(text); setPlan(null); done(); };
  const each = async () => {
    let refused = 0;
    for (const run of plan.runs) await ask("POST", `v1/runs/${run.run_id}/${plan.verb}`).catch(() => { refused += 1; });
    told(`${plan.runs.length - refused} done${refused ? `, ${refused} refused` : ""}.`);
  };
  const all = async () => {
    try {
      const { ids, hasMore } = await stopFitting(plan.body);
      told(`${number(ids.length)} done${hasMore ? ", and there are more" : ""}.`);
    } catch (refusal) { told(refusal.message); }
  };
  const planAll = async () => {
    try {
      const { ids, hasMore } = await stopFitting({ ...fitting, dry_run: true });
      if (ids.length) setPlan({ verb: "stop", hasMore, runs: ids.map((id) => runs.find((run) => run.run_id === id) ?? { run_id: id }), body: fitting });
      else setOutcome("No open run fits.");
    } catch (refusal) { setOutcome(refusal.message); }
  };
  if (!may("runs:write")) return null;
  return html`<div class="row">${outcome && html`<span role="status" class="soft">${visible(outcome)}</span>`}
    ${chosen.length === 2 && html`<a class="button" href=${to("compare", chosen[1].run_id, chosen[0].run_id)}>Compare 2</a>`}
    <button disabled=${!openOnes.length} onClick=${() => setPlan({ verb: "stop", runs: openOnes })}>Stop ${openOnes.length || ""}</button>
    <button disabled=${!endedOnes.length} onClick=${() => setPlan({ verb: "retry", runs: endedOnes })}>Retry ${endedOnes.length || ""}</button>
    ${fitting && html`<button onClick=${planAll}>Stop all that fit</button>`}
    ${plan && html`<${Confirm} title=${`${plan.verb === "stop" ? "Stop" : "Repeat"} ${plan.hasMore ? "the newest " : ""}${number(plan.runs.length)} ${plan.runs.length === 1 ? "run" : "runs"}?`} yes=${plan.body ? all : each} no=${() => setPlan(null)}>
      <p>${plan.verb === "stop" ? "These runs, and all that they caused, are asked to stop:" : "A new run begins for each of these, in the same session:"}</p>
      <ul class="plainly planned" tabindex="0">${plan.runs.map((run) => html`<li key=${run.run_id}>${brief(run.title ?? "")} <span class="id">${run.run_id}</span> ${run.status && html`<${State} of=${run.status} />`}</li>`)}</ul></${Confirm}>`}</div>`;
}
