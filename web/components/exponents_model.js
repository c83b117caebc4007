// A served figure of exponents, decoded: what each measured column holds, in words. Pure.

import { scale } from "../format.js";
import { decode } from "../typed_array.js";

/** @typedef {{step: number, low: number, median: number, high: number, zero: number, subnormal: number}} Measured exponents, NaN where all is zero; fractions, NaN where unknown */
/**
 * @typedef {object} ExponentsModel
 * @property {any} trace as served, or null
 * @property {Measured[]} measured by step
 * @property {{low: number, high: number}} span exponents that hold an element, `high` exclusive
 * @property {any} meta
 */

/** @param {import("../types.js").FigureAnswer} answer @returns {ExponentsModel} */
export function readExponents({ figure, meta }) {
  const trace = figure.data[0] ?? null;
  const served = /** @type {any} */ (meta).measured ?? {};
  const names = ["steps", "low", "median", "high", "zero_fraction", "subnormal_fraction"];
  const [steps, low, median, high, zero, subnormal] = names.map((name) => decode(served[name]));
  const measured = Array.from(steps, (step, i) => ({ step, low: low[i], median: median[i], high: high[i], zero: zero[i], subnormal: subnormal[i] }));
  return { trace, measured, span: spanOf(trace), meta };
}

/** @param {any} trace */
function spanOf(trace) {
  if (!trace) return { low: 0, high: 0 };
  const low = trace.y0 - 0.5;
  return { low, high: low + Number(String(trace.z.shape).split(",")[0]) };
}

/** The column drawn at a step: the last that was measured at or before it. @param {ExponentsModel} model @param {number} step @returns {Measured | null} */
export function measuredAt({ measured }, step) {
  return measured.findLast((one) => one.step <= step) ?? null;
}

/** 2⁻⁵, or none where all is zero. @param {number} exponent */
export const power = (exponent) => (Number.isFinite(exponent) ? scale(2 ** exponent) : "none");

/** A share as 0.02 %; under a hundredth of a percent only that it is there. @param {number} fraction */
export function percent(fraction) {
  if (!Number.isFinite(fraction)) return "not measured";
  if (fraction === 0) return "0 %";
  return fraction < 1e-4 ? "under 0.01 %" : `${Number((100 * fraction).toPrecision(3))} %`;
}

/** @param {Measured} one */
export function words({ low, median, high, zero, subnormal }) {
  const body = Number.isFinite(median) ? `median ${power(median)}, 98 % in ${power(low)} to ${power(high + 1)}` : "all zero";
  return `${body}, ${percent(subnormal)} subnormal, ${percent(zero)} zero`;
}
