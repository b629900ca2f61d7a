/** Requests to this node's admin API: JSON, with time-outs, and refusals as errors with their reason. */

const GET_TIMEOUT_MS = 10_000; // nodes ask each other for up to 2 s
const POST_TIMEOUT_MS = 60_000; // a change may wait for the metastore; the command line waits as long

const VIA = { "x-isthmus-via": "dashboard" }; // for the audit log; and a 401 must not make the browser ask for a password

/** A request without the answer that was wanted. `reason` is the code of docs/http.md, or "unreachable", "timeout". */
export class ApiError extends Error {
  /**
   * @param {number} status 0 without an answer
   * @param {string} reason
   * @param {string} message
   */
  constructor(status, reason, message) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.reason = reason;
  }
}

/** @type {() => void} */
let whenLoggedOut = () => {};

/**
 * Call `listener` when a request is refused for want of a session.
 * @param {() => void} listener
 */
export function onLoggedOut(listener) {
  whenLoggedOut = listener;
}

/**
 * @param {string} path
 * @param {AbortSignal} [signal] ends the request when its page is left
 * @param {number} [timeoutMs] for questions that take longer
 * @returns {Promise<any>}
 */
export function get(path, signal, timeoutMs = GET_TIMEOUT_MS) {
  return exchange(path, { method: "GET", headers: VIA }, timeoutMs, signal);
}

/**
 * @param {string} path
 * @param {object} body
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export function post(path, body, signal) {
  const init = {
    method: "POST",
    headers: { "content-type": "application/json", ...VIA },
    body: JSON.stringify(body),
  };
  return exchange(path, init, POST_TIMEOUT_MS, signal);
}

/**
 * @param {string} path
 * @param {RequestInit} init
 * @param {number} timeoutMs
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
async function exchange(path, init, timeoutMs, signal) {
  const limit = AbortSignal.timeout(timeoutMs);
  const headers = { ...init.headers, "x-isthmus-timeout-ms": String(timeoutMs) };
  const changes = init.method === "POST";
  /** @type {Response} */
  let response;
  /** @type {any} */
  let answer = null;
  try {
    const signals = signal ? [limit, signal] : [limit];
    response = await fetch(path, {
      ...init,
      headers,
      cache: "no-store",
      redirect: "error",
      signal: AbortSignal.any(signals),
    });
    const text = await response.text();
    try {
      answer = JSON.parse(text);
    } catch {
      answer = null;
    }
  } catch (error) {
    if (signal?.aborted) throw error;
    const unknown = changes ? "; whether the change was made is not known" : "";
    if (limit.aborted) {
      throw new ApiError(0, "timeout", `this node did not answer within ${timeoutMs / 1000} s${unknown}`);
    }
    throw new ApiError(0, "unreachable", `this node cannot be reached${unknown}`);
  }
  if (response.ok && answer !== null) return answer;
  const reason = typeof answer?.reason === "string" ? answer.reason : "unknown";
  const sentence = typeof answer?.error === "string" ? answer.error : `it answered ${response.status} without JSON`;
  if (response.status === 401 && !path.startsWith("/dashboard/")) whenLoggedOut();
  throw new ApiError(response.status, reason, sentence);
}
