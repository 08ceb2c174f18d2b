// Who may come in: keys, and for operators the tenants with what they may use.
import { age, Ago, ask, brief, Danger, Dialog, html, may, Notice, number, State, useField, user, useState, visible } from "./core.js";
import { useActions, usePoll } from "./live.js";

const SCOPES = ["runs:read", "runs:write", "approve", "jobs", "memory", "ops:read", "admin"];

function conditionOf(key) {
  if (key.revoked_at) return "revoked";
  return key.expires_at && key.expires_at < Date.now() / 1000 ? "expired" : "valid";
}

export function Access() {
  const tenant = useField(user().tenant);
  const [made, setMade] = useState(null), [wrong, setWrong] = useState(null);
  const keys = usePoll(() => ask("GET", "v1/keys", { params: { tenant: tenant.value } }), 4000, [tenant.value], { lists: ["audit"] });
  const tenants = usePoll(async () => (user().is_operator ? (await ask("GET", "v1/tenants")).data : []), 8000, [], { lists: ["audit"] });
  const [act, refusal] = useActions(keys.again);
  return html`<header><h1>Access</h1></header><${Notice} error=${refusal ?? wrong ?? keys.error ?? tenants.error} />
    ${made && html`<${Shown} made=${made} close=${() => setMade(null)} />`}
    ${tenants.data?.length > 1 && html`<section class="panel"><header><h2>Tenants</h2></header><div class="scroll"><table><thead><tr><th>State</th><th>Tenant</th><th class="num">Keys</th><th class="num">Runs</th></tr></thead>
      <tbody>${tenants.data.map((each) => html`<tr key=${each.name}><td><${State} of=${each.disabled_at ? "disabled" : "enabled"} /></td>
        <td><button class="plain" aria-pressed=${each.name === tenant.value} onClick=${() => tenant.set(each.name)}>${brief(each.name)}</button></td><td class="num">${number(each.keys)}</td><td class="num">${number(each.runs)}</td></tr>`)}</tbody></table></div></section>`}
    <section class="panel"><header><h2>Keys of ${brief(tenant.value)}</h2></header>
      <${NewKey} tenant=${tenant.value} done=${(key) => { setMade(key); keys.again(); }} failed=${setWrong} />
      ${keys.data && !keys.data.data.length && html`<div class="empty">No key was made. The key of the installation is none of these.</div>`}
      ${keys.data?.data.length > 0 && html`<div class="scroll"><table><thead><tr><th>State</th><th>Key</th><th>Holder</th><th>May</th><th class="num">Used</th><th class="num">Made</th><th><span class="hidden">Actions</span></th></tr></thead>
        <tbody>${keys.data.data.map((key) => html`<tr key=${key.key_id}><td><${State} of=${conditionOf(key)} /></td><td class="mono">${brief(key.key_id)}</td><td>${brief(key.holder)}</td>
          <td>${key.scopes.map((scope) => html`<span class="tag">${brief(scope)}</span>`)}</td><td class="num">${age(key.last_used_at)}</td><td class="num">${age(key.created_at)}</td>
          <td>${conditionOf(key) === "valid" && html`<${Danger} label="Revoke" title="Revoke this key?" act=${() => act("DELETE", `v1/keys/${key.key_id}`, { params: { tenant: tenant.value } })}><p>Whoever holds <span class="mono">${brief(key.key_id)}</span> (${brief(key.holder)}) is out at once, in the page as well.</p></${Danger}>`}</td></tr>`)}</tbody></table></div>`}</section>`;
}

function NewKey({ tenant, done, failed }) {
  const holder = useField();
  const [scopes, setScopes] = useState(new Set(["runs:read", "runs:write"]));
  const flip = (scope) => setScopes((last) => { const next = new Set(last); next.delete(scope) || next.add(scope); return next; });
  const send = async (event) => {
    event.preventDefault();
    try {
      done(await ask("POST", "v1/keys", { params: { tenant }, body: { holder: holder.value, scopes: [...scopes] } }));
      holder.set("");
      failed(null);
    } catch (refusal) { failed(refusal); }
  };
  return html`<form class="filters" onSubmit=${send}><div><label for="holder">A key for</label><input id="holder" required maxlength="100" autocomplete="off" ...${holder.bind} /></div>
    <fieldset class="row"><legend class="hidden">What it allows</legend>${SCOPES.filter(may).map((scope) => html`<label><input type="checkbox" checked=${scopes.has(scope)} onChange=${() => flip(scope)} /> ${scope}</label>`)}</fieldset>
    <button class="main" disabled=${!scopes.size}>Make it</button></form>`;
}

