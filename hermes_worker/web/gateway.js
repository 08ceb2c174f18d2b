// Accounts that people write to, and who may speak to the agent there.
import { age, ask, brief, Danger, html, Notice, State, useField, useState } from "./core.js";
import { useActions, usePoll } from "./live.js";

const ROLES = ["owner", "member", "guest"];

export function Gateway() {
  const { data, error, again } = usePoll(() => ask("GET", "v1/gateway/accounts"), 3000, [], { lists: ["gateway"] });
  const [act, said] = useActions(again);
  const turnAway = (account, person) => act("DELETE", "v1/gateway/people", { params: { account, person } });
  const accounts = data?.data ?? [];
  const of = (kind) => accounts.flatMap((account) => account[kind].map((each) => ({ ...each, account: account.account })));
  const asking = of("asking"), people = of("people");
  return html`<header><h1>Gateway</h1></header><${Notice} error=${said ?? error} />
    <section class="panel"><header><h2>Accounts</h2></header>${data && !accounts.length && html`<div class="empty">No account was listened to yet.</div>`}
      ${accounts.length > 0 && html`<div class="scroll" tabindex="0"><table aria-label="Accounts"><thead><tr><th>State</th><th>Account</th><th>Events come by</th><th>Listened to by</th><th class="num">Last look</th><th>Last error</th></tr></thead>
        <tbody>${accounts.map((each) => html`<tr key=${each.account}><td><${State} of=${each.error ? "failed" : each.holder || each.mode === "webhook" ? "running" : "nobody listens"} /></td><td class="mono">${brief(each.account)}</td><td>${brief(each.mode)}</td>
          <td class="mono">${brief(each.holder ?? "–")}</td><td class="num">${age(each.looked_at)}</td><td>${brief(each.error ?? "–")}${each.codes_locked_until && html` <span class="tag">codes locked</span>`}</td></tr>`)}</tbody></table></div>`}</section>
    <section class="panel"><header><h2>Asks to be let in</h2></header>
      ${accounts.length > 0 && html`<${Pair} accounts=${accounts} act=${act} />`}
      ${data && !asking.length && html`<div class="empty">Nobody asks.</div>`}
      ${asking.length > 0 && html`<div class="scroll" tabindex="0"><table aria-label="Asks to be let in"><thead><tr><th>Account</th><th>Tenant</th><th>Person</th><th class="num">Asked</th><th class="num">Code is good</th><th><span class="hidden">Actions</span></th></tr></thead>
        <tbody>${asking.map((each) => html`<tr key=${`${each.account} ${each.tenant} ${each.person}`}><td class="mono">${brief(each.account)}</td><td>${brief(each.tenant)}</td><td class="mono">${brief(each.person)}</td><td class="num">${age(each.asked_at)}</td><td class="num">${age(each.expires_at)}</td>
          <td><${Danger} label="Refuse" title="Refuse them?" act=${() => turnAway(each.account, each.person)}><p>The code of <span class="mono">${brief(each.person)}</span> is worth nothing any more. They may ask for another one.</p></${Danger}></td></tr>`)}</tbody></table></div>`}</section>
    <section class="panel"><header><h2>Let in with a code</h2></header>${data && !people.length && html`<div class="empty">Nobody was let in with a code. Who is allowed by settings is not listed here.</div>`}
      ${people.length > 0 && html`<div class="scroll" tabindex="0"><table aria-label="Let in with a code"><thead><tr><th>Account</th><th>Tenant</th><th>Person</th><th>Role</th><th class="num">Since</th><th><span class="hidden">Actions</span></th></tr></thead>
        <tbody>${people.map((each) => html`<tr key=${`${each.account} ${each.tenant} ${each.person}`}><td class="mono">${brief(each.account)}</td><td>${brief(each.tenant)}</td><td class="mono">${brief(each.person)}</td><td>${brief(each.role)}</td><td class="num">${age(each.paired_at)}</td>
          <td><${Danger} label="Revoke" title="Let them speak no more?" act=${() => turnAway(each.account, each.person)}><p><span class="mono">${brief(each.person)}</span> is a stranger on ${brief(each.account)} from then on.</p></${Danger}></td></tr>`)}</tbody></table></div>`}</section>`;
}

/** The person tells the code to somebody who is in: so the two know of each other, and an id that asks is not enough. */
function Pair({ accounts, act }) {
  const [account, setAccount] = useState(accounts[0].account), [role, setRole] = useState("owner");
  const code = useField();
  const send = (event) => {
    event.preventDefault();
    act("POST", "v1/gateway/pairings", { body: { account, code: code.value.trim(), role } });
    code.set("");
  };
  return html`<form class="filters" onSubmit=${send}>
    <div><label for="pair-account">Account</label><select id="pair-account" value=${account} onChange=${(event) => setAccount(event.target.value)}>${accounts.map((each) => html`<option key=${each.account} value=${each.account}>${brief(each.account)}</option>`)}</select></div>
    <div><label for="pair-code">Code that they were given</label><input id="pair-code" required maxlength="40" autocomplete="off" spellcheck="false" ...${code.bind} /></div>
    <div><label for="pair-role">Role</label><select id="pair-role" value=${role} onChange=${(event) => setRole(event.target.value)}>${ROLES.map((word) => html`<option value=${word}>${word}</option>`)}</select></div>
    <button class="main">Let in</button></form>`;
}
