// Approvals and questions: one inbox, and who was first.
import { age, ask, brief, everybodys, html, may, Notice, Older, short, span, State, Text, to, useEffect, useField, useRef, user, useState, visible, visibleJson } from "./core.js";
import { useOlder } from "./live.js";

const WORDS = { __proto__: null, once: "Allow once", session: "Allow in this session", always: "Always allow", deny: "Deny" };

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
  return html`<header><h1>Inbox</h1></header><${Notice} error=${error} />
    <section class="panel" aria-label="Open questions">
      ${data && !data.data.length && html`<div class="empty">Nobody is asked anything.</div>`}
      ${data?.data.map((wait) => html`<${Waiting} key=${wait.id} wait=${wait} again=${again} told=${told} mine=${mine.current} />`)}</section>
    ${outcomes.length > 0 && html`<section class="panel"><header><h2>Answered</h2></header>
      <ul class="talk" role="status">${outcomes.map((each) => html`<li><span class="when">${each.time}</span><span>${visible(each.text)}</span></li>`)}</ul></section>`}
    <${History} />`;
}

const PERMITTED = { __proto__: null, session: "in its session", always: "always" };

/** What was asked before, who answered, and what that permits from now on. */
function History() {
  const { rows, error, more } = useOlder("v1/approvals/history", { limit: 50, ...everybodys() }, "id", 5000, ["approvals"]);
  return html`<${Notice} error=${error} />${rows?.length > 0 && html`<section class="panel"><header><h2>History</h2></header><div class="scroll"><table aria-label="Closed questions">
    <thead><tr><th>Outcome</th><th>What was asked</th><th>Run</th><th>By</th><th>Why</th><th>Permits from now on</th><th class="num">Waited</th><th class="num">Age</th></tr></thead>
    <tbody>${rows.map((each) => html`<tr key=${each.id}><td><${State} of=${each.outcome} /></td>
      <td><span class="mono">${brief(each.tool)}</span> ${brief(each.command ?? each.question ?? each.description)}</td><td class="mono nowrap"><a href=${to("runs", each.run_id)}>${short(each.run_id)}</a> ${visible(each.call)}</td>
      <td>${brief(each.by ?? "–")}</td><td>${brief(each.reason ?? "")}</td><td>${each.permits !== null && html`<span class="mono">${brief(each.permits)}</span> ${PERMITTED[each.outcome]}`}</td>
      <td class="num">${span(each.closed_at - each.created_at)}</td><td class="num">${age(each.closed_at)}</td></tr>`)}</tbody></table></div><${Older} more=${more} /></section>`}`;
}

/** Who answered before us, and what. */
async function winner(wait) {
  const closed = await ask("GET", "v1/approvals/history", { params: { limit: 100, ...everybodys() } }).catch(() => ({ data: [] }));
  const found = closed.data.find((each) => each.id === wait.id);
  if (found?.by) return `${found.by} was first${found.outcome === "answered" ? "" : `: ${found.outcome}`}.`;
  return `It is not asked any more${found ? `: ${found.outcome.replaceAll("_", " ")}` : ""}.`;
}

export function Waiting({ wait, again, told, mine }) {
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
  const choices = isApproval ? (wait.choices.length ? wait.choices : Object.keys(WORDS)) : wait.choices;
  return html`<article class="ask" aria-label=${`${wait.kind} of ${wait.run_id}`}>
    <div class="row"><strong>${isApproval ? "Allow this?" : "A question"}</strong><span class="mono" title="What this question is called in chats">${wait.code}</span><span class="mono">${visible(wait.tool)}</span>
      ${isOurs ? html`<a class="mono" href=${to("runs", wait.run_id)}>${short(wait.run_id)}</a>` : html`<span class="mono">${short(wait.run_id)}</span><span class="tag">${brief(wait.tenant)}</span>`}<span class="grow"></span>
      <span class="soft">waits ${age(wait.created_at)}${wait.expires_at ? `, ends ${age(wait.expires_at)}` : ""}</span></div>
    ${wait.description && html`<p>${visible(wait.description)}</p>`}
    ${wait.command && html`<${Text} of=${wait.command} mono whole />`}
    ${wait.question && html`<${Text} of=${wait.question} whole />`}
    ${isApproval && keys.length > 0 && choices.includes("always") && html`<p class="soft">Allowed in the session or always, nobody is asked about <span class="mono">${visible(keys.join("; "))}</span> any more.</p>`}
    ${!isOurs && html`<p class="soft">A key of the tenant ${brief(wait.tenant)} answers this.</p>`}
    ${mayAnswer && isApproval && html`<div class="row">
      ${choices.map((choice) => html`<button class=${choice === "once" ? "main" : choice === "deny" ? "danger" : ""} disabled=${isBusy} onClick=${() => choose(choice)}>${WORDS[choice] ?? visible(choice)}</button>`)}
      <input aria-label="Why it is denied" placeholder="Why it is denied" ...${reason.bind} />
      <button class="plain" onClick=${change}>${changed === null ? "Change arguments" : "Leave them"}</button></div>
      ${changed !== null && html`<textarea class="mono" aria-label="Changed arguments, as JSON" value=${changed} onInput=${(e) => setChanged(e.target.value)}></textarea>`}`}
    ${mayAnswer && !isApproval && html`<form class="row" onSubmit=${(e) => { e.preventDefault(); send("input", { text: text.value }, "you answered"); }}>
      ${choices.map((choice) => html`<button type="button" disabled=${isBusy} onClick=${() => send("input", { text: choice }, `you answered ${choice}`)}>${visible(choice)}</button>`)}
      <input class="grow" aria-label="Your answer" required ...${text.bind} /><button class="main" disabled=${isBusy}>Answer</button></form>`}
    ${said && html`<p role="status">${visible(said)}</p>`}
  </article>`;
}
