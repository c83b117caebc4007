// The requests of the HTTP API, a function each, with figures asked for in batches. docs/api.md is the contract.

import { ApiError, change, eachLine, explain, get, queryText, send, unreachable, unreadable } from "./fetch.js";

// Figures that are asked for in one turn are asked for together: a request costs the server about as much as a figure,
// and of one answer all are of one moment.

/** @typedef {import("../types.js").FigureAnswer} FigureAnswer */
/**
 * @typedef {object} Wanted
 * @property {string} text its name and parameters, as in an address
 * @property {(answer: FigureAnswer) => void} resolve
 * @property {(error: unknown) => void} reject
 */
/** @typedef {{run: string, signal: AbortSignal | undefined, letters: number, wanted: Wanted[]}} Batch */

/** The server answers no more of them at once. */
const MOST = 24;
/** Of an address: proxies take no more than 8,000, and the server 4,096 of one figure. */
const MOST_LETTERS = 4000;

/**
 * @param {(run: string, text: string, signal?: AbortSignal) => Promise<FigureAnswer>} one
 * @param {(run: string, wanted: readonly Wanted[], signal?: AbortSignal) => Promise<void>} several settles each of them, or fails
 * @returns {(run: string, text: string, signal?: AbortSignal) => Promise<FigureAnswer>}
 */
export function createFigureBatch(one, several) {
  /** Of this turn. @type {Batch[]} */
  let batches = [];

  function ask() {
    const asked = batches;
    batches = [];
    for (const { run, signal, wanted } of asked) {
      const [first, ...more] = wanted;
      if (more.length === 0) one(run, first.text, signal).then(first.resolve, first.reject);
      else several(run, wanted, signal).catch((error) => wanted.forEach(({ reject }) => reject(error)));
    }
  }

  /** @param {string} run @param {AbortSignal | undefined} signal @param {number} letters */
  function batchFor(run, signal, letters) {
    const fits = (/** @type {Batch} */ each) => each.run === run && each.signal === signal && each.wanted.length < MOST && each.letters + letters <= MOST_LETTERS;
    if (batches.length === 0) queueMicrotask(ask);
    const found = batches.find(fits) ?? { run, signal, letters: 0, wanted: [] };
    if (found.wanted.length === 0) batches.push(found);
    return found;
  }

  return (run, text, signal) =>
    new Promise((resolve, reject) => {
      const letters = encodeURIComponent(text).length;
      const batch = batchFor(run, signal, letters);
      batch.letters += letters;
      batch.wanted.push({ text, resolve, reject });
    });
}

/** @typedef {import("../types.js").Run} Run */
/** @typedef {import("./fetch.js").Query} Query */
/** @typedef {{number: number, answer: FigureAnswer} | {number: number, status: number, refused: {code: string, error: string}}} FigureLine */

/** @param {string} run */
const runRoute = (run) => `/api/v1/runs/${encodeURIComponent(run)}`;

/** @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("../types.js").RunList>} */
export const runs = (query, signal) => get("/api/v1/runs", query, signal);

/** @param {string} run @param {AbortSignal} [signal] @returns {Promise<Run>} */
export const run = (run, signal) => get(runRoute(run), {}, signal);

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<{tensors: import("../types.js").Tensor[]}>} */
export const tensors = (run, query, signal) => get(`${runRoute(run)}/tensors`, query, signal);

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("../types.js").StepAnswer>} */
export const step = (run, query, signal) => get(`${runRoute(run)}/step`, query, signal);

/** @param {string} run @param {string} text name and parameters @param {AbortSignal} [signal] @returns {Promise<FigureAnswer>} */
const oneFigure = (run, text, signal) => get(`${runRoute(run)}/figures/${text}`, {}, signal);

/** @param {string} run @param {readonly Wanted[]} wanted @param {AbortSignal} [signal] */
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

/** @param {readonly Wanted[]} wanted @param {string} text a line @param {number} status */
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

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("../types.js").Place>} */
export const locate = (run, query, signal) => get(`${runRoute(run)}/locate`, query, signal);

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("../types.js").Collectives>} */
export const collectives = (run, query, signal) => get(`${runRoute(run)}/collectives`, query, signal);

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("../types.js").StepCalls>} */
export const collectivesOfStep = (run, query, signal) => get(`${runRoute(run)}/collectives/step`, query, signal);

