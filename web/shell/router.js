// Matches path patterns such as "/runs/{id}/layers", and finds the same page of another run.

import { formatState } from "../api/url_state.js";

/** @param {string} pattern @param {string} path @returns {Record<string, string> | null} */
export function matchPath(pattern, path) {
  const wanted = segments(pattern);
  const given = segments(path);
  if (wanted.length !== given.length) return null;
  /** @type {Record<string, string>} */
  const params = {};
  for (const [i, name] of wanted.entries()) {
    if (!isParameter(name)) {
      if (name !== given[i]) return null;
    } else {
      const value = decode(given[i]);
      if (value === null) return null;
      params[name.slice(1, -1)] = value;
    }
  }
  return params;
}

/** @param {string} pattern @param {Record<string, string>} params */
export function buildPath(pattern, params) {
  return pattern.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(params[name]));
}

/**
 * The first page whose pattern fits, with its parameters.
 * @template {{path: string}} P
 * @param {readonly P[]} pages @param {string} path @returns {{page: P, params: Record<string, string>} | null}
 */
export function findPage(pages, path) {
  for (const page of pages) {
    const params = matchPath(page.path, path);
    if (params) return { page, params };
  }
  return null;
}

/** @param {string} path */
const segments = (path) => path.split("/").filter(Boolean);

/** @param {string} segment */
const isParameter = (segment) => segment.startsWith("{") && segment.endsWith("}");

/** @param {string} text @returns {string | null} */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return null; // a stray % in a typed address
  }
}

// From one run's page to the same page of another: what of the view still makes sense there.

/** @typedef {import("../types.js").ViewState} ViewState */
/** @typedef {Pick<import("../types.js").RunSummary, "id" | "world_size" | "first_step" | "last_step">} OtherRun */

/** Tensors, cards, times and comparisons are of one run alone. @param {ViewState} state @param {OtherRun} run @returns {Partial<ViewState>} */
export function stateFor(state, run) {
  const carried = { ...state, tensor: null, step: null, key: "", from: null, to: null, against: "" };
  const rank = typeof state.rank === "number" && state.rank >= run.world_size ? null : state.rank;
  return { ...carried, rank, ...(hasSteps(state, run) ? {} : { start: null, stop: null }) };
}

/** Whether the other run has any of the steps. @param {ViewState} state @param {OtherRun} run */
function hasSteps({ start, stop }, { first_step: first, last_step: last }) {
  if (first === null || last === null) return false;
  return (start ?? first) <= last && (stop ?? last + 1) > first;
}

/** The address. @param {string} pattern of the page @param {ViewState} state @param {OtherRun} run */
export function switchedPath(pattern, state, run) {
  return buildPath(pattern, { id: String(run.id) }) + formatState(stateFor(state, run));
}
