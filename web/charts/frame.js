// The frame that all lanes share: the same margins, so the same step is at the same pixel everywhere. Pure.

/** @typedef {import("../types.js").StepRange} StepRange */
/**
 * @typedef {object} Frame Sizes in pixels; the plot is what lies within the margins, under the band of marks.
 * @property {number} width
 * @property {number} height
 * @property {{l: number, r: number, t: number, b: number}} margin
 * @property {number} plotWidth
 * @property {number} plotHeight
 * @property {number} band
 * @property {StepRange} range
 */

/** Room above each plot for the marks of non-finite steps. */
const BAND = 10;
/** A phone has no room for whole names. */
const NARROW = 640;

/** Room for names at the left: a share of the width, within bounds. Pixels. @param {number} width */
const nameRoom = (width) => (width < NARROW ? 84 : Math.round(Math.min(260, Math.max(172, width * 0.16))));

/**
 * @param {number} width @param {number} plotHeight @param {StepRange} range
 * @param {number} [left] margin of a figure that shares its edges with no other
 * @returns {Frame}
 */
export function frameOf(width, plotHeight, range, left = nameRoom(width)) {
  const margin = { l: left, r: 12, t: 2, b: 22 };
  return {
    width,
    height: plotHeight + BAND + margin.t + margin.b,
    margin,
    plotWidth: Math.max(40, Math.floor(width - margin.l - margin.r)),
    plotHeight,
    band: BAND,
    range,
  };
}

/** The axis: each step is as wide as its cell, so the edges are half a step out. @param {StepRange} range @returns {[number, number]} */
export const axisRange = ({ start, stop }) => [start - 0.5, stop - 0.5];

/** Where a step is drawn, in pixels from the figure's left edge. @param {number} step @param {Frame} frame */
export function pixelOf(step, frame) {
  const [low, high] = axisRange(frame.range);
  return frame.margin.l + ((step - low) / (high - low)) * frame.plotWidth;
}

/** The step under a pixel, or null beside the plot. @param {number} x @param {Frame} frame */
export function stepAt(x, frame) {
  const across = (x - frame.margin.l) / frame.plotWidth;
  if (across < 0 || across > 1) return null;
  const { start, stop } = frame.range;
  return Math.min(stop - 1, start + Math.floor(across * (stop - start)));
}

/** The row under a pixel, or null. @param {number} y @param {Frame} frame @param {number} rows */
export function rowAt(y, frame, rows) {
  const down = (y - frame.margin.t - frame.band) / frame.plotHeight;
  return down < 0 || down >= 1 || rows === 0 ? null : Math.floor(down * rows);
}

/** Whole steps of a dragged axis range, never fewer than two. @param {number} low @param {number} high @returns {StepRange} */
export function draggedRange(low, high) {
  const start = Math.max(0, Math.ceil(Math.min(low, high)));
  return { start, stop: Math.max(start + 2, Math.floor(Math.max(low, high)) + 1) };
}
