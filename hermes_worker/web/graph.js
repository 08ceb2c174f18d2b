// A tree of runs as a picture: a dot for each run, lines to what it caused. The table beside it says the same in words.
import { brief, dollars, html, kindOf, short, span, to, useEffect, useRef, useState } from "./core.js";

const ACROSS_PX = 26, DOWN_PX = 46, EDGE_PX = 16;
const OPEN_MAX = 40; // runs; a larger picture is drawn when somebody opens it

/** Where each run stands: as far down as it is deep, and above the middle of what it caused. `nodes` have each run behind its parent. */
function laidOut(nodes) {
  const known = new Set(nodes.map((node) => node.run.run_id)), below = new Map(), places = new Map();
  let across = 0;
  for (const { run, parent_run_id: parent, level } of [...nodes].reverse()) {
    const children = below.get(run.run_id) ?? [];
    const x = children.length ? (places.get(children[0]).x + places.get(children.at(-1)).x) / 2 : across++;
    places.set(run.run_id, { x, level, children, parent: known.has(parent) ? parent : null });
    if (known.has(parent)) below.set(parent, [run.run_id, ...(below.get(parent) ?? [])]);
  }
  // They were counted from the right.
  for (const place of places.values()) Object.assign(place, { x: EDGE_PX + (across - 1 - place.x) * ACROSS_PX, y: EDGE_PX + place.level * DOWN_PX });
  const lines = [];
  for (const { x, y, children } of places.values()) for (const child of children) {
    const end = places.get(child), middle = (y + end.y) / 2;
    lines.push(`M${x} ${y}C${x} ${middle} ${end.x} ${middle} ${end.x} ${end.y}`);
  }
  const depth = nodes.reduce((most, node) => Math.max(most, node.level), 0);
  return { places, lines: lines.join(""), width: 2 * EDGE_PX + (across - 1) * ACROSS_PX, height: 2 * EDGE_PX + depth * DOWN_PX };
}

/** Where an arrow leads from a run: to what caused it, to the first that it caused, or to a neighbour of the same depth. */
function next(places, id, key) {
  const at = places.get(id);
  if (key === "ArrowUp") return at.parent;
  if (key === "ArrowDown") return at.children[0];
  const level = [...places].filter(([, place]) => place.level === at.level).sort(([, a], [, b]) => a.x - b.x).map(([each]) => each);
  return { ArrowLeft: level[level.indexOf(id) - 1], ArrowRight: level[level.indexOf(id) + 1], Home: level[0], End: level.at(-1) }[key];
}

function Picture({ nodes, id }) {
  const [chosen, choose] = useState(id), box = useRef(null), drawn = useRef({ key: null });
  const key = `${chosen} ${nodes.map(({ run }) => run.run_id + run.status).join()}`;
  // A look that brought nothing new draws nothing.
  if (drawn.current.key !== key) {
    const { places, lines, width, height } = laidOut(nodes), current = places.has(chosen) ? chosen : nodes[0].run.run_id;
    const moved = (event) => {
      const found = next(places, event.target.dataset.run, event.key);
      if (!found) return;
      event.preventDefault();
      choose(found);
      box.current.querySelector(`[data-run="${CSS.escape(found)}"]`).focus();
    };
    const dot = ({ run, level }) => {
      const { x, y } = places.get(run.run_id), words = `${brief(run.title ?? short(run.run_id))}, ${brief(run.status).replaceAll("_", " ")}, level ${level}`;
      const took = run.started_at && run.finished_at ? `, ${span(run.finished_at - run.started_at)}` : "";
      return html`<a key=${run.run_id} data-run=${run.run_id} class=${`dot ${kindOf(run.status)}`} href=${to("runs", run.run_id)} tabindex=${run.run_id === current ? 0 : -1} aria-current=${run.run_id === id ? "page" : undefined}
        aria-label=${words} title=${`${words}${took}, ${dollars(run.estimated_cost_usd)}`} style=${{ left: `${x}px`, top: `${y}px` }}></a>`;
    };
    drawn.current = { key, html: html`<div class="graph" onKeyDown=${moved} style=${{ width: `${width}px`, height: `${height}px` }}>
      <svg aria-hidden="true" width=${width} height=${height}><path d=${lines} /></svg>${nodes.map(dot)}</div>` };
  }
  useEffect(() => { box.current.querySelector("[tabindex='0']")?.scrollIntoView({ block: "nearest", inline: "center" }); }, []);
  return html`<div class="scroll picture" ref=${box} role="group" aria-label="The tree as a graph; arrow keys lead along its lines">${drawn.current.html}</div>`;
}

export function Graph({ nodes, id }) {
  const [isOpen, setOpen] = useState(nodes.length <= OPEN_MAX);
  return html`<details open=${isOpen} onToggle=${(event) => setOpen(event.target.open)}><summary class="pad">As a graph</summary>${isOpen && html`<${Picture} nodes=${nodes} id=${id} />`}</details>`;
}
