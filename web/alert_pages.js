// Alerts of a run as pages ask for them: page by page of a state, by number, and those that marks are made of.

import * as api from "./api.js";
import { MOST_ALERTS } from "./alert_marks.js";

/** @typedef {import("./types.js").Alert} Alert */
/** @typedef {import("./types.js").AlertList} AlertList */

/** Pages of standing alerts at most: a run has hardly ever more than one. */
const MOST_PAGES = 10;

/**
 * The first so many pages, newest first; `next` is not null where there are more.
 * @param {string} run @param {{state: "open" | "over" | "all", before?: number | null}} asked @param {number} pages @param {AbortSignal} [signal]
 * @returns {Promise<AlertList>}
 */
export async function alertPages(run, asked, pages, signal) {
  const found = await api.alerts(run, { ...asked, limit: MOST_ALERTS }, signal);
  if (found.next === null || pages <= 1) return found;
  const rest = await alertPages(run, { ...asked, before: found.next }, pages - 1, signal);
  return { ...rest, alerts: [...found.alerts, ...rest.alerts] };
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
