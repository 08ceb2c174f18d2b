// What operators look at: deliveries, the fleet, the audit log.
import { age, Ago, ask, brief, counted, Danger, Empty, html, isLost, may, Notice, number, Older, short, span, State, to, useState, visible, when } from "./core.js";
import { Markdown } from "./markdown.js";
import { useActions, useOlder, usePoll } from "./live.js";

/** Who had a delivery sent once more, and what had become of it until then; read when somebody opens it. */
function Retries({ id }) {
  const [told, setTold] = useState(null);
  const opened = (event) => { if (event.target.open && !told) ask("GET", `v1/deliveries/${encodeURIComponent(id)}`).then((found) => setTold(found.retries ?? []), (error) => setTold(error)); };
  return html`<details onToggle=${opened}><summary class="soft">sent again</summary>${told?.message && html`<span class="bad">${visible(told.message)}</span>`}
    ${Array.isArray(told) && (told.length ? html`<ol class="plainly">${told.map((each) => html`<li><${Ago} at=${each.at} /> ago by ${brief(each.by)}, when it was ${each.state} after ${number(each.attempts)} ${each.attempts === 1 ? "attempt" : "attempts"}</li>`)}</ol>` : "Nobody's name is recorded.")}</details>`;
}

/** The answer that was to be delivered, read when somebody opens it. */
function Sent({ id }) {
  const [run, setRun] = useState(null);
  const opened = (event) => { if (event.target.open && !run) ask("GET", `v1/runs/${encodeURIComponent(id)}`).then(setRun, (error) => setRun({ error: error.message })); };
  return html`<details onToggle=${opened}><summary class="soft">what was sent</summary>${run && html`<${Markdown} of=${run.output ?? run.error ?? "Nothing yet: the run has not ended."} />`}</details>`;
}

export function Deliveries() {
  const { data, error, again } = usePoll(() => ask("GET", "v1/deliveries", { params: { limit: 100 } }), 3000, [], { lists: ["deliveries"] });
  const [act, refusal] = useActions(again);
  return html`<header><h1>Deliveries</h1></header><${Notice} error=${error ?? refusal} />
    <section class="panel">${data && !data.data.length && html`<${Empty} next="A run or a job with a target, such as a chat, a mail address or a URL, sends its answer there.">Nothing was to be delivered.</${Empty}>`}
    ${data?.data.length > 0 && html`<div class="scroll"><table><thead><tr><th>State</th><th>Target</th><th>Run</th><th class="num">Attempts</th><th class="num">Age</th><th>The other side said</th><th><span class="hidden">Actions</span></th></tr></thead>
      <tbody>${data.data.map((each) => html`<tr key=${each.delivery_id}><td><${State} of=${each.state} /></td><td>${brief(each.target)}</td>
        <td class="mono">${each.run_id ? html`<a href=${to("runs", each.run_id)}>${short(each.run_id)}</a><${Sent} id=${each.run_id} />` : "–"}</td><td class="num">${each.attempts}${each.may_be_duplicate ? " ?" : ""}${each.is_retried && html`<${Retries} id=${each.delivery_id} />`}</td>
        <td class="num"><${Ago} at=${each.created_at} /></td><td>${each.error ? html`${each.error_kind && html`<span class="tag bad">${brief(each.error_kind)}</span>`}${brief(each.error)}` : html`<span class="soft mono">${brief(each.receipt ?? "")}</span>`}${each.not_before && html` <span class="soft">again ${age(each.not_before)}</span>`}</td>
        <td>${may("runs:write") && isLost(each) && html`<button onClick=${() => act("POST", `v1/deliveries/${each.delivery_id}/retry`)}>Send again</button>`}</td></tr>`)}</tbody></table></div>`}</section>`;
}

/** Which keys encrypt the texts of the database, by their ids. */
function TextKeys() {
  const { data, error } = usePoll(() => ask("GET", "v1/encryption/keys"), 30000, []);
  if (!data) return html`<${Notice} error=${error} />`;
  const role = (key) => (key.is_current ? "in use" : key.key_id === "clear" ? "not encrypted" : key.is_here ? "decrypts" : "missing");
  return html`<section class="panel"><header><h2>Keys at rest</h2><span class="soft">${data.is_on ? "new texts are encrypted" : "new texts are clear"}</span></header><div class="scroll" tabindex="0"><table aria-label="Keys at rest">
    <thead><tr><th>State</th><th>Key</th><th>Texts need it</th><th class="num">Last used</th></tr></thead><tbody>${data.data.map((key) => html`<tr key=${key.key_id}><td><${State} of=${role(key)} /></td>
      <td class="mono">${brief(key.key_id)}</td><td>${key.is_needed ? "yes" : "no"}</td><td class="num">${key.unused_s === null ? "–" : `${span(key.unused_s)} ago`}</td></tr>`)}</tbody></table></div></section>`;
}

/** What runs which code, and how its commands are confined: one line where all agree. */
function Versions({ of }) {
  const counted = new Map();
  for (const worker of of) {
    const key = JSON.stringify([worker.version, worker.sandbox]);
    counted.set(key, (counted.get(key) ?? 0) + 1);
  }
  if (!counted.size) return null;
  return html`<section class="panel"><header><h2>Versions and sandboxes</h2><span class="soft">${counted.size > 1 ? "workers differ" : "all workers agree"}</span></header><div class="scroll" tabindex="0"><table aria-label="Versions and sandboxes">
    <thead><tr><th>Version</th><th>Sandbox</th><th class="num">Workers</th></tr></thead><tbody>${[...counted].sort().map(([key, count]) => {
      const [version, sandbox] = JSON.parse(key);
      return html`<tr key=${key}><td class="mono">${brief(version ?? "–")}</td><td>${brief(sandbox ?? "has run no command yet")}</td><td class="num">${number(count)}</td></tr>`;
    })}</tbody></table></div></section>`;
}

