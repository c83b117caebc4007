// One tensor's headroom over the ranks as a lane: least to most, 10 to 90 %, and the median.

import { channels } from "../colour_scale.js";
import { layoutOf, markTrace } from "../figure_drawing.js";
import { bits, plural } from "../format.js";
import { broken, points, readLines, valueAt } from "../lines_model.js";

/** @typedef {import("../lines_model.js").LinesModel} LinesModel */
/** @typedef {import("../lines_model.js").Series} Series */

const PLOT_HEIGHT = 120;
/** With fewer columns than this each has a dot as well: a lone point has no line. */
const FEW = 80;

/**
 * The outline of what lies between two lines, a closed shape for each stretch without a hole. Pure.
 * @param {Series} low @param {Series} high @param {number} stepsPerColumn
 */
export function band(low, high, stepsPerColumn) {
  const [below, above] = [broken(low, stepsPerColumn), broken(high, stepsPerColumn)];
  /** @type {{x: number[], y: number[]}} */
  const found = { x: [], y: [] };
  for (let from = 0, to; from < below.x.length; from = to + 1) {
    to = from;
    while (to < below.x.length && Number.isFinite(below.y[to])) to += 1;
    for (let at = from; at < to; at += 1) push(found, above.x[at], above.y[at]);
    for (let at = to - 1; at >= from; at -= 1) push(found, below.x[at], below.y[at]);
    push(found, NaN, NaN);
  }
  return found;
}

/** @param {{x: number[], y: number[]}} to @param {number} x @param {number} y */
function push(to, x, y) {
  to.x.push(x);
  to.y.push(y);
}

/** @param {LinesModel} model @param {import("../figure_frame.js").Frame} frame @param {import("../theme.js").Palette} palette @returns {import("../figure_drawing.js").Drawing} */
function drawing({ series, markSteps, meta }, frame, palette) {
  const [least, low, median, high, most] = series;
  const per = meta.steps_per_column;
  const filled = (/** @type {Series} */ from, /** @type {Series} */ to, /** @type {number} */ share) => ({
    type: "scatter", mode: "lines", ...band(from, to, per), fill: "toself", hoverinfo: "skip",
    fillcolor: `rgba(${channels(palette.accent).join(",")},${share})`, line: { width: 0 },
  });
  const line = (/** @type {Series} */ one, /** @type {string} */ colour, /** @type {number} */ width) => ({
    type: "scatter", mode: one.x.length < FEW ? "lines+markers" : "lines", x: broken(one, per).x, y: broken(one, per).y,
    connectgaps: false, hoverinfo: "skip", line: { color: colour, width }, marker: { color: colour, size: 3 },
  });
  const bands = [filled(least, most, 0.16), filled(low, high, 0.26)];
  const lines = [line(least, palette.bad, 1.2), line(median, palette.accent, 1.6)];
  return { traces: [...bands, ...lines, markTrace(markSteps, frame, palette)], layout: layoutOf(frame, palette, { nticks: 5, rangemode: "tozero" }) };
}

/** @param {LinesModel} model @param {number} step */
function readout({ series, markSteps, meta }, step) {
  const reach = Math.max(0.5, meta.steps_per_column / 2);
  const parts = series.flatMap((one) => {
    const value = valueAt(one, step, reach);
    return value === null ? [] : `${one.name} ${bits(value)}`;
  });
  if (markSteps.some((mark) => Math.abs(mark - step) <= reach)) parts.push("not finite on some rank");
  return parts.join(", ") || (meta.observed_ranks === 0 ? "not observed on any rank" : "not observed on any rank, or all zero");
}

/** What the lane is called: over how many ranks. @param {{ranks?: number, observed_ranks?: number}} meta */
export function percentileTitle({ ranks = 0, observed_ranks: observed = 0 }) {
  if (ranks <= 1) return "Headroom: the run has one rank, so there is no spread";
  return `Headroom over ${plural(ranks, "rank")}${observed < ranks ? `, observed on ${observed}` : ""}`;
}

/** @type {import("./lane_specs.js").LaneSpec} */
export const PERCENTILES = {
  name: "percentiles",
  title: "Headroom over ranks, bits",
  unit: "bits",
  empty: "This tensor was not observed on any rank in these steps, or was zero or not finite wherever it was.",
  plotHeight: () => PLOT_HEIGHT,
  read: readLines,
  isEmpty: (/** @type {LinesModel} */ { series }) => !series.some((one) => points(one).length),
  draw: drawing,
  readout,
};
