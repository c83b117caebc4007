// From one run's page to the same page of another: what of the view still makes sense there. Pure.

import { buildPath } from "./router.js";
import { formatState } from "./url_state.js";

/** @typedef {import("./types.js").ViewState} ViewState */
/** @typedef {Pick<import("./types.js").RunSummary, "id" | "world_size" | "first_step" | "last_step">} OtherRun */

/** Tensors, cards, times and comparisons are of one run alone. @param {ViewState} state @param {OtherRun} run @returns {Partial<ViewState>} */
export function stateFor(state, run) {
  const kept = { ...state, tensor: null, step: null, key: "", from: null, to: null, against: "" };
  const rank = typeof state.rank === "number" && state.rank >= run.world_size ? null : state.rank;
  return { ...kept, rank, ...(hasSteps(state, run) ? {} : { start: null, stop: null }) };
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