/** What each worker holds. The oldest steps come first. */
function Workers({ of, again }) {
  const [act, refusal] = useActions(again);
  return html`<${Notice} error=${refusal} />
    <section class="panel"><header><h2>Workers</h2></header>${!of.length ? html`<div class="empty">No worker is alive.</div>` : html`<div class="scroll"><table>
    <thead><tr><th>State</th><th>Worker</th><th>Queues</th><th>Version</th><th>Sandbox</th><th class="num">Age</th><th>Holds</th><th><span class="hidden">Actions</span></th></tr></thead>
    <tbody>${of.map((worker) => html`<tr key=${worker.worker_id}><td><${State} of=${worker.draining_at ? "draining" : "alive"} /></td><td class="mono">${brief(worker.name)}</td>
      <td class="mono">${brief(worker.queues.join(", "))}</td><td class="mono">${brief(worker.version ?? "–")}</td><td>${brief(worker.sandbox ?? "–")}</td><td class="num">${age(worker.started_at)}</td>
      <td>${worker.steps.slice(0, 5).map((step) => html`<div><a class="mono" href=${to("runs", step.run_id)}>${short(step.run_id)}</a> <span class="mono">${brief(step.tool ?? step.kind)}</span> <span class="soft">${age(step.claimed_at)}</span></div>`)}
        ${worker.steps.length > 5 && html`<span class="soft">and ${worker.steps.length - 5} more</span>`}</td>
      <td>${may("admin") && !worker.draining_at && html`<${Danger} label="Drain" title="Drain this worker?" act=${() => act("POST", `v1/workers/${worker.worker_id}/drain`)}><p><span class="mono">${brief(worker.name)}</span> finishes what it holds, takes nothing new, and ends.</p></${Danger}>`}</td></tr>`)}</tbody></table></div>`}</section>`;
}

export function Fleet() {
  const { data, error, again } = usePoll(async () => {
    const [backlog, told, keys, workers] = await Promise.all(["backlog", "alerts", "providers/states", "workers"].map((name) => ask("GET", `v1/${name}`)));
    return { backlog, alerts: told.data, keys: keys.data, workers: workers.data };
  }, 2000, [], { lists: ["fleet", "runs"], leastMs: 1000, calmMs: 10000 });
  if (!data) return html`<header><h1>Fleet</h1></header><${Notice} error=${error} />`;
  return html`<header><h1>Fleet</h1></header><${Notice} error=${error} />
    <section class="panel"><header><h2>Queues</h2></header><div class="scroll"><table><thead><tr><th>Queue</th><th class="num">Waiting</th><th class="num">At work</th><th class="num">Oldest</th><th class="num">A step takes</th><th class="num">Slots needed</th></tr></thead>
      <tbody>${Object.entries(data.backlog.queues).map(([name, queue]) => html`<tr><td class="mono">${brief(name)}</td><td class="num">${number(queue.due)}</td><td class="num">${number(queue.claimed)}</td>
        <td class="num">${span(queue.oldest_age_s)}</td><td class="num">${span(queue.step_s)}</td><td class="num">${number(queue.capacity_needed)}</td></tr>`)}</tbody></table></div></section>
    <${Workers} of=${data.workers} again=${again} />
    <${Versions} of=${data.workers} /><${TextKeys} />
    ${data.keys.length > 0 && html`<section class="panel"><header><h2>Keys of providers</h2></header><div class="scroll"><table><tbody>${data.keys.map((key) => html`<tr><td><${State} of=${key.condition} /></td>
      <td>${brief(key.provider)}</td><td class="mono">${brief(key.credential)}</td><td class="num">${counted(key.parked, "run waits", "runs wait")}</td><td>${brief(key.reason ?? "")}</td></tr>`)}</tbody></table></div></section>`}
    <section class="panel"><header><h2>Alerts</h2></header>${!data.alerts.length ? html`<div class="empty">Nothing is wrong.</div>` : html`<div class="scroll"><table><tbody>${data.alerts.map((alert) => html`<tr>
      <td><${State} of=${alert.recovered_at ? "recovered" : "open"} /></td><td>${brief(alert.kind)}</td><td>${brief(alert.text)}</td><td class="num">${age(alert.raised_at)}</td></tr>`)}</tbody></table></div>`}</section>`;
}

export function Audit() {
  const { rows, error, more } = useOlder("v1/audit", { newest_first: true, limit: 200 }, "number", 4000, ["audit"]);
  return html`<header><h1>Audit</h1><span class="soft">the newest first</span></header><${Notice} error=${error} />
    <section class="panel">${rows && !rows.length && html`<div class="empty">Nothing is recorded.</div>`}
    ${rows?.length > 0 && html`<div class="scroll"><table><thead><tr><th>When</th><th>Who</th><th>What</th><th>To</th><th>From</th></tr></thead><tbody>
      ${rows.map((deed) => html`<tr key=${deed.number}><td class="nowrap">${when(deed.at)}</td><td>${brief(deed.actor)}</td><td class="mono">${brief(deed.act)}</td><td class="mono">${brief(deed.subject)}</td><td>${brief(deed.address ?? "–")}</td></tr>`)}</tbody></table></div>`}<${Older} more=${more} /></section>`;
}
