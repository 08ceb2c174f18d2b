// What happens in runs, as it happens. A browser opens six connections to one server over HTTP/1.1, so its tabs share the
// streams of one of them. The lock of the browser says which tab that is; when it closes, the next one gets the lock at
// once and goes on after the last event that was passed on. Where a browser has no locks (plain HTTP under a name), each
// tab reads for itself.
import { address, basePath, user } from "./core.js";

const HELD_MAX = 3;
const TURN_MS = 400;
const AGAIN_MS = 1000;
const AGAIN_MAX_MS = 60000;
const FORGOTTEN_MS = 90000;
const KEPT_MAX = 30000;
const PASSING = /^\{"event":"(message\.delta|reasoning\.available|tool\.generating|tool\.progress)"/;
const LAST = /^\{"event":"run\.(completed|failed|cancelled)"/;

/** The events of one run after one of them; `null` is the beginning. */
class Line {
  constructor(id, after, tell) {
    // What comes in one piece is told in one piece. A channel to itself wakes a tab that nobody sees; a timer would be held back.
    this.soon = new MessageChannel();
    this.soon.port1.onmessage = () => this.pass();
    Object.assign(this, { id, tell, fresh: [], base: after, from: after, last: after, events: [], isOver: false, isLive: false, source: null, again: null, refusals: 0, turnMs: TURN_MS, wantedAt: Date.now() });
  }

  open() {
    this.openedAt = Date.now();
    this.heardAt = Infinity;
    const source = (this.source = new EventSource(address(`v1/runs/${this.id}/events`, { after: this.last ?? "0" })));
    source.onopen = () => {
      this.heardAt = Date.now();
      this.refusals = 0;
      this.turnMs = Math.max(TURN_MS, 3 * (this.heardAt - this.openedAt)); // a busy server needs longer turns
      this.tell({ isLive: (this.isLive = true) });
    };
    source.onerror = () => {
      this.heardAt = Date.now();
      this.tell({ isLive: (this.isLive = false) });
      // Refused: the browser does not try again by itself. What is refused for good, such as a run that was removed, is
      // asked for less and less often.
      if (source.readyState === EventSource.CLOSED && this.source === source) {
        this.source = null;
        this.again = setTimeout(() => { this.again = null; this.open(); }, Math.min(AGAIN_MAX_MS, AGAIN_MS * 2 ** this.refusals));
        this.refusals += 1;
      }
    };
    source.onmessage = ({ data, lastEventId }) => this.take({ id: lastEventId, data });
  }

  take(event) {
    this.heardAt = Date.now();
    if (!PASSING.test(event.data)) while (this.events.length && PASSING.test(this.events.at(-1).data)) this.events.pop();
    this.events.push(event);
    this.last = event.id;
    if (this.events.length > KEPT_MAX) this.from = this.events.splice(0, KEPT_MAX / 2).at(-1).id;
    if (LAST.test(event.data)) {
      this.isOver = true;
      this.close();
    }
    if (this.fresh.push(event) === 1) this.soon.port2.postMessage(null);
  }

  pass() {
    const events = this.fresh, base = this.base;
    if (!events.length) return;
    this.fresh = [];
    this.base = events.at(-1).id;
    this.tell({ base, events, isLive: true });
  }

  /** What came after an event; null when it is not known. */
  after(id) {
    this.pass(); // or they would be told twice
    if (id === this.last) return [];
    if (id === this.from) return this.events;
    const at = this.events.findLastIndex((event) => event.id === id);
    return at < 0 ? null : this.events.slice(at + 1);
  }

  close() {
    clearTimeout(this.again);
    this.again = null;
    this.source?.close();
    this.source = null;
    this.pass();
  }
}

/** The tab that reads for all. */
class Reader {
  constructor(name) {
    this.lines = new Map();
    this.channel = new BroadcastChannel(name);
    this.channel.onmessage = ({ data }) => (data.want ? this.wanted(data) : data.leave && this.left(data));
    this.timer = setInterval(() => this.turn(), TURN_MS);
    this.channel.postMessage({ hello: true });
  }

  wanted({ want, last, tab }) {
    let line = this.lines.get(want);
    // Whoever begins needs all of it.
    if (line && last === null && line.from !== null) line = this.left({ leave: want });
    if (!line) {
      line = new Line(want, last, (news) => this.channel.postMessage({ run: want, ...news }));
      this.lines.set(want, line);
      this.turn();
    }
    line.wantedAt = Date.now();
    const events = line.after(last);
    if (events === null) this.channel.postMessage({ run: want, to: tab, isLost: true });
    else this.channel.postMessage({ run: want, to: tab, base: last, events, isLive: line.isLive });
  }

  left({ leave }) {
    this.lines.get(leave)?.close();
    this.lines.delete(leave);
  }

  /** More runs than connections: those that are silent give theirs to those that wait, in turn. */
  turn() {
    const now = Date.now();
    for (const line of [...this.lines.values()]) if (now - line.wantedAt > FORGOTTEN_MS) this.left({ leave: line.id });
    const lines = [...this.lines.values()].filter((line) => !line.isOver);
    const held = lines.filter((line) => line.source).sort((a, b) => a.openedAt - b.openedAt);
    const waiting = lines.filter((line) => !line.source && !line.again).sort((a, b) => (a.openedAt ?? 0) - (b.openedAt ?? 0));
    for (const line of waiting) {
      const silent = held.length < HELD_MAX ? null : held.find((each) => now - each.heardAt > each.turnMs);
      if (silent === undefined) return;
      if (silent) {
        held.splice(held.indexOf(silent), 1);
        silent.close();
      }
      line.open();
      held.push(line);
    }
  }

  stop() {
    clearInterval(this.timer);
    this.lines.forEach((line) => line.close());
    this.channel.close();
  }
}

let sharedFor = null, ending = null;

/** One lock and one channel for each user of a browser: what one may read is nothing for the next. */
function share() {
  const name = `hermes-runs ${basePath} ${user().tenant} ${user().name}`;
  if (name === sharedFor) return name;
  ending?.abort();
  const asked = (ending = new AbortController());
  sharedFor = name;
  navigator.locks.request(name, { signal: asked.signal }, () => new Promise((end) => {
    const reader = new Reader(name);
    asked.signal.addEventListener("abort", () => { reader.stop(); end(); });
  })).catch(() => null);
  return name;
}

/** Give every event of a run to `take`, once and in order. `forget` says that they come again from the first. Returns how to stop. */
export function follow(id, { take, forget, live }) {
  if (!navigator.locks || !globalThis.BroadcastChannel) {
    const line = new Line(id, null, ({ events, isLive }) => { live(isLive); events?.forEach((event) => take(event.data)); line.events = []; });
    line.open();
    return () => line.close();
  }
  const channel = new BroadcastChannel(share()), tab = crypto.randomUUID();
  let last = null, askedAt = 0;
  const want = () => { askedAt = Date.now(); channel.postMessage({ want: id, last, tab }); };
  channel.onmessage = ({ data }) => {
    if (data.hello) return want();
    if (data.run !== id || (data.to && data.to !== tab)) return;
    if (data.isLost) {
      last = null;
      forget();
      return want();
    }
    if (data.isLive !== undefined) live(data.isLive);
    if (!data.events?.length) return;
    if (data.base !== last) {
      if (!data.to && Date.now() - askedAt > AGAIN_MS) want();
      return;
    }
    for (const event of data.events) take(event.data);
    last = data.events.at(-1).id;
  };
  want();
  const timer = setInterval(want, AGAIN_MS * 2);
  // Other tabs that show the run say again that they want it.
  return () => { clearInterval(timer); channel.postMessage({ leave: id }); channel.close(); };
}
