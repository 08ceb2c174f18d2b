// What it cost: by day, model, tenant, job and session.
import { ask, brief, counted, dollars, html, may, Notice, number, setQuery, to, user, visible } from "./core.js";
import { usePoll } from "./live.js";

const WAYS = { day: "Day", model: "Model", job: "Job", session: "Session", tenant: "Tenant" };
const SPANS = [["1", "today and yesterday"], ["7", "the last week"], ["30", "the last month"], ["365", "the last year"]];

function Name({ by, row }) {
  if (row.key === null) return html`<span class="soft">none</span>`;
  const text = brief(row.name ?? row.key);
  if (by === "job") return html`<a href=${`#/runs?job=${encodeURIComponent(row.key)}`}>${text}</a>`;
  return by === "session" ? html`<a href=${to("sessions", row.key)}>${text}</a>` : text;
}

const LIMITS = { usd_per_day: ["a day", dollars], usd_per_month: ["a month", dollars], tokens_per_day: ["tokens a day", number], tokens_per_month: ["tokens a month", number] };

/** What the tenant and its keys may spend. */
function Budgets() {
  const { data, error } = usePoll(() => ask("GET", "v1/limits"), 15000, [], { lists: ["audit"] });
  if (!data) return html`<${Notice} error=${error} />`;
  const lines = [[visible(data.tenant), data.limits], ...data.keys.map((key) => [visible(key.key_id), key.limits])]
    .flatMap(([whose, limits]) => Object.entries(LIMITS).filter(([name]) => limits[name]).map(([name, [per, words]]) => ({ whose, per, text: words(limits[name].at_most), waits: limits[name].waits })));
  return html`<section class="panel"><header><h2>Budgets</h2><span class="soft">of ${visible(data.tenant)} and its keys</span></header>
    ${!lines.length ? html`<div class="empty">Nothing limits what may be spent.</div>` : html`<div class="scroll" tabindex="0"><table aria-label="Budgets"><thead><tr><th>Whose</th><th class="num">At most</th><th>Beyond it</th></tr></thead><tbody>
      ${lines.map((line) => html`<tr><td class="mono">${line.whose}</td><td class="num">${line.text} ${line.per}</td><td>${line.waits ? "runs wait" : "is refused"}</td></tr>`)}</tbody></table></div>`}</section>`;
}

export function Money({ query }) {
  const by = Object.hasOwn(WAYS, query.get("by")) ? query.get("by") : "day";
  const days = SPANS.some(([of]) => of === query.get("days")) ? query.get("days") : "30";
  const isForAll = user().is_operator && may("admin");
  const { data, error } = usePoll(() => ask("GET", "v1/spend", { params: {
    by, limit: 200, max_age_s: 10, created_after: Math.floor(Date.now() / 60000) * 60 - days * 86400, all_tenants: isForAll || undefined } }), 5000, [by, days], { lists: ["runs"], leastMs: 5000 });
  const set = (name) => (event) => { const next = new URLSearchParams(query); next.set(name, event.target.value); setQuery(next); };
  const rows = data?.by === by ? data.data : [];
  const most = Math.max(1e-9, ...rows.map((row) => row.cost_usd ?? 0));
  const total = rows.reduce((sum, row) => sum + (row.cost_usd ?? 0), 0);
  return html`<header><h1>Money</h1><span class="soft">${dollars(total)} ${isForAll ? "of all tenants" : `of ${visible(user().tenant)}`}</span></header><${Notice} error=${error} />
    <section class="panel"><div class="filters">
      <div><label for="money-by">By</label><select id="money-by" value=${by} onChange=${set("by")}>${Object.entries(WAYS).map(([word, text]) => html`<option value=${word}>${text}</option>`)}</select></div>
      <div><label for="money-days">Accepted in</label><select id="money-days" value=${days} onChange=${set("days")}>${SPANS.map(([word, text]) => html`<option value=${word}>${text}</option>`)}</select></div></div>
    ${data && !rows.length && html`<div class="empty">Nothing was run in this time.</div>`}
    ${rows.length > 0 && html`<div class="scroll"><table><thead><tr><th>${WAYS[by]}</th><th class="num">Runs</th><th class="num">Cost</th><th><span class="hidden">Part</span></th><th class="num">Tokens in</th><th class="num">Tokens out</th><th class="num">From cache</th><th class="num">Unknown</th></tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${row.key}><td class="what"><span class="one"><${Name} by=${by} row=${row} /></span></td><td class="num">${number(row.runs)}</td><td class="num">${dollars(row.cost_usd)}</td>
        <td><div class="bar wide"><i style=${{ width: `${(100 * (row.cost_usd ?? 0)) / most}%` }}></i></div></td>
        <td class="num">${number(row.input_tokens + row.cache_read_tokens + row.cache_write_tokens)}</td><td class="num">${number(row.output_tokens)}</td>
        <td class="num">${row.cache_hit_ratio === null ? "–" : `${Math.round(row.cache_hit_ratio * 100)} %`}</td>
        <td class="num">${row.unknown_runs ? counted(row.unknown_runs, "run") : row.doubtful_cost_usd ? `${dollars(row.doubtful_cost_usd)} at most` : "–"}</td></tr>`)}</tbody></table></div>`}</section>
    ${may("admin") && html`<${Budgets} />`}`;
}
