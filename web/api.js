// The only fetch() of the pages. Every failure is an ApiError with a short code a page can explain.

/** @typedef {import("./types.js").Run} Run */
/** @typedef {import("./types.js").FigureAnswer} FigureAnswer */
/** @typedef {Record<string, string | number | null | undefined | readonly string[]>} Query */

export class ApiError extends Error {
  /** @param {number} status 0 when no answer came @param {string} code @param {string} message */
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** @param {Query} query */
export function queryText(query) {
  const out = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (Array.isArray(value)) for (const one of value) out.append(name, one);
    else if (value !== null && value !== undefined && value !== "") out.set(name, String(value));
  }
  const text = out.toString();
  return text ? `?${text}` : "";
}

/** @param {string} path @param {RequestInit} options */
async function send(path, options) {
  try {
    return await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(0, "unreachable", `No answer from the server at ${location.origin}.`);
  }
}

/** @param {Response} response */
async function explain(response) {
  const body = await response.json().catch(() => ({}));
  return new ApiError(response.status, body.code ?? "http_error", body.error ?? `The server answered ${response.status}.`);
}

/** @param {string} path @param {Query} query @param {AbortSignal} [signal] */
async function get(path, query, signal) {
  const response = await send(path + queryText(query), { signal });
  if (!response.ok) throw await explain(response);
  try {
    return await response.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(response.status, "bad_answer", "The server's answer could not be read.");
  }
}

/** @param {string} run */
const runRoute = (run) => `/api/v1/runs/${encodeURIComponent(run)}`;

/** @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("./types.js").RunList>} */
export const runs = (query, signal) => get("/api/v1/runs", query, signal);

/** @param {string} run @param {AbortSignal} [signal] @returns {Promise<Run>} */
export const run = (run, signal) => get(runRoute(run), {}, signal);

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<{tensors: import("./types.js").Tensor[]}>} */
export const tensors = (run, query, signal) => get(`${runRoute(run)}/tensors`, query, signal);

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("./types.js").StepAnswer>} */
export const step = (run, query, signal) => get(`${runRoute(run)}/step`, query, signal);

/** @param {string} run @param {string} name @param {Query} query @param {AbortSignal} [signal] @returns {Promise<FigureAnswer>} */
export const figure = (run, name, query, signal) => get(`${runRoute(run)}/figures/${name}`, query, signal);

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("./types.js").Place>} */
export const locate = (run, query, signal) => get(`${runRoute(run)}/locate`, query, signal);

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("./types.js").Collectives>} */
export const collectives = (run, query, signal) => get(`${runRoute(run)}/collectives`, query, signal);

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("./types.js").StepCalls>} */
export const collectivesOfStep = (run, query, signal) => get(`${runRoute(run)}/collectives/step`, query, signal);

/** @param {string} run @param {AbortSignal} [signal] @returns {Promise<import("./types.js").HangAnswer>} */
export const hang = (run, signal) => get(`${runRoute(run)}/hang`, {}, signal);

/** @param {string} run @param {AbortSignal} [signal] @returns {Promise<import("./types.js").Gpus>} */
export const gpus = (run, signal) => get(`${runRoute(run)}/gpus`, {}, signal);

/** @param {string} run @param {number} rank @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("./types.js").GpuLanes>} */
export const gpuLanes = (run, rank, query, signal) => get(`${runRoute(run)}/gpus/${rank}`, query, signal);

/** @param {string} run @param {AbortSignal} [signal] @returns {Promise<import("./types.js").Environment>} */
export const environment = (run, signal) => get(`${runRoute(run)}/environment`, {}, signal);

/** Trades the server's token for a session cookie. @param {string} token */
export async function login(token) {
  const response = await send("/login", { method: "POST", body: new URLSearchParams({ token }) });
  if (!response.ok) throw await explain(response);
}
