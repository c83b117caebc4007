// What the places along a figure's axis are: steps, or times of the clock. Pure.

import { clockText, isOverMidnight, zoneName } from "./clock_ticks.js";
import { steps } from "./format.js";

/** @typedef {import("./types.js").StepRange} StepRange */
/**
 * @typedef {object} FigureAxis
 * @property {string} title
 * @property {string} label the title as it stands along an axis: of times with their zone
 * @property {readonly string[]} names columns of a file that say where a value stands
 * @property {boolean} isText whether those hold text
 * @property {(place: number, per: number) => (string | number)[]} cells their values, for a place where `per` of its units are merged
 * @property {(place: number, per: number) => string} say the same to a reader
 * @property {(range: StepRange) => string} span
 */

/** Merged columns are aligned to step 0. @param {number} place @param {number} per @returns {StepRange} */
function merged(place, per) {
  const start = per > 1 ? Math.floor(place / per) * per : Math.max(0, Math.round(place));
  return { start, stop: start + Math.max(1, per) };
}

/** @type {FigureAxis} */
export const STEPS = {
  title: "step",
  label: "step",
  names: ["first_step", "last_step"],
  isText: false,
  cells(place, per) {
    const { start, stop } = merged(place, per);
    return [start, stop - 1];
  },
  say: (place, per) => steps(merged(place, per)),
  span: steps,
};

/** @param {number} originNs Unix time of second 0 @param {boolean} [isDated] whether times are of more than one day @returns {FigureAxis} */
export function clockAxis(originNs, isDated = false) {
  const iso = (/** @type {number} */ second) => new Date(originNs / 1e6 + second * 1e3).toISOString();
  return {
    title: "time",
    label: `time, ${zoneName(0, originNs)}`,
    names: ["time_utc"],
    isText: true,
    cells: (second) => [iso(second)],
    say: (second) => `${clockText(second, originNs, 1, isDated)} ${zoneName(second, originNs)}`,
    span({ start, stop }) {
      const isOver = isOverMidnight({ start, stop }, originNs);
      return `${clockText(start, originNs, 1, isOver)} to ${clockText(stop - 1, originNs, 1, isOver)} ${zoneName(stop - 1, originNs)}`;
    },
  };
}