/** A new key is shown once, and the page forgets it. */
function Shown({ made, close }) {
  return html`<${Dialog} title=${`The key of ${brief(made.holder)}`} close=${close}>${(dismiss) => html`<p>It is shown this once. Hand it over on a safe way.</p>
    <pre tabindex="0">${visible(made.key)}</pre><div class="row"><button class="main" onClick=${dismiss}>I have it</button></div>`}</${Dialog}>`;
}

const LIMITS = { runs: "Runs at work", queued: "Runs that wait", submits_per_min: "Submissions a minute", tokens_per_day: "Tokens a day", tokens_per_month: "Tokens a month", usd_per_day: "Dollars a day", usd_per_month: "Dollars a month" };

export function Tenants() {
  const { data, error, again } = usePoll(() => ask("GET", "v1/tenants"), 8000, [], { lists: ["audit", "runs"], leastMs: 4000 });
  const name = useField(), [act, refusal] = useActions(again), [open, setOpen] = useState(null);
  const of = (tenant) => `v1/tenants/${encodeURIComponent(tenant)}`;
  return html`<header><h1>Tenants</h1></header><${Notice} error=${refusal ?? error} />
    <section class="panel">${may("admin") && html`<form class="filters" onSubmit=${(event) => { event.preventDefault(); act("POST", "v1/tenants", { body: { name: name.value.trim() } }, () => name.set("")); }}><div><label for="tenant-name">A tenant called</label><input id="tenant-name" required maxlength="60" autocomplete="off" ...${name.bind} /></div><button class="main">Make it</button></form>`}
      ${data?.data.length > 0 && html`<div class="scroll" tabindex="0"><table aria-label="Tenants"><thead><tr><th>State</th><th>Tenant</th><th class="num">Keys</th><th class="num">Runs</th><th class="num">Since</th><th><span class="hidden">Actions</span></th></tr></thead>
        <tbody>${data.data.map((each) => html`<tr key=${each.name}><td><${State} of=${each.disabled_at ? "disabled" : "enabled"} /></td><td>${brief(each.name)}</td><td class="num">${number(each.keys)}</td><td class="num">${number(each.runs)}</td><td class="num"><${Ago} at=${each.created_at} /></td>
          <td class="actions"><button aria-expanded=${open === each.name} onClick=${() => setOpen(open === each.name ? null : each.name)}>Limits</button> ${may("admin") && (each.disabled_at ? html`<button onClick=${() => act("POST", `${of(each.name)}/enable`)}>Enable</button>` : html`<${Danger} label="Disable" title="Disable this tenant?" act=${() => act("POST", `${of(each.name)}/disable`, { body: {} })}><p>The keys and routes of <span class="mono">${brief(each.name)}</span> are refused, and its schedule holds. What is at work ends by itself.</p></${Danger}>`)}</td></tr>`)}</tbody></table></div>`}</section>
    ${open && html`<${Limits} key=${open} tenant=${open} />`}`;
}

/** What a tenant may use. An empty field is no limit. */
function Limits({ tenant }) {
  const place = `v1/tenants/${encodeURIComponent(tenant)}/limits`;
  const { data, error, again } = usePoll(() => ask("GET", place), 30000, [tenant]);
  const [changed, setChanged] = useState({}), [said, setSaid] = useState(null), [isSaved, setSaved] = useState(false);
  const send = async (event) => {
    event.preventDefault();
    const limits = Object.fromEntries(Object.entries(changed).map(([key, value]) => [key, value === "" ? null : { at_most: Number(value), waits: data.limits[key]?.waits ?? true }]));
    try { await ask("PATCH", place, { body: { limits } }); setChanged({}); setSaid(null); setSaved(true); } catch (wrong) { setSaid(wrong); }
    again();
  };
  return html`<section class="panel" aria-label="Limits"><header><h2>Limits of ${brief(tenant)}</h2></header><${Notice} error=${said ?? error} />
    ${data && html`<form class="filters" onSubmit=${send}>${Object.entries(LIMITS).map(([key, label]) => html`<div key=${key}><label for=${`limit-${key}`}>${label}${data.limits[key] && html`<span class="soft">, beyond: ${data.limits[key].waits ? "waits" : "refused"}</span>`}</label><input id=${`limit-${key}`} type="number" min="0" step="any" placeholder="no limit" value=${changed[key] ?? data.limits[key]?.at_most ?? ""} onInput=${(event) => setChanged({ ...changed, [key]: event.target.value })} /></div>`)}
      ${may("admin") && html`<button class="main" disabled=${!Object.keys(changed).length}>Save</button>`}</form>`}${isSaved && !Object.keys(changed).length && html`<p class="pad" role="status">Saved.</p>`}</section>`;
}
