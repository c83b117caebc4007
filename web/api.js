// The only fetch() of the pages. Every failure is an ApiError with a short code a page can explain.

import { createFigureBatch } from "./figure_batch.js";
import { createFirstSeen } from "./first_seen.js";
import { eachLine } from "./text_lines.js";

/** @typedef {import("./types.js").Run} Run */
/** @typedef {import("./types.js").FigureAnswer} FigureAnswer */
/** @typedef {Record<string, string | number | null | undefined | readonly string[]>} Query */
/** @typedef {{number: number, answer: FigureAnswer} | {number: number, status: number, refused: {code: string, error: string}}} FigureLine */

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

const first = createFirstSeen();

/** How many changes there had been when the first answers of this page were read. */
export const firstSeen = first.seen;

const unreachable = () => new ApiError(0, "unreachable", `No answer from the server at ${location.origin}.`);
const unreadable = (/** @type {number} */ status) => new ApiError(status, "bad_answer", "The server's answer could not be read.");

/** @param {string} path @param {RequestInit} options */
async function send(path, options) {
  first.asked();
  const response = await fetch(path, { credentials: "same-origin", ...options }).catch((error) => {
    first.answered(null);
    if (options.signal?.aborted) throw error;
    throw unreachable();
  });
  first.answered(response.headers.get("rangewatch-changes"));
  return response;
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
    throw unreadable(response.status);
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

/** @param {string} run @param {string} text name and parameters @param {AbortSignal} [signal] @returns {Promise<FigureAnswer>} */
const oneFigure = (run, text, signal) => get(`${runRoute(run)}/figures/${text}`, {}, signal);

/** @param {string} run @param {readonly import("./figure_batch.js").Wanted[]} wanted @param {AbortSignal} [signal] */
async function severalFigures(run, wanted, signal) {
  const response = await send(`${runRoute(run)}/figures${queryText({ figure: wanted.map(({ text }) => text) })}`, { signal });
  if (!response.ok || !response.body) throw await explain(response);
  let left = wanted.length;
  await eachLine(response.body, (text) => {
    settle(wanted, text, response.status);
    left -= 1;
  }).catch((error) => {
    throw signal?.aborted || error instanceof ApiError ? error : unreachable();
  });
  if (left > 0) throw unreachable();
}

/** @param {readonly import("./figure_batch.js").Wanted[]} wanted @param {string} text a line @param {number} status */
function settle(wanted, text, status) {
  const line = parsed(text, status);
  if (!wanted[line?.number]) throw unreadable(status);
  const { resolve, reject } = wanted[line.number];
  if ("answer" in line) resolve(line.answer);
  else reject(new ApiError(line.status, line.refused.code, line.refused.error));
}

/** @param {string} text @param {number} status @returns {FigureLine} */
function parsed(text, status) {
  try {
    return JSON.parse(text);
  } catch {
    throw unreadable(status);
  }
}

const figures = createFigureBatch(oneFigure, severalFigures);

/** One that takes long: others do not wait for it. @param {string} run @param {string} name @param {Query} query @param {AbortSignal} [signal] @returns {Promise<FigureAnswer>} */
export const slowFigure = (run, name, query, signal) => oneFigure(run, name + queryText(query), signal);

/** @param {string} run @param {string} name @param {Query} query @param {AbortSignal} [signal] @returns {Promise<FigureAnswer>} */
export const figure = (run, name, query, signal) => figures(run, name + queryText(query), signal);

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

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("./loss_scale_words.js").LossScale>} */
export const lossScale = (run, query, signal) => get(`${runRoute(run)}/loss_scale`, query, signal);

/** What was asked of the run's agents, newest first. @param {string} run @param {AbortSignal} [signal] @returns {Promise<{now_ns: number, commands: import("./trace_words.js").Command[]}>} */
export const commands = (run, signal) => get(`${runRoute(run)}/commands`, {}, signal);

