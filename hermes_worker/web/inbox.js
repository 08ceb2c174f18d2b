// Approvals and questions: one inbox, and who was first.
import { age, Ago, ask, brief, Empty, everybodys, html, may, Notice, Older, short, span, State, Text, to, useEffect, useField, useRef, user, useState, visible, visibleJson } from "./core.js";
import { differing } from "./markdown.js";
import { useOlder } from "./live.js";

const WORDS = { __proto__: null, once: "Allow once", session: "Allow in this session", always: "Always allow", deny: "Deny" };

const LASTING = { __proto__: null, session: "“Allow in this session” holds for this session", always: "“Always allow” holds for good" };
const TOLD_MAX = 3;

export function Inbox({ waiting }) {
  const { data, error, again } = waiting;
  const [outcomes, setOutcomes] = useState([]);
  const told = (outcome) => { setOutcomes((last) => [outcome, ...last].slice(0, 20)); again(); };
  const seen = useRef(new Map()), mine = useRef(new Set());
  useEffect(() => {
    if (!data) return;
    const open = new Map(data.data.map((wait) => [wait.id, wait]));
    const gone = [...seen.current.values()].filter((wait) => !open.has(wait.id) && !mine.current.has(wait.id));
    seen.current = open;
    // Somebody else was faster, or the run was stopped: say it, rather than let the question vanish.
    for (const wait of gone.slice(0, TOLD_MAX)) winner(wait).then((what) => told({ time: new Date().toLocaleTimeString(), text: `${wait.tool}: ${what}` }));
  }, [data]);
  return html`<header><h1>Inbox</h1><span class="soft desktop"><kbd>j</kbd> <kbd>k</kbd> move, <kbd>a</kbd> allows, <kbd>d</kbd> denies</span><span class="grow"></span><${Notified} /></header><${Notice} error=${error} />
    <section class="panel" aria-label="Open questions">
      ${data && !data.data.length && html`<${Empty} next="When a run wants to do something dangerous, or needs to know something, it asks here.">Nobody is asked anything.</${Empty}>`}
      ${grouped(data?.data ?? []).map((wait, n, all) => html`${wait.run_id !== all[n - 1]?.run_id && html`<${Asker} key=${`of ${wait.run_id}`} wait=${wait} waits=${all.filter((each) => each.run_id === wait.run_id)} again=${again} told=${told} mine=${mine.current} />`}
        <${Waiting} key=${wait.id} wait=${wait} again=${again} told=${told} mine=${mine.current} isTitled />`)}</section>
    ${outcomes.length > 0 && html`<section class="panel"><header><h2>Answered</h2></header>
      <ul class="talk" role="status">${outcomes.map((each) => html`<li><span class="when">${each.time}</span><span>${visible(each.text)}</span></li>`)}</ul></section>`}
    <${History} />`;
}

/** The questions of one run stand together, in the order in which the first of each was asked. */
function grouped(waits) {
  const first = new Map();
  for (const wait of waits) if (!first.has(wait.run_id)) first.set(wait.run_id, first.size);
  return [...waits].sort((a, b) => first.get(a.run_id) - first.get(b.run_id) || a.id - b.id);
}

/** Which run asks, and all that it asks answered at once where it asks more than one thing. */
function Asker({ wait, waits, again, told, mine }) {
  const isOurs = wait.tenant === user().tenant, [said, setSaid] = useState(null);
  const approvals = waits.filter((each) => each.kind === "approval");
  const all = async (choice) => {
    approvals.forEach((each) => mine.add(each.id));
    try {
      await ask("POST", `v1/runs/${wait.run_id}/approval`, { body: { choice, all: true, wait_ids: approvals.map((each) => each.id) } });
      told({ time: new Date().toLocaleTimeString(), text: `${approvals.length} calls: you chose ${choice}` });
    } catch (refusal) { setSaid(refusal.message); again(); }
  };
  return html`<h2 class="asker">${isOurs ? html`<a href=${to("runs", wait.run_id)} title=${wait.run_id}>${brief(wait.title ?? "A run")}</a>` : html`<span>${brief(wait.title ?? "A run of another tenant")}</span>`}
    ${isOurs && may("approve") && approvals.length > 1 && html`<span class="row"><button onClick=${() => all("once")}>Allow all ${approvals.length} once</button><button class="danger" onClick=${() => all("deny")}>Deny all</button></span>`}${said && html`<span role="status">${visible(said)}</span>`}</h2>`;
}

