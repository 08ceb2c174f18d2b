// Jobs: their coming slots, what became of past ones, and writing one.
import { Ago, ask, brief, Danger, Dialog, Empty, hour, html, Notice, number, State, to, useCalm, useEffect, useField, useState, visible, when } from "./core.js";
import { useActions, usePoll } from "./live.js";

const DAYS = 7;

/** The coming slots, day by day. A job that comes often is one line of its day. */
function Calendar() {
  const { data, error } = usePoll(() => ask("GET", "v1/slots", { params: { days: DAYS, limit: 1000 } }), 15000, [], { lists: ["jobs"] });
  if (!data?.data.length) return html`<${Notice} error=${error} />`;
  const days = new Map();
  for (const slot of data.data) {
    const day = new Date(slot.at * 1000).toLocaleDateString(undefined, { weekday: "short", day: "numeric", month: "short" });
    if (!days.has(day)) days.set(day, new Map());
    const jobs = days.get(day);
    if (!jobs.has(slot.job_id)) jobs.set(slot.job_id, { name: slot.name, ats: [] });
    jobs.get(slot.job_id).ats.push(slot.at);
  }
  const times = (ats) => (ats.length > 3 ? `${hour(ats[0])} to ${hour(ats.at(-1))}, ${ats.length} times` : ats.map(hour).join(", "));
  return html`<section class="panel" aria-label="Calendar"><header><h2>Coming slots</h2><span class="soft">${data.has_more ? `the next ${number(data.data.length)}` : `of ${DAYS} days`}</span></header><div class="calendar">
    ${[...days].map(([day, jobs]) => html`<div key=${day}><b>${day}</b><ul>${[...jobs].map(([id, job]) => html`<li key=${id}><a href=${`#/schedule?job=${encodeURIComponent(id)}`}>${brief(job.name)}</a> <span class="soft">${times(job.ats)}</span></li>`)}</ul></div>`)}</div></section>`;
}

/** What became of a job's slots. */
function Ledger({ job, name }) {
  const { data, error } = usePoll(() => ask("GET", `api/jobs/${encodeURIComponent(job)}/history`, { params: { limit: 100 } }), 5000, [job], { lists: ["jobs", "runs"], leastMs: 1000 });
  if (!data) return html`<${Notice} error=${error} />`;
  return html`<section class="panel"><header><h2>Slots of ${brief(name ?? job)}</h2><span class="grow"></span><a href="#/schedule">Close</a></header><${Notice} error=${error} />
    ${!data.firings.length && html`<div class="empty">None of its slots has come.</div>`}
    ${data.firings.length > 0 && html`<div class="scroll"><table aria-label="What became of its slots"><thead><tr><th>Outcome</th><th>Slot</th><th>Run</th><th>Why</th></tr></thead>
      <tbody>${data.firings.map((each) => html`<tr key=${each.slot}><td><${State} of=${each.outcome} /></td><td class="nowrap">${when(each.slot)}</td><td>${each.run_status && html`<${State} of=${each.run_status} /> `}${each.run_id ? html`<a href=${to("runs", each.run_id)} title=${each.run_id}>Open</a>` : "–"}</td><td>${brief(each.reason ?? each.remark ?? "")}</td></tr>`)}</tbody></table></div>`}</section>`;
}

export function Schedule({ query }) {
  const { data, error, again } = usePoll(() => ask("GET", "api/jobs", { params: { include_disabled: true } }), 3000, [], { lists: ["jobs"] });
  const [act, refusal] = useActions(again);
  const at = (text) => { const ms = Date.parse(text); return Number.isNaN(ms) ? brief(text ?? "–") : html`<${Ago} at=${ms / 1000} />`; };
  const [editing, setEditing] = useState(null);
  const edited = query.get("edit"), close = () => { setEditing(null); if (edited) location.hash = "#/schedule"; again(); };
  const chosen = editing ?? (edited === "new" ? {} : data?.jobs.find((job) => job.id === edited));
  return html`<header><h1>Schedule</h1><span class="grow"></span><button class="main" onClick=${() => setEditing({})}>New job</button></header>${chosen && html`<${Editor} key=${chosen.id ?? "new"} job=${chosen} close=${close} />`}
    <${Notice} error=${error ?? refusal} />${query.get("job") && html`<${Ledger} job=${query.get("job")} name=${data?.jobs.find((job) => job.id === query.get("job"))?.name} />`}
    <section class="panel">${data && !data.jobs.length && html`<${Empty} next=${html`<button class="main" onClick=${() => setEditing({})}>Make the first one</button>`}>There is no job.</${Empty}>`}
    ${data?.jobs.length > 0 && html`<div class="scroll"><table><thead><tr><th>State</th><th>Job</th><th>When</th><th class="nowrap">Next</th><th>Last</th><th><span class="hidden">Actions</span></th></tr></thead>
      <tbody>${data.jobs.map((job) => html`<tr key=${job.id}><td><${State} of=${job.state ?? (job.enabled ? "scheduled" : "paused")} /></td>
        <td class="what"><a href=${`#/schedule?job=${encodeURIComponent(job.id)}`}><span class="one">${brief(job.name)}</span></a><span class="line soft">${brief(job.prompt)}</span></td>
        <td class="mono nowrap">${brief(job.schedule_display ?? JSON.stringify(job.schedule))}</td><td class="nowrap">${at(job.next_run_at)}</td><td class="nowrap">${job.last_status && html`<${State} of=${job.last_status} /> `}${at(job.last_run_at)}</td>
        <td class="actions"><div class="row"><a href=${`#/runs?job=${encodeURIComponent(job.id)}`}>Its runs</a><button onClick=${() => setEditing(job)}>Change</button><button onClick=${() => act("POST", `api/jobs/${job.id}/run`)}>Run now</button>
          ${job.enabled ? html`<button onClick=${() => act("POST", `api/jobs/${job.id}/pause`)}>Pause</button>` : html`<button onClick=${() => act("POST", `api/jobs/${job.id}/resume`)}>Go on</button>`}<${Danger} label="Forget" title="Forget this job?" act=${() => act("DELETE", `api/jobs/${job.id}`)}><p>${brief(job.name)} does not run any more. Its history is kept.</p></${Danger}></div></td></tr>`)}</tbody></table></div>`}</section><${Calendar} />`;
}

const SOON_MS = 350;

/** The next five slots of a schedule, told while it is written. */
function Slots({ schedule, timezone }) {
  const [state, setState] = useState({}), asked = useCalm(`${timezone}\n${schedule.trim()}`, SOON_MS);
  useEffect(() => {
    const [zone, ...words] = asked.split("\n"), text = words.join("\n");
    let isOver = false;
    if (!text) return void setState({});
    ask("GET", "v1/slots", { params: { schedule: text, timezone: zone || "UTC", limit: 5, days: 366 } }).then((found) => isOver || setState({ slots: found.data }), (error) => isOver || setState({ error }));
    return () => { isOver = true; };
  }, [asked]);
  return html`<div role="status" class="slots">${state.error && html`<span class="bad">${visible(state.error.message)}</span>`}
    ${state.slots && (state.slots.length ? html`<span class="soft">Runs next:</span><ol>${state.slots.map((slot) => html`<li>${when(slot.at)}</li>`)}</ol>` : html`<span class="soft">Not within a year.</span>`)}</div>`;
}

const EXAMPLES = ["every 30m", "0 9 * * 1-5", "every day at 9am", "2027-01-01T09:00"];

function Editor({ job, close }) {
  const isNew = !job.id, name = useField(job.name ?? ""), prompt = useField(job.prompt ?? ""), model = useField(job.model ?? "");
  const schedule = useField(job.schedule_display ?? ""), deliver = useField(job.deliver && job.deliver !== "local" ? job.deliver : ""), cost = useField(job.cost_usd_max ?? "");
  const zone = useField(job.schedule?.timezone ?? Intl.DateTimeFormat().resolvedOptions().timeZone ?? "UTC");
  const [error, setError] = useState(null);
  const send = async (event) => {
    event.preventDefault();
    const body = { name: name.value.trim(), prompt: prompt.value };
    // A text as it is shown need not be one that can be read: what was not changed stays as it is.
    if (isNew || schedule.value !== (job.schedule_display ?? "")) Object.assign(body, { schedule: schedule.value.trim(), timezone: zone.value.trim() || "UTC" });
    for (const [key, field, was] of [["model", model, job.model], ["deliver", deliver, job.deliver], ["cost_usd_max", cost, job.cost_usd_max]]) {
      const value = String(field.value ?? "").trim();
      if (value && value !== was) body[key] = value;
    }
    try {
      await ask(isNew ? "POST" : "PATCH", isNew ? "api/jobs" : `api/jobs/${encodeURIComponent(job.id)}`, { body });
      dismissed.current?.();
    } catch (refusal) { setError(refusal); }
  };
  const dismissed = { current: null };
  return html`<${Dialog} title=${isNew ? "New job" : "Change this job"} close=${close}>${(dismiss) => { dismissed.current = dismiss; return html`<form onSubmit=${send}><${Notice} error=${error} />
    <label for="job-name">Name</label><input id="job-name" class="whole" required maxlength="200" ...${name.bind} />
    <label for="job-schedule">When</label><input id="job-schedule" class="whole" required autocomplete="off" spellcheck="false" placeholder=${EXAMPLES.join("   ")} ...${schedule.bind} />
    <label for="job-zone">By the clock of</label><input id="job-zone" class="whole" autocomplete="off" ...${zone.bind} />
    ${(isNew || schedule.value !== (job.schedule_display ?? "")) && html`<${Slots} schedule=${schedule.value} timezone=${zone.value} />`}
    <label for="job-prompt">What the agent shall do</label><textarea id="job-prompt" required ...${prompt.bind}></textarea>
    <details><summary class="soft">With what, and where the answer goes</summary>
      <label for="job-deliver">Send the answer to</label><input id="job-deliver" class="whole" placeholder="telegram:123, email:me@example.org" ...${deliver.bind} />
      <label for="job-model">Model</label><input id="job-model" class="whole" placeholder="the usual one" ...${model.bind} />
      <label for="job-cost">A run costs at most ($)</label><input id="job-cost" class="whole" ...${cost.bind} /></details>
    <div class="row"><button class="main">${isNew ? "Make it" : "Save"}</button><button type="button" onClick=${dismiss}>Leave it</button></div></form>`; }}</${Dialog}>`;
}
