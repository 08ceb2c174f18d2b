// What the installation is configured as, and who said so. Secrets never come here: the server withholds them.
import { ask, brief, html, Notice, number, usePoll, visible } from "./core.js";
import { Filter } from "./runs.js";

const LAYERS = { __proto__: null, command_line: "command line", environment: "environment", dotenv: ".env", file: "file", derived: "follows", default: "default" };

function Value({ of }) {
  if (of.is_secret) return html`<span class="soft">${of.is_set ? "a secret, set" : "a secret, not set"}</span>`;
  return of.value === null ? html`<span class="soft">not set</span>` : html`<span class="mono">${brief(of.value)}</span>`;
}

export function Settings({ query }) {
  const { data, error } = usePoll(() => ask("GET", "v1/settings"), 15000, []);
  const words = (query.get("words") ?? "").toLowerCase(), from = query.get("from");
  const rows = (data?.data ?? []).filter((each) => (!from || (from === "said" ? each.layer !== "default" : each.layer === from)) && `${each.key} ${each.variable} ${each.description}`.toLowerCase().includes(words));
  return html`<header><h1>Settings</h1>${data && html`<span class="soft">of the process that answers, ${visible(data.configuration)}</span>`}</header><${Notice} error=${error} />
    <section class="panel"><div class="filters" role="search" aria-label="Filters of the list"><${Filter} name="words" label="Words" query=${query} />
      <${Filter} name="from" label="Said by" query=${query} list=${[["said", "anybody"], ...Object.entries(LAYERS)]} /><span class="soft" role="status">${data && `${number(rows.length)} of ${number(data.data.length)}`}</span></div>
    ${data && !rows.length && html`<div class="empty">No setting fits.</div>`}
    ${rows.length > 0 && html`<div class="scroll tall" tabindex="0"><table aria-label="Settings"><thead><tr><th>Setting</th><th>Value</th><th>From</th><th>What it is</th></tr></thead>
      <tbody>${rows.map((each) => html`<tr key=${each.key}><td class="mono" title=${each.variable}>${brief(each.key)}</td><td><${Value} of=${each} /></td>
        <td><span class="tag">${LAYERS[each.layer] ?? brief(each.layer)}</span>${each.layer !== "default" && html`<span class="soft">${brief(each.origin)}</span>`}${each.is_live && html` <span class="soft">live</span>`}</td>
        <td class="soft">${visible(each.description)}</td></tr>`)}</tbody></table></div>`}</section>`;
}
