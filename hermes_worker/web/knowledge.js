// What agents know and may use: memory, skills and MCP servers; and the routes by which events come in.
import { Ago, ask, brief, bytes, counted, Danger, dollars, Empty, html, may, Notice, number, short, State, Text, to, useField, useState, visible } from "./core.js";
import { Markdown } from "./markdown.js";
import { useActions, usePoll } from "./live.js";

// --- memory ---

const MEMORIES = { memory: "The agent's notes", user: "What it knows of the user" };

export function Memory() {
  const { data, error, again } = usePoll(() => ask("GET", "v1/memory"), 8000, []);
  const [send, refusal] = useActions(again);
  const mayChange = may("memory");
  return html`<header><h1>Memory</h1></header><${Notice} error=${error ?? refusal} />
    ${data?.staged.length > 0 && html`<section class="panel"><header><h2>Waits for a person</h2></header>${data.staged.map((change) => html`<article class="ask" tabindex="-1" key=${change.staged_id}>
      <div class="row"><strong>${MEMORIES[change.target] ?? brief(change.target)}</strong><span class="soft">by ${brief(change.author)}, <${Ago} at=${change.at} /></span>${change.run_id && html`<a href=${to("runs", change.run_id)}>its run</a>`}</div>
      ${change.operations.map((one) => html`<div><span class="tag">${brief(one.action)}</span>${one.old_text && html`<span class="d-out">${visible(one.old_text)}</span> `}<span class="d-in">${visible(one.content ?? "")}</span></div>`)}
      ${mayChange && html`<div class="row"><button class="main" data-key="a" onClick=${() => send("POST", `v1/memory/${change.target}/settle`, { body: { staged_id: change.staged_id, approve: true } })}>Remember it</button>
        <button class="danger" data-key="d" onClick=${() => send("POST", `v1/memory/${change.target}/settle`, { body: { staged_id: change.staged_id, approve: false } })}>Drop it</button></div>`}</article>`)}</section>`}
    ${data && Object.entries(MEMORIES).map(([target, title]) => html`<${OneMemory} key=${target} target=${target} title=${title} of=${data[target]} send=${send} mayChange=${mayChange} />`)}`;
}

function OneMemory({ target, title, of, send, mayChange }) {
  const text = useField(), [changing, setChanging] = useState(null), [history, setHistory] = useState(null), [gone, setGone] = useState(null);
  const change = (operation, done) => send("POST", `v1/memory/${target}`, { body: { operations: [operation] } }, () => { setGone(operation.action === "remove" ? operation.entry_id : null); done?.(); });
  const undo = (entry) => send("POST", `v1/memory/${target}/undo`, { body: { entry_id: entry } }, () => setGone(null));
  const opened = (event) => { if (event.target.open) ask("GET", `v1/memory/${target}/history`, { params: { limit: 100 } }).then((found) => setHistory(found.data), () => setHistory([])); };
  return html`<section class="panel" aria-label=${title}><header><h2>${title}</h2><span class="soft">${number(of.chars)} of ${number(of.limit)} characters</span>${gone && html`<span class="grow"></span><span role="status">Forgotten.</span><button onClick=${() => undo(gone)}>Undo</button>`}</header>
    ${!of.entries.length && html`<${Empty} next="An agent writes here what it shall not forget; you can as well.">Nothing is remembered.</${Empty}>`}
    <ul class="talk">${of.entries.map((entry) => html`<li key=${entry.entry_id}><span class="when">${brief(entry.author)}<br /><${Ago} at=${entry.at} /></span><div>${changing?.id === entry.entry_id
      ? html`<form onSubmit=${(event) => { event.preventDefault(); change({ action: "replace", entry_id: entry.entry_id, version: entry.version, content: changing.text }, () => setChanging(null)); }}><textarea aria-label="What is remembered" required value=${changing.text} onInput=${(event) => setChanging({ id: entry.entry_id, text: event.target.value })}></textarea>
          <div class="row"><button class="main">Save</button><button type="button" onClick=${() => setChanging(null)}>Leave it</button></div></form>`
      : html`<${Markdown} of=${entry.content ?? "(redacted)"} />${mayChange && html`<div class="row onhover"><button class="plain" onClick=${() => setChanging({ id: entry.entry_id, text: entry.content ?? "" })}>Change</button>
          <${Danger} label="Forget" title="Forget this?" act=${() => change({ action: "remove", entry_id: entry.entry_id, version: entry.version })}><p>Agents do not read it any more. It stays in the history, and Undo brings it back.</p></${Danger}>
          ${entry.version > 1 && html`<button class="plain" onClick=${() => undo(entry.entry_id)}>Undo its last change</button>`}</div>`}`}</div></li>`)}</ul>
    ${mayChange && html`<form class="pad row" onSubmit=${(event) => { event.preventDefault(); change({ action: "add", content: text.value }, () => text.set("")); }}><input class="grow" aria-label=${`Add to: ${title}`} placeholder="Something to remember" required ...${text.bind} /><button>Add</button></form>`}
    <details onToggle=${opened}><summary class="pad soft">History</summary>${history && html`<div class="scroll" tabindex="0"><table aria-label=${`History of: ${title}`}><thead><tr><th>What</th><th>Text</th><th>By</th><th class="num">Age</th></tr></thead>
      <tbody>${history.map((each) => html`<tr key=${each.number}><td>${brief(each.act)}</td><td>${brief(each.content ?? "(redacted)")}</td><td>${brief(each.author)}</td><td class="num"><${Ago} at=${each.at} /></td></tr>`)}</tbody></table></div>`}</details></section>`;
}

