// Who may come in: keys, and for operators the tenants.
import { age, ask, brief, Confirm, Dialog, html, may, Notice, number, State, useField, user, useState, visible } from "./core.js";
import { usePoll } from "./live.js";

const SCOPES = ["runs:read", "runs:write", "approve", "jobs", "memory", "ops:read", "admin"];

function conditionOf(key) {
  if (key.revoked_at) return "revoked";
  return key.expires_at && key.expires_at < Date.now() / 1000 ? "expired" : "valid";
}

export function Access() {
  const tenant = useField(user().tenant);
  const [error, setError] = useState(null);
  const [made, setMade] = useState(null);
  const [ending, setEnding] = useState(null);
  const keys = usePoll(() => ask("GET", "v1/keys", { params: { tenant: tenant.value } }), 4000, [tenant.value], { lists: ["audit"] });
  const tenants = usePoll(async () => (user().is_operator ? (await ask("GET", "v1/tenants")).data : []), 8000, [], { lists: ["audit"] });
  const revoke = async (key) => {
    setEnding(null);
    try { await ask("DELETE", `v1/keys/${key.key_id}`, { params: { tenant: tenant.value } }); setError(null); } catch (refusal) { setError(refusal); }
    keys.again();
  };
  return html`<header><h1>Access</h1></header><${Notice} error=${error ?? keys.error ?? tenants.error} />
    ${made && html`<${Shown} made=${made} close=${() => setMade(null)} />`}
    ${ending && html`<${Confirm} title="Revoke this key?" yes=${() => revoke(ending)} no=${() => setEnding(null)}><p>Whoever holds <span class="mono">${brief(ending.key_id)}</span> (${brief(ending.holder)}) is out at once, in the page as well.</p></${Confirm}>`}
    ${tenants.data?.length > 1 && html`<section class="panel"><header><h2>Tenants</h2></header><div class="scroll"><table><thead><tr><th>State</th><th>Tenant</th><th class="num">Keys</th><th class="num">Runs</th></tr></thead>
      <tbody>${tenants.data.map((each) => html`<tr key=${each.name}><td><${State} of=${each.disabled_at ? "disabled" : "enabled"} /></td>
        <td><button class="plain" aria-pressed=${each.name === tenant.value} onClick=${() => tenant.set(each.name)}>${brief(each.name)}</button></td><td class="num">${number(each.keys)}</td><td class="num">${number(each.runs)}</td></tr>`)}</tbody></table></div></section>`}
    <section class="panel"><header><h2>Keys of ${brief(tenant.value)}</h2></header>
      <${NewKey} tenant=${tenant.value} done=${(key) => { setMade(key); keys.again(); }} failed=${setError} />
      ${keys.data && !keys.data.data.length && html`<div class="empty">No key was made. The key of the installation is none of these.</div>`}
      ${keys.data?.data.length > 0 && html`<div class="scroll"><table><thead><tr><th>State</th><th>Key</th><th>Holder</th><th>May</th><th class="num">Used</th><th class="num">Made</th><th><span class="hidden">Actions</span></th></tr></thead>
        <tbody>${keys.data.data.map((key) => html`<tr key=${key.key_id}><td><${State} of=${conditionOf(key)} /></td><td class="mono">${brief(key.key_id)}</td><td>${brief(key.holder)}</td>
          <td>${key.scopes.map((scope) => html`<span class="tag">${brief(scope)}</span>`)}</td><td class="num">${age(key.last_used_at)}</td><td class="num">${age(key.created_at)}</td>
          <td>${conditionOf(key) === "valid" && html`<button class="danger" onClick=${() => setEnding(key)}>Revoke</button>`}</td></tr>`)}</tbody></table></div>`}</section>`;
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
