// Runs, conversations and jobs by what people write of them: words of a title, an id, or the beginning of one.
import { ask, brief, html, may, State, to, useCalm, useEffect, useState } from "./core.js";

const FOUND_MAX = 8;
const LOOKED_MAX = 200; // of conversations: the newest
const CALM_MS = 300;

/** What people copy from a list may end in the sign of what was left out. */
const cleaned = (words) => words.trim().replace(/…$/, "");
const orNone = (asked) => asked.catch(() => null);
const begins = (id, words) => [words, `run_${words}`, `api_${words}`].some((each) => id.toLowerCase().startsWith(each.toLowerCase()));
const holds = (words, ...texts) => texts.some((text) => (text ?? "").toLowerCase().includes(words.toLowerCase()));

/** The run whose id begins so; null for none, and for several. Short words and those of letters alone are not taken for an id. */
async function runOf(words) {
  if (!/^(run_[0-9a-f]{1,32}|(?=.*\d)[0-9a-f]{6,32})$/i.test(words)) return null;
  const whole = await orNone(ask("GET", "v1/ids", { params: { kind: "run", begins: words.toLowerCase() } }));
  return whole && orNone(ask("GET", `v1/runs/${whole.id}`));
}

/** The conversations that are called so, or whose id begins so; the newest are looked at, and of all others the one that is meant. */
async function sessionsOf(words) {
  const listed = (await orNone(ask("GET", "api/sessions", { params: { limit: LOOKED_MAX } })))?.data ?? [];
  const found = listed.filter((each) => holds(words, each.title, each.preview) || begins(each.id, words));
  if (found.length) return found;
  const whole = await orNone(ask("GET", "v1/ids", { params: { kind: "session", begins: words } }));
  const one = whole && (await orNone(ask("GET", `api/sessions/${encodeURIComponent(whole.id)}`)));
  return one ? [one.session] : [];
}

async function jobsOf(words) {
  const listed = may("jobs") ? await orNone(ask("GET", "api/jobs", { params: { include_disabled: true } })) : null;
  return (listed?.jobs ?? []).filter((each) => holds(words, each.name, each.prompt) || begins(each.id, words));
}

const ofRun = (run) => ({ id: run.run_id, text: run.title ?? run.run_id, kind: "run", state: run.status, href: to("runs", run.run_id) });
const ofSession = (session) => ({ id: session.id, text: session.title || session.preview || session.id, kind: "conversation", href: to("sessions", session.id) });
const ofJob = (job) => ({ id: job.id, text: job.name, kind: "job", href: `#/schedule?job=${encodeURIComponent(job.id)}` });

/** What has such a title, or an id that begins so: a run with its conversation, conversations and jobs. */
async function findNamed(words) {
  const [run, sessions, jobs] = await Promise.all([runOf(words), sessionsOf(words), jobsOf(words)]);
  const its = run ? [ofRun(run), ofSession({ id: run.session_id, title: run.session_title })] : [];
  return [...its, ...sessions.filter((each) => each.id !== run?.session_id).slice(0, FOUND_MAX).map(ofSession), ...jobs.slice(0, FOUND_MAX).map(ofJob)];
}

/** All that fits what somebody wrote, runs by what was said in them as well. */
export async function find(written) {
  const words = cleaned(written);
  const [named, runs] = await Promise.all([findNamed(words), orNone(ask("GET", "v1/runs", { params: { text: words, limit: FOUND_MAX, output_chars: 0 } }))]);
  const isNamed = (run) => named.some((one) => one.kind === "run" && one.id === run.run_id);
  return [...named, ...(runs?.data ?? []).filter((run) => !isNamed(run)).map(ofRun)];
}

/** Beside a search of texts: what is called so. */
export function Named({ words }) {
  const calm = useCalm(words ?? "", CALM_MS), [found, setFound] = useState([]);
  useEffect(() => {
    let isOver = false;
    setFound([]);
    if (calm.length > 1) findNamed(cleaned(calm)).then((all) => isOver || setFound(all));
    return () => { isOver = true; };
  }, [calm]);
  return found.length > 0 && html`<ul class="plainly pad" aria-label="Called so">${found.map((one) => html`<li key=${one.href}><a href=${one.href}>${brief(one.text)}</a> <span class="soft">${one.kind}</span>${one.state && html` <${State} of=${one.state} />`}</li>`)}</ul>`;
}

const NAMES = { session: ["conversation", async (words) => (await sessionsOf(words)).map(ofSession)], job: ["job", async (words) => (await jobsOf(words)).map(ofJob)], parent: ["run", async (words) => [await runOf(words)].filter(Boolean).map(ofRun)] };

/** What the filters of an address mean: where one names a conversation, a job or a run by words or by the beginning of an id, its
 * id stands in the `query`, which is null until it is known. `said` tells what was found for each, `several` when more than one was. */
export function useMeant(query) {
  const asked = JSON.stringify(Object.keys(NAMES).filter((name) => query.get(name)).map((name) => [name, query.get(name)]));
  const [known, setKnown] = useState({ asked: "[]", said: [] });
  useEffect(() => {
    let isOver = false;
    Promise.all(JSON.parse(asked).map(async ([name, words]) => {
      const [kind, look] = NAMES[name], all = await look(cleaned(words)), exact = all.find((each) => each.id === words);
      return { name, words, kind, found: exact ? [exact] : all.slice(0, FOUND_MAX) };
    })).then((said) => isOver || setKnown({ asked, said }));
    return () => { isOver = true; };
  }, [asked]);
  if (known.asked !== asked) return { query: asked === "[]" ? query : null, said: [] };
  const meant = new URLSearchParams(query);
  for (const { name, found } of known.said) if (found.length === 1) meant.set(name, found[0].id);
  return { query: meant, said: known.said };
}

/** What was found for the filters that name something. `choose` takes the id of one of several. */
export function Meant({ said, choose }) {
  return said.map(({ name, words, kind, found }) => html`<div key=${name} class="row pad" role="status">${!found.length ? html`<span>No ${kind} is called “${brief(words)}”.</span>`
    : found.length === 1 ? html`<span class="soft">Of the ${kind}</span><a href=${found[0].href}>${brief(found[0].text)}</a>`
    : html`<span>Several fit “${brief(words)}”:</span>${found.map((one) => html`<button key=${one.id} onClick=${() => choose(name, one.id)}>${brief(one.text)}</button>`)}`}</div>`);
}
