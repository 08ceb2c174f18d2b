// Lists that stay as the server has them. One stream says which lists changed, and a list is read again when it did. The
// tabs of a browser share the stream: the lock of the browser says which of them reads it, and when that tab closes, the
// next one goes on after the last event that was passed on. Where there is no stream, lists are read every few seconds.
import { address, ask, basePath, everybodys, useEffect, user, useRef, useState } from "./core.js";

const AGAIN_MS = 1000;
const CALM_MS = 30000; // between two looks at a list of which nothing was told
const UNSEEN_MS = 5000; // where nobody looks, a list is read so often at most
const SHARED_MS = 120; // for another tab to read first what all tabs show

const heeding = new Set();
let heard = null, sharedFor = null;

const nameOf = () => `hermes-changes ${basePath} ${user().tenant} ${user().name}`;

/** The one stream of a browser, for one user. What it says goes to all tabs by a channel, and to this tab directly. */
class Heard {
  constructor(name) {
    Object.assign(this, { name, last: null, isLive: false, source: null });
    this.over = new AbortController();
    this.channel = new BroadcastChannel(name);
    this.channel.onmessage = ({ data }) => (data.hello ? this.source && this.say({}) : this.take(data, false));
    this.channel.postMessage({ hello: true });
    navigator.locks.request(name, { signal: this.over.signal }, () => new Promise((end) => {
      this.over.signal.addEventListener("abort", end);
      this.open();
    })).catch(() => null);
  }

  open() {
    if (this.over.signal.aborted) return;
    const source = (this.source = new EventSource(address("v1/changes", { after: this.last, ...everybodys() })));
    source.onmessage = ({ data, lastEventId }) => {
      this.last = lastEventId;
      this.isLive = true;
      this.say({ lists: JSON.parse(data).lists });
    };
    source.onerror = () => {
      this.isLive = false;
      this.say({});
      // Refused: the browser does not try again by itself.
      if (source.readyState === EventSource.CLOSED && this.source === source) this.timer = setTimeout(() => this.open(), AGAIN_MS);
    };
  }

  say(more) {
    const told = { last: this.last, isLive: this.isLive, at: Date.now(), ...more };
    this.channel.postMessage(told);
    this.take(told, true);
  }

  take({ last, isLive, lists, at }, isFirst) {
    Object.assign(this, { last, isLive });
    heeding.forEach((told) => told(lists ?? [], at, isFirst));
  }

  end() {
    this.over.abort();
    clearTimeout(this.timer);
    this.source?.close();
    this.channel.close();
  }
}

/** Whether the server tells of changes now. */
const isTold = () => heard?.isLive ?? false;

function heed(told) {
  heeding.add(told);
  if (navigator.locks && globalThis.BroadcastChannel && sharedFor !== nameOf()) {
    heard?.end();
    sharedFor = nameOf();
    heard = new Heard(sharedFor);
  }
  return () => {
    heeding.delete(told);
    if (heeding.size) return;
    heard?.end(); // nobody is logged in any more
    heard = sharedFor = null;
  };
}

/** What `read` gives, read again when one of the `lists` changed, `leastMs` after the last time at the earliest. Every `everyMs`
 * where no server tells of changes, and slower while nobody looks. The last answer stays when one fails. What every tab of a
 * browser asks has a name, `sharedAs`: whoever asked tells the other tabs of the same user, and they wait. */
