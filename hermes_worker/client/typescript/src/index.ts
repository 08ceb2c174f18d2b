/** A client of the HTTP API of Hermes worker, for Node and browsers. */

import { createClient } from "./generated/client/index.js";
import { Operations } from "./generated/sdk.gen.js";
import type { CreateRunData, ListsChanged, RunStreamEvent, TreeStreamEvent, WaitedRun } from "./generated/types.gen.js";
import { buildRefusal, makePatientFetch, UnavailableError } from "./sending.js";
import { type FollowOptions, followStream, type ToldEvent } from "./streaming.js";

export type * from "./generated/types.gen.js";
export { Operations } from "./generated/sdk.gen.js";
export { RefusedError, UnavailableError } from "./sending.js";
export type { FollowOptions, ToldEvent } from "./streaming.js";

/** The events that this version knows: `event` says which one it is. A later server may send others: overlook them. */
type Known<E> = E extends { event: infer Name } ? (string extends Name ? never : E) : never;
export type RunEvent = Known<RunStreamEvent>;
export type TreeEvent = Known<TreeStreamEvent>;
export type RunOptions = Omit<CreateRunData["body"], "input">;

export interface ClientOptions {
  /** The API's key. Without one requests bear none. */
  apiKey?: string;
  /** For how many seconds a request is sent again, and a stream that breaks is connected again. */
  patienceS?: number;
  /** What sends requests, instead of the platform's `fetch`. */
  fetch?: typeof fetch;
}

const WAIT_S = 30;
const ENDS: ReadonlySet<string> = new Set(["run.completed", "run.failed", "run.cancelled"] satisfies RunEvent["event"][]);

export class HermesClient {
  /** Every operation of the API by its name: `await client.api.listRuns({ query: { limit: 10 } })` gives `data` or `error`. */
  readonly api: Operations;
  readonly #baseUrl: string;
  readonly #headers: Record<string, string>;
  readonly #patienceS: number;
  readonly #fetch: typeof fetch;

  /** Connects to nothing. Throws `TypeError` for what is no address of a server. */
  constructor(baseUrl: string, { apiKey, patienceS = 60, fetch: send = globalThis.fetch }: ClientOptions = {}) {
    const url = new URL(baseUrl);
    if (!/^https?:$/.test(url.protocol) || url.username || url.password) {
      throw new TypeError("write http://HOST:PORT, and give the key as apiKey");
    }
    this.#baseUrl = `${url.origin}${url.pathname.replace(/\/+$/, "")}`;
    this.#headers = apiKey === undefined ? {} : { Authorization: `Bearer ${apiKey}` };
    this.#patienceS = patienceS;
    this.#fetch = (...sent) => send(...sent); // a browser's fetch must not be called as a method
    const patient = makePatientFetch(this.#fetch, patienceS);
    this.api = new Operations({
      client: createClient({ baseUrl: this.#baseUrl, headers: this.#headers, fetch: patient }),
    });
  }

  /** Start a run and return its id. The same `idempotencyKey` gives the same run, also over the end of your program. */
  async submit(input: CreateRunData["body"]["input"], options: RunOptions = {}, idempotencyKey?: string): Promise<string> {
    const headers = idempotencyKey === undefined ? {} : { "Idempotency-Key": idempotencyKey };
    const asked = this.api.createRun({ body: { ...options, input }, headers });
    return (await unwrap(asked)).run_id;
  }

  /** Wait for the end of a run, for ever or for `timeoutS` seconds; `ended` says whether it came. */
  async wait(runId: string, { timeoutS = Infinity, signal }: { timeoutS?: number; signal?: AbortSignal } = {}): Promise<WaitedRun> {
    const giveUpAt = Date.now() + timeoutS * 1000;
    for (;;) {
      const leftS = Math.max(0, Math.min(WAIT_S, (giveUpAt - Date.now()) / 1000));
      const query = { timeout_s: leftS };
      const found = await unwrap(this.api.waitForRun({ path: { run_id: runId }, query, ...(signal && { signal }) }));
      if (found.ended || Date.now() >= giveUpAt) return found;
    }
  }

  /** Iterate over everything that happens to a run, from its beginning to its end. */
  async *events(runId: string, options: FollowOptions = {}): AsyncGenerator<RunEvent, void, undefined> {
    for await (const told of this.toldEvents(runId, options)) yield told.event;
  }

  /** Iterate over the events of a run with their ids. */
  toldEvents(runId: string, options: FollowOptions = {}): AsyncGenerator<ToldEvent<RunEvent>, void, undefined> {
    return this.#follow(`/v1/runs/${encodeURIComponent(runId)}/events`, options, (event) => ENDS.has(event.event));
  }

  /** Iterate over the events of all runs of the tree that a run is in, until the last of them has ended. */
  treeEvents(runId: string, options: FollowOptions = {}): AsyncGenerator<ToldEvent<TreeEvent>, void, undefined> {
    return this.#follow(`/v1/runs/${encodeURIComponent(runId)}/tree/events`, options, () => false);
  }

  /** Iterate over changes of lists as they happen. It never ends by itself: break out of it, or abort its signal. */
  changes(options: FollowOptions = {}): AsyncGenerator<ToldEvent<ListsChanged>, void, undefined> {
    return this.#follow("/v1/changes", { after: "", ...options }, () => false);
  }

  #follow<E>(path: string, options: FollowOptions, isLast: (event: E) => boolean): AsyncGenerator<ToldEvent<E>, void, undefined> {
    const open = (after: string, signal: AbortSignal) => {
      const headers = { ...this.#headers, Accept: "text/event-stream", ...(after && { "Last-Event-ID": after }) };
      return this.#fetch(`${this.#baseUrl}${path}`, { headers, signal, cache: "no-store" });
    };
    return followStream<E>(open, isLast, this.#patienceS, options);
  }
}

/** Return what an operation answered. Throws `RefusedError` and `UnavailableError` where it only notes an error. */
export async function unwrap<T>(asked: Promise<{ data: T; error: unknown; response?: Response }>): Promise<Exclude<T, undefined>> {
  const { data, error, response } = await asked;
  if (data !== undefined) return data as Exclude<T, undefined>;
  if (!response) {
    if (error instanceof Error && error.name === "AbortError") throw error;
    throw new UnavailableError(error instanceof Error ? error.message : "the server does not answer");
  }
  throw await buildRefusal(new Response(JSON.stringify(error), { status: Math.max(200, response.status) }));
}
