// What the installation is configured as, and who said so. Secrets never come here: the server withholds them.
import { ask, brief, html, Notice, number, visible } from "./core.js";
import { usePoll } from "./live.js";
import { Filter } from "./runs.js";

// In the order in which they count.
const LAYERS = {
  __proto__: null, run: "run", session: "session", tenant: "tenant", command_line: "command line", environment: "environment", dotenv: ".env", fleet: "fleet",
  file: "file", derived: "follows", default: "default",
};
const SUBJECTS = [["tenant", "Of a tenant"], ["session_id", "Of a session"], ["run_id", "Of a run"]];
const ABOUT = { __proto__: null, tenant: "as a run of this tenant is accepted with now", session_id: "as a run of this session is accepted with now", run_id: "as this run was accepted with" };

function Value({ of }) {
  if (of.is_secret) return html`<span class="soft">${of.is_set ? "a secret, set" : "a secret, not set"}</span>`;
  return of.value === null ? html`<span class="soft">not set</span>` : html`<span class="mono">${brief(of.value)}</span>`;
}

export function Settings({ query }) {
  const about = SUBJECTS.map(([kind]) => kind).filter((kind) => query.get(kind)), subject = JSON.stringify(about.map((kind) => [kind, query.get(kind)]));
  const { data: told, error } = usePoll(async () => ({ subject, ...(await ask("GET", "v1/settings", { params: Object.fromEntries(JSON.parse(subject)) })) }), 15000, [subject]);
  const data = told?.subject === subject ? told : null; // never what was told of another one
  const words = (query.get("words") ?? "").toLowerCase(), from = query.get("from");
  const rows = (data?.data ?? []).filter((each) => (!from || (from === "said" ? each.layer !== "default" : each.layer === from)) && `${each.key} ${each.variable} ${each.description}`.toLowerCase().includes(words));
  return html`<header><h1>Settings</h1>${data && html`<span class="soft">${ABOUT[about[0]] ?? "of the process that answers"}, ${visible(data.configuration)}</span>`}</header><${Notice} error=${error} />
    ${Object.entries(data?.problems ?? {}).map(([whose, wrong]) => html`<${Notice}>The configuration of ${brief(whose)} cannot be used, and the last good one counts: ${brief(wrong)}</${Notice}>`)}
    <section class="panel"><div class="filters" role="search" aria-label="Filters of the list"><${Filter} name="words" label="Words" query=${query} />
      <${Filter} name="from" label="Said by" query=${query} list=${[["said", "anybody"], ...Object.entries(LAYERS)]} />
      ${SUBJECTS.map(([kind, label]) => html`<${Filter} key=${kind} name=${kind} label=${label} query=${query} />`)}<span class="soft" role="status">${data && `${number(rows.length)} of ${number(data.data.length)}`}</span></div>
    ${data && !rows.length && html`<div class="empty">No setting fits.</div>`}
    ${rows.length > 0 && html`<div class="scroll tall" tabindex="0"><table aria-label="Settings"><thead><tr><th>Setting</th><th>Value</th><th>From</th><th>What it is</th></tr></thead>
      <tbody>${rows.map((each) => html`<tr key=${each.key}><td class="mono key" title=${each.variable}>${brief(each.key)}</td><td><${Value} of=${each} /></td>
        <td class="origin"><span class="tag">${LAYERS[each.layer] ?? brief(each.layer)}</span>${each.layer !== "default" && html`<div class="soft">${brief(each.origin)}</div>`}${each.is_live && html` <span class="soft">live</span>`}</td>
        <td class="soft">${visible(each.description)}</td></tr>`)}</tbody></table></div>`}</section>`;
}