/** @param {string} run @param {AbortSignal} [signal] @returns {Promise<import("../types.js").HangAnswer>} */
export const hang = (run, signal) => get(`${runRoute(run)}/hang`, {}, signal);

/** @param {string} run @param {AbortSignal} [signal] @returns {Promise<import("../types.js").Gpus>} */
export const gpus = (run, signal) => get(`${runRoute(run)}/gpus`, {}, signal);

/** @param {string} run @param {number} rank @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("../types.js").GpuLanes>} */
export const gpuLanes = (run, rank, query, signal) => get(`${runRoute(run)}/gpus/${rank}`, query, signal);

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("../pages/loss_scale/loss_scale.js").LossScale>} */
export const lossScale = (run, query, signal) => get(`${runRoute(run)}/loss_scale`, query, signal);

/** What was asked of the run's agents, newest first. @param {string} run @param {AbortSignal} [signal] @returns {Promise<{now_ns: number, commands: import("../widgets/trace_panel.js").Command[]}>} */
export const commands = (run, signal) => get(`${runRoute(run)}/commands`, {}, signal);

/** @param {string} run @param {AbortSignal} [signal] @returns {Promise<import("../types.js").Environment>} */
export const environment = (run, signal) => get(`${runRoute(run)}/environment`, {}, signal);

/** What is wrong with the run now. @param {string} run @param {AbortSignal} [signal] @returns {Promise<import("../types.js").Diagnosis>} */
export const diagnosis = (run, signal) => get(`${runRoute(run)}/diagnosis`, {}, signal);

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("../types.js").AlertList>} */
export const alerts = (run, query, signal) => get(`${runRoute(run)}/alerts`, query, signal);

/** @param {AbortSignal} [signal] @returns {Promise<{rules: import("../types.js").RuleFacts[], presets: import("../types.js").Preset[]}>} */
export const rules = (signal) => get("/api/v1/rules", {}, signal);

/** @param {AbortSignal} [signal] @returns {Promise<{silences: import("../types.js").Silence[]}>} */
export const silences = (signal) => get("/api/v1/silences", {}, signal);

/** @param {AbortSignal} [signal] @returns {Promise<{targets: import("../types.js").Target[]}>} */
export const targets = (signal) => get("/api/v1/targets", {}, signal);

/** @param {string} run @param {AbortSignal} [signal] @returns {Promise<import("../types.js").Thresholds>} */
export const thresholds = (run, signal) => get(`${runRoute(run)}/thresholds`, {}, signal);

/** @param {number} alert @param {boolean} isSeen */
export const acknowledge = (alert, isSeen) => change(isSeen ? "POST" : "DELETE", `/api/v1/alerts/${alert}/acknowledge`);

/** @param {{seconds: number, run_id?: number, rule?: string, tensor?: string, reason?: string}} asked */
export const silence = (asked) => change("POST", "/api/v1/silences", asked);

/** @param {number} silence */
export const unsilence = (silence) => change("DELETE", `/api/v1/silences/${silence}`);

/** @param {string} run @param {import("../types.js").RuleTables} given @returns {Promise<import("../types.js").Thresholds>} */
export const setThresholds = (run, given) => change("PUT", `${runRoute(run)}/thresholds`, given);

/** @param {string} run @param {import("../types.js").RunChange} given @returns {Promise<import("../types.js").RunChange>} */
export const changeRun = (run, given) => change("PATCH", runRoute(run), given);

/** @param {string} run @returns {Promise<{id: number, name: string}>} */
export const deleteRun = (run) => change("DELETE", runRoute(run));

/** Asks for the next steps in full. @param {string} run @param {import("../widgets/trace_panel.js").TraceAsked} asked @returns {Promise<import("../widgets/trace_panel.js").Command>} */
export const askTrace = (run, asked) => change("POST", `${runRoute(run)}/commands`, { kind: "trace", ...asked });

/** @param {string} run @param {number} command @returns {Promise<import("../widgets/trace_panel.js").Command>} */
export const withdraw = (run, command) => change("DELETE", `${runRoute(run)}/commands/${command}`);

/** @param {string} name @returns {Promise<{sent: boolean, error: string}>} */
export const testTarget = (name) => change("POST", `/api/v1/targets/${encodeURIComponent(name)}/test`);

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
