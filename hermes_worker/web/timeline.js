// What took the time of a run: waiting for a worker, the model, tools, people, children and retries, each where it was.
import { clock, html, LongTable, number, span, useEffect, useRef, visible } from "./core.js";

const WORDS = { __proto__: null, queue: "waits for a worker", model: "model", tool: "tool", asked: "waits for a person", children: "waits for children", parked: "waits", retry: "retry" };

/** All stretches of a run in their order, those that last until now as well. */
export function spansOf(run, story, now) {
  const ended = run.finished_at ?? now, begun = run.started_at ?? ended;
  const found = story.spans.map((each) => ({ ...each, from: each.from ?? Math.min(begun, each.to) }));
  found.push({ kind: "queue", from: run.created_at, to: begun, label: "" });
  if (!run.finished_at) {
    for (const call of story.running.values()) found.push({ kind: "tool", from: call.from ?? call.at, to: now, label: call.tool, item: call, isOpen: true });
    for (const item of story.waits.values()) if (!item.answer) found.push({ kind: "asked", from: item.at, to: now, label: "nobody answered yet", item, isOpen: true });
    if (story.parked && !found.some((each) => each.kind === "asked" && each.isOpen)) found.push({ kind: story.parked.status === "waiting_for_children" ? "children" : "parked", from: story.parked.from, to: now, label: story.parked.status.replaceAll("_", " "), isOpen: true });
    if (run.status === "running" && !story.running.size) found.push({ kind: "model", from: story.free ?? begun, to: now, first: story.firstAt, label: "writes", isOpen: true });
  }
  return found.sort((a, b) => a.from - b.from || a.to - b.to);
}

const part = (seconds, width) => `${Math.min(100, Math.max(0, (100 * seconds) / width))}%`;

/** All stretches in one strip, however many there are: a drawing, for five hundred steps as for five. */
function Minimap({ spans, first, width, open }) {
  const canvas = useRef(null);
  useEffect(() => {
    const box = canvas.current, css = getComputedStyle(box), draw = box.getContext("2d"), scale = devicePixelRatio || 1;
    box.width = box.clientWidth * scale;
    box.height = box.clientHeight * scale;
    for (const each of spans) {
      draw.fillStyle = css.getPropertyValue(`--span-${each.isBad ? "bad" : each.kind}`);
      draw.fillRect((box.width * (each.from - first)) / width, 0, Math.max(scale, (box.width * (each.to - each.from)) / width), box.height);
    }
  });
  const clicked = (event) => {
    const at = first + (width * event.offsetX) / canvas.current.clientWidth;
    const near = (each) => (each.from <= at && at <= each.to ? (each.to - each.from) / width / 1000 : Math.min(Math.abs(each.from - at), Math.abs(each.to - at)));
    const found = spans.filter((each) => each.item).sort((a, b) => near(a) - near(b))[0];
    if (found) open(found);
  };
  return html`<canvas ref=${canvas} class="minimap" onClick=${clicked} role="img" aria-label="The whole run in one strip; the table below says the same"></canvas>`;
}

export function Timeline({ run, story, open }) {
  const now = Date.now() / 1000, spans = spansOf(run, story, now).filter((each) => each.to - each.from >= 0.001 || each.kind === "retry");
  if (!spans.length) return null;
  const first = Math.min(run.created_at, spans[0].from), width = Math.max(spans.reduce((last, each) => Math.max(last, each.to), first) - first, 0.001);
  const sums = Object.entries(spans.reduce((all, each) => ({ ...all, [each.kind]: (all[each.kind] ?? 0) + each.to - each.from }), {})).filter(([kind, seconds]) => kind !== "retry" && seconds > 0).sort(([, a], [, b]) => b - a);
  return html`<section class="panel"><header><h2>Timeline</h2><span class="soft">${span(width)}${story.gone ? ", of its newest part" : ""}</span></header>
    <div class="pad"><${Minimap} spans=${spans} first=${first} width=${width} open=${open} />
      <div class="row legend">${sums.map(([kind, seconds]) => html`<span key=${kind}><i class=${`span ${kind}`}></i>${WORDS[kind]} ${span(seconds)}</span>`)}</div></div>
    <${LongTable} rows=${spans} columns="3" label="What took the time" head=${html`<tr><th>What</th><th class="num">Took</th><th>When</th></tr>`}
      row=${(each, n) => html`<tr key=${n} data-n=${n} aria-rowindex=${n + 2}><td class="nowrap">${each.item ? html`<button class="plain link" onClick=${() => open(each)}>${WORDS[each.kind]}</button>` : WORDS[each.kind]} ${each.kind !== "children" && html`<span class="soft mono">${visible(each.label).slice(0, 60)}</span>`}</td>
        <td class="num">${each.kind === "retry" ? "" : span(each.to - each.from)}${each.isOpen ? " …" : ""}</td>
        <td class="wide"><div class="lane" title=${`${clock(each.from)}, ${span(each.to - each.from)}${each.first ? `, the first word after ${span(each.first - each.from)}` : ""}`}>
          <i class=${`span ${each.isBad ? "bad" : each.kind}`} style=${{ left: part(each.from - first, width), width: part(each.to - each.from, width) }}></i>
          ${each.first && html`<i class="span first" style=${{ left: part(each.first - first, width), width: part(each.to - each.first, width) }}></i>`}</div></td></tr>`} />
    ${spans.length > 500 && html`<div class="pad soft">${number(spans.length)} stretches; the strip above shows all of them.</div>`}</section>`;
}