// --- skills ---

export function Skills({ query }) {
  const { data, error, again } = usePoll(() => ask("GET", "v1/skills"), 15000, []);
  const name = query.get("name");
  return html`<header><h1>Skills</h1></header><${Notice} error=${error} />${name && html`<${Skill} key=${name} name=${name} again=${again} />`}
    <section class="panel">${data && !data.data.length && html`<${Empty} next=${html`Put one into the installation with <span class="mono">hermes-worker skills add</span>, or let an agent write one.`}>There is no skill.</${Empty}>`}
    ${data?.data.length > 0 && html`<div class="scroll" tabindex="0"><table aria-label="Skills"><thead><tr><th>Skill</th><th>What it is for</th><th>Category</th></tr></thead>
      <tbody>${data.data.map((each) => html`<tr key=${each.name}><td><a class="mono" href=${`#/skills?name=${encodeURIComponent(each.name)}`}>${brief(each.name)}</a></td><td>${brief(each.description)}</td><td>${brief(each.category ?? "–")}</td></tr>`)}</tbody></table></div>`}</section>`;
}

function Skill({ name, again }) {
  const [file, setFile] = useState(undefined);
  const place = `v1/skills/${encodeURIComponent(name)}`;
  const { data: sheet, error } = usePoll(() => ask("GET", place, { params: { file } }), 15000, [name, file]);
  const [send, refusal] = useActions(again);
  return html`<section class="panel" aria-label="A skill"><header><h2 class="mono">${brief(name)}</h2>${sheet && html`<${State} of=${sheet.is_usable ? "usable" : "not given to runs"} /><span class="soft">${brief(sheet.origin)}, <${Ago} at=${sheet.changed_at} /></span>`}<span class="grow"></span>
      ${may("memory") && html`<${Danger} label="Take away" title="Take this skill away?" act=${() => send("DELETE", place, { params: { expects: sheet?.hash } }, () => { location.hash = "#/skills"; })}><p>Runs do not get <span class="mono">${brief(name)}</span> any more.</p></${Danger}>`}<a href="#/skills">Close</a></header><${Notice} error=${error ?? refusal} />
    ${sheet && html`<div class="pad"><p>${visible(sheet.description)}</p>${sheet.threats.map((threat) => html`<p class="bad">${visible(threat)}</p>`)}
      <div class="row">${sheet.files.map((each) => html`<button key=${each.path} class="plain" aria-pressed=${each.path === sheet.file} onClick=${() => setFile(each.path)}>${brief(each.path)} <span class="soft">${bytes(each.size)}</span></button>`)}</div>
      ${sheet.content === null ? html`<p class="soft">This file is no text.</p>` : /\.md$/.test(sheet.file) ? html`<${Markdown} of=${sheet.content} />` : html`<${Text} of=${sheet.content} mono />`}</div>`}</section>`;
}

// --- MCP servers ---

const MCP_STATES = { __proto__: null, ready: "ready", waiting: "waits for approval", failing: "failed", unasked: "not asked yet" };

export function McpServers() {
  const { data, error, again } = usePoll(() => ask("GET", "v1/mcp-servers"), 8000, []);
  const [send, refusal] = useActions(again);
  const name = useField(), url = useField(), token = useField();
  const add = (event) => {
    event.preventDefault();
    send("POST", "v1/mcp-servers", { body: { name: name.value.trim(), url: url.value.trim(), ...(token.value && { token: token.value }) } }, () => [name, url, token].forEach((field) => field.set("")));
  };
  const of = (server) => `v1/mcp-servers/${encodeURIComponent(server.name)}`;
  return html`<header><h1>MCP servers</h1></header><${Notice} error=${error ?? refusal} />
    <section class="panel">${may("admin") && data?.takes_servers && html`<form class="filters" onSubmit=${add}><div><label for="mcp-name">Name</label><input id="mcp-name" required maxlength="60" autocomplete="off" ...${name.bind} /></div>
        <div><label for="mcp-url">Address</label><input id="mcp-url" type="url" required size="32" placeholder="https://" ...${url.bind} /></div><div><label for="mcp-token">Token</label><input id="mcp-token" type="password" autocomplete="off" ...${token.bind} /></div><button class="main">Add it</button></form>`}
      ${data && !data.data.length && html`<${Empty} next=${data.takes_servers ? "Add one by its address: a person approves its tools before a run gets them." : html`Tenants have none of their own here. An operator turns them on with <span class="mono">mcp.rows: true</span> (<span class="mono">HERMES_MCP_ROWS</span>).`}>There is no MCP server.</${Empty}>`}
      ${data?.data.map((server) => html`<article class="ask" tabindex="-1" key=${server.name}><div class="row"><strong class="mono">${brief(server.name)}</strong><${State} of=${MCP_STATES[server.state] ?? server.state} /><span class="soft mono">${brief(server.url ?? server.command.join(" "))}</span><span class="grow"></span>
          <span class="soft">asked <${Ago} at=${server.looked_at} /></span></div>${server.problem && html`<p class="bad">${visible(server.problem)}</p>`}
        <details><summary>${counted(server.tools.length, "tool")}${server.tools.some((tool) => !tool.is_approved) ? ", new ones among them" : ""}</summary><ul class="plainly">${server.tools.map((tool) => html`<li><${State} of=${tool.is_approved ? "approved" : "new"} /> <span class="mono">${brief(tool.name)}</span> <span class="soft">${brief(tool.description)}</span></li>`)}
          ${server.left_out.map((tool) => html`<li><${State} of="left out" /> <span class="soft">${brief(JSON.stringify(tool))}</span></li>`)}</ul></details>
        ${may("admin") && html`<div class="row">${server.offer && server.tools.some((tool) => !tool.is_approved) && html`<button class="main" onClick=${() => send("POST", `${of(server)}/approve`, { body: { offer: server.offer } })}>Approve what it offers</button>`}
          <button onClick=${() => send("POST", `${of(server)}/test`)}>Ask it now</button><${Danger} label="Forget" title="Forget this server?" act=${() => send("DELETE", of(server))}><p>Runs lose the tools of <span class="mono">${brief(server.name)}</span>, and its token is deleted.</p></${Danger}></div>`}</article>`)}</section>`;
}

// --- webhooks ---

export function Webhooks() {
  const { data, error, again } = usePoll(() => ask("GET", "v1/webhook-routes"), 8000, []);
  const [send, refusal] = useActions(again);
  const name = useField(), prompt = useField(), secret = useField(), deliver = useField();
  const add = (event) => {
    event.preventDefault();
    send("POST", "v1/webhook-routes", { body: { name: name.value.trim(), prompt: prompt.value, secret: secret.value || undefined, ...(deliver.value.trim() && { deliver: [deliver.value.trim()] }) } }, () => [name, prompt, secret, deliver].forEach((field) => field.set("")));
  };
  const words = (route) => { try { const of = JSON.parse(route.definition); return of.description || of.prompt || route.definition; } catch { return route.definition; } };
  return html`<header><h1>Webhooks</h1></header><${Notice} error=${error ?? refusal} />
    <section class="panel">${may("admin") && html`<form class="filters" onSubmit=${add}><div><label for="hook-name">Name</label><input id="hook-name" required maxlength="60" autocomplete="off" ...${name.bind} /></div>
        <div class="grow"><label for="hook-prompt">What the agent shall do with an event</label><input id="hook-prompt" required ...${prompt.bind} /></div>
        <div><label for="hook-secret">Secret that signs events</label><input id="hook-secret" type="password" autocomplete="off" required ...${secret.bind} /></div><div><label for="hook-deliver">Send the answer to</label><input id="hook-deliver" placeholder="telegram:123" ...${deliver.bind} /></div><button class="main">Add it</button></form>`}
      ${data && !data.data.length && html`<${Empty} next="A route takes events from elsewhere, such as a repository or a form, and begins a run for each.">There is no route.</${Empty}>`}
      ${data?.data.length > 0 && html`<div class="scroll" tabindex="0"><table aria-label="Routes"><thead><tr><th>State</th><th>Route</th><th>Address</th><th>What it does</th><th class="num">Made</th><th><span class="hidden">Actions</span></th></tr></thead>
        <tbody>${data.data.map((route) => html`<tr key=${route.name}><td><${State} of=${route.state} /></td><td class="mono">${brief(route.name)}</td><td class="mono">${brief(route.path)}</td><td>${brief(words(route))}</td><td class="num"><${Ago} at=${route.created_at} /></td>
          <td class="actions"><a href="#/runs?source=webhook">Runs</a> ${may("admin") && html`<${Danger} label="Forget" title="Forget this route?" act=${() => send("DELETE", `v1/webhook-routes/${encodeURIComponent(route.name)}`)}><p>Events that are sent to <span class="mono">${brief(route.path)}</span> are refused. Its runs stay.</p></${Danger}>`}</td></tr>`)}</tbody></table></div>`}</section>`;
}

// --- batches ---

const BATCH_MAX = 1000;

/** Many runs at once: a line each, or an object of JSON each. They are looked at before any is accepted. */
export function Batches() {
  const text = useField(), tag = useField(`batch-${new Date().toISOString().slice(0, 10)}`), cost = useField();
  const [error, setError] = useState(null), [results, setResults] = useState(null), [isBusy, setBusy] = useState(false);
  const { data } = usePoll(() => (tag.value ? ask("GET", "v1/runs", { params: { tag: tag.value, limit: 100, output_chars: 0 } }) : { data: [] }), 3000, [tag.value], { lists: ["runs"], leastMs: 1000 });
  const made = () => text.value.split("\n").filter((line) => line.trim()).map((line) => {
    const of = line.trim()[0] === "{" ? JSON.parse(line) : { input: line };
    return { ...of, tags: [...(of.tags ?? []), tag.value.trim()].filter(Boolean), ...(Number(cost.value) > 0 && { max_cost_usd: Number(cost.value) }) };
  });
  const send = async (dry) => {
    setBusy(true);
    try {
      const runs = made();
      if (runs.length > BATCH_MAX) throw new Error(`A batch has at most ${number(BATCH_MAX)} runs.`);
      const answer = await ask("POST", "v1/batch/runs", { body: { runs, dry_run: dry } });
      setResults({ dry, data: answer.data });
      setError(null);
    } catch (refusal) { setError(refusal); setResults(null); }
    setBusy(false);
  };
  const wrong = results?.data.filter((each) => each.error) ?? [], counts = new Map();
  for (const run of data?.data ?? []) counts.set(run.status, (counts.get(run.status) ?? 0) + 1);
  return html`<header><h1>Batches</h1></header><${Notice} error=${error} />
    <section class="panel"><form class="pad" onSubmit=${(event) => { event.preventDefault(); send(false); }}>
      <label for="batch-text">A request on each line, or an object of JSON as for one run</label><textarea id="batch-text" class="high mono" required spellcheck="false" ...${text.bind}></textarea>
      <div class="row"><label for="batch-tag">Tag</label><input id="batch-tag" required maxlength="64" ...${tag.bind} /><label for="batch-cost">Each at most ($)</label><input id="batch-cost" type="number" min="0" step="any" ...${cost.bind} />
        <button type="button" disabled=${isBusy || !text.value.trim()} onClick=${() => send(true)}>Only look</button><button class="main" disabled=${isBusy}>Accept them</button></div>
      ${results && html`<p role="status">${number(results.data.length - wrong.length)} ${results.dry ? "can be accepted" : "accepted"}${wrong.length ? `, ${number(wrong.length)} refused:` : "."}</p><ul class="plainly">${wrong.slice(0, 50).map((each) => html`<li><span class="mono">line ${each.index + 1}</span> ${visible(each.error.message)}</li>`)}</ul>`}</form></section>
    ${data?.data.length > 0 && html`<section class="panel"><header><h2>Runs with this tag</h2><span class="grow"></span><a href=${`#/runs?tag=${encodeURIComponent(tag.value)}`}>All of them</a></header><div class="pad row">${[...counts].map(([status, count]) => html`<span key=${status}><${State} of=${status} /> ${number(count)}</span>`)}</div></section>`}`;
}

// --- replays ---

/** Runs that were played again: what each replay found, and the newest of all such runs. */
export function Replays({ query }) {
  const { data, error } = usePoll(() => ask("GET", "v1/runs", { params: { source: "evaluation", limit: 100, output_chars: 200 } }), 5000, [], { lists: ["runs"], leastMs: 1000 });
  const named = usePoll(() => ask("GET", "v1/replays"), 5000, [], { lists: ["runs"], leastMs: 1000 });
  const name = query.get("name");
  return html`<header><h1>Replays</h1></header><${Notice} error=${error ?? named.error} />${name && html`<${Replay} key=${name} name=${name} />`}
    ${named.data?.data.length > 0 && html`<section class="panel"><div class="scroll" tabindex="0"><table aria-label="Replays"><thead><tr><th>Replay</th><th class="num">Runs</th><th class="num">Age</th></tr></thead><tbody>${named.data.data.map((each) => html`<tr key=${each.name}><td><a class="mono" href=${`#/replays?name=${encodeURIComponent(each.name)}`}>${brief(each.name)}</a></td><td class="num">${number(each.runs)}</td><td class="num"><${Ago} at=${each.began_at} /></td></tr>`)}</tbody></table></div></section>`}
    <section class="panel">
    ${data && !data.data.length && html`<${Empty} next=${html`Open a run and choose "Fork from here", or play many again with <span class="mono">hermes-worker runs replay</span>.`}>Nothing was played again.</${Empty}>`}
    ${data?.data.length > 0 && html`<div class="scroll" tabindex="0"><table aria-label="Runs that were played again"><thead><tr><th>Run</th><th>Status</th><th>Model</th><th>Answer</th><th class="num">Age</th></tr></thead><tbody>${data.data.map((run) => html`<tr key=${run.run_id}><td><a href=${to("runs", run.run_id)}>${brief(run.title ?? short(run.run_id))}</a></td>
      <td><${State} of=${run.status} /></td><td class="mono">${brief(run.model)}</td><td>${brief(run.output ?? run.error ?? "")}</td><td class="num"><${Ago} at=${run.created_at} /></td></tr>`)}</tbody></table></div>`}</section>`;
}

/** What one replay found: each run beside its original, those that differ first. */
function Replay({ name }) {
  const { data, error } = usePoll(() => ask("GET", `v1/replays/${encodeURIComponent(name)}`), 15000, [name]);
  const rows = data && [...data.data].sort((one, other) => !one.problem - !other.problem || !one.differs_at - !other.differs_at);
  return html`<section class="panel" aria-label="A replay"><header><h2 class="mono">${brief(name)}</h2><span class="grow"></span><a href="#/replays">Close</a></header><${Notice} error=${error} />
    ${data && html`<div class="pad row"><span>${counted(data.runs, "run")}, ${number(data.differing)} differ</span><span>${counted(data.steps_before, "step")} before, ${number(data.steps_after)} after</span><span>${dollars(data.cost_before_usd)} before, ${dollars(data.cost_after_usd)} after</span>
      ${Object.entries(data.good).map(([grader, good]) => html`<span key=${grader}>${brief(grader)}: ${number(good)} good</span>`)}</div>
      <div class="scroll" tabindex="0"><table aria-label="Runs of the replay"><thead><tr><th>Run</th><th>Differs</th><th>Answer before</th><th>Answer after</th><th>Grades</th></tr></thead><tbody>${rows.map((row) => html`<tr key=${row.replay_run_id}><td><a href=${to("compare", row.run_id, row.replay_run_id)}>${brief(row.title ?? short(row.run_id))}</a></td>
        <td>${row.problem ? brief(row.problem) : row.differs_at ? `at step ${number(row.differs_at)}` : "no"}</td><td>${brief(row.answer_before)}</td><td>${row.answer_after === row.answer_before ? "the same" : brief(row.answer_after)}</td>
        <td>${Object.entries(row.grades).map(([grader, good]) => html`<span key=${grader} class="tag">${brief(grader)}: ${good ? "good" : "not good"}</span> `)}</td></tr>`)}</tbody></table></div>`}</section>`;
}
