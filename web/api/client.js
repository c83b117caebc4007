// The requests of the HTTP API, a function each, with figures asked for in batches. docs/api.md is the contract.

import { ApiError, change, explain, get, getFile, getLines, queryText, send, unreachable, unreadable } from "./fetch.js";

/** @typedef {import("../types.js").Run} Run */
/** @typedef {import("./fetch.js").Query} Query */
/** @typedef {import("../types.js").FigureAnswer} FigureAnswer */

/** @param {string} run */
const runRoute = (run) => `/api/v1/runs/${encodeURIComponent(run)}`;

/** @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("../types.js").RunList>} */
export const runs = (query, signal) => get("/api/v1/runs", query, signal);

/** What runs were set otherwise, and where each parts from the first. @param {readonly number[]} runs @param {number} tolerance @param {AbortSignal} [signal] @returns {Promise<any>} */
export const compare = (runs, tolerance, signal) => get("/api/v1/compare", { run: runs.map(String), tolerance }, signal);

/** @param {readonly number[]} runs @param {readonly string[]} names of series @param {number} columns @param {AbortSignal} [signal] @returns {Promise<any>} */
export const compareSeries = (runs, names, columns, signal) => get("/api/v1/compare/series", { run: runs.map(String), name: names, columns }, signal);

/** The run as one HTML file. @param {string} run @param {(bytes: number) => void} onRead */
export const report = (run, onRead) => getFile(`${runRoute(run)}/report`, onRead);

/** @param {string} run @param {AbortSignal} [signal] @returns {Promise<Run>} */
export const run = (run, signal) => get(runRoute(run), {}, signal);

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<{tensors: import("../types.js").Tensor[]}>} */
export const tensors = (run, query, signal) => get(`${runRoute(run)}/tensors`, query, signal);

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("../types.js").StepAnswer>} */
export const step = (run, query, signal) => get(`${runRoute(run)}/step`, query, signal);

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("../types.js").Place>} */
export const locate = (run, query, signal) => get(`${runRoute(run)}/locate`, query, signal);

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("../types.js").Collectives>} */
export const collectives = (run, query, signal) => get(`${runRoute(run)}/collectives`, query, signal);

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("../types.js").StepCalls>} */
export const collectivesOfStep = (run, query, signal) => get(`${runRoute(run)}/collectives/step`, query, signal);

/** One value a rank, and who stands out. @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("../types.js").RankMap>} */
export const rankMap = (run, query, signal) => get(`${runRoute(run)}/rank_map`, query, signal);

/** When each parameter was last compared between ranks. @param {string} run @param {AbortSignal} [signal] @returns {Promise<import("../types.js").Replicas>} */
export const replicas = (run, signal) => get(`${runRoute(run)}/replicas`, {}, signal);

/** @param {string} run @param {AbortSignal} [signal] @returns {Promise<import("../types.js").HangAnswer>} */
export const hang = (run, signal) => get(`${runRoute(run)}/hang`, {}, signal);

/** The last lines of a rank's stderr. @param {string} run @param {number} rank @param {AbortSignal} [signal] @returns {Promise<import("../types.js").StderrTail>} */
export const stderr = (run, rank, signal) => get(`${runRoute(run)}/stderr`, { rank }, signal);

/** @param {string} run @param {AbortSignal} [signal] @returns {Promise<import("../types.js").Gpus>} */
export const gpus = (run, signal) => get(`${runRoute(run)}/gpus`, {}, signal);

/** @param {string} run @param {number} rank @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("../types.js").GpuLanes>} */
export const gpuLanes = (run, rank, query, signal) => get(`${runRoute(run)}/gpus/${rank}`, query, signal);

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("../types.js").LossScale>} */
export const lossScale = (run, query, signal) => get(`${runRoute(run)}/loss_scale`, query, signal);

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("../types.js").Experts>} */
export const experts = (run, query, signal) => get(`${runRoute(run)}/experts`, query, signal);

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("../types.js").WhatIf>} */
export const whatif = (run, query, signal) => get(`${runRoute(run)}/whatif`, query, signal);

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("../types.js").Scales>} */
export const scales = (run, query, signal) => get(`${runRoute(run)}/scales`, query, signal);

