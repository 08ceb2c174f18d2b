// Conversations: the list, one transcript, and the next thing to say in it.
import { age, ask, brief, dollars, html, may, Notice, number, Text, to, useField, useState, visible } from "./core.js";
import { usePoll } from "./live.js";
import { Filter } from "./runs.js";

export function Sessions({ query }) {
  const { data, error } = usePoll(() => ask("GET", "api/sessions", { params: { limit: 100 } }), 4000, [], { lists: ["sessions", "runs"], leastMs: 1000 });
  const words = query.get("q")?.trim();
  return html`<header><h1>Sessions</h1></header><${Notice} error=${error} />${may("runs:write") && html`<${Say} />`}
    <section class="panel"><div class="filters" role="search" aria-label="What was said"><${Filter} name="q" label="Words that were said" query=${query} /></div>
      ${words && html`<${Found} words=${words} />`}</section>
    <section class="panel">${data && !data.data.length && html`<div class="empty">There is no session.</div>`}
    ${data?.data.length > 0 && html`<div class="scroll"><table><thead><tr><th>Session</th><th>From</th><th>Model</th><th class="num">Messages</th><th class="num">Calls</th><th class="num">Cost</th><th class="num">Age</th></tr></thead>
      <tbody>${data.data.map((each) => html`<tr key=${each.id}><td><a href=${to("sessions", each.id)}><span class="one">${brief(each.title || each.id)}</span></a></td>
        <td>${brief(each.source ?? "–")}</td><td class="mono">${brief(each.model ?? "–")}</td><td class="num">${number(each.message_count)}</td><td class="num">${number(each.tool_call_count)}</td>
        <td class="num">${dollars(each.estimated_cost_usd)}</td><td class="num">${age(each.started_at)}</td></tr>`)}</tbody></table></div>`}</section>`;
}

/** Messages in which the words are, of all sessions. */
function Found({ words }) {
  const { data, error } = usePoll(() => ask("GET", "api/sessions/search", { params: { q: words, limit: 50 } }), 10000, [words], { lists: ["runs"], leastMs: 10000 });
  if (!data) return html`<${Notice} error=${error} />`;
  return html`<${Notice} error=${error} />${!data.data.length && html`<div class="empty">Nobody said that.</div>`}
    <ol class="talk" aria-label="Messages that fit">${data.data.map((each) => html`<li key=${`${each.session_id} ${each.message_id}`}><span class="when">${each.role}<br />${age(each.timestamp)}</span>
      <div><a href=${to("sessions", each.session_id)}>${brief(each.title || each.session_id)}</a><div class="text">${marked(each.snippet)}</div></div></li>`)}</ol>
    ${!data.is_complete && html`<div class="pad soft">There may be more: not every match of a very common word is listed, nor what was said a moment ago.</div>`}`;
}

/** A text whose hits stand between `>>>` and `<<<`. What was said may hold those signs as well: then more is marked. */
function marked(snippet) {
  return snippet.split(/(>>>[^]*?<<<)/).map((part) => /^>>>[^]*<<<$/.test(part) ? html`<mark>${visible(part.slice(3, -3))}</mark>` : visible(part));
}

/** What is said becomes a run, and the page follows it. */
function Say({ session }) {
  const text = useField();
  const [error, setError] = useState(null);
  const send = async (event) => {
    event.preventDefault();
    try {
      const made = await ask("POST", "v1/runs", { body: { input: text.value, ...(session ? { session_id: session } : {}) } });
      location.hash = to("runs", made.run_id);
    } catch (refusal) { setError(refusal); }
  };
  return html`<section class="panel"><form class="pad" onSubmit=${send}><${Notice} error=${error} />
    <label for="say">${session ? "Go on with this conversation" : "Ask an agent something"}</label>
    <textarea id="say" required ...${text.bind}></textarea><button class="main">Send</button></form></section>`;
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

export function Session({ id }) {
  const place = `api/sessions/${encodeURIComponent(id)}`;
  const { data, error } = usePoll(async () => {
    const [one, page] = await Promise.all([ask("GET", place), ask("GET", `${place}/messages`)]);
    return { session: one.session, messages: page.data };
  }, 4000, [id], { lists: ["sessions", "runs"], leastMs: 1000 });
  const [fork, refusal] = useFork(id);
  // A copy may end where a turn does, and not between a call and its result.
  const isWhole = (message) => message.role === "assistant" && !message.tool_calls?.length;
  return html`<header><h1>${visible(data?.session.title || id)}</h1>${data?.session.parent_session_id && html`<span class="soft">from <a href=${to("sessions", data.session.parent_session_id)}>${brief(data.session.parent_session_id)}</a></span>`}
      <span class="grow"></span>${may("runs:write") && html`<button onClick=${() => fork()}>Fork</button>`}<a href=${`#/runs?session=${encodeURIComponent(id)}`}>Its runs</a></header>
    <${Notice} error=${error ?? refusal} />
    <section class="panel"><ol class="talk">${data?.messages.map((message) => html`<li key=${message.id}><span class="when">${message.role}${may("runs:write") && isWhole(message) && html`<br /><button class="plain" onClick=${() => fork(message.id)}>Fork here</button>`}</span>
      ${message.role === "tool" ? html`<details><summary class="note">result</summary><${Text} of=${message.content} mono /></details>`
        : html`<div><${Text} of=${message.content} />${(message.tool_calls ?? []).map((call) => html`<${Text} of=${call} mono />`)}</div>`}</li>`)}</ol></section>
    ${may("runs:write") && html`<${Say} session=${id} />`}`;
}