/** Browsers tell of questions when somebody wants that, and while the page is open. */
function Notified() {
  const [state, setState] = useState(globalThis.Notification?.permission);
  if (!globalThis.Notification || !isSecureContext || state === "denied") return null;
  return state === "granted" ? html`<span class="soft">This browser notifies you.</span>` : html`<button onClick=${() => Notification.requestPermission().then(setState)}>Notify me</button>`;
}

const PERMITTED = { __proto__: null, session: "in its session", always: "always" };

/** What was asked before, who answered, and what that permits from now on. */
function History() {
  const { rows, error, more } = useOlder("v1/approvals/history", { limit: 50, ...everybodys() }, "id", 5000, ["approvals"]);
  return html`<${Notice} error=${error} />${rows?.length > 0 && html`<section class="panel"><header><h2>History</h2></header><div class="scroll"><table aria-label="Closed questions">
    <thead><tr><th>Outcome</th><th>What was asked</th><th>Run</th><th>By</th><th>Why</th><th>Permits from now on</th><th class="num">Waited</th><th class="num">Age</th></tr></thead>
    <tbody>${rows.map((each) => html`<tr key=${each.id}><td><${State} of=${each.outcome} /></td>
      <td><span class="mono">${brief(each.tool)}</span> ${brief(each.command ?? each.question ?? each.description)}${each.changed_arguments !== null && html`<div><span class="soft">It ran with these instead: </span><span class="mono">${brief(each.changed_arguments)}</span></div>`}</td><td><a class="one" href=${to("runs", each.run_id)} title=${each.run_id}>${brief(each.title ?? short(each.run_id))}</a></td>
      <td class="nowrap">${brief(each.by ?? "–")}</td><td>${brief(each.reason ?? "")}</td><td>${each.permits !== null && html`<span class="mono">${brief(each.permits)}</span> ${PERMITTED[each.outcome]}`}</td>
      <td class="num">${span(each.closed_at - each.created_at)}</td><td class="num"><${Ago} at=${each.closed_at} /></td></tr>`)}</tbody></table></div><${Older} more=${more} /></section>`}`;
}

/** Who answered before us, and what. */
async function winner(wait) {
  const closed = await ask("GET", "v1/approvals/history", { params: { limit: 100, ...everybodys() } }).catch(() => ({ data: [] }));
  const found = closed.data.find((each) => each.id === wait.id);
  if (found?.by) return `${found.by} was first${found.outcome === "answered" ? "" : `: ${found.outcome}`}.`;
  return `It is not asked any more${found ? `: ${found.outcome.replaceAll("_", " ")}` : ""}.`;
}

/** What is asked, whole: a difference in its colours, and everything else as it would run. */
function Asked({ wait }) {
  if (!wait.command) return null;
  return /^(\*\*\* Begin Patch|--- |diff )/m.test(wait.command) ? html`<pre tabindex="0" class="diff">${differing(visible(wait.command))}</pre>` : html`<${Text} of=${wait.command} mono whole />`;
}

/** Why a person is asked, without the dangers, which stand below what is asked. */
function remarkOf({ description }, keys) {
  const named = keys.join("; "), at = named ? (description ?? "").indexOf(named) : -1;
  return at < 0 ? description : description.slice(at + named.length).replace(/^; /, "") || "A person decides about what is dangerous.";
}

/** A question, in the order in which one decides: whose it is, why it is asked, all of what would run, its dangers, what
 * happens on no, and the answers that the server accepts. */
