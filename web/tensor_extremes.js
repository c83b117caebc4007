// The steps of a tensor worth opening: those that held a NaN or Inf, then the largest magnitudes. Pure.

import { valueAt } from "./lines_model.js";

/** @typedef {{step: number, amax: number | null, amin: number | null, headroom: number | null, nonfinite: boolean}} Extreme */

/** @param {import("./lines_model.js").LinesModel} model @param {number} limit @returns {Extreme[]} */
export function extremes({ series: [amax, amin, nonfinite], meta }, limit) {
  const reach = meta.steps_per_column / 2;
  const bad = new Set(nonfinite ? Array.from(nonfinite.x) : []);
  const at = (/** @type {number} */ step) => {
    const largest = valueAt(amax, step, reach);
    return { step, amax: largest, amin: valueAt(amin, step, reach), headroom: headroomOf(largest, meta.limits?.max_finite), nonfinite: bad.has(step) };
  };
  const finite = Array.from(amax.x, at).filter((one) => !one.nonfinite && one.amax !== null);
  finite.sort((a, b) => Number(b.amax) - Number(a.amax) || a.step - b.step);
  return [...[...bad].sort((a, b) => a - b).map(at), ...finite].slice(0, limit);
}

/** @param {number | null} amax @param {number | undefined} maxFinite */
function headroomOf(amax, maxFinite) {
  return amax && maxFinite ? Math.log2(maxFinite / amax) : null;
}
