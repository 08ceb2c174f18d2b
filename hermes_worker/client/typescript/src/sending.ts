/** Requests that are sent again where that can do no harm, and the errors of those that failed. */

const KEY_HEADER = "Idempotency-Key";
const PASSING = new Set([429, 502, 503, 504]);
/** Statuses whose answers have no body. */
const EMPTY = new Set([204, 205, 304]);
/** POSTs that only read, and those whose answer is kept nowhere, so that no key would bring it again. */
const WITHOUT_KEY = /\/v1\/(?:batch\/wait|exports|erasures\/foretold|webhook-routes\/[^/]+\/signature|keys|keys\/[^/]+\/rotate)$/;
const ONLY_READS = /\/v1\/(?:batch\/wait|exports|erasures\/foretold|webhook-routes\/[^/]+\/signature)$/;
const FIRST_WAIT_S = 0.25;
const WAIT_S_MAX = 8;

/** The API refused a request; the message is its own. */
export class RefusedError extends Error {
  override readonly name = "RefusedError";

  constructor(
    message: string,
    readonly status: number,
    /** The API's word for it, such as `run_not_found`. */
    readonly code?: string,
    /** The field of the request that is wrong. */
    readonly param?: string,
  ) {
    super(message);
  }
}

/** Nobody answered in time, or what answered is no Hermes worker. */
export class UnavailableError extends Error {
  override readonly name = "UnavailableError";
}

/** Read the API's message. Of a proxy's answer only the status is used. */
export async function buildRefusal(answer: Response): Promise<RefusedError> {
  const document: unknown = await answer.json().catch(() => undefined);
  const said = (document as { error?: Record<string, unknown> } | undefined)?.error;
  const text = (name: string) => (typeof said?.[name] === "string" ? (said[name] as string) : undefined);
  return new RefusedError((text("message") ?? `HTTP ${answer.status}`).slice(0, 1000), answer.status, text("code"), text("param"));
}

/**
 * Send requests with `send`, for up to `patienceS` seconds. Every POST gets an idempotency key, which it keeps over all
 * attempts. An answer that breaks off is asked for again; a failure of the last attempt is thrown as `send` throws it.
 */
export function makePatientFetch(send: typeof fetch, patienceS: number): typeof fetch {
  return async (input, init) => {
    const request = new Request(input, init);
    const path = new URL(request.url).pathname;
    if (request.method === "POST" && !WITHOUT_KEY.test(path) && !request.headers.has(KEY_HEADER)) {
      request.headers.set(KEY_HEADER, `client-${drawKey()}`);
    }
    const isRepeatable = !["POST", "PATCH"].includes(request.method) || request.headers.has(KEY_HEADER) || ONLY_READS.test(path);
    const giveUpAt = Date.now() + patienceS * 1000;
    let attempts = 0;
    let wasSent = false;
    for (let waitS = FIRST_WAIT_S; ; waitS = Math.min(WAIT_S_MAX, waitS * 2)) {
      attempts += 1;
      let askedS = 0;
      try {
        const answer = await readWhole(await send(request.clone()));
        if (request.method === "DELETE" && wasSent && (answer.status === 404 || answer.status === 410)) {
          return new Response("{}", { headers: { "Content-Type": "application/json" } }); // an earlier attempt did it
        }
        if (!isRepeatable || !(await mayPass(answer))) return answer;
        askedS = Number(/^\d{1,9}$/.exec(answer.headers.get("Retry-After") ?? "")?.[0] ?? 0);
        if (Date.now() + Math.max(waitS, askedS) * 1000 >= giveUpAt) return answer;
      } catch (error) {
        if (!isRepeatable || request.signal.aborted || Date.now() + waitS * 1000 >= giveUpAt) throw error;
      }
      wasSent = true;
      await sleep(Math.max(waitS, askedS), request.signal);
    }
  };
}

/** Wait for so many seconds. Rejects when the signal aborts. */
export function sleep(seconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, seconds * 1000);
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}

async function readWhole(answer: Response): Promise<Response> {
  if (/event-stream|jsonl|ndjson/.test(answer.headers.get("Content-Type") ?? "") || !answer.body) return answer;
  const { status, statusText, headers } = answer;
  const body = await answer.arrayBuffer();
  return new Response(EMPTY.has(status) ? null : body, { status, statusText, headers });
}

async function mayPass(answer: Response): Promise<boolean> {
  if (PASSING.has(answer.status)) return true;
  return answer.status === 409 && (await buildRefusal(answer.clone())).code === "idempotency_key_in_progress";
}

/** Draw a random key. `crypto.randomUUID` is missing on pages without TLS. */
function drawKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