export function Waiting({ wait, again, told, mine, isTitled, isHere }) {
  const reason = useField(), text = useField();
  const [changed, setChanged] = useState(null);
  const [said, setSaid] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const isApproval = wait.kind === "approval";
  const tell = (what) => { setSaid(what); told?.({ time: new Date().toLocaleTimeString(), text: `${wait.tool}: ${what}` }); again?.(); };
  const send = async (path, body, what) => {
    setBusy(true);
    mine?.add(wait.id);
    try {
      await ask("POST", `v1/runs/${wait.run_id}/${path}`, { body: { ...body, wait_id: wait.id } });
      tell(what);
    } catch (refusal) {
      if (refusal.status === 409) tell(await winner(wait));
      else {
        mine?.delete(wait.id);
        setSaid(refusal.message);
      }
    }
    setBusy(false);
  };
  const choose = (choice) => {
    const body = { choice };
    if (choice === "deny" && reason.value.trim()) body.reason = reason.value.trim();
    if (choice === "once" && changed !== null) {
      try { body.arguments = JSON.parse(changed); } catch { return setSaid("The changed arguments are no JSON."); }
    }
    return send("approval", body, `you chose ${choice}`);
  };
  const change = async () => {
    if (changed !== null) return setChanged(null);
    try {
      const { messages } = await ask("GET", `v1/runs/${wait.run_id}/result`);
      const call = messages.filter((message) => message.tool_calls?.length).at(-1).tool_calls[wait.position];
      setChanged(visibleJson(JSON.parse(call.function.arguments)));
    } catch (refusal) { setSaid(refusal.message); }
  };
  const isOurs = wait.tenant === user().tenant;
  const mayAnswer = isOurs && (isApproval ? may("approve") : may("runs:write"));
  const keys = wait.pattern_keys?.length ? wait.pattern_keys : wait.pattern_key ? [wait.pattern_key] : [];
  const choices = isApproval && !wait.choices.length ? Object.keys(WORDS) : wait.choices, lasting = isApproval ? choices.filter((choice) => LASTING[choice]) : [];
  const remark = remarkOf(wait, keys), end = wait.expires_at ? age(wait.expires_at) : null;
  return html`<article class="ask" tabindex="-1" aria-label=${`${wait.kind} of ${wait.run_id}`}>
    <div class="row">${!isTitled && !isHere && html`<strong>${isOurs ? html`<a href=${to("runs", wait.run_id)} title=${wait.run_id}>${brief(wait.title ?? short(wait.run_id))}</a>` : brief(wait.title ?? short(wait.run_id))}</strong>`}
      <strong>${isApproval ? "Allow this?" : "A question"}</strong><span class="mono">${visible(wait.tool)}</span>${!isOurs && html`<span class="tag">${brief(wait.tenant)}</span>`}<span class="grow"></span>
      <span class="soft mono" title="What this question is called in chats">${wait.code}</span><span class="soft">waits <${Ago} at=${wait.created_at} />${end ? `, ends ${end}` : ""}</span></div>
    ${remark && html`<p><span class="soft">Why it is asked: </span>${visible(remark)}</p>`}
    ${wait.directory && html`<p><span class="soft">In: </span><span class="mono">${visible(wait.directory)}</span></p>`}<${Asked} wait=${wait} />
    ${wait.question && html`<${Text} of=${wait.question} whole />`}
    ${keys.length > 0 && html`<p class="dangers"><span class="soft">${keys.length > 1 ? `${keys.length} dangers` : "Danger"} </span>${keys.map((key) => html`<span class="tag bad">${visible(key)}</span>`)}</p>`}
    ${mayAnswer && html`<p class="soft">${isApproval ? "On no, it does not run: the agent reads your reason and goes on without it." : "Your words go to the agent as they are."}${end ? ` Without an answer ${isApproval ? "it is denied" : "the agent goes on"} ${end}.` : " Without an answer it waits."}
      ${lasting.length > 0 && keys.length > 0 && ` ${lasting.map((choice) => LASTING[choice]).join(", ")}: nobody is asked about ${keys.length > 1 ? "these" : "this"} again.`}</p>`}
    ${!isOurs && html`<p class="soft">A key of the tenant ${brief(wait.tenant)} answers this.</p>`}
    ${mayAnswer && isApproval && html`<div class="row">
      ${choices.filter((choice) => changed === null || choice === "once" || choice === "deny").map((choice) => html`<button class=${choice === "once" ? "main" : choice === "deny" ? "danger" : ""} data-key=${changed === null ? { once: "a", deny: "d" }[choice] : undefined} disabled=${isBusy} onClick=${() => choose(choice)}>${WORDS[choice] ?? visible(choice)}${changed !== null && choice === "once" ? " with the changed arguments" : ""}</button>`)}
      <input aria-label="Why it is denied" placeholder="Why it is denied" ...${reason.bind} />
      ${may("runs:write") && html`<button class="plain" onClick=${change}>${changed === null ? "Change arguments" : "Leave them"}</button>`}</div>
      ${changed !== null && html`<textarea class="mono" aria-label="Changed arguments, as JSON" value=${changed} onInput=${(e) => setChanged(e.target.value)}></textarea>`}`}
    ${mayAnswer && !isApproval && html`<form class="row" onSubmit=${(e) => { e.preventDefault(); send("input", { text: text.value }, "you answered"); }}>
      ${choices.map((choice) => html`<button type="button" disabled=${isBusy} onClick=${() => send("input", { text: choice }, `you answered ${choice}`)}>${visible(choice)}</button>`)}
      <input class="grow" aria-label="Your answer" required ...${text.bind} /><button class="main" disabled=${isBusy}>Answer</button></form>`}
    ${said && html`<p role="status">${visible(said)}</p>`}
  </article>`;
}
