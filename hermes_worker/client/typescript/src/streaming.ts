/** Server-sent events: parse bytes into events, and go on behind the last one when the connection breaks. */

import { buildRefusal, sleep, UnavailableError } from "./sending.js";

/** An event with its id, behind which a stream can be resumed. */
export interface ToldEvent<E> {
  id: string;
  event: E;
}

export interface FollowOptions {
  /** The id of an event: only those behind it come. */
  after?: string;
  /** Ends the stream; the iteration then throws the signal's reason. */
  signal?: AbortSignal;
}

const LINE_CHARS_MAX = 32 * 1024 * 1024;
const RECONNECT_AFTER_S = 0.5;
/** A server that has nothing to say sends a comment more often. */
const SILENCE_S_MAX = 60;
/** With this comment the server ends a stream that has nothing more to tell. */
const CLOSED = ": stream closed";

/** Parses the bytes of one connection. */
export class EventParser {
  readonly #decoder = new TextDecoder();
  #line = "";
  #id = "";
  #data: string[] = [];
  /** Whether the server said that there is nothing more. */
  isClosed = false;

  /** Parse the next bytes. Throws `UnavailableError` for what is no stream of ours. */
  *feed(chunk: Uint8Array): Generator<{ id: string; document: unknown }> {
    const lines = (this.#line + this.#decoder.decode(chunk, { stream: true })).split("\n");
    this.#line = lines.pop() ?? "";
    if (this.#line.length > LINE_CHARS_MAX) throw new UnavailableError("a line of the stream has no end");
    for (const line of lines) {
      const found = this.#take(line.replace(/\r$/, ""));
      if (found !== undefined) yield found;
    }
  }

  #take(line: string): { id: string; document: unknown } | undefined {
    if (line === CLOSED) this.isClosed = true;
    const [, name, value] = /^([^:]*):? ?(.*)$/s.exec(line) ?? [];
    if (name === "id") this.#id = value ?? "";
    if (name === "data") this.#data.push(value ?? "");
    if (line || !this.#data.length) return undefined;
    const text = this.#data.join("\n");
    this.#data = [];
    try {
      return { id: this.#id, document: JSON.parse(text) };
    } catch {
      throw new UnavailableError("an event of the stream is no JSON");
    }
  }
}

/**
 * Follow one stream over any number of connections; each event comes once, in order. `open` sends the request for what
 * is behind an id. Ends behind an event for which `isLast` holds, or when the server says so. Throws `RefusedError`, and
 * `UnavailableError` when no event and no connection came for `patienceS` seconds.
 */
export async function* followStream<E>(
  open: (after: string, signal: AbortSignal) => Promise<Response>,
  isLast: (event: E) => boolean,
  patienceS: number,
  { after = "0", signal }: FollowOptions,
): AsyncGenerator<ToldEvent<E>, void, undefined> {
  let lastId = after;
  let giveUpAt = Date.now() + patienceS * 1000;
  for (;;) {
    signal?.throwIfAborted();
    const connection = new Connection(signal);
    let reason = "the stream ended";
    try {
      const answer = await connection.wait(open(lastId, connection.signal));
      if (answer.status === 200 && answer.body) {
        const parser = new EventParser(); // the server sends an event that broke off again
        for await (const chunk of connection.read(answer.body)) {
          for (const told of parser.feed(chunk)) {
            lastId = told.id || lastId;
            giveUpAt = Date.now() + patienceS * 1000;
            const event = told.document as E;
            yield { id: lastId, event };
            if (isLast(event)) return;
          }
          if (parser.isClosed) return;
        }
      } else {
        const refusal = await buildRefusal(answer);
        if (answer.status < 500 && answer.status !== 429) throw refusal;
        reason = refusal.message;
      }
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      if (!(error instanceof BrokenConnection)) throw error;
      reason = error.message;
    } finally {
      connection.close();
    }
    if (Date.now() >= giveUpAt) throw new UnavailableError(`the stream cannot be followed: ${reason}`);
    await sleep(RECONNECT_AFTER_S, signal);
  }
}

class BrokenConnection extends Error {}

/** One connection, which ends with the caller's signal, when it is closed, and when it is silent for too long. */
class Connection {
  readonly #aborting = new AbortController();
  readonly #outer: AbortSignal | undefined;
  readonly #stop = () => this.#aborting.abort();
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(outer: AbortSignal | undefined) {
    this.#outer = outer;
    outer?.addEventListener("abort", this.#stop, { once: true });
  }

  get signal(): AbortSignal {
    return this.#aborting.signal;
  }

  /** Wait for the server. Throws `BrokenConnection` for whatever the network throws. */
  async wait<T>(answer: Promise<T>): Promise<T> {
    this.#timer = setTimeout(this.#stop, SILENCE_S_MAX * 1000);
    try {
      return await answer;
    } catch (error) {
      throw new BrokenConnection(error instanceof Error ? error.message : String(error));
    } finally {
      clearTimeout(this.#timer);
    }
  }

  async *read(body: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array> {
    const reader = body.getReader(); // Safari's streams are not iterable
    for (;;) {
      const { done, value } = await this.wait(reader.read());
      if (done) return;
      yield value;
    }
  }

  close(): void {
    this.#outer?.removeEventListener("abort", this.#stop);
    this.#aborting.abort();
  }
}