export function usePoll(read, everyMs, deps, { lists = [], leastMs = 0, calmMs = CALM_MS, sharedAs } = {}) {
  const [state, setState] = useState({ data: null, error: null });
  const kick = useRef(() => {});
  useEffect(() => {
    let isOver = false, timer = 0, dueAt = Infinity, turn = 0, askedAt = 0, changedAt = 0;
    const others = sharedAs && globalThis.BroadcastChannel ? new BroadcastChannel(`hermes-${sharedAs} ${basePath} ${user().tenant} ${user().name}`) : null;
    const isLive = () => lists.length > 0 && isTold();
    const waitUntil = (at) => {
      clearTimeout(timer);
      timer = setTimeout(look, Math.max(0, (dueAt = at) - Date.now()));
    };
    const wait = (ms) => waitUntil(Date.now() + (document.hidden ? ms * 5 : ms));
    const usualMs = () => (isLive() ? Math.max(calmMs, everyMs) : everyMs);
    const look = async () => {
      clearTimeout(timer);
      dueAt = Infinity;
      const mine = ++turn, at = (askedAt = Date.now());
      try {
        const data = await read();
        if (isOver || mine !== turn) return;
        setState({ data, error: null });
        others?.postMessage({ at, data });
      } catch (error) {
        if (isOver || mine !== turn) return;
        setState((last) => ({ data: last.data, error }));
        return wait(error.status === 404 ? calmMs : everyMs);
      }
      if (changedAt > at) again(0);
      else wait(usualMs());
    };
    const again = (spareMs) => {
      const at = Math.max(Date.now() + spareMs, askedAt + (document.hidden ? UNSEEN_MS : leastMs));
      if (at < dueAt) waitUntil(at);
    };
    // What another tab asked before this one did, or before the change, is older than what this one gets.
    if (others) others.onmessage = ({ data: told }) => {
      if (told.at <= askedAt || told.at < changedAt) return;
      turn += 1;
      askedAt = told.at;
      setState({ data: told.data, error: null });
      wait(usualMs() * (isLive() ? 1 : 2 + Math.random()));
    };
    const ignore = heed((changed, toldAt, isFirst) => {
      if (!lists.length) return;
      if (changed.some((list) => lists.includes(list))) {
        changedAt = toldAt;
        if (dueAt < Infinity) again(others && !isFirst ? SHARED_MS * (1 + Math.random()) : 0);
      } else if (!isTold() && dueAt < Infinity && dueAt > Date.now() + everyMs) wait(everyMs);
    });
    kick.current = look;
    const shown = () => document.hidden || look();
    document.addEventListener("visibilitychange", shown);
    look();
    return () => {
      isOver = true;
      clearTimeout(timer);
      ignore();
      others?.close();
      document.removeEventListener("visibilitychange", shown);
    };
  }, deps);
  return { ...state, again: () => kick.current() };
}

/** What sends a request, keeps why it was refused, and reads the list again with `again`. `done` is told what was answered. */
export function useActions(again) {
  const [error, setError] = useState(null);
  const act = async (method, path, more, done) => {
    try {
      const answer = await ask(method, path, more);
      setError(null);
      done?.(answer);
    } catch (refusal) { setError(refusal); }
    again();
  };
  return [act, error];
}

/** The newest rows of a list, as `usePoll` reads it, and behind them the older ones that somebody asked for.
 * `more` reads further ones; it is null at the end. */
export function useOlder(path, params, id, everyMs, lists) {
  const kept = useRef({ rows: [], hasMore: false, isLong: false });
  const [, draw] = useState(0);
  const [failure, setFailure] = useState(null);
  const { data, error, again } = usePoll(async () => {
    const page = await ask("GET", path, { params }), from = page.data.at(-1)?.[id], last = kept.current;
    // When more came than a page holds, there is a gap below it, and what was read before goes.
    const isNext = last.isLong && page.has_more && last.rows[0]?.[id] >= from;
    kept.current = isNext ? { ...last, rows: [...page.data, ...last.rows.filter((row) => row[id] < from)] }
      : { rows: page.data, hasMore: page.has_more, isLong: false };
    return true;
  }, everyMs, [], { lists, leastMs: 1000 });
  const more = async () => {
    const last = kept.current, before = last.rows.at(-1)[id];
    try {
      const page = await ask("GET", path, { params: { ...params, before } });
      if (kept.current.rows.at(-1)?.[id] === before) kept.current = { rows: [...kept.current.rows, ...page.data], hasMore: page.has_more, isLong: true };
      setFailure(null);
      draw((n) => n + 1);
    } catch (refusal) { setFailure(refusal); }
  };
  return { rows: data && kept.current.rows, error: error ?? failure, more: kept.current.hasMore ? more : null, again };
}
