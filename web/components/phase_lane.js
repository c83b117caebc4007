// What each step spent its time on, stacked to the step's own time.

import { layoutOf } from "../figure_drawing.js";
import { el } from "../dom.js";
import { rankList, seconds } from "../format.js";
import { points, readLines, valueAt } from "../lines_model.js";
import { UNKNOWN } from "../quantities.js";

/** @typedef {import("../lines_model.js").LinesModel} LinesModel */
/** @typedef {LinesModel & {phases: {place: number, series: import("../lines_model.js").Series}[], slowest: import("../lines_model.js").Series | null}} PhasesModel */

/** The phases in the order they are stacked, each with its colour of style.css. */
const NAMES = ["data wait", "forward", "backward", "exposed comm", "optimizer", "other"];
const SLOWEST = "slowest step";

/** @param {import("../types.js").FigureAnswer} answer @returns {PhasesModel} */
export function readPhases(answer) {
  const model = readLines(answer);
  const phases = NAMES.flatMap((name, place) => {
    const series = model.series.find((one) => one.name === name);
    return series ? [{ place, series }] : [];
  });
  return { ...model, phases, slowest: model.series.find((one) => one.name === SLOWEST) ?? null };
}

/** @param {PhasesModel} model @param {import("../figure_frame.js").Frame} frame @param {import("../theme.js").Palette} palette @returns {import("../figure_drawing.js").Drawing} */
function drawPhases({ phases, slowest }, frame, palette) {
  const areas = phases.map(({ place, series }) => ({
    type: "scatter",
    mode: "lines",
    x: series.x,
    y: series.y,
    stackgroup: "phases",
    line: { width: 0, color: palette.phases[place] },
    fillcolor: palette.phases[place],
    hoverinfo: "skip",
  }));
  const line = slowest ? [{ type: "scatter", mode: "lines", x: slowest.x, y: slowest.y, connectgaps: false, hoverinfo: "skip", line: { color: palette.muted, width: 1.2, dash: "dot" } }] : [];
  return { traces: [...areas, ...line], layout: layoutOf(frame, palette, { nticks: 4, ticksuffix: " ms", rangemode: "tozero" }) };
}

/** @param {PhasesModel} model @param {number} step */
function readout({ phases, meta }, step) {
  const parts = phases.map(({ place, series }) => {
    const value = valueAt(series, step, Math.max(1, meta.steps_per_column));
    return `${NAMES[place]} ${value === null ? UNKNOWN : value === 0 ? "0 ms" : seconds(value / 1000)}`;
  });
  return parts.join(", ") || UNKNOWN;
}

function legend() {
  const items = NAMES.map((name, place) => el("span", { class: "legend-item" }, el("span", { class: "swatch", "data-phase": place, "aria-hidden": "true" }), name));
  return el("div", { class: "legend lane-legend" }, ...items, el("span", { class: "legend-item" }, el("span", { class: "swatch is-line", "data-look": "limit", "aria-hidden": "true" }), "slowest rank and step"));
}

/** Who waits for its data loader more than a loader that keeps up would cost. @param {PhasesModel} model */
export function loaderNote({ meta }) {
  const bound = meta.loader_bound_ranks ?? [];
  if (!bound.length) return "";
  const who = rankList(bound);
  return `Bound by the data loader: ${who} ${bound.length === 1 ? "spends" : "spend"} a large part of each step waiting for data, and the others wait for ${bound.length === 1 ? "it" : "them"} in their collectives.`;
}

/** @type {import("./lane_specs.js").LaneSpec} */
export const PHASES = {
  name: "phases",
  title: "Step phases",
  unit: "ms",
  empty: "No phases were recorded of these steps.",
  plotHeight: () => 96,
  read: readPhases,
  isEmpty: (/** @type {PhasesModel} */ { phases }) => !phases.some(({ series }) => points(series).length),
  draw: drawPhases,
  readout,
  legend,
};
