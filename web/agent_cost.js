// The agent's own time, from the series that it sends: as lines in milliseconds, and as its share of a step. Pure.

import { decode } from "./typed_array.js";

/** @typedef {import("./types.js").FigureAnswer} FigureAnswer */

/** Series -> what it is called. The host's time holds up the training thread, the device's its stream. */
export const COSTS = { agent_time_s: "host, ms", agent_device_time_s: "device, ms" };

/** @param {FigureAnswer | null} answer of one series @returns {{x: number[], y: number[]}} */
function pointsOf(answer) {
  const trace = answer?.figure.data[0] ?? {};
  return { x: Array.from(decode(trace.x)), y: Array.from(decode(trace.y)) };
}

/** One figure of several series, in milliseconds. @param {(FigureAnswer | null)[]} answers in the order of `COSTS`, null where a series was never sent @returns {FigureAnswer} */
export function costAnswer(answers) {
  const first = /** @type {FigureAnswer} */ (answers.find((answer) => answer !== null));
  const data = Object.values(COSTS).map((name, i) => {
    const { x, y } = pointsOf(answers[i]);
    return { type: "scatter", mode: "lines", name, x, y: y.map((s) => s * 1000) };
  });
  return { figure: { data, layout: {} }, meta: { ...first.meta, nonfinite_steps: [] } };
}

/**
 * Of the steps that were measured: the median time of the agent, and of its share of the step; null where none was.
 * @param {FigureAnswer | null} cost @param {FigureAnswer | null} whole the steps' own time; both of single steps
 * @returns {{time_s: number, share: number | null, steps: number} | null}
 */
export function usualCost(cost, whole) {
  const spent = pointsOf(cost);
  if (!spent.x.length) return null;
  const took = pointsOf(whole);
  const stepTime = new Map(took.x.map((step, i) => [step, took.y[i]]));
  const shares = spent.x.flatMap((step, i) => {
    const all = stepTime.get(step);
    return all ? [spent.y[i] / all] : [];
  });
  return { time_s: median(spent.y), share: shares.length ? median(shares) : null, steps: spent.x.length };
}

/** @param {number[]} values at least one */
function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}
