// Questions that take several requests or whose answers are cached for a while: a run's alerts, a run's tensors.

import * as api from "./client.js";

/** @typedef {import("../types.js").Alert} Alert */
/** @typedef {import("../types.js").AlertList} AlertList */

/** Alerts of one answer: the newest of those asked for. */
const MOST_ALERTS = 200;
/** Pages of standing alerts at most: a run has hardly ever more than one. */
const MOST_PAGES = 10;

/**
 * The first so many pages, newest first; `next` is not null where there are more.
 * @param {string} run @param {{state: "open" | "over" | "all", before?: number | null}} asked @param {number} pages @param {AbortSignal} [signal]
 * @returns {Promise<AlertList>}
 */
export async function alertPages(run, asked, pages, signal) {
  const answer = await api.alerts(run, { ...asked, limit: MOST_ALERTS }, signal);
  if (answer.next === null || pages <= 1) return answer;
  const rest = await alertPages(run, { ...asked, before: answer.next }, pages - 1, signal);
  return { ...rest, alerts: [...answer.alerts, ...rest.alerts] };
}

/**
 * The alert of that number, if the run has it; by way of the list, so that another run's alert is not taken for it.
 * @param {string} run @param {string} key @param {AbortSignal} [signal] @returns {Promise<Alert | null>}
 */
export async function alertOf(run, key, signal) {
  if (!/^\d{1,15}$/.test(key)) return null;
  const { alerts } = await api.alerts(run, { state: "all", before: Number(key) + 1, limit: 1 }, signal);
  return alerts.find(({ id }) => id === Number(key)) ?? null;
}

/** What was asked for in a load of a page, which several parts of it show. @type {WeakMap<AbortSignal, {run: string, alerts: Promise<Alert[]>}>} */
const asked = new WeakMap();

/** The newest alerts, and older ones that still stand. A load of a page, which has one signal, asks once. @param {string} run @param {AbortSignal} signal */
export function notableAlerts(run, signal) {
  const known = asked.get(signal);
  if (known?.run === run) return known.alerts;
  const alerts = askNotable(run, signal);
  asked.set(signal, { run, alerts });
  return alerts;
}

/** @param {string} run @param {AbortSignal} signal */
async function askNotable(run, signal) {
  const newest = await alertPages(run, { state: "all" }, 1, signal);
  if (newest.next === null) return newest.alerts;
  const standing = await alertPages(run, { state: "open", before: newest.next }, MOST_PAGES, signal);
  return [...newest.alerts, ...standing.alerts];
}

// The tensors of a run, which hardly ever become more: the list is long, and is asked for again only now and then.

/** @typedef {import("../types.js").Tensor} Tensor */

/** Milliseconds. */
const KEEP_MS = 30_000;

/**
 * Gives all tensors in call order; at once anew where the wanted one is not among those that are known.
 * @param {string} run @returns {(wanted: number | null, signal?: AbortSignal) => Promise<Tensor[]>}
 */
export function createTensorList(run) {
  /** @type {Tensor[]} */
  let tensors = [];
  let untilMs = -Infinity;
  return async (wanted, signal) => {
    const isThere = wanted === null || tensors.some(({ tensor }) => tensor === wanted);
    if (isThere && performance.now() < untilMs) return tensors;
    tensors = (await api.tensors(run, {}, signal)).tensors;
    untilMs = performance.now() + KEEP_MS;
    return tensors;
  };
}