/** What was asked of the run's agents, newest first. @param {string} run @param {AbortSignal} [signal] @returns {Promise<{now_ns: number, commands: import("../types.js").Command[]}>} */
export const commands = (run, signal) => get(`${runRoute(run)}/commands`, {}, signal);

/** @param {string} run @param {AbortSignal} [signal] @returns {Promise<import("../types.js").Environment>} */
export const environment = (run, signal) => get(`${runRoute(run)}/environment`, {}, signal);

/** What is wrong with the run now. @param {string} run @param {AbortSignal} [signal] @returns {Promise<import("../types.js").Diagnosis>} */
export const diagnosis = (run, signal) => get(`${runRoute(run)}/diagnosis`, {}, signal);

/** @param {string} run @param {Query} query @param {AbortSignal} [signal] @returns {Promise<import("../types.js").AlertList>} */
export const alerts = (run, query, signal) => get(`${runRoute(run)}/alerts`, query, signal);

/** @param {AbortSignal} [signal] @returns {Promise<{rules: import("../types.js").RuleInfo[], presets: import("../types.js").Preset[]}>} */
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

/** Asks for the next steps in full. @param {string} run @param {import("../types.js").TraceRequest} asked @returns {Promise<import("../types.js").Command>} */
export const askTrace = (run, asked) => change("POST", `${runRoute(run)}/commands`, { kind: "trace", ...asked });

/** @param {string} run @param {number} command @returns {Promise<import("../types.js").Command>} */
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

// Figures that are asked for in one turn are asked for together: a request costs the server about as much as a figure,
// and of one answer all are of one moment.

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

/** Of this turn. @type {Batch[]} */
let batches = [];

/** @param {string} run @param {string} name @param {Query} query @param {AbortSignal} [signal] @returns {Promise<FigureAnswer>} */
export function figure(run, name, query, signal) {
  const text = name + queryText(query);
  const letters = encodeURIComponent(text).length;
  if (batches.length === 0) queueMicrotask(sendBatches);
  let batch = batches.find((one) => one.run === run && one.signal === signal && one.wanted.length < MOST && one.letters + letters <= MOST_LETTERS);
  if (!batch) batches.push((batch = { run, signal, letters: 0, wanted: [] }));
  batch.letters += letters;
  const { wanted } = batch;
  return new Promise((resolve, reject) => wanted.push({ text, resolve, reject }));
}

/** One that takes long: others do not wait for it. @param {string} run @param {string} name @param {Query} query @param {AbortSignal} [signal] @returns {Promise<FigureAnswer>} */
export const slowFigure = (run, name, query, signal) => get(`${runRoute(run)}/figures/${name}`, query, signal);

function sendBatches() {
  const sent = batches;
  batches = [];
  for (const { run, signal, wanted } of sent) {
    const [first, ...more] = wanted;
    if (more.length === 0) get(`${runRoute(run)}/figures/${first.text}`, {}, signal).then(first.resolve, first.reject);
    else severalFigures(run, wanted, signal).catch((error) => wanted.forEach(({ reject }) => reject(error)));
  }
}

/** Each is settled as its line comes. @param {string} run @param {readonly Wanted[]} wanted @param {AbortSignal} [signal] */
async function severalFigures(run, wanted, signal) {
  let left = wanted.length;
  const settle = (/** @type {{number: number, answer: FigureAnswer} | {number: number, status: number, refused: {code: string, error: string}}} */ line, /** @type {number} */ status) => {
    if (!wanted[line?.number]) throw unreadable(status);
    const { resolve, reject } = wanted[line.number];
    if ("answer" in line) resolve(line.answer);
    else reject(new ApiError(line.status, line.refused.code, line.refused.error));
    left -= 1;
  };
  await getLines(`${runRoute(run)}/figures`, { figure: wanted.map(({ text }) => text) }, settle, signal);
  if (left > 0) throw unreachable();
}