/** @param {string} run @param {AbortSignal} [signal] @returns {Promise<import("./types.js").Environment>} */
export const environment = (run, signal) => get(`${runRoute(run)}/environment`, {}, signal);

/** What is wrong with the run now. @param {string} run @param {AbortSignal} [signal] @returns {Promise<import("./types.js").Diagnosis>} */
export const diagnosis = (run, signal) => get(`${runRoute(run)}/diagnosis`, {}, signal);

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("./types.js").AlertList>} */
export const alerts = (run, query, signal) => get(`${runRoute(run)}/alerts`, query, signal);

/** @param {AbortSignal} [signal] @returns {Promise<{rules: import("./types.js").RuleFacts[], presets: import("./types.js").Preset[]}>} */
export const rules = (signal) => get("/api/v1/rules", {}, signal);

/** @param {AbortSignal} [signal] @returns {Promise<{silences: import("./types.js").Silence[]}>} */
export const silences = (signal) => get("/api/v1/silences", {}, signal);

/** @param {AbortSignal} [signal] @returns {Promise<{targets: import("./types.js").Target[]}>} */
export const targets = (signal) => get("/api/v1/targets", {}, signal);

/** @param {string} run @param {AbortSignal} [signal] @returns {Promise<import("./types.js").Thresholds>} */
export const thresholds = (run, signal) => get(`${runRoute(run)}/thresholds`, {}, signal);

/** @param {number} alert @param {boolean} isSeen */
export const acknowledge = (alert, isSeen) => change(isSeen ? "POST" : "DELETE", `/api/v1/alerts/${alert}/acknowledge`);

/** @param {{seconds: number, run_id?: number, rule?: string, tensor?: string, reason?: string}} asked */
export const silence = (asked) => change("POST", "/api/v1/silences", asked);

/** @param {number} silence */
export const unsilence = (silence) => change("DELETE", `/api/v1/silences/${silence}`);

/** @param {string} run @param {import("./types.js").RuleTables} given @returns {Promise<import("./types.js").Thresholds>} */
export const setThresholds = (run, given) => change("PUT", `${runRoute(run)}/thresholds`, given);

/** @param {string} run @param {import("./types.js").RunChange} given @returns {Promise<import("./types.js").RunChange>} */
export const changeRun = (run, given) => change("PATCH", runRoute(run), given);

/** @param {string} run @returns {Promise<{id: number, name: string}>} */
export const deleteRun = (run) => change("DELETE", runRoute(run));

/** Asks for the next steps in full. @param {string} run @param {import("./trace_words.js").TraceAsked} asked @returns {Promise<import("./trace_words.js").Command>} */
export const askTrace = (run, asked) => change("POST", `${runRoute(run)}/commands`, { kind: "trace", ...asked });

/** @param {string} run @param {number} command @returns {Promise<import("./trace_words.js").Command>} */
export const withdraw = (run, command) => change("DELETE", `${runRoute(run)}/commands/${command}`);

/** @param {string} name @returns {Promise<{sent: boolean, error: string}>} */
export const testTarget = (name) => change("POST", `/api/v1/targets/${encodeURIComponent(name)}/test`);

/** @param {string} method @param {string} path @param {unknown} [body] @returns {Promise<any>} */
async function change(method, path, body) {
  const asJson = body === undefined ? {} : { body: JSON.stringify(body), headers: { "content-type": "application/json" } };
  const response = await send(path, { method, ...asJson });
  if (!response.ok) throw await explain(response);
  return response.json();
}

/** Who asks, and what that one may do. @returns {Promise<{name: string, roles: string[], session: boolean}>} */
export const access = () => get("/api/v1/access", {});

/** Trades a token for a session cookie. @param {string} token */
export async function login(token) {
  const response = await send("/login", { method: "POST", body: new URLSearchParams({ token }) });
  if (!response.ok) throw await explain(response);
}

/** Ends the session. */
export async function logout() {
  const response = await send("/logout", { method: "POST" });
  if (!response.ok) throw await explain(response);
}
